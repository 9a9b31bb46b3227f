"""Models of LightGBM, XGBoost, scikit-learn, PyTorch and Spark ML, and models that were trained elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_hops.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from airflow_hops.extensions.frameworks.ml import scikit_learn
    from airflow_hops.extensions.frameworks.ml.onnx_converters import Graph, OnnxFramework
    from airflow_hops.extensions.frameworks.operators import ImportModelOperator

__all__ = [
    "Graph",
    "ImportModelOperator",
    "OnnxFramework",
    "scikit_learn",
]

__getattr__ = lazy_names(
    __name__,
    {
        ".ml": "scikit_learn",
        ".ml.onnx_converters": "Graph OnnxFramework",
        ".operators": "ImportModelOperator",
    },
)

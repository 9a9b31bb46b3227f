"""Explanations: what a model looks at, and the reasons of its predictions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_hops.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from airflow_hops.extensions.explain.operators import (
        ExplainOperator,
        ReasonsOperator,
        ShapleyOperator,
    )

__all__ = [
    "ExplainOperator",
    "ReasonsOperator",
    "ShapleyOperator",
]

__getattr__ = lazy_names(
    __name__,
    {
        ".operators": "ExplainOperator ReasonsOperator ShapleyOperator",
    },
)

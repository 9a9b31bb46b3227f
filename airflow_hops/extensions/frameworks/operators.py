"""Operator that imports a model trained elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_hops.operators.base import HopsOperator
from airflow_hops.operators.links import LINEAGE_LINK
from airflow_hops.runner.arguments import Count


class ImportModelOperator(HopsOperator):
    """Turns a model that was trained elsewhere into a ``model`` artifact, and checks that it predicts the examples.

    Evaluation, canary and monitoring treat it like any other model. Pickles are refused, as is a model that answers a
    row otherwise alone, among other rows, or when it is asked again.

    Args:
        source: A folder or file with a SavedModel, an ONNX graph or a skops estimator (an absolute path, or any URI
            that fsspec opens), or a model in MLflow: ``models:/name/3``, ``runs:/id/model``. (templated)
        examples: The output of ``PrepareOperator``: the label, its classes, and rows to predict. (templated)
        statistics: The ``statistics`` artifact of the training data or the examples, which monitors compare requests
            with. (templated)
        schema: Their ``schema`` artifact. (templated)
        features: For a model whose only input is a matrix, the columns of the examples in the order of the matrix.
        prediction: The output of an ONNX graph that is the prediction; None for the only float output.
        framework: The framework that trained it, for the record; None infers it from the files.
        split: Split of the rows to predict; None for the last. (templated)
        rows: Maximum number of rows to predict.
        **kwargs: As :class:`~airflow_hops.operators.base.HopsOperator`.
    """

    entry = "airflow_hops.extensions.frameworks.ml.import_model:run"
    output_kind = "model"
    param_arguments = ("source", "features", "prediction", "framework", "split", "rows")
    input_arguments = ("examples", "statistics", "schema")
    template_fields: Sequence[str] = (*HopsOperator.template_fields, *input_arguments, "source", "split")
    operator_extra_links = (LINEAGE_LINK,)
    cacheable = False  # the same name may later refer to another model

    def __init__(
        self,
        *,
        source: str,
        examples: Any,
        statistics: Any = None,
        schema: Any = None,
        features: Sequence[str] | None = None,
        prediction: str | None = None,
        framework: str | None = None,
        split: str | None = None,
        rows: Count = 1000,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.source = source
        self.examples = examples
        self.statistics = statistics
        self.schema = schema
        self.features = features
        self.prediction = prediction
        self.framework = framework
        self.split = split
        self.rows = rows
        self.check_arguments(ImportModelOperator)

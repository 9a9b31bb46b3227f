"""Imports a model that was trained elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_hops.operators.base import HopsOperator
from airflow_hops.operators.links import LineageLink

if TYPE_CHECKING:
    from airflow.sdk import Context


class ImportModelOperator(HopsOperator):
    """Makes a ``model`` artifact of a model that was trained elsewhere, once it has predicted rows of the examples.

    What comes after it, evaluation, canary and monitoring, need not know who trained it. A pickle is refused.

    Args:
        source: A folder with a SavedModel, an ONNX graph or an estimator of skops (an absolute path, or any URI that
            fsspec opens), or a model of MLflow: ``models:/name/3``, ``runs:/id/model`` (templated).
        examples: The output of ``PrepareOperator``: what the model predicts, and rows that it is asked for (templated).
        statistics: The ``statistics`` artifact of what it was trained on, or of the examples, which monitors compare
            requests with (templated).
        schema: Their ``schema`` artifact (templated).
        features: Of a model whose only input is a matrix, the columns of the examples that stand in it, in their order.
        prediction: The output of an ONNX graph that is the prediction; None for the only one of floats.
        framework: What it was trained with, for the record; None for what its files tell.
        split: Split whose rows it is asked for; None for the last (templated).
        rows: How many rows it is asked for, at most.
        **kwargs: As :class:`~airflow_hops.operators.base.HopsOperator`.
    """

    entry = "airflow_hops.runtime.import_model:run"
    output_kind = "model"
    operator_extra_links = (LineageLink(),)
    cacheable = False  # the same name may lead to another model tomorrow
    template_fields: Sequence[str] = (
        *HopsOperator.template_fields,
        "source",
        "examples",
        "statistics",
        "schema",
        "split",
    )

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
        rows: int = 1000,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.source = source
        self.examples = examples
        self.statistics = statistics
        self.schema = schema
        self.features = None if features is None else list(features)
        self.prediction = prediction
        self.framework = framework
        self.split = split
        self.rows = rows

    def step_inputs(self) -> Mapping[str, Any]:
        """The examples, and what is known of the training data."""
        return {"examples": self.examples, "statistics": self.statistics, "schema": self.schema}

    def step_params(self, context: Context) -> dict[str, Any]:
        """Where the model is, and how it is asked."""
        return {
            "source": self.source,
            "features": self.features,
            "prediction": self.prediction,
            "framework": self.framework,
            "split": self.split,
            "rows": self.rows,
        }

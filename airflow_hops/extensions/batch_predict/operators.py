"""Operator that predicts for whole examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from airflow_hops.operators.links import DATA_LINK, LINEAGE_LINK
from airflow_hops.operators.spark import SparkOperator
from airflow_hops.operators.trained_or_deployed import TrainedOrDeployedOperator
from airflow_hops.runner.arguments import Count, ModelName, Version


class BatchPredictOperator(TrainedOrDeployedOperator, SparkOperator):
    """Predicts for every row of ``examples`` with a model that takes raw features, here or on Spark.

    The artifact ``predictions`` holds ``<split>/*.parquet``: the requested columns and a column for each output.

    Example::

        from airflow_hops.extensions.batch_predict import BatchPredictOperator

        BatchPredictOperator(task_id="predict", examples=examples.output, model_name="flights")

    Args:
        examples: Output of ``PrepareOperator``, or other examples with a column for each input. (templated)
        model: Output of the training task. (templated)
        model_name: Instead of ``model``: name of a deployed model. (templated)
        version: Its version: ``champion``, ``challenger``, or the number of one that serves or has served. (templated)
        signature: The signature to run; its inputs are columns, of shape ``[batch]`` or ``[batch, width]``.
        splits: Splits to predict for; None for all. (templated)
        columns: Columns of the examples to write beside the predictions; None for the key, if any. (templated)
        batch_rows: Rows to predict at once; None for 8,192, or 256 if a column holds bytes.
        **kwargs: As :class:`~airflow_hops.operators.spark.SparkOperator`.
    """

    entry = "airflow_hops.extensions.batch_predict.ml.stage:run"
    output_kind = "predictions"
    param_arguments = ("model_name", "version", "signature", "splits", "columns", "batch_rows")
    input_arguments = ("examples", "model")
    template_fields: Sequence[str] = (
        *SparkOperator.template_fields, *input_arguments, "model_name", "version", "splits", "columns"
    )  # fmt: skip
    operator_extra_links = (DATA_LINK, LINEAGE_LINK)

    def __init__(
        self,
        *,
        examples: Any,
        model: Any = None,
        model_name: ModelName | None = None,
        version: Literal["champion", "challenger"] | Version = "champion",
        signature: str = "serving_default",
        splits: Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
        batch_rows: Count | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.examples = examples
        self.model = model
        self.model_name = model_name
        self.version = version
        self.signature = signature
        self.splits = splits
        self.columns = columns
        self.batch_rows = batch_rows
        self.check_arguments(BatchPredictOperator)
        self._check_model()

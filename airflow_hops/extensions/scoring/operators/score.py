"""Operator that scores whole examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from airflow_hops.operators.links import DATA_LINK, LINEAGE_LINK
from airflow_hops.operators.spark import SparkOperator
from airflow_hops.operators.trained_or_deployed import TrainedOrDeployedOperator
from airflow_hops.runner.arguments import Count, ModelName, Version


class ScoreOperator(TrainedOrDeployedOperator, SparkOperator):
    """Scores every row of ``examples`` with a model that takes raw features, here or on Spark.

    The artifact ``predictions`` holds ``<split>/*.parquet``: the requested columns and a column for each output.

    With ``model_name`` alone, the versions that serve score the rows: the champion, and a canary its share of the keys,
    by a hash, so that a key stays with one version. A column ``version`` tells which. Their inputs and answers are
    captured as a model server captures requests, for monitors and rollouts. A second run of a window replaces them.

    Example::

        from airflow_hops.extensions.scoring import ScoreOperator

        ScoreOperator(task_id="score", examples=examples.output, model_name="flights")

    Args:
        examples: Output of ``PrepareOperator``, or other examples with a column for each input. (templated)
        model: Output of the training task. (templated)
        model_name: Instead of ``model``: name of a deployed model. (templated)
        version: With ``model_name``: one version, whose answers are not captured: ``champion``, ``challenger``, or the
            number of one that serves or has served. None for those that serve. (templated)
        shadow: Whether a canary scores all rows beside the champion, whose scores are the result; the canary's are only
            captured.
        signature: The signature to run; its inputs are columns, of shape ``[batch]`` or ``[batch, width]``.
        splits: Splits to predict for; None for all. (templated)
        columns: Columns of the examples to write beside the predictions; None for the key, if any. (templated)
        batch_rows: Rows to predict at once; None for 8,192, or 256 if a column holds bytes.
        **kwargs: As :class:`~airflow_hops.operators.spark.SparkOperator`.
    """

    entry = "airflow_hops.extensions.scoring.ml.stage:run"
    output_kind = "predictions"
    param_arguments = ("model_name", "version", "shadow", "signature", "splits", "columns", "batch_rows")
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
        version: Literal["champion", "challenger"] | Version | None = None,
        shadow: bool = False,
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
        self.shadow = shadow
        self.signature = signature
        self.splits = splits
        self.columns = columns
        self.batch_rows = batch_rows
        self.check_arguments(ScoreOperator)
        self._check_model()

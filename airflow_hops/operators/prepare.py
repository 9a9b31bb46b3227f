"""Operator that prepares labelled examples from a snapshot with the user's code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_hops.core.artifacts.target import Problem
from airflow_hops.core.errors import BadInput
from airflow_hops.core.prepare.engines import prepare_engine
from airflow_hops.core.prepare.options import PrepareOptions
from airflow_hops.operators.links import DATA_LINK, LINEAGE_LINK
from airflow_hops.operators.spark import SparkOperator
from airflow_hops.runner.arguments import FunctionName, Share

if TYPE_CHECKING:
    from airflow.sdk import Context


class PrepareOperator(SparkOperator):
    """Turns the raw tables of a ``snapshot`` into labelled ``examples``, on DuckDB or Spark.

    Your function is ``prepare(connection, tables)`` with DuckDB relations by table name, or, with ``engine="spark"``,
    ``prepare(spark, tables)`` with DataFrames. It returns one relation or anything that exports an Arrow stream, or one
    DataFrame, with the label, the features and, if the data has them, the key and the time, with one row
    for each row of the main table. A row whose column ``reject_reason`` is not null is rejected for that reason.

    Example::

        examples = PrepareOperator(
            task_id="prepare",
            prepare="flights.prepare:prepare",
            tables=raw.output,
            engine="spark",
            label="late",
            key="flight_id",
            time="scheduled_at",
            newest=timedelta(days=14),
        )

    Args:
        prepare: ``module:function``, beside the DAG file. (templated)
        tables: The snapshot: the output of ``IngestOperator``. (templated)
        engine: ``duckdb`` or ``spark``, or an engine that a distribution adds.
        label: Column of the label: a string, an integer, a float or a boolean. None for rows that are only scored: they
            are in one split, ``rows``.
        key: Column that identifies an example. Its hash assigns the row to the split ``train`` or ``eval``, so a row
            never changes splits. If None, the hash of the features is used, and rows may be equal.
        time: Column of the time of the prediction: a timestamp, a date, or seconds since the epoch. None if the data
            has no time.
        eval_percent: Share of the keys in the split ``eval``, 0 to 99.
        newest: Length of the window at the end of the data (a number is in days) whose rows go to the split ``newest``,
            which is never trained on. The data ends with the snapshot's window or, without a window, with the last row.
            None for no such split. Requires ``time``.
        table: The main table, each row of which becomes one example; by default the snapshot's first table.
        reject: Conditions, in the engine's SQL, over the columns of ``prepare`` by reason:
            ``{"no plane": "seats IS NULL"}`` rejects the rows for which the condition holds.
        max_rejected: Share of the main table's rows, 0 to 1, that a single reason may reject; more fail the task.
        problem: ``binary`` (two classes, the second of which is positive), ``multiclass``, or ``regression``. None
            infers it from the label's values: 0 and 1, booleans and two strings are binary, 3 to 100 strings are
            multiclass, numbers that are not all whole are a regression. Other integers are ambiguous and fail the
            task.
        classes: The label's values in the order of their numbers; rows with other values are rejected. None for the
            values in the rows, sorted.
        weight: Column that weights the rows in training, with numbers above 0; None for equal weights.
        more_labels: Columns of further labels that the same model predicts. Each has a problem, the label's values in
            the order of their numbers, or None to infer it:
            ``{"minutes": "regression", "cause": ["weather", "carrier"]}``. Only ``label`` decides about models.
        **kwargs: As :class:`~airflow_hops.operators.spark.SparkOperator`. Engines other than Spark run where other
            steps do, and refuse ``conf``.
    """

    entry = "airflow_hops.ml.prepare:run"
    functions: ClassVar[Mapping[str, int]] = {"prepare": 2}
    output_kind: ClassVar[str | None] = "examples"
    input_arguments = ("tables",)
    template_fields: Sequence[str] = (*SparkOperator.template_fields, "tables", "prepare")
    operator_extra_links = (DATA_LINK, LINEAGE_LINK)

    def __init__(
        self,
        *,
        prepare: FunctionName,
        tables: Any,
        engine: str = "duckdb",
        label: str | None,
        key: str | None = None,
        time: str | None = None,
        eval_percent: int = 20,
        newest: timedelta | float | None = None,
        table: str | None = None,
        reject: Mapping[str, str] | None = None,
        max_rejected: Share = 0.1,
        problem: Problem | None = None,
        classes: Sequence[str | int] | None = None,
        weight: str | None = None,
        more_labels: Mapping[str, Problem | Sequence[str | int] | None] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.prepare = prepare
        self.tables = tables
        self.engine = engine
        self.key = key
        self.time = time
        self.eval_percent = eval_percent
        self.newest = newest
        self.table = table
        self.reject = reject
        self.max_rejected = max_rejected
        self.problem = problem
        self.classes = classes
        self.weight = weight
        self.more_labels = more_labels
        self.check_arguments(PrepareOperator, label=label)
        if label == "":
            raise BadInput("label is empty; expected the name of its column, or None for rows that are only scored")
        # Airflow's operators already have a ``label``, which the UI shows.
        self.label_column = label
        self._options()
        if not self.uses_spark and "conf" in kwargs:
            raise BadInput(f"conf is {kwargs['conf']!r}, but engine {engine!r} does not use Spark; leave it out")

    @property
    def uses_spark(self) -> bool:
        """Returns whether the step runs where the Spark connection says."""
        return prepare_engine(self.engine).uses_spark

    def step_params(self, context: Context) -> dict[str, Any]:
        """Returns the options of the preparation."""
        return self._options().to_dict()

    def _options(self) -> PrepareOptions:
        newest = self.newest if isinstance(self.newest, timedelta | None) else timedelta(days=self.newest)
        return PrepareOptions.of(
            self,
            label=self.label_column or "",
            newest_s=newest.total_seconds() if newest else None,
            reject=self.reject or {},
            more_labels=self.more_labels or {},
        )

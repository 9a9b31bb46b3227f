"""Spark engine: executors read the parts of a source, or the rows of a table, and merge their accumulators as a tree.

Combiners and readers of files are those of the local engine. Executors return errors in the data as values for the
driver to act on, since Spark would retry a task that raises, in vain. The driver holds only the final accumulator.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.core.processes.periodic import calling_periodically
from airflow_hops.ml.spark.context import as_spark_failure, let_workers_import
from airflow_hops.ml.statistics.formats.feature_types import check_type
from airflow_hops.ml.statistics.formats.layout import bounded
from airflow_hops.ml.statistics.row_keys import Keys, numbered_on, split_keys
from airflow_hops.ml.statistics.sources import BatchPlan, Plan, TypesDoNotFit, share_out

if TYPE_CHECKING:
    from airflow_hops.ml.statistics.combiners import Accumulator, Combiners

TABLE = "spark://"
_FAN_IN = 8
_TASKS_PER_CORE = 4
_SMALL_TASK_BYTES = 2 << 20
_LARGE_TASK_BYTES = 128 << 20
_POLL_S = 0.5
_COLUMN = "outcome"

Progress = Callable[[float], None]


@dataclass(frozen=True)
class FramePlan:
    """Plan for a Spark DataFrame; ``skipped`` is always empty, since a table has no files."""

    frame: Any
    name: str
    types: Mapping[str, pa.DataType]
    skipped: Mapping[str, str] = field(default_factory=dict)

    def select(self, columns: Collection[str]) -> FramePlan:
        """Restricts the plan to some of its columns."""
        return replace(self, types={name: kind for name, kind in self.types.items() if name in columns})


def is_table(source: Any) -> bool:
    """Returns whether a source is a Spark DataFrame, or the name of a table: ``spark://database.table``."""
    if isinstance(source, str):
        return source.startswith(TABLE)
    return type(source).__module__.startswith("pyspark.sql") and hasattr(source, "mapInArrow")


def plan_table(source: Any, *, exclude: Collection[str] = (), columns: Collection[str] | None = None) -> FramePlan:
    """Plans the reading of a DataFrame or a table (:func:`is_table`), by default of all columns.

    Raises:
        BadInput: the table does not exist, has two columns of the same name, or a column's type has no statistics.
    """
    from pyspark.errors import AnalysisException, ParseException
    from pyspark.sql.pandas.types import to_arrow_type

    frame, name = source, "the DataFrame"
    if isinstance(source, str):
        try:
            frame, name = _session().table(source.removeprefix(TABLE)), source
        except (AnalysisException, ParseException) as error:
            raise BadInput(f"{source}: {str(error).splitlines()[0]}") from error
    result = frame.columns
    if twice := sorted({column for column in result if result.count(column) > 1}):
        raise BadInput(f"{name}: two columns are called {twice[0]!r}; rename or drop one of them")
    retained = [column for column in result if column not in exclude and (columns is None or column in columns)]
    if not retained:
        raise BadInput(f"{name}: no column is left to read; expected at least one")
    types: dict[str, pa.DataType] = {}
    for column in retained:
        try:
            types[column] = to_arrow_type(frame.schema[column].dataType)
        except TypeError as error:
            raise BadInput(f"{name}: column {column!r}: {error}") from error
        check_type(column, types[column], name)
    return FramePlan(frame, name, types)


def accumulate(plan: Plan | FramePlan, combiners: Combiners, *, progress: Progress | None = None) -> Accumulator:
    """Adds all rows of a source to an accumulator, in the active Spark session or a new one.

    Args:
        plan: The plan. Executors must see its files under the same paths, and have this package.
        combiners: The combiners. Slicing functions and generators are sent to executors, which must have the modules
            that these import.
        progress: Called with the completed share of the tasks, 0 to 1.

    Raises:
        BadInput: a part cannot be read, or a column's type has no statistics.
        TypesDoNotFit: values do not fit inferred types; combines the misfits of all tasks.
        HopsError: Spark failed.
    """
    if isinstance(plan, BatchPlan):
        raise BadInput("source is a stream of record batches, which only engine='local' reads; give a pyarrow.Table")
    outcome = _run(plan, combiners, progress or (lambda share: None))
    misfits = [failure for failure in outcome.failures if isinstance(failure, TypesDoNotFit)]
    for failure in outcome.failures:
        if failure not in misfits:
            raise failure
    if misfits:
        # Combines the misfits of all tasks, so that the data is read only once more.
        types = {name: kind for misfit in misfits for name, kind in misfit.types.items()}
        raise TypesDoNotFit(misfits[0].file, types, misfits[0].why)
    return outcome.accumulator if outcome.accumulator is not None else combiners.create()


@dataclass
class _Outcome:
    """Outcome of a task: an accumulator, or errors in the data."""

    accumulator: Accumulator | None = None
    failures: tuple[Exception, ...] = ()


class _Job:
    """Common input of all tasks, broadcast once and unpacked once per task."""

    def __init__(self, context: Any, plan: Plan | None, combiners: Combiners) -> None:
        from pyspark import cloudpickle

        self._packed = context.broadcast(cloudpickle.dumps((plan, combiners)))
        self.done = context.accumulator(0)

    def unpack(self) -> tuple[Any, Combiners]:
        """Returns the plan and the combiners."""
        plan, combiners = pickle.loads(self._packed.value)
        return plan, combiners

    def release(self) -> None:
        self._packed.destroy()


def _run(plan: Plan | FramePlan, combiners: Combiners, progress: Progress) -> _Outcome:
    """Runs one Spark job, from the rows to a single outcome."""
    from pyspark.sql import functions

    with as_spark_failure():
        if isinstance(plan, FramePlan):
            context = plan.frame.sparkSession.sparkContext
            job = _Job(context, None, combiners)
            # Columns get numbers as names, as mapInArrow would look for "a.b" in a struct "a".
            quoted = ("`{}`".format(column.replace("`", "``")) for column in plan.types)
            numbered = plan.frame.select(*(functions.col(name).alias(f"c{i}") for i, name in enumerate(quoted)))
            packed = numbered.mapInArrow(partial(_accumulate_rows, job, list(plan.types)), f"{_COLUMN} binary")
            outcomes = packed.rdd.map(lambda row: bytes(row[0]))
        else:
            context = _session().sparkContext
            job = _Job(context, plan, combiners)
            parts = plan.dealt(context.defaultParallelism)
            # Tasks large enough to be worth starting, enough for all cores and those that Spark may add later.
            size, most = sum(part.size for part in parts), _TASKS_PER_CORE * context.defaultParallelism
            tasks = max(1, min(len(parts), most, size // _SMALL_TASK_BYTES), size // _LARGE_TASK_BYTES)
            shares = share_out(parts, tasks)
            outcomes = context.parallelize(shares, len(shares)).map(partial(_accumulate_share, job))
        tasks = outcomes.getNumPartitions()
        merged = _merge_tree(outcomes, job)
        try:
            report = partial(_report, job.done, tasks, progress)
            with calling_periodically(report, _POLL_S):
                last = merged.collect()
            progress(1.0)
        finally:
            job.release()
    return pickle.loads(last[0]) if last else _Outcome()


def _merge_tree(outcomes: Any, job: _Job) -> Any:
    """Merges eight partitions into one, level by level, until one is left."""
    while (partitions := outcomes.getNumPartitions()) > 1:
        numbered = outcomes.mapPartitionsWithIndex(_numbered)
        merged = numbered.partitionBy(-(-partitions // _FAN_IN), int).values()
        outcomes = merged.mapPartitions(partial(_merge, job))
    return outcomes


def _numbered(index: int, outcomes: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    return ((index // _FAN_IN, outcome) for outcome in outcomes)


def _merge(job: _Job, outcomes: Iterable[bytes]) -> Iterator[bytes]:
    _, combiners = job.unpack()
    merged = _Outcome()
    for packed in outcomes:
        outcome: _Outcome = pickle.loads(packed)
        merged.failures += outcome.failures
        if merged.failures:
            merged.accumulator = None
        elif merged.accumulator is None:
            merged.accumulator = outcome.accumulator
        elif outcome.accumulator is not None:
            try:
                merged.accumulator = combiners.merge([merged.accumulator, outcome.accumulator])
            except BadInput as error:
                merged = _Outcome(failures=(error,))
    if merged.accumulator is not None:
        combiners.settle(merged.accumulator)
    yield _packed(merged)


def _accumulate_share(job: _Job, parts: Sequence[Any]) -> bytes:
    """Runs a task over some of the parts of a plan."""
    plan, combiners = job.unpack()
    return _accumulate(job, combiners, chain.from_iterable(map(plan.read_with_keys, parts)))


def _accumulate_rows(job: _Job, names: list[str], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs a task over a partition of a DataFrame."""
    from pyspark import TaskContext

    _, combiners = job.unpack()
    named = (pa.RecordBatch.from_arrays(batch.columns, names) for batch in batches)
    # A table's rows are numbered within their partition, as they have no other order.
    rows = numbered_on(bounded(named), TaskContext.get().partitionId())
    outcome = _accumulate(job, combiners, map(split_keys, rows))
    yield pa.RecordBatch.from_arrays([pa.array([outcome], pa.binary())], [_COLUMN])


def _accumulate(job: _Job, combiners: Combiners, batches: Iterable[tuple[pa.RecordBatch, Keys]]) -> bytes:
    # Each task has one core.
    pa.set_cpu_count(1)
    accumulator = combiners.create()
    try:
        for batch, keys in batches:
            combiners.add(accumulator, batch, keys)
        outcome = _Outcome(combiners.settle(accumulator))
    except (TypesDoNotFit, BadInput) as error:
        outcome = _Outcome(failures=(error,))
    job.done += 1
    return _packed(outcome)


def _packed(outcome: _Outcome) -> bytes:
    from pyspark import cloudpickle

    packed: bytes = cloudpickle.dumps(outcome)
    return packed


def _session() -> Any:
    """Returns the active Spark session, or a new one whose Python workers use this interpreter and package."""
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    let_workers_import()
    return SparkSession.builder.getOrCreate()


def _report(done: Any, tasks: int, progress: Progress) -> None:
    progress(min(1.0, done.value / max(tasks, 1)))

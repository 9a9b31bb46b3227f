"""Spark engine: executors read the parts of a source, or the rows of a table, and merge their accumulators as a tree.

Combiners, readers of files and the order of merging are those of the local engine; so a task has 1, 2, 4, 8 … parts.
Executors return errors in the data as values for the driver to act on, since Spark would retry a task that raises, in
vain. The driver holds only the final accumulator.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_hops.core.errors import BadInput
from airflow_hops.core.processes.periodic import calling_periodically
from airflow_hops.ml.spark.context import as_spark_failure, let_workers_import
from airflow_hops.ml.statistics.formats.feature_types import check_type
from airflow_hops.ml.statistics.formats.layout import Span, UnitShare
from airflow_hops.ml.statistics.local import runs_of_parts
from airflow_hops.ml.statistics.row_keys import Keys, numbered_on
from airflow_hops.ml.statistics.sample import RowSample
from airflow_hops.ml.statistics.sources import BatchPlan, SourcePart, SourcePlan, TypesDoNotFit, keyed_units

if TYPE_CHECKING:
    from airflow_hops.ml.statistics.combiners import Accumulator, Combiners

TABLE = "spark://"
_FAN_IN = 8
_TASKS_PER_CORE = 4
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


def is_table(source: object) -> bool:
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
            raise BadInput(f"{source}: {str(error).strip().splitlines()[0]}") from error
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


def accumulate(
    plan: SourcePlan | FramePlan, combiners: Combiners, sample: RowSample | None, *, progress: Progress | None = None
) -> Accumulator:
    """Adds all rows of a source to an accumulator, and draws the sample, in the active Spark session or a new one.

    Args:
        plan: The plan. Executors must see its files under the same paths, and have this package.
        combiners: The combiners. Slicing functions and generators are sent to executors, which must have the modules
            that these import.
        sample: Empty, to be filled; None for none.
        progress: Called with the completed share of the tasks, 0 to 1.

    Raises:
        BadInput: a part cannot be read, or a column's type has no statistics.
        TypesDoNotFit: values do not fit inferred types; combines the misfits of all tasks.
        HopsError: Spark failed.
    """
    if isinstance(plan, BatchPlan):
        raise BadInput("source is a stream of record batches, which only engine='local' reads; give a pyarrow.Table")
    outcome = _run(plan, combiners, sample, progress or (lambda share: None))
    misfits = [failure for failure in outcome.failures if isinstance(failure, TypesDoNotFit)]
    for failure in outcome.failures:
        if failure not in misfits:
            raise failure
    if misfits:
        # Combines the misfits of all tasks, so that the data is read only once more.
        types = {name: kind for misfit in misfits for name, kind in misfit.types.items()}
        raise TypesDoNotFit(misfits[0].file, types, misfits[0].why)
    if sample is not None and outcome.sample is not None:
        sample.merged(outcome.sample)
    return outcome.accumulator or combiners.merge_tree([])


@dataclass
class _Outcome:
    """Outcome of a task: an accumulator with a sample, or errors in the data."""

    accumulator: Accumulator | None = None
    sample: RowSample | None = None
    failures: tuple[Exception, ...] = ()


@dataclass(frozen=True)
class _Partition:
    """Plan of a partition of a DataFrame, whose rows have the hidden column of keys."""

    batches: Iterable[pa.RecordBatch]

    def read_units(self, part: SourcePart, share: UnitShare) -> Iterator[tuple[int, pa.RecordBatch, Keys]]:
        return keyed_units(self.batches, share)


def _run(plan: SourcePlan | FramePlan, combiners: Combiners, sample: RowSample | None, progress: Progress) -> _Outcome:
    """Runs one Spark job, from the rows to a single outcome."""
    from pyspark.sql import functions

    with as_spark_failure():
        if isinstance(plan, FramePlan):
            context = plan.frame.sparkSession.sparkContext
            work = partial(_accumulate, combiners, sample, done := context.accumulator(0))
            # Columns get numbers as names, as mapInArrow would look for "a.b" in a struct "a".
            quoted = ("`{}`".format(column.replace("`", "``")) for column in plan.types)
            numbered = plan.frame.select(*(functions.col(name).alias(f"c{i}") for i, name in enumerate(quoted)))
            packed = numbered.mapInArrow(partial(_accumulate_rows, work, list(plan.types)), f"{_COLUMN} binary")
            outcomes = packed.rdd.map(lambda row: bytes(row[0]))
        else:
            context = _session().sparkContext
            work = partial(_accumulate, combiners, sample, done := context.accumulator(0))
            # Enough tasks for all cores and those that Spark may add later.
            runs = runs_of_parts(plan.parts, _TASKS_PER_CORE * context.defaultParallelism)
            outcomes = context.parallelize(runs, len(runs)).map(partial(work, plan))
        tasks = outcomes.getNumPartitions()
        merged = _merge_tree(outcomes, partial(_merge, combiners, sample))
        with calling_periodically(lambda: progress(min(1.0, done.value / max(tasks, 1))), _POLL_S):
            last = merged.collect()
        progress(1.0)
    return pickle.loads(last[0]) if last else _Outcome()


def _merge_tree(outcomes: Any, merge: Callable[..., Iterator[bytes]]) -> Any:
    """Merges eight neighbouring partitions into one, level by level, until one is left."""
    while (partitions := outcomes.getNumPartitions()) > 1:
        numbered = outcomes.mapPartitionsWithIndex(_numbered)
        merged = numbered.partitionBy(-(-partitions // _FAN_IN), int).values()
        outcomes = merged.mapPartitions(merge)
    return outcomes


def _numbered(index: int, outcomes: Iterable[bytes]) -> Iterator[tuple[int, tuple[int, bytes]]]:
    return ((index // _FAN_IN, (index, outcome)) for outcome in outcomes)


def _merge(combiners: Combiners, sample: RowSample | None, outcomes: Iterable[tuple[int, bytes]]) -> Iterator[bytes]:
    failures: tuple[Exception, ...] = ()

    def accumulators() -> Iterator[Accumulator]:
        nonlocal failures
        # Spark's shuffle does not keep the order of partitions.
        for _, packed in sorted(outcomes):
            outcome: _Outcome = pickle.loads(packed)
            failures += outcome.failures
            if sample is not None and outcome.sample is not None:
                sample.merged(outcome.sample)
            if outcome.accumulator is not None and not failures:
                yield outcome.accumulator

    try:
        merged = combiners.merge_tree(accumulators())
    except BadInput as error:
        failures += (error,)
    yield _packed(_Outcome(failures=failures) if failures else _Outcome(merged, sample))


def _accumulate_rows(
    work: Callable[..., bytes], names: list[str], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Runs a task over a partition of a DataFrame."""
    from pyspark import TaskContext

    named = (pa.RecordBatch.from_arrays(batch.columns, names) for batch in batches)
    # A table's rows are numbered within their partition, as they have no other order.
    rows = numbered_on(named, TaskContext.get().partitionId())
    outcome = work(_Partition(rows), [SourcePart(0, "", Span(0))])
    yield pa.RecordBatch.from_arrays([pa.array([outcome], pa.binary())], [_COLUMN])


def _accumulate(combiners: Combiners, sample: RowSample | None, done: Any, plan: Any, parts: Sequence[Any]) -> bytes:
    """Runs a task over some of the parts of a plan; every task has its own copies of combiners and sample."""
    pa.set_cpu_count(1)  # each task has one core
    try:
        outcome = _Outcome(combiners.merge_tree(combiners.accumulate_parts(plan, parts, sample)), sample)
    except (TypesDoNotFit, BadInput) as error:
        outcome = _Outcome(failures=(error,))
    done.add(1)
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

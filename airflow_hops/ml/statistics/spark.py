"""Spark engine: executors read the parts of a source, and merge their accumulators as a tree.

Combiners, readers of files and the order of merging are those of the local engine; so a task has 1, 2, 4, 8 … parts.
Executors return errors in the data as values for the driver to act on, since Spark would retry a task that raises, in
vain. The driver holds only the final accumulator.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from airflow_hops.core.errors import BadInput
from airflow_hops.core.processes.periodic import calling_periodically
from airflow_hops.ml.spark.context import as_spark_failure, let_workers_import
from airflow_hops.ml.statistics.formats.layout import Span
from airflow_hops.ml.statistics.local import runs_of_parts
from airflow_hops.ml.statistics.sample import RowSample
from airflow_hops.ml.statistics.sources import SourcePlan, TypesDoNotFit

if TYPE_CHECKING:
    from airflow_hops.ml.statistics.combiners import Accumulator, Combiners

_FAN_IN = 8
_TASKS_PER_CORE = 4
_POLL_S = 0.5

Progress = Callable[[float], None]


def accumulate(
    plan: SourcePlan, combiners: Combiners, sample: RowSample | None, *, progress: Progress | None = None
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
    if plan.is_stream:
        raise BadInput("source is a stream of record batches, which only engine='local' reads; give a pyarrow.Table")
    accumulator, drawn, failures = _run(plan, combiners, sample, progress or (lambda share: None))
    misfits = [failure for failure in failures if isinstance(failure, TypesDoNotFit)]
    for failure in failures:
        if failure not in misfits:
            raise failure
    if misfits:
        # Combines the misfits of all tasks, so that the data is read only once more.
        types = {name: kind for misfit in misfits for name, kind in misfit.types.items()}
        raise TypesDoNotFit(misfits[0].file, types, misfits[0].where)
    if sample is not None and drawn is not None:
        sample.merged(drawn)
    return accumulator or combiners.merge_tree([])


_Outcome: TypeAlias = "tuple[Accumulator | None, RowSample | None, tuple[Exception, ...]]"
"""Accumulator and sample of a task, or errors in the data."""


def _run(plan: SourcePlan, combiners: Combiners, sample: RowSample | None, progress: Progress) -> _Outcome:
    """Runs one Spark job, from the rows to a single outcome."""
    with as_spark_failure():
        context = _session().sparkContext
        work = partial(_accumulate, plan, combiners, sample, done := context.accumulator(0))
        # Enough tasks for all cores and those that Spark may add later.
        runs = runs_of_parts(plan.parts, _TASKS_PER_CORE * context.defaultParallelism)
        outcomes = context.parallelize(runs, len(runs)).map(work)
        tasks = outcomes.getNumPartitions()
        merged = _merge_tree(outcomes, partial(_merge, combiners, sample))
        with calling_periodically(lambda: progress(min(1.0, done.value / max(tasks, 1))), _POLL_S):
            last = merged.collect()
        progress(1.0)
    outcome: _Outcome = pickle.loads(last[0]) if last else (None, None, ())
    return outcome


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
        # Spark 3.5: its shuffle does not keep the order of partitions.
        for _, packed in sorted(outcomes):
            accumulator, drawn, failed = pickle.loads(packed)
            failures += failed
            if sample is not None and drawn is not None:
                sample.merged(drawn)
            if accumulator is not None and not failures:
                yield accumulator

    try:
        merged = combiners.merge_tree(accumulators())
    except BadInput as error:
        failures += (error,)
    yield _packed((None, None, failures) if failures else (merged, sample, ()))


def _accumulate(
    plan: SourcePlan, combiners: Combiners, sample: RowSample | None, done: Any, parts: Sequence[Span]
) -> bytes:
    """Runs a task over some of the parts of a plan; every task has its own copies of combiners and sample."""
    pa.set_cpu_count(1)  # each task has one core
    try:
        merged = combiners.merge_tree(combiners.accumulate_parts(plan, parts, sample))
        outcome: _Outcome = merged, sample, ()
    except (TypesDoNotFit, BadInput) as error:
        outcome = None, None, (error,)
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

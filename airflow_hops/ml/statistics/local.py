"""Local engine: forked processes work on runs of parts, or on shares of the units of few parts."""

from __future__ import annotations

import copy
import itertools
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import pyarrow as pa

from airflow_hops.core.versions import import_arrow_modules
from airflow_hops.ml.spark.pools import fork_parts
from airflow_hops.ml.statistics.combiners import Accumulator, Combiners
from airflow_hops.ml.statistics.formats.layout import UnitShare
from airflow_hops.ml.statistics.sample import RowSample

# A task works on a run of parts. With fewer parts than processes, there is a task for each process: it reads every
# part, and works on its share of the units. Either returns few accumulators and its sample, which does not depend on
# the order of rows. Runs of parts and of units are of 1, 2, 4, 8 … of them, so that merging the runs in order is
# merging the units in order (`Combiners.merge_tree`): the result does not depend on the number of processes.

import_arrow_modules()

PARALLEL_SIZE = 8 << 20
"""Bytes below which more processes cost more than they save."""
_RUNS_OF_PARTS = 4
"""Tasks for each process: more end at about the same time, but each sends a sample."""
_RUNS_OF_UNITS = 16

Progress = Callable[[float], None]


def accumulate(
    plan: Any,
    combiners: Combiners,
    sample: RowSample | None,
    *,
    processes: int | None = None,
    progress: Progress | None = None,
) -> Accumulator:
    """Adds all rows of a source to an accumulator, and draws the sample.

    Processes (by default one per core if the source is large enough) are forked, so that none imports TFDV again.
    ``progress`` is called with the completed share, 0 to 1. The result does not depend on the number of processes.

    Raises:
        BadInput: a part cannot be read.
        TypesDoNotFit: values do not fit an inferred type.
        HopsError: a process was killed, for example because memory ran out.
    """
    total = sum(part.size for part in plan.parts)
    units = sum(part.units for part in plan.parts)
    count = min(units, processes or (len(os.sched_getaffinity(0)) if total >= PARALLEL_SIZE else 1))
    progress = progress or (lambda share: None)
    # Daemons of multiprocessing cannot have child processes.
    if count <= 1 or multiprocessing.current_process().daemon:
        done = itertools.accumulate(part.size for part in plan.parts)
        accumulators = combiners.accumulate_parts(
            plan, plan.parts, sample, lambda _: progress(min(1.0, next(done) / max(total, 1)))
        )
        return combiners.merge_tree(accumulators)
    if len(plan.parts) >= count:
        tasks: list[Any] = list(enumerate(runs_of_parts(plan.parts, _RUNS_OF_PARTS * count)))
        work = partial(_add_parts, plan, combiners, sample)
    else:
        tasks = list(range(count))
        work = partial(_add_units, plan, combiners, sample, _run_length(units, _RUNS_OF_UNITS * count), count)
    results = fork_parts(count, work, tasks, lambda ended: progress(ended / len(tasks)))
    if sample is not None:
        for _, drawn in results:
            sample.merged(drawn)
    runs = sorted((run for those, _ in results for run in those), key=itemgetter(0))
    of_parts = itertools.groupby(runs, key=lambda run: run[0][0])
    return combiners.merge_tree(combiners.merge_tree(run for _, run in those) for _, those in of_parts)


def runs_of_parts(parts: Sequence[object], most: int) -> list[Sequence[Any]]:
    """Divides parts into at most ``most`` runs of 1, 2, 4, 8 … parts."""
    length = _run_length(len(parts), most)
    return [parts[start : start + length] for start in range(0, len(parts), length)]


def _run_length(number: int, most: int) -> int:
    length = 1
    while number > most * length:
        length *= 2
    return length


Runs = list[tuple[tuple[int, int], Accumulator]]
"""Accumulators of runs, by the numbers of the part, or of the run of parts, and of the run of its units."""


def _add_parts(
    plan: object, combiners: Combiners, sample: RowSample | None, task: tuple[int, Sequence[object]]
) -> tuple[Runs, RowSample | None]:
    """Works in a process on a run of parts, with its number."""
    number, parts = task
    pa.set_cpu_count(1)  # each core already has a process
    sample = copy.deepcopy(sample)
    merged = combiners.merge_tree(combiners.accumulate_parts(plan, parts, sample))
    return [((number, 0), merged)], sample and sample.compact()


def _add_units(
    plan: Any, combiners: Combiners, sample: RowSample | None, length: int, shares: int, number: int
) -> tuple[Runs, RowSample | None]:
    """Works in a process on the share with this number, of every part, in runs of ``length`` units."""
    pa.set_cpu_count(1)
    sample = copy.deepcopy(sample)

    def merged() -> Iterator[tuple[tuple[int, int], Accumulator]]:
        for index, part in enumerate(plan.parts):
            # Another process begins each part, since its last round of runs may not reach all.
            share = UnitShare((number + index) % shares, shares, length)
            units = combiners.accumulate(plan, part, share, sample)
            for run, those in itertools.groupby(units, key=lambda unit: unit[0] // length):
                yield (index, run), combiners.merge_tree(accumulator for _, accumulator in those)

    return list(merged()), sample and sample.compact()

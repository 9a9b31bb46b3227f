"""Local engine: distributes the parts of a source to forked processes."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from operator import itemgetter
from typing import Any

import pyarrow as pa

from airflow_hops.core.contract.artifacts import HopsError
from airflow_hops.core.processes.lifetime import end_with_parent
from airflow_hops.core.versions import import_arrow_modules
from airflow_hops.ml.statistics.combiners import Accumulator, Combiners
from airflow_hops.ml.statistics.formats.feature_types import TypesDoNotFit
from airflow_hops.ml.statistics.formats.layout import Share
from airflow_hops.ml.statistics.sample import RowSample

# The parent forks the processes and reads each one's pipe. With fewer parts than processes, all processes read every
# part, and each processes its share of the units; otherwise each processes whole parts. A process sends, for each part:
# 1. the accumulators of its units with their numbers, or one accumulator of the whole part, with the number 0;
# 2. the number of units, so that the parent knows when a part is complete, and the part's size.
# At its end it sends its sample, which does not depend on the order of rows, or an exception. The parent merges in the
# order of parts and units; what arrives early waits. A pipe that ends before means a killed process. All processes are
# killed and reaped on the way out; interrupts are delayed while the table of processes changes, so that none is missed.

import_arrow_modules()

PARALLEL_SIZE = 8 << 20
"""Bytes below which more processes cost more than they save."""

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
    # Daemons of multiprocessing cannot have child processes.
    if multiprocessing.current_process().daemon:
        count = 1
    else:
        count = processes or (len(os.sched_getaffinity(0)) if total >= PARALLEL_SIZE else 1)
    parts = list(enumerate(plan.parts))
    units = sum(part.span.units for part in plan.parts)
    if len(parts) < count and len(parts) < units:
        shares = [(parts, number, min(count, units)) for number in range(min(count, units))]
    else:
        shares = [(share, 0, 1) for share in _share_out(parts, count)]
    done = 0.0

    def report(size: float) -> None:
        nonlocal done
        done += size
        if progress is not None:
            progress(min(1.0, done / total) if total else 1.0)

    if len(shares) == 1:
        return combiners.merge_tree(combiners.accumulate_parts(plan, plan.parts, sample, report))
    with contextlib.closing(_arrivals(combiners, plan, shares, sample)) as arrivals:
        return combiners.merge_tree(_in_order(combiners, arrivals, len(parts), report))


def _share_out(parts: Sequence[tuple[int, Any]], processes: int) -> list[list[tuple[int, Any]]]:
    """Distributes numbered parts evenly by size, the largest first; each share is in the source's order."""
    shares: list[list[tuple[int, Any]]] = [[] for _ in range(max(1, min(processes, len(parts))))]
    loads = [0] * len(shares)
    for number, part in sorted(parts, key=lambda item: -item[1].size):
        lightest = loads.index(min(loads))
        shares[lightest].append((number, part))
        loads[lightest] += part.size
    return [sorted(share, key=itemgetter(0)) for share in shares]


def _in_order(combiners: Combiners, arrivals: Iterator[Any], parts: int, report: Progress) -> Iterator[Accumulator]:
    """Yields the accumulators of the parts in order, each merged from those of its units."""
    early: dict[tuple[int, int], Accumulator] = {}
    units: dict[int, int] = {}

    def of_part(part: int) -> Iterator[Accumulator]:
        unit = 0
        while unit != units.get(part):
            if (part, unit) in early:
                yield early.pop((part, unit))
                unit += 1
            else:
                where, number, arrived = next(arrivals)
                if isinstance(arrived, Accumulator):
                    early[where, number] = arrived
                else:
                    units[where] = number
                    report(arrived)

    for part in range(parts):
        yield combiners.merge_tree(of_part(part))
    for _, _, size in arrivals:  # the ends of other shares, while the samples arrive
        report(size)


def _arrivals(
    combiners: Combiners, plan: Any, shares: Sequence[Any], sample: RowSample | None
) -> Generator[tuple[int, int, Any]]:
    """Yields what processes send of parts; adds their samples to the sample."""
    processes: dict[Any, BaseProcess] = {}
    context = multiprocessing.get_context("fork")
    try:
        with _uninterrupted():
            for share in shares:
                receiving, sending = context.Pipe(duplex=False)
                # Inherited by fork, so slicing functions and generators need not be pickled.
                inherited = (os.getpid(), sending, combiners, plan, share, sample)
                worker: BaseProcess = context.Process(target=_send_share, args=inherited)
                with sending:
                    worker.start()
                processes[receiving] = worker
        waiting = set(processes)
        while waiting:
            arrived: list[Any] = wait(waiting)
            for ready in arrived:
                try:
                    message = ready.recv()
                except (EOFError, OSError):
                    raise HopsError(
                        f"{plan.name}: a process that computed statistics was killed; if memory was short, use "
                        "fewer processes"
                    ) from None
                if isinstance(message, Exception):
                    raise message
                if isinstance(message, tuple):
                    yield message
                else:
                    if sample is not None:
                        sample.merged(message)
                    waiting.discard(ready)
    finally:
        with _uninterrupted():
            for receiving, process in processes.items():
                process.kill()
                process.join()
                receiving.close()


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Delays interrupts until the end of the ``with`` block, so that no forked process is left behind."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    waiting: list[tuple[int, Any]] = []
    signal.signal(signal.SIGINT, lambda number, frame: waiting.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if waiting:
            handler(*waiting[0])


def _send_share(
    parent: int, sending: Any, combiners: Combiners, plan: Any, share: Any, sample: RowSample | None
) -> None:
    """Runs in a process: sends the accumulators of a share, and its sample or its error."""
    end_with_parent(parent)
    # The parent handles interrupts and ends its children.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Each core already has a process.
    pa.set_cpu_count(1)
    try:
        parts, number, of = share
        for index, part in parts:
            units = Share(number, of)
            accumulators = combiners.accumulate(plan, part, units, sample)
            if of == 1:
                sending.send((index, 0, combiners.merge_tree(accumulator for _, accumulator in accumulators)))
            else:
                for unit, accumulator in accumulators:
                    sending.send((index, unit, accumulator))
            sending.send((index, 1 if of == 1 else units.units, part.size / of))
        sending.send(sample.compact() if sample is not None else None)
    except Exception as error:
        raised = "".join(traceback.format_exception(error))
        if not isinstance(error, HopsError | TypesDoNotFit):
            error.add_note(raised)  # an unexpected error
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # the error cannot be pickled
            error = HopsError(raised)
        sending.send(error)

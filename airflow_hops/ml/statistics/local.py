"""Local engine: distributes the parts of a source to forked processes."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any

import pyarrow as pa

from airflow_hops.core.contract.artifacts import HopsError
from airflow_hops.core.processes.lifetime import end_with_parent
from airflow_hops.core.versions import import_arrow_modules
from airflow_hops.ml.statistics.combiners import Accumulator, Combiners
from airflow_hops.ml.statistics.formats.feature_types import TypesDoNotFit
from airflow_hops.ml.statistics.sources import share_out

# The parent forks one process per share and reads each one's pipe: sizes of finished parts, then the accumulator or an
# exception. A pipe that ends before means a killed process. All processes are killed and reaped on the way out;
# interrupts are delayed while the table of processes changes, so that none is missed.

import_arrow_modules()

PARALLEL_SIZE = 8 << 20
"""Bytes below which more processes cost more than they save."""

Progress = Callable[[float], None]


def accumulate(
    plan: Any,
    combiners: Combiners,
    *,
    processes: int | None = None,
    progress: Progress | None = None,
) -> Accumulator:
    """Adds all rows of a source to an accumulator.

    Processes (by default one per core if the source is large enough) are forked, so that none imports TFDV again; each
    reads its parts one after the other. ``progress`` is called with the completed share, 0 to 1.

    Raises:
        BadInput: a part cannot be read.
        TypesDoNotFit: values do not fit an inferred type.
        HopsError: a process was killed, for example because memory ran out.
    """
    # Daemons of multiprocessing cannot have child processes.
    if multiprocessing.current_process().daemon:
        count = 1
    elif processes:
        count = processes
    else:
        count = len(os.sched_getaffinity(0)) if sum(part.size for part in plan.parts) >= PARALLEL_SIZE else 1
    shares = share_out(plan.dealt(count), count)
    total = sum(part.size for share in shares for part in share) or 1
    done = 0

    def report(size: int) -> None:
        nonlocal done
        done += size
        if progress is not None:
            progress(done / total)

    if len(shares) == 1:
        return _taken_in(combiners, plan, shares[0], report)
    return combiners.merge(_in_processes(combiners, plan, shares, report))


def _in_processes(
    combiners: Combiners, plan: Any, shares: Sequence[Sequence[Any]], report: Callable[[int], None]
) -> list[Accumulator]:
    processes: dict[Any, BaseProcess] = {}
    accumulators: dict[Any, Accumulator] = {}
    context = multiprocessing.get_context("fork")
    try:
        with _uninterrupted():
            for share in shares:
                receiving, sending = context.Pipe(duplex=False)
                # Inherited by fork, so slicing functions and generators need not be pickled.
                inherited = (os.getpid(), sending, combiners, plan, share)
                worker: BaseProcess = context.Process(target=_accumulate_share, args=inherited)
                with sending:
                    worker.start()
                processes[receiving] = worker
        while len(accumulators) < len(processes):
            waiting: list[Any] = wait(processes.keys() - accumulators.keys())
            for ready in waiting:
                try:
                    message = ready.recv()
                except (EOFError, OSError):
                    raise HopsError(
                        f"{plan.name}: a process that computed statistics was killed; if memory was short, use "
                        "fewer processes"
                    ) from None
                if isinstance(message, Exception):
                    raise message
                if isinstance(message, Accumulator):
                    accumulators[ready] = message
                else:
                    report(message)
        return [accumulators[receiving] for receiving in processes]
    finally:
        with _uninterrupted():
            for receiving, process in processes.items():
                process.kill()
                process.join()
                receiving.close()


def _taken_in(combiners: Combiners, plan: Any, parts: Sequence[Any], done: Callable[[int], None]) -> Accumulator:
    accumulator = combiners.create()
    for part in parts:
        for batch, keys in plan.read_with_keys(part):
            combiners.add(accumulator, batch, keys)
        done(part.size)
    return accumulator


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


def _accumulate_share(parent: int, sending: Any, combiners: Combiners, plan: Any, parts: Sequence[Any]) -> None:
    """Runs in a process: sends each finished part's size, then its accumulator or its error."""
    end_with_parent(parent)
    # The parent handles interrupts and ends its children.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Each core already has a process.
    pa.set_cpu_count(1)
    try:
        sending.send(combiners.settle(_taken_in(combiners, plan, parts, sending.send)))
    except Exception as error:
        raised = "".join(traceback.format_exception(error))
        if not isinstance(error, HopsError | TypesDoNotFit):
            error.add_note(raised)  # an unexpected error
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # the error cannot be pickled
            error = HopsError(raised)
        sending.send(error)

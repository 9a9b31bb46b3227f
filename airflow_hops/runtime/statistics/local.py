"""The local engine: the parts of a source, shared out among forked processes."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.sharedctypes import Synchronized
from typing import Any

import pyarrow as pa

from airflow_hops.artifacts import HopsError
from airflow_hops.runtime.statistics.combiners import Accumulator, Combiners

PARALLEL_SIZE = 8 << 20
"""Bytes below which more processes cost more than they save."""

Progress = Callable[[float], None]
_job: tuple[Any, Combiners, Synchronized[int]] | None = None


def accumulate(
    plan: Any, combiners: Combiners, *, workers: int | None = None, progress: Progress | None = None
) -> Accumulator:
    """Takes in all rows of a source.

    The processes are forked, so that none imports TFDV again; each reads its parts one after the other.

    Args:
        plan: ``sources.Plan``.
        combiners: The combiners.
        workers: Processes; None for one a core where the source is large enough to pay for them.
        progress: Called with the share done, 0 to 1.

    Raises:
        BadInput: a part cannot be read.
        TypesDoNotFit: an inferred type does not hold.
        HopsError: a process was killed, by lack of memory for instance.
    """
    shares = share_out(plan.parts, workers or _worker_count(plan))
    total = sum(part.size for part in plan.parts) or 1
    if len(shares) <= 1:
        accumulator, done = combiners.create(), 0
        for part in plan.parts:
            for batch in plan.read(part):
                combiners.add(accumulator, batch)
            done += part.size
            if progress is not None:
                progress(done / total)
        return accumulator
    return combiners.merge(_in_processes(plan, combiners, shares, total, progress))


def _in_processes(
    plan: Any, combiners: Combiners, shares: Sequence[Sequence[Any]], total: int, progress: Progress | None
) -> list[Accumulator]:
    global _job
    context = multiprocessing.get_context("fork")
    done: Synchronized[int] = context.Value("q", 0)
    # What the processes need they inherit: slicing functions and generators need not pickle.
    _job = (plan, combiners, done)
    try:
        with ProcessPoolExecutor(len(shares), mp_context=context) as pool:
            futures = {pool.submit(_accumulate_share, number, share) for number, share in enumerate(shares)}
            pending = futures
            while pending:
                finished, pending = wait(pending, timeout=1.0, return_when=FIRST_COMPLETED)
                for future in finished:
                    if future.exception() is not None:
                        pool.shutdown(wait=False, cancel_futures=True)
                        future.result()
                if progress is not None:
                    progress(done.value / total)
            return [future.result() for future in futures]
    except BrokenProcessPool as error:
        raise HopsError(
            f"{plan.name}: a process that computed statistics was killed; if memory was short, use fewer workers"
        ) from error
    finally:
        _job = None


def _accumulate_share(number: int, parts: Sequence[Any]) -> Accumulator:
    assert _job is not None
    plan, combiners, done = _job
    # There is a process for each core already.
    pa.set_cpu_count(1)
    accumulator = combiners.create(number)
    for part in parts:
        for batch in plan.read(part):
            combiners.add(accumulator, batch)
        with done.get_lock():
            done.value += part.size
    return combiners.settle(accumulator)


def _worker_count(plan: Any) -> int:
    return len(os.sched_getaffinity(0)) if sum(part.size for part in plan.parts) >= PARALLEL_SIZE else 1


def share_out(parts: Sequence[Any], workers: int) -> list[list[Any]]:
    """Shares the parts out evenly by size, the largest first, each share in the source's order."""
    shares: list[list[tuple[int, Any]]] = [[] for _ in range(max(1, min(workers, len(parts))))]
    loads = [0] * len(shares)
    for index in sorted(range(len(parts)), key=lambda index: -parts[index].size):
        lightest = loads.index(min(loads))
        shares[lightest].append((index, parts[index]))
        loads[lightest] += parts[index].size
    return [[part for _, part in sorted(share, key=lambda item: item[0])] for share in shares]

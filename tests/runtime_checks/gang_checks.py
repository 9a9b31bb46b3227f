"""Gangs of real Horovod ranks that things happen to; each scenario returns how it ended."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf

from airflow_hops.artifacts import BadInput
from airflow_hops.runtime.context import StepContext
from airflow_hops.runtime.gang import Channel, Placement, run_gang


def run_all(context: StepContext) -> dict[str, Any]:
    """Runs every scenario on two ranks."""
    scenarios: dict[str, Callable[[Placement, Channel], Any]] = {
        "fine": _fine,
        "killed": _after_start(_kill_oneself),
        "raises": _after_start(_raise),
        "bad_input": _after_start(_raise_bad_input),
        "exits": _after_start(lambda: os._exit(0)),
        "hangs": _after_start(_never_come_back),
        "all_hang": lambda placement, channel: _never_come_back(),
    }
    return {name: _outcome(work, context.scratch / name) for name, work in scenarios.items()}


def refuse(context: StepContext, *, small_folder: str) -> dict[str, Any]:
    """What is no number of ranks or of seconds; a full disk; and a process in which TensorFlow runs already."""
    refused = {str(size): _outcome(_fine, context.scratch / "logs", size) for size in (0, True, "2")}
    for stall_timeout_s in (0, -1.5, "300", float("inf"), float("nan")):
        outcome = _outcome(_fine, context.scratch / "logs", stall_timeout_s=stall_timeout_s)
        refused[f"stall_timeout_s {stall_timeout_s!r}"] = outcome
    full = _outcome(_print_much, Path(small_folder) / "logs")
    tf.constant(1)
    return {**refused, "full": {**full, "logs": {}}, "running": _outcome(_fine, context.scratch / "logs")}


def _print_much(placement: Placement, channel: Channel) -> None:
    for _ in range(100):
        print("y" * 50_000)


def _outcome(
    work: Callable[[Placement, Channel], Any], logs: Path, size: Any = 2, stall_timeout_s: Any = 3
) -> dict[str, Any]:
    began = time.monotonic()
    opened = len(list(Path("/proc/self/fd").iterdir()))
    messages: list[Any] = []
    try:
        result = run_gang(
            work, size, logs=logs, stall_timeout_s=stall_timeout_s, on_message=lambda *m: messages.append(m)
        )
        outcome: dict[str, Any] = {"result": result}
    except Exception as error:
        outcome = {"error": str(error), "type": type(error).__name__}
    return {
        **outcome,
        "seconds": time.monotonic() - began,
        "logs": {path.name: path.read_text() for path in logs.glob("*.log")},
        "messages": messages,
        "left": _children(),
        "descriptors_left": len(list(Path("/proc/self/fd").iterdir())) - opened,
    }


def _children() -> list[int]:
    import psutil

    return [child.pid for child in psutil.Process().children(recursive=True)]


def _fine(placement: Placement, channel: Channel) -> dict[str, Any]:
    hvd.init()
    print(f"rank {placement.rank} says hello")
    print(f"rank {placement.rank} warns: Warning: a small thing", file=sys.stderr)
    channel.send("note", value=placement.rank)
    total = float(hvd.allreduce(tf.constant(placement.rank + 1.0), op=hvd.Sum))
    return {"total": total, "size": hvd.size(), "local_rank": hvd.local_rank(), "threads_env": placement.local_size}


def _after_start(accident: Callable[[], Any]) -> Callable[[Placement, Channel], Any]:
    """Rank 1 has an accident after an all-reduce, while rank 0 waits in the next."""

    def work(placement: Placement, channel: Channel) -> Any:
        hvd.init()
        hvd.allreduce(tf.constant(1.0), name="first")
        channel.send("alive", where="the first all-reduce")
        if placement.rank == 1:
            print("rank 1 is about to have an accident", flush=True)
            accident()
        hvd.allreduce(tf.constant(1.0), name="second")
        return None

    return work


def _kill_oneself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _raise() -> None:
    sys.stdout.write("y" * 300_000)
    sys.stdout.flush()
    raise ValueError("the user's own mistake")


def _raise_bad_input() -> None:
    raise BadInput("examples.parquet: column 'x' is missing")


def _never_come_back() -> None:
    time.sleep(120)

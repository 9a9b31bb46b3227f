"""Gangs of real Horovod ranks on Spark's executors that things happen to; each scenario returns how it ended."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from airflow_hops.runtime.context import StepContext
from airflow_hops.runtime.gang import Channel, Placement, RankJob, run_gang
from airflow_hops.runtime.gang.spark import SparkRanks
from airflow_hops.runtime.spark_context import start_spark_context_of


def run_all(context: StepContext) -> dict[str, Any]:
    """Runs every scenario on the executors of one application."""
    launcher = SparkRanks(start_spark_context_of(context))
    scenarios: dict[str, Callable[[], Any]] = {
        "too_many": lambda: _run(launcher, context, "meet", size=5),
        "no_number": lambda: _run(launcher, context, "meet", size=0),
        "meet": lambda: _run(launcher, context, "meet", output=True),
        "killed": lambda: _run(launcher, context, "be_killed"),
        "executor": lambda: _run(launcher, context, "lose_the_executor"),
    }
    return {name: scenario() for name, scenario in scenarios.items()}


def _run(launcher: SparkRanks, context: StepContext, work: str, size: int = 2, output: bool = False) -> dict[str, Any]:
    logs = context.scratch / work
    folder = context.scratch / "output"
    folder.mkdir(exist_ok=True)
    job = RankJob(f"spark_rank_checks:{work}", code_paths=context.spec.code_paths, output=folder if output else None)
    messages: dict[int, Any] = {}
    began = time.monotonic()
    try:
        result = run_gang(
            job, size, logs=logs, launcher=launcher, on_message=lambda rank, m: messages.setdefault(rank, m)
        )
        outcome: dict[str, Any] = {"result": result}
    except Exception as error:
        outcome = {"error": str(error), "type": type(error).__name__}
    return {
        **outcome,
        "seconds": time.monotonic() - began,
        "since_accident": time.time() - max((m["time"] for m in messages.values()), default=time.time()),
        "left": [m["pid"] for m in messages.values() if _lives(m["pid"])],
        "job_threads": [thread.name for thread in threading.enumerate() if thread.name.startswith("ranks-")],
        "files": {path.name: path.read_text() for path in folder.iterdir() if path.is_file()},
    }


def meet(placement: Placement, channel: Channel, *, folders: dict[str, Path]) -> dict[str, Any]:
    """All-reduces."""
    import horovod.tensorflow as hvd
    import tensorflow as tf

    _say_hello(channel)
    hvd.init()
    if placement.rank == 0:
        (folders["output"] / "written.txt").write_text("by rank 0")
    print(f"rank {placement.rank} says hello")
    return {
        "total": float(hvd.allreduce(tf.constant(placement.rank + 1.0), op=hvd.Sum)),
        "local_rank": hvd.local_rank(),
        "local_size": hvd.local_size(),
        "devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "executor": _executor().pid,
    }


def be_killed(placement: Placement, channel: Channel, *, folders: dict[str, Path]) -> None:
    """Rank 1 is killed after an all-reduce, while rank 0 waits in the next."""

    def kill_oneself() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    _have_an_accident(placement, channel, kill_oneself)


def lose_the_executor(placement: Placement, channel: Channel, *, folders: dict[str, Path]) -> None:
    """The JVM of rank 1's executor is killed."""
    _have_an_accident(placement, channel, lambda: _executor().kill())


def _have_an_accident(placement: Placement, channel: Channel, accident: Callable[[], None]) -> None:
    import horovod.tensorflow as hvd
    import tensorflow as tf

    hvd.init()
    hvd.allreduce(tf.constant(1.0), name="first")
    channel.send("alive", where="the first all-reduce")
    _say_hello(channel)
    if placement.rank == 1:
        print("rank 1 is about to have an accident", flush=True)
        accident()
        time.sleep(60)
    hvd.allreduce(tf.constant(1.0), name="second")


def _say_hello(channel: Channel) -> None:
    channel.send("hello", pid=os.getpid(), time=time.time())


def _executor() -> Any:
    """The JVM above this process."""
    import psutil

    return next(parent for parent in psutil.Process().parents() if parent.name() == "java")


def _lives(pid: int) -> bool:
    import psutil

    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE

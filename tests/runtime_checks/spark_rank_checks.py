"""Gangs of real Horovod ranks on Spark's executors that things happen to; each scenario says how it ended."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from airflow_hops.runtime.gang import Channel, Placement, RankJob, run_gang
from airflow_hops.runtime.gang.where import rank_launcher
from airflow_hops.runtime.step.context import StepContext


def run_all(context: StepContext) -> None:
    """Runs every scenario on the executors of one application; the last one does not end by itself."""
    launcher = rank_launcher({"kind": "spark"}, context)
    scenarios = {
        "too_many": ("meet", 5),
        "no_number": ("meet", 0),
        "rank": ("meet_and_kill_oneself", 2),
        "executor": ("meet_and_kill_the_executor", 2),
        "step": ("meet_and_wait", 2),
    }
    for name, (work, size) in scenarios.items():
        job = RankJob(f"spark_rank_checks:{work}", code_paths=context.spec.code_paths)
        messages: dict[int, Any] = {}

        def on_message(rank: int, message: Any, messages: dict[int, Any] = messages) -> None:
            messages[rank] = message
            if len(messages) == 2:
                _tell("met", [messages[0], messages[1]])

        try:
            run_gang(job, size, logs=context.scratch / name, launcher=launcher, on_message=on_message)
            outcome = {}
        except Exception as error:
            outcome = {"error": str(error), "type": type(error).__name__}
        seconds = time.time() - max((message["time"] for message in messages.values()), default=time.time())
        left = [message["pid"] for message in messages.values() if _lives(message["pid"])]
        jobs = [thread.name for thread in threading.enumerate() if thread.name.startswith("ranks-")]
        _tell(name, {**outcome, "seconds": seconds, "left": left, "jobs": jobs})


def meet_and_kill_oneself(placement: Placement, channel: Channel, *, folders: dict[str, Path]) -> None:
    """Rank 1 is killed after an all-reduce, while rank 0 waits in the next."""
    _meet(placement, channel, lambda: os.kill(os.getpid(), signal.SIGKILL))


def meet_and_kill_the_executor(placement: Placement, channel: Channel, *, folders: dict[str, Path]) -> None:
    """The JVM of rank 1's executor is killed."""
    _meet(placement, channel, lambda: _executor().kill())


def meet_and_wait(placement: Placement, channel: Channel, *, folders: dict[str, Path]) -> None:
    """Rank 1 does not come back."""
    _meet(placement, channel, lambda: None)


def _meet(placement: Placement, channel: Channel, accident: Callable[[], None]) -> None:
    import horovod.tensorflow as hvd
    import tensorflow as tf

    hvd.init()
    total = float(hvd.allreduce(tf.constant(placement.rank + 1.0), op=hvd.Sum))
    channel.send("alive", where="the first all-reduce")
    channel.send(
        "hello",
        time=time.time(),
        pid=os.getpid(),
        total=total,
        local=[hvd.local_rank(), hvd.local_size()],
        devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
        executor=_executor().pid,
    )
    if placement.rank == 1:
        print("rank 1 is about to have an accident", flush=True)
        accident()
        time.sleep(300)
    hvd.allreduce(tf.constant(1.0), name="second")


def _tell(name: str, value: Any) -> None:
    print(f"outcome {json.dumps([name, value])}", flush=True)


def _executor() -> Any:
    """The JVM above this process."""
    import psutil

    return next(parent for parent in psutil.Process().parents() if parent.name() == "java")


def _lives(pid: int) -> bool:
    import psutil

    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE

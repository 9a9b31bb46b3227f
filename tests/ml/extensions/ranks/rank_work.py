"""Work of ranks on other hosts and on executors, until something happens to them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil

from airflow_hops.core.errors import BadInput
from airflow_hops.ml.training.gang import Channel, Placement

HIDDEN = """
import os, pathlib, sys, time
if os.fork():
    os._exit(0)
os.setsid()
pathlib.Path(sys.argv[1], f"pid-{os.getpid()}").touch()
time.sleep(300)
"""


def work(
    placement: Placement, channel: Channel, *, folders: Mapping[str, Path], accident: str, notes: str, server: int = 0
) -> Any:
    """Notes which processes and folders there are; then something happens."""
    noted = Path(notes)
    (noted / f"scratch-{placement.rank}").write_text(str(folders["output"].parent))
    # A process of the rank's that hides: it has left its session, its parent, and its environment.
    subprocess.run([sys.executable, "-S", "-c", HIDDEN, notes], env={}, check=True)
    (noted / f"pid-{os.getpid()}").touch()
    (noted / f"pid-{os.getppid()}").touch()
    while len(list(noted.glob("pid-*"))) < 3:
        time.sleep(0.05)
    channel.send("alive", where="its first steps")
    _say(channel, noted, f"begun-{placement.rank}")
    accidents: dict[str, Callable[[], Any]] = {
        "none": lambda: _exchange(placement, channel, folders, noted),
        "rank killed": lambda: _kill_rank_1(placement),
        "bad input": _raise_bad_input,
        "full disk": lambda: _write_much(channel, folders["output"]),
        "agent killed": lambda: os.kill(os.getppid(), signal.SIGKILL),
        "agent stopped": lambda: _sleep(os.kill(os.getppid(), signal.SIGSTOP)),
        "server killed": lambda: _sleep(os.kill(server, signal.SIGKILL)),
        "hangs": _sleep,
        "host drained": lambda: _await_notice(placement, noted),
    }
    return accidents[accident]()


def _say(channel: Channel, noted: Path, value: str) -> None:
    """Sends a note, and waits until it has been heard."""
    channel.send("note", value=value)
    _wait_for(noted / f"seen-{value}")


def _wait_for(file: Path) -> None:
    while not file.exists():
        time.sleep(0.02)


def _exchange(placement: Placement, channel: Channel, folders: Mapping[str, Path], noted: Path) -> dict[str, Any]:
    print(f"rank {placement.rank} says hello")
    output = folders["output"]
    if placement.rank == 0:
        for name in ("first", "second"):
            (output / name).mkdir()
            (output / name / "state.txt").write_text(name)
            channel.bring_back(name)
            _say(channel, noted, name)  # what is gone before it has been read is not sent
        (output / "first" / "state.txt").unlink()
        (output / "first").rmdir()
        (output / "second" / "state.txt").write_text("changed")
        (output / "large.bin").write_bytes(b"x" * 3_000_001)
        (output / "empty.bin").touch()
    return {
        "words": (folders["words"] / "words.txt").read_text(),
        "inputs": sorted(path.name for path in folders["words"].iterdir()),
        "cross_size": os.environ["HOROVOD_CROSS_SIZE"],
        "interface": os.environ["HOROVOD_GLOO_IFACE"],
    }


def _kill_rank_1(placement: Placement) -> None:
    if placement.rank == 1:
        print("rank 1 is about to have an accident", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    _sleep()


def _raise_bad_input() -> None:
    raise BadInput("words.txt: column 'x' is missing")


def _write_much(channel: Channel, output: Path) -> None:
    (output / "checkpoint").mkdir()
    (output / "checkpoint" / "weights").write_bytes(b"x" * 3_000_000)
    channel.bring_back("checkpoint")
    _sleep()


def _sleep(_: Any = None) -> None:
    time.sleep(300)


def meet(
    placement: Placement, channel: Channel, *, folders: Mapping[str, Path], accident: str, reduces: bool = False
) -> None:
    """Says where it is; then something happens to rank 1, while rank 0 waits."""
    results: dict[str, Any] = {}
    if reduces:
        import horovod.tensorflow as hvd
        import tensorflow as tf

        hvd.init()
        total = float(hvd.allreduce(tf.constant(placement.rank + 1.0), op=hvd.Sum))
        results = {"total": total, "local": [hvd.local_rank(), hvd.local_size()]}
    executor = _executor()
    channel.send("alive", where="the first all-reduce")
    devices = os.environ.get("CUDA_VISIBLE_DEVICES")
    channel.send("hello", pid=os.getpid(), executor=executor.pid, devices=devices, **results)
    if placement.rank == 1:
        print("rank 1 is about to have an accident", flush=True)
        accidents: dict[str, Callable[[], Any]] = {
            "rank killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
            "executor killed": executor.kill,
            "none": _sleep,
        }
        accidents[accident]()
    elif reduces:
        hvd.allreduce(tf.constant(1.0), name="second")
    _sleep()


def _executor() -> Any:
    """The JVM above this process."""
    import psutil

    return next(parent for parent in psutil.Process().parents() if parent.name() == "java")


def _await_notice(placement: Placement, noted: Path) -> bool:
    """Rank 1 has the first process of its host asked to end; returns whether this reaches the rank."""
    heard = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: heard.set())
    (noted / f"ready-{placement.rank}").touch()
    if placement.rank == 1:
        _wait_for(noted / "ready-0")
        os.kill(psutil.Process(os.getppid()).ppid(), signal.SIGTERM)
    return heard.wait(60)

"""Steps that are run as jobs: they say where they are, for as long as they are told to, and have descendants."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

from airflow_hops.hops import StepContext


def count(context: StepContext, *, folder: str, until: int = 1000, fail: bool = False) -> dict[str, Any]:
    """Counts to ``until``, one line each tenth of a second, or until the file ``stop`` appears in ``folder``."""
    place = Path(folder)
    with (place / "begun").open("a+") as stream:
        stream.seek(0)
        at_work = [pid for pid in stream.read().split() if _is_at_work(pid)]
        assert not at_work, f"processes {at_work} are at the same work"
        stream.write(f"{os.getpid()}\n")
    child = subprocess.Popen(["sleep", "300"], start_new_session=True)
    (place / "child").write_text(str(child.pid))
    number = 0
    while number < until and not (place / "stop").exists():
        context.progress(number / until, f"count {number}", {"number": number})
        (place / "count.new").write_text(str(number))
        (place / "count.new").rename(place / "count")
        time.sleep(0.1)
        number += 1
    if fail:
        raise ValueError("counted in vain")
    return {"pid": os.getpid(), "number": number, "try": context.spec.producer.try_number}


def chatter(context: StepContext, *, folder: str) -> int:
    """Says far more than anybody wants to read, once ``go`` appears in ``folder``."""
    print("before", flush=True)
    while not (Path(folder) / "go").exists():
        time.sleep(0.05)
    print("\n".join(f"line {number:06d} " + "x" * 50 for number in range(40_000)), flush=True)
    (Path(folder) / "gone").touch()
    while not (Path(folder) / "stop").exists():
        time.sleep(0.05)
    return os.getpid()


def _is_at_work(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZT"
    except OSError:
        return False

"""Times a piece of work in a process of its own, with its CPU seconds and its peak memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import psutil

from benchmarks.measurement.memory_account import MemoryAccount, pss_by_role
from benchmarks.measurement.processes import cpu_seconds, trees

REPOSITORY = Path(__file__).resolve().parent.parent.parent
_SAMPLE_INTERVAL_S = 0.05


@dataclass(frozen=True)
class Timed:
    """A piece of work that was done once.

    Attributes:
        seconds: Wall-clock seconds, after imports and warm-up.
        cpu_s: CPU seconds meanwhile, of the process and all its descendants.
        facts: What the work told about itself.
        idle_mib: Memory before the work, libraries imported: proportional set size; 0 where memory was not sampled.
        peak_mib: Greatest sum of the proportional set sizes of the process and all its descendants, each page counted
            once; 0 where it was not sampled.
    """

    seconds: float
    cpu_s: float
    facts: Mapping[str, Any]
    idle_mib: float = 0.0
    peak_mib: float = 0.0


def time_work(environment: Path, module: str, way: str, *arguments: Any, with_memory: bool = False) -> Timed:
    """Runs one way of a module of :func:`benchmarks.measurement.worker.perform`.

    Args:
        environment: Folder of the Python environment.
        module: The module, from the repository's root.
        way: Name of the way.
        arguments: Its arguments.
        with_memory: Whether memory is sampled, which costs time.

    Raises:
        RuntimeError: the process failed; the message has the end of its log.
    """
    command = [str(environment / "bin" / "python"), "-m", module, way, *map(str, arguments)]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    settings = {"TF_CPP_MIN_LOG_LEVEL": "3", "DO_NOT_TRACK": "1", "PYTHONWARNINGS": "ignore"}
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command,
            cwd=REPOSITORY,
            env={**kept, **settings},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        try:
            return _follow(process, with_memory)
        except (BrokenPipeError, ValueError) as error:
            code = process.wait()
            log.seek(0)
            lines = "\n".join(log.read().decode(errors="replace").splitlines()[-30:])
            raise RuntimeError(f"'{' '.join(command[2:])}' ended with {code}; the end of its log:\n{lines}") from error
        finally:
            _end(process)


def _follow(process: subprocess.Popen[str], with_memory: bool) -> Timed:
    assert process.stdin is not None and process.stdout is not None
    if process.stdout.readline() != "ready\n":
        raise ValueError("not ready")
    root = [psutil.Process(process.pid)]
    idle = sum(pss_by_role(trees(root)).values()) if with_memory else 0.0
    account = MemoryAccount(lambda: trees(root), interval_s=_SAMPLE_INTERVAL_S) if with_memory else None
    start_cpu_s = cpu_seconds(trees(root))
    with account or nullcontext():
        _say(process.stdin, "go")
        answer = json.loads(process.stdout.readline())
    used = cpu_seconds(trees(root)) - start_cpu_s
    _say(process.stdin, "end")
    seconds = answer.pop("seconds")
    return Timed(seconds, used, answer, idle, max(idle, sum(account.peak.values())) if account else 0.0)


def _say(to: IO[str], word: str) -> None:
    to.write(f"{word}\n")
    to.flush()


def _end(process: subprocess.Popen[str]) -> None:
    """Waits for the process, and ends it and its descendants where it does not end by itself."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        for one in trees([psutil.Process(process.pid)]):
            print(f"ending process {one.pid}, which did not", file=sys.stderr)
            one.kill()
        process.wait()

"""A step's local process: a process group of its own, output line by line, and a kill that leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from airflow_hops.protocol import STEP_ID_VARIABLE

_DRAIN_S = 0.2


class StepProcess:
    """Starts a command as a step.

    Args:
        command: Program and arguments.
        env: The whole environment of the process; the step's id is added.
        cwd: Its working directory.
    """

    def __init__(self, command: Sequence[str], *, env: Mapping[str, str], cwd: Path) -> None:
        self.step_id = uuid.uuid4().hex
        self._process = subprocess.Popen(
            list(command),
            env={**env, STEP_ID_VARIABLE: self.step_id},
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """Process id, which is also the id of the process group."""
        return self._process.pid

    def lines(self) -> Iterator[str]:
        """Yields the output line by line until the process has ended.

        A descendant that outlives the process and holds its output open does not keep this waiting.
        """
        stream = self._process.stdout
        assert stream is not None
        os.set_blocking(stream.fileno(), False)
        pending = b""
        ended_at: float | None = None
        with selectors.DefaultSelector() as selector:
            selector.register(stream, selectors.EVENT_READ)
            while True:
                selector.select(timeout=0.1)
                chunk = stream.read(1 << 16)
                if chunk == b"":
                    break
                if chunk:
                    *complete, pending = (pending + chunk).split(b"\n")
                    yield from (line.decode(errors="replace") for line in complete)
                elif self._process.poll() is not None:
                    ended_at = ended_at or time.monotonic()
                    if time.monotonic() - ended_at > _DRAIN_S:
                        break
        if pending:
            yield pending.decode(errors="replace")

    def wait(self, timeout_s: float | None = None) -> int:
        """Waits for the end.

        Returns:
            The exit code, or the negative number of the signal that ended the process.
        """
        return self._process.wait(timeout_s)

    def kill(self, grace_s: float = 2.0) -> None:
        """Ends the process and all its descendants: SIGTERM, and SIGKILL for what is left after ``grace_s`` seconds."""
        kill_step(self.step_id, self.pid, grace_s=grace_s)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1)


def kill_step(step_id: str, pid: int | None, *, grace_s: float = 2.0) -> None:
    """Ends every process of a step, also those that left its process group or lost their parent.

    Args:
        step_id: Value of the step's environment variable, which all its processes inherit.
        pid: The step's first process, whose group is signalled too.
        grace_s: Seconds between SIGTERM and SIGKILL.
    """
    processes = _processes_of(step_id, pid)
    if pid is not None and processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGTERM)
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    psutil.wait_procs(processes, timeout=grace_s)
    for _ in range(3):  # a process may fork while it is being ended
        left = _processes_of(step_id, pid)
        if not left:
            return
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(left, timeout=0.5)


def _processes_of(step_id: str, pid: int | None) -> list[psutil.Process]:
    found: dict[int, psutil.Process] = {}
    if pid is not None:
        with contextlib.suppress(psutil.Error):
            first = psutil.Process(pid)
            for process in (first, *first.children(recursive=True)):
                found[process.pid] = process
    marker = f"{STEP_ID_VARIABLE}={step_id}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        number = int(folder.name)
        if number in found or number == os.getpid():
            continue
        with contextlib.suppress(OSError, psutil.Error):
            if marker in (folder / "environ").read_bytes():
                found[number] = psutil.Process(number)
    return [p for p in found.values() if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def describe_exit(code: int) -> str:
    """An exit code in words; a signal by its name, with what usually sends it."""
    if code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = {
        "SIGKILL": " (someone killed it, or the kernel did for want of memory: see dmesg, and give the step less data "
        "or the machine more memory)",
        "SIGSEGV": " (a crash in native code)",
        "SIGABRT": " (native code gave up; its last lines say why)",
        "SIGTERM": " (it was asked to end)",
    }.get(name, "")
    return f"{name}{hint}"

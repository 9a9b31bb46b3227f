"""A step's local process: its own process group, output by line, and a kill that ends all descendants."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from airflow_hops.core.artifacts.artifact import Producer
from airflow_hops.core.processes.ending import GRACE_S, end_marked
from airflow_hops.core.steps.protocol import STEP_ID_VARIABLE, Phase

_DRAIN_S = 0.2


@dataclass(frozen=True)
class Detached:
    """Id and log file of a step that outlives the process that starts it."""

    step_id: str
    log: Path


@dataclass(frozen=True)
class Deferral:
    """A task that leaves its step to a trigger.

    Attributes:
        conn_id: Connection of type ``hops``, which has the store.
        producer: The task instance.
        until: Time at which the trigger fires at the latest, in seconds since 1970; None for no time.
    """

    conn_id: str
    producer: Producer
    until: float | None = None


class StepProcess:
    """A step's first process; :meth:`kill` ends it with all its descendants.

    Args:
        step_id: Value of the environment variable that marks the step's processes.
        pid: Process id, which is also the id of the process group and session.
        output: Read end of the pipe that the process writes to; closed at the end of :meth:`lines`. None if its
            output goes to a file.
        poll: Returns the exit code (negative: the signal's number), or None while the process runs.

    Attributes:
        last_lines: The last lines of output that a trigger has shown.
        phases: Parts of the time that the launcher has measured, once :meth:`wait` has returned.
    """

    last_lines: Sequence[str] = ()
    phases: Sequence[Phase] = ()

    def __init__(self, step_id: str, pid: int | None, output: int | None, poll: Callable[[], int | None]) -> None:
        self.step_id, self.pid = step_id, pid
        self._output, self._poll = output, poll

    @classmethod
    def start(
        cls, command: Sequence[str], *, env: Mapping[str, str], cwd: Path, detached: Detached | None = None
    ) -> StepProcess:
        """Starts a command as a step, in its own session; the step's id is added to the complete ``env``."""
        step_id = detached.step_id if detached else new_step_id()
        read_end, write_end = open_output(detached)
        try:
            process = subprocess.Popen(
                list(command),
                env={**env, STEP_ID_VARIABLE: step_id},
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=write_end,
                stderr=write_end,
                start_new_session=True,
            )
        except BaseException:
            if read_end is not None:
                os.close(read_end)
            raise
        finally:
            os.close(write_end)
        return cls(step_id, process.pid, read_end, process.poll)

    def lines(self) -> Iterator[str]:
        """Yields the output line by line until the process has ended.

        A descendant that outlives the process and holds its output open does not block this.
        """
        if self._output is None:
            return
        os.set_blocking(self._output, False)
        pending = b""
        ended_at: float | None = None
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(self._output, selectors.EVENT_READ)
                while True:
                    selector.select(timeout=0.1)
                    try:
                        chunk = os.read(self._output, 1 << 16)
                    except BlockingIOError:
                        if self.poll() is not None:
                            ended_at = ended_at or time.monotonic()
                            if time.monotonic() - ended_at > _DRAIN_S:
                                break
                        continue
                    if not chunk:
                        break
                    *complete, pending = (pending + chunk).split(b"\n")
                    yield from (line.decode(errors="replace") for line in complete)
            if pending:
                yield pending.decode(errors="replace")
        finally:
            os.close(self._output)

    def poll(self) -> int | None:
        """Returns the exit code (negative: the signal's number), or None while the process runs."""
        return self._poll()

    def wait(self, timeout_s: float | None = None) -> int:
        """Waits for the end, and returns the exit code (negative: the signal's number).

        Raises:
            TimeoutError: the process has not ended in time.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        pause_s = 0.001
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(f"process {self.pid} is still running after {timeout_s} s")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.05)
        return code

    def kill(self, grace_s: float = GRACE_S) -> None:
        """Ends the process and all its descendants with SIGTERM, and with SIGKILL after ``grace_s`` seconds."""
        kill_step(self.step_id, self.pid, grace_s=grace_s)
        with contextlib.suppress(TimeoutError):
            self.wait(1)


def open_output(detached: Detached | None) -> tuple[int | None, int]:
    """Opens a step's output: the read end of a pipe (None for a log file), and the end that the step writes to."""
    if detached is None:
        return os.pipe()
    return None, os.open(detached.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def new_step_id() -> str:
    """Returns a unique step id."""
    return uuid.uuid4().hex


def kill_step(step_id: str, pid: int | None, *, grace_s: float = GRACE_S) -> None:
    """Ends every process of a step: those with its id in the environment, and those in the session of ``pid``."""
    end_marked(f"{STEP_ID_VARIABLE}={step_id}", pid, grace_s=grace_s)


def describe_exit(code: int) -> str:
    """Describes an exit code in words; a signal by its name and usual sender."""
    if code > 128 and code - 128 in set(signal.Signals):
        # spark-submit and shells pass on the signal that ended their child in this form.
        return f"exit code {code}, that is {describe_exit(128 - code)}"
    if code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = {
        "SIGKILL": " (it was killed, possibly by the kernel for lack of memory: see dmesg, and give the step less data "
        "or the machine more memory)",
        "SIGSEGV": " (a crash in native code)",
        "SIGABRT": " (native code aborted; see the last lines of the log)",
        "SIGTERM": " (it was asked to end)",
    }.get(name, "")
    return f"{name}{hint}"

"""A step's processes: their output by line, their end, and a kill that ends all descendants.

One design for every launcher: a step's output is a log that a worker follows from an offset on, so that it does not
matter whether this worker has started the step. A backend answers ``poll``, ``read_lines`` and ``kill``; one whose
steps outlive their worker also ``check_follower`` and ``discard``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from airflow_hops.core.artifacts.artifact import Producer
from airflow_hops.core.processes.ending import GRACE_S, end_marked
from airflow_hops.core.processes.polling import Overdue, pauses, poll
from airflow_hops.core.steps.protocol import STEP_ID_VARIABLE, Phase

LOG = "output.log"
"""Name of the file, beside a step's spec, that a process on this machine writes its output to."""
_SHORTEST_POLL_S = 0.001


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
        pid: Process id, which is also the id of the process group and session; None if it is on another machine.
        log: File that the processes write their output to.
        poll: Returns the exit code (negative: the signal's number), or None while the process runs.

    Attributes:
        poll_s: Seconds between two looks at a step that has run for a while.
        last_lines: The last lines of output that a trigger has shown.
        phases: Parts of the time that the launcher has measured, once :meth:`wait` has returned.
    """

    poll_s: ClassVar[float] = 0.05
    last_lines: Sequence[str] = ()
    phases: Sequence[Phase] = ()

    def __init__(self, step_id: str, pid: int | None, log: Path, poll: Callable[[], int | None]) -> None:
        self.step_id, self.pid = step_id, pid
        self._log, self._offset, self._poll = log, 0, poll
        self._pending = bytearray()  # an unfinished line, which was read once

    @classmethod
    def start(
        cls, command: Sequence[str], *, env: Mapping[str, str], cwd: Path, output: int | None = None
    ) -> StepProcess:
        """Starts a command as a step, in its own session.

        Args:
            command: Program and arguments.
            env: All variables; a step's id is added if they have none.
            cwd: The step's folder, which gets its log.
            output: Descriptor for the output instead of the log, which nobody follows then.
        """
        env = {STEP_ID_VARIABLE: new_step_id(), **env}
        output = open_log(cwd) if output is None else os.dup(output)
        try:
            process = subprocess.Popen(
                list(command),
                env=env,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        finally:
            os.close(output)
        return cls(env[STEP_ID_VARIABLE], process.pid, cwd / LOG, process.poll)

    def lines(self) -> Iterator[str]:
        """Yields the output line by line until the process has ended.

        Raises:
            HopsError: another process follows the step now, or it will never start.
        """
        for pause_s in pauses(_SHORTEST_POLL_S, slowest_s=self.poll_s):
            is_over = self.poll() is not None  # polled before reading, so that no output is missed
            yield from self.read_lines(is_over=is_over)
            if is_over:
                return
            self.check_follower()
            time.sleep(pause_s)

    def read_lines(self, *, is_over: bool) -> Iterator[str]:
        """Yields the lines since the last call; if the process has ended, also one without an end."""
        with contextlib.suppress(FileNotFoundError), self._log.open("rb") as stream:  # removed, or on another machine
            stream.seek(self._offset + len(self._pending))
            while chunk := stream.read(1 << 16):
                self._pending += chunk
                if b"\n" in chunk:
                    *complete, self._pending = self._pending.split(b"\n")
                    yield from (line.decode(errors="replace") for line in complete)
                    self.remember(stream.tell() - len(self._pending))
        if self._pending and is_over:
            last, self._pending = self._pending, bytearray()
            self._offset += len(last)
            yield last.decode(errors="replace")

    def remember(self, offset: int) -> None:
        """Remembers up to which byte the output was read."""
        self._offset = offset

    def check_follower(self) -> None:
        """Raises HopsError if another process follows the step now."""

    def poll(self) -> int | None:
        """Returns the exit code (negative: the signal's number), or None while the process runs."""
        return self._poll()

    def wait(self, timeout_s: float | None = None) -> int:
        """Waits for the end, and returns the exit code (negative: the signal's number).

        Raises:
            Overdue: the process has not ended in time.
        """
        late = f"process {self.pid or self.step_id} is still running"
        return poll(self.poll, _SHORTEST_POLL_S, timeout_s, late, slowest_s=self.poll_s)

    def kill(self, grace_s: float = GRACE_S) -> None:
        """Ends the process and all its descendants with SIGTERM, and with SIGKILL after ``grace_s`` seconds."""
        kill_step(self.step_id, self.pid, grace_s=grace_s)
        with contextlib.suppress(Overdue):
            self.wait(1)

    def discard(self) -> None:
        """Removes what is left of the step for later tries; called when its outcome is recorded."""


def open_log(folder: Path) -> int:
    """Opens the file in a step's folder that its processes write their output to."""
    return os.open(folder / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


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

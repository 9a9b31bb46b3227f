"""Watches a gang: all ranks finish, or all end within seconds and the error names the rank at fault."""

from __future__ import annotations

import contextlib
import logging
import re
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from airflow_hops.core.errors import HopsError, error_from
from airflow_hops.core.steps.protocol import Line, format_record, parse_line
from airflow_hops.ml.training.gang.crew import Crew, Placement, RankLauncher, Work
from airflow_hops.ml.training.gang.forked import LocalRanks
from airflow_hops.ml.training.gang.rendezvous import stall_variables

# States of a rank: running → finished (result received) → ended with code 0; anything else is a failure: an error
# message, another exit code, a signal, or a lost host.
# One rank's failure breaks the collectives of all others, which then fail, too. The rank at fault is therefore sought
# before any error is raised: wait up to 1 s for the cause (5 s if all failures so far quote Horovod), prefer ranks that
# were killed or failed by themselves to those that report a broken collective.
# A stall: a rank without a sign of life (message or output) for stall_timeout_s. Seconds in which ranks of a host wait
# for a core do not count: the ranks of other hosts wait for them. All ranks write their stacks on SIGUSR1; the culprit
# is one that is not in a collective. If the crew says that the network is at fault, the link is named instead of lines
# of a log.
# In every case crew.end() kills all ranks before the error is raised, so no rank outlives run_gang(). If this process
# is killed, its ranks are killed by their parent-death signal, or by their agents.

LOG_FOLLOWS = "The last lines of its log:"
_LINE_CHARACTERS = 500
_LAST_LINES = 20
_POLL_S = 0.05
_COUNT_EVERY_S = 1.0
_STACK_S = 0.5
_NO_STACK_S = 5.0
_CAUSE_GRACE_S = 1.0
_SECOND_HAND_GRACE_S = 5.0
_GLOO = "/gloo/transport/"
_SECOND_HAND = re.compile(rf"horovod|{_GLOO}|connection (closed|reset)|shut ?down", re.IGNORECASE)
_ALARMING = re.compile(r"\b(error|fatal|warning)\b|: [EF] ", re.IGNORECASE)
_STACK_HEADER = "Stack (most recent call first):"
_STACK_LINE = re.compile(r'^  File "')
_STACK_LINES = 8
_IN_COLLECTIVE = re.compile(r"/horovod/|tensorflow/python/eager/execute\.py|/torch/(distributed|autograd)/")


class Interrupted(HopsError):
    """The network between ranks, or between them and the step, has failed."""

    cause = "unreachable"


OnMessage = Callable[[int, Mapping[str, Any]], None]
"""Called with a rank's number and a message of it."""


@dataclass
class WatchedRank:
    """The state of a running rank; ``log`` is its log file."""

    placement: Placement
    log: TextIO
    last_lines: deque[str] = field(default_factory=lambda: deque(maxlen=_LAST_LINES))
    stack: list[str] = field(default_factory=list)
    last_alive: float = field(default_factory=time.monotonic)
    last_progress: float = field(default_factory=time.monotonic)
    broken: str = ""
    where: str = "its start"
    ended: bool = False
    exit_code: int | None = None
    error: Mapping[str, Any] | None = None
    result: Any = None
    finished: bool = False

    @property
    def in_collective(self) -> bool:
        """Whether its stack shows that it waits for the other ranks, or runs a graph, in which it may wait."""
        return any(_IN_COLLECTIVE.search(line) for line in self.stack[1:5])

    @property
    def failed(self) -> bool:
        """Whether it has ended, or is about to, without having finished."""
        return self.error is not None or (self.ended and not (self.finished and self.exit_code == 0))

    @property
    def killed(self) -> bool:
        """Whether a signal ended it, or its host is lost."""
        return self.ended and (self.exit_code is None or self.exit_code < 0)

    @property
    def second_hand(self) -> bool:
        """Whether it failed only because another rank did."""
        if self.error is None:
            return False
        return bool(_SECOND_HAND.search(f"{self.error['name']} {self.error['message']}"))

    def hear(self, message: Mapping[str, Any]) -> bool:
        """Handles a message of the rank; returns whether to pass it on to ``on_message``."""
        self.last_alive = time.monotonic()
        self.where = message.get("where", self.where)
        if message["type"] != "error":
            self.last_progress = self.last_alive
        if message["type"] == "result":
            self.result, self.finished = message["value"], True
        elif message["type"] == "error":
            self.error = message
        return message["type"] not in ("result", "error", "alive", "files")


def run_gang(
    work: Work,
    size: int,
    *,
    logs: Path,
    launcher: RankLauncher | None = None,
    env: Mapping[str, str] | None = None,
    stall_timeout_s: float = 300.0,
    on_message: OnMessage | None = None,
    notice: threading.Event | None = None,
) -> list[Any]:
    """Runs ``work`` on ``size`` ranks, and returns their results by rank.

    Rank 0's output goes to standard output, as do the others' warnings and errors, prefixed with their rank; all output
    goes to ``rank-<n>.log``.

    Args:
        work: Called in each rank's process with its placement and its channel.
        size: Number of ranks.
        logs: Folder of the log files; it is created.
        launcher: Starts the ranks; on this machine by default.
        env: Variables for all ranks.
        stall_timeout_s: Seconds without a sign of life from a rank after which the gang is ended, not counting those in
            which a rank waits for a core.
        on_message: Called with the rank and each of its messages, except signs of life.
        notice: The notice to this process, which is passed on to all ranks.

    Raises:
        BadInput: a rank failed in a way that a retry would repeat, or the launcher has too few slots.
        HopsError: a rank failed, died or stalled; or TensorFlow already runs in this process.
    """
    launcher = launcher or LocalRanks()
    placements = launcher.place(size)
    own = stall_variables(stall_timeout_s)
    logs.mkdir(parents=True, exist_ok=True)
    oom_kills = count_oom_kills()
    crew = launcher.start(placements, work, {**own, **(env or {})})
    on_message = on_message or (lambda rank, message: None)
    supervisor = GangSupervisor(crew, logs, stall_timeout_s, on_message, oom_kills, notice)
    try:
        return supervisor.watch()
    finally:
        supervisor.end()


class GangSupervisor:
    """Watches a gang; arguments as those of :func:`run_gang`.

    ``oom_kills`` is :func:`count_oom_kills` before the ranks began.
    """

    def __init__(
        self,
        crew: Crew,
        logs: Path,
        stall_timeout_s: float,
        on_message: OnMessage,
        oom_kills: int | None = None,
        notice: threading.Event | None = None,
    ) -> None:
        self._crew, self._stall_timeout_s, self._on_message = crew, stall_timeout_s, on_message
        self._oom_kills, self._notice, self._is_passed_on = oom_kills, notice, False
        self._held_up_s, self._counted_at = 0.0, time.monotonic()
        try:
            self.ranks = [
                WatchedRank(placement, (logs / f"rank-{placement.rank}.log").open("w", buffering=1))
                for placement in crew.placements
            ]
        except OSError as error:
            crew.end()
            raise HopsError(f"{logs}: the ranks' logs cannot be written: {error}") from error

    def watch(self) -> list[object]:
        """Waits for all ranks to finish and returns their results, or raises for the one that failed."""
        while not all(rank.ended for rank in self.ranks):
            if self._notice is not None and self._notice.is_set() and not self._is_passed_on:
                self._is_passed_on = True
                for rank in self.ranks:
                    self._crew.signal(rank.placement.rank, signal.SIGTERM)
            self._take_in(_POLL_S)
            if any(rank.failed for rank in self.ranks):
                culprit = self._find_culprit()
                self.end()
                raise self._failure(culprit)
            now = time.monotonic()
            if now - self._counted_at >= _COUNT_EVERY_S:
                for rank in self.ranks:
                    rank.last_alive = min(now, rank.last_alive + self._held_up_s)
                self._held_up_s, self._counted_at = 0.0, now
            stalled = [r for r in self.ranks if not r.ended and now - r.last_alive > self._stall_timeout_s]
            if stalled:
                error = self._describe_stall(stalled)
                self.end()
                raise error
        return [rank.result for rank in self.ranks]

    def end(self) -> None:
        """Kills running ranks, reads their remaining output, and closes the logs."""
        self._crew.end()
        try:
            if not all(rank.log.closed for rank in self.ranks):
                self._take_in(0)
        finally:
            for rank in self.ranks:
                with contextlib.suppress(OSError):  # an earlier write error has been reported
                    rank.log.close()

    def _take_in(self, timeout_s: float) -> None:
        for event in self._crew.events(timeout_s):
            rank = self.ranks[event.rank]
            if event.kind == "output":
                self._take_line(rank, event.value)
            elif event.kind == "held_up":
                self._held_up_s = max(self._held_up_s, event.value)
            elif event.kind == "exit":
                rank.ended, rank.exit_code = True, event.value
            elif rank.hear(event.value):
                self._on_message(event.rank, event.value)

    def _take_line(self, rank: WatchedRank, text: str) -> None:
        line = parse_line(text)
        try:
            rank.log.write(line.text + "\n")
        except OSError as error:
            raise HopsError(f"{rank.log.name}: the rank's log cannot be written: {error}") from error
        if line.text == _STACK_HEADER:
            rank.stack = [line.text]
            return
        if rank.stack and _STACK_LINE.match(line.text):
            rank.stack.append(line.text)
            return
        rank.last_lines.append(line.text)
        if _GLOO in line.text:
            rank.broken = line.text
        if not _SECOND_HAND.search(line.text):  # output is a sign of life, except Horovod's reports of waiting
            rank.last_alive = time.monotonic()
        if rank.placement.rank == 0:
            print(text, flush=True)
        elif line.level >= logging.WARNING or (line == Line(logging.INFO, text) and _ALARMING.search(text)):
            level = max(line.level, logging.WARNING)
            print(format_record(f"[rank {rank.placement.rank}] {line.text}", level=level), flush=True)

    def _find_culprit(self) -> WatchedRank:
        """Returns the rank that failed by itself, not because its peers had ended."""
        began = time.monotonic()
        while True:
            waited_s = time.monotonic() - began
            failed = [rank for rank in self.ranks if rank.failed]
            first_hand = [rank for rank in failed if not rank.second_hand]
            # A rank that was killed sends no error; its peers' errors may arrive first.
            killed = [rank for rank in first_hand if rank.killed]
            if killed or (first_hand and waited_s > _CAUSE_GRACE_S):
                return (killed or first_hand)[0]
            if waited_s > _SECOND_HAND_GRACE_S or all(rank.ended for rank in self.ranks):
                return (first_hand or [rank for rank in failed if rank.broken] or failed)[0]
            self._take_in(_POLL_S)

    def _describe_stall(self, stalled: list[WatchedRank]) -> HopsError:
        """Returns the error of a stall, which names the rank that the others wait for."""
        # A rank that does not write its stack in time is completely blocked.
        asked = [rank for rank in self.ranks if not rank.ended]
        for rank in asked:
            rank.stack = []
            self._crew.signal(rank.placement.rank, signal.SIGUSR1)
        began = time.monotonic()
        while time.monotonic() - began < (_STACK_S if all(rank.stack for rank in asked) else _NO_STACK_S):
            self._take_in(_POLL_S)
        # If some ranks wait in a collective, a rank outside of it is the cause, even if its last output is newer.
        idle = [rank for rank in self.ranks if not rank.ended and not rank.in_collective]
        others_wait = [rank for rank in stalled if rank in idle] or idle
        culprit = min(others_wait or stalled, key=lambda rank: rank.last_alive)
        others = [r for r in self.ranks if r is not culprit]
        seen = "; ".join(
            f"rank {r.placement.rank} was last seen after {r.where}"
            + (", and waits for the others" if r.in_collective and others_wait else "")
            for r in others
        )
        if interrupted := self._crew.describe_interruption():
            return Interrupted(
                f"the network is interrupted {interrupted}, or a host stands still: {culprit.placement} made no "
                f"progress for {self._stall_timeout_s:g} s (stall_timeout_s) after {culprit.where}"
                + (f" ({seen})" if seen else "")
                + "; all ranks were ended. A retry resumes from the last checkpoint. TCP may notice the end of an "
                "interruption only after as long again, so a stall_timeout_s of more than twice its length survives it."
            )
        stack = "\n".join(f"  {line}" for line in culprit.stack[1 : _STACK_LINES + 1])
        return HopsError(
            f"{culprit.placement} made no progress for {self._stall_timeout_s:g} s (stall_timeout_s) after "
            f"{culprit.where}"
            + (f" ({seen})" if seen else "")
            + "; all ranks were ended."
            + (f"\nIts stack, innermost call first:\n{stack}\n" if stack else " ")
            + _quote_log(culprit.last_lines)
        )

    def _failure(self, rank: WatchedRank) -> HopsError:
        if rank.second_hand and (broken := self._crew.find_broken_exchange(rank.placement, rank.broken)):
            waited_s = time.monotonic() - rank.last_progress
            return Interrupted(
                f"the exchange between {rank.placement} and {broken[0]} broke within {waited_s:.0f} s after "
                f"{rank.where}: {broken[1]}; all ranks were ended. No rank has failed by itself: check the network "
                "between these hosts, and whether one was restarted. A retry resumes from the last checkpoint."
            )
        quoted = _quote_log(rank.last_lines)
        if rank.error is not None:
            where = f" ({rank.placement}, after {rank.where}; all ranks were ended)"
            is_here = rank.placement.host == socket.gethostname()
            is_alone = is_here and len(self.ranks) == 1 and not rank.error["retryable"]  # the only rank needs no host
            message = f"{rank.error['message']}{'' if is_alone else where}. {quoted}"
            facts = {"kind": "", "details": {}, **rank.error}
            return error_from(facts["kind"], message, retryable=facts["retryable"], details=facts["details"])
        is_here = rank.placement.host == socket.gethostname()
        exit_ = describe_exit(rank.exit_code, self._oom_kills if is_here else None)
        if is_here and len(self.ranks) == 1:
            by_itself = ", as by sys.exit()" if rank.exit_code is not None and rank.exit_code >= 0 else ""
            return HopsError(f"the training was ended by {exit_}{by_itself}, after {rank.where}. {quoted}")
        return HopsError(f"{rank.placement} was ended by {exit_} after {rank.where}; all ranks were ended. {quoted}")


def describe_exit(code: int | None, oom_kills: int | None = None) -> str:
    """Describes how a rank's process ended.

    Args:
        code: Exit code, or the negative number of a signal; None if only the loss of its host is known.
        oom_kills: :func:`count_oom_kills` when the rank began; None on another host.
    """
    if code is None:
        return "the loss of its host"
    if code >= 0:
        return f"exit code {code} before it was done"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    if name == "SIGKILL":
        struck = oom_kills is not None and count_oom_kills() > oom_kills
        why = (
            "the kernel's out-of-memory killer was active in the meantime"
            if struck
            else "it was killed, possibly by a container's memory limit"
        )
        return f"SIGKILL ({why}; if memory is short, give the gang fewer ranks or smaller batches)"
    return {"SIGSEGV": "SIGSEGV (a crash in native code)", "SIGABRT": "SIGABRT (native code aborted)"}.get(name, name)


def _quote_log(lines: Sequence[str]) -> str:
    """Quotes the last lines of a rank's log for an error; cuts long lines in the middle."""
    if not lines:
        return "Its log is empty."
    half = _LINE_CHARACTERS // 2
    short = (line if len(line) <= 2 * half else f"{line[:half]} … {line[-half:]}" for line in lines)
    return f"{LOG_FOLLOWS}\n" + "\n".join(f"  {line}" for line in short)


def count_oom_kills() -> int:
    """Returns the number of processes that this machine's kernel has killed for lack of memory since boot."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(re.findall(r"^oom_kill (\d+)$", Path("/proc/vmstat").read_text(), re.MULTILINE)[0])
    return 0

"""A gang of ranks on this machine: forked from the step's process, watched, and ended together.

Start-up is what training of minutes costs, so ranks are not started but forked, after TensorFlow and Horovod have been
imported and before any of their threads run. Each rank finds Horovod's Gloo rendezvous through its environment, as
``horovodrun`` would have set it. All ranks finish, or the gang ends within seconds and the error names the rank at
fault.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import selectors
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from airflow_hops.artifacts import BadInput, HopsError
from airflow_hops.protocol import Line, format_record, parse_line
from airflow_hops.runtime.rank import Placement, Work, become_rank
from airflow_hops.runtime.rendezvous import horovod_environment, rendezvous

_LAST_LINES = 20
_POLL_S = 0.05
_CAUSE_GRACE_S = 1.0
_SECOND_HAND_GRACE_S = 5.0
_SECOND_HAND = re.compile(r"horovod|connection (closed|reset)|shut ?down", re.IGNORECASE)
_ALARMING = re.compile(r"\b(error|fatal|warning)\b|: [EF] ", re.IGNORECASE)
_STACK_HEADER = "Stack (most recent call first):"
_STACK_LINE = re.compile(r'^  File "')
_STACK_LINES = 8
_IN_COLLECTIVE = re.compile(r"/horovod/|tensorflow/python/eager/execute\.py")


@dataclass
class _Rank:
    placement: Placement
    pid: int
    output: int
    channel: int
    log: TextIO
    last_lines: deque[str] = field(default_factory=lambda: deque(maxlen=_LAST_LINES))
    stack: list[str] = field(default_factory=list)
    pending: dict[int, bytes] = field(default_factory=dict)
    last_alive: float = field(default_factory=time.monotonic)
    where: str = "its start"
    exit_code: int | None = None
    error: Mapping[str, Any] | None = None
    result: Any = None
    finished: bool = False

    @property
    def in_collective(self) -> bool:
        """Whether its stack says that it waits for the other ranks (or runs a graph, which may)."""
        return any(_IN_COLLECTIVE.search(line) for line in self.stack[1:5])

    @property
    def failed(self) -> bool:
        return self.error is not None or (self.exit_code is not None and not (self.finished and self.exit_code == 0))

    @property
    def second_hand(self) -> bool:
        """Whether it failed merely because another rank did."""
        return self.error is not None and bool(_SECOND_HAND.search(f"{self.error['name']} {self.error['message']}"))


def run_gang(
    work: Work,
    size: int,
    *,
    logs: Path,
    stall_timeout_s: float = 300.0,
    on_message: Callable[[int, Mapping[str, Any]], None] | None = None,
) -> list[Any]:
    """Runs ``work`` on ``size`` ranks of this machine.

    Rank 0's output goes to standard output, the others' warnings and errors too, with their rank before them; the whole
    of it goes to ``rank-<n>.log``.

    Args:
        work: Called in each rank's process with its placement and its channel.
        size: Number of ranks.
        logs: Folder of the log files; it is made.
        stall_timeout_s: Seconds without a sign of life from a rank after which the gang is ended.
        on_message: Called with the rank and each message that it sends, signs of life apart.

    Returns:
        What ``work`` returned, by rank.

    Raises:
        BadInput: a rank failed in a way that a retry would repeat, or ``size`` is no number of ranks.
        HopsError: a rank failed, died or stalled; or TensorFlow runs already in this process.
    """
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise BadInput(f"np is {size!r}, expected a number of ranks, 1 or more")
    _check_forkable()
    logs.mkdir(parents=True, exist_ok=True)
    oom_kills = _oom_kills()
    with rendezvous(size) as (port, serve):
        gang = _Gang(stall_timeout_s, on_message or (lambda rank, message: None))
        try:
            for rank in range(size):
                placement = Placement(rank, size, rank, size, socket.gethostname())
                gang.add(_fork(placement, work, horovod_environment(placement, port, stall_timeout_s), gang, logs))
            serve()
            return gang.watch(oom_kills)
        finally:
            gang.end()


class _Gang:
    """The watching side."""

    def __init__(self, stall_timeout_s: float, on_message: Callable[[int, Mapping[str, Any]], None]) -> None:
        self.ranks: list[_Rank] = []
        self._stall_timeout_s, self._on_message = stall_timeout_s, on_message
        self._selector = selectors.DefaultSelector()

    def add(self, rank: _Rank) -> None:
        self.ranks.append(rank)
        for descriptor in (rank.output, rank.channel):
            os.set_blocking(descriptor, False)
            self._selector.register(descriptor, selectors.EVENT_READ, rank)

    def watch(self, oom_kills: int) -> list[Any]:
        """Waits for all ranks to finish, or raises for the one that did not."""
        while any(rank.exit_code is None for rank in self.ranks):
            self._read(_POLL_S)
            self._reap()
            if any(rank.failed for rank in self.ranks):
                culprit = self._find_culprit()
                self.end()
                raise _failure(culprit, oom_kills)
            now = time.monotonic()
            stalled = [r for r in self.ranks if r.exit_code is None and now - r.last_alive > self._stall_timeout_s]
            if stalled:
                self._ask_for_stacks()
                error = self._stall(stalled)
                self.end()
                raise error
        self._read(0)
        self._reap()
        for rank in self.ranks:
            if rank.failed:
                raise _failure(rank, oom_kills)
        return [rank.result for rank in self.ranks]

    def end(self) -> None:
        """Kills what still runs, with its descendants, and closes the pipes."""
        import psutil

        for rank in self.ranks:
            if rank.exit_code is None:
                with contextlib.suppress(psutil.Error):
                    for process in psutil.Process(rank.pid).children(recursive=True):
                        with contextlib.suppress(psutil.Error):
                            process.kill()
                with contextlib.suppress(ProcessLookupError):
                    os.kill(rank.pid, signal.SIGKILL)
        for rank in self.ranks:
            if rank.exit_code is None:
                rank.exit_code = os.waitstatus_to_exitcode(os.waitpid(rank.pid, 0)[1])
        if self._selector.get_map() is not None:
            self._read(0)
            for key in list(self._selector.get_map().values()):
                os.close(key.fd)
            self._selector.close()
        for rank in self.ranks:
            rank.log.close()

    def _read(self, timeout_s: float) -> None:
        """Takes in what the ranks have written; returns when there is no more of it for now."""
        while events := self._selector.select(timeout_s):
            timeout_s = 0
            for key, _ in events:
                rank: _Rank = key.data
                try:
                    chunk = os.read(key.fd, 1 << 16)
                except BlockingIOError:
                    continue
                *lines, rest = (rank.pending.get(key.fd, b"") + chunk).split(b"\n")
                rank.pending[key.fd] = rest
                if not chunk:
                    self._selector.unregister(key.fd)
                    os.close(key.fd)
                    lines = [rest] if rest else []
                for line in lines:
                    if key.fd == rank.channel:
                        self._take_message(rank, line)
                    else:
                        self._take_line(rank, line.decode(errors="replace"))
        if not self._selector.get_map() and timeout_s:
            time.sleep(timeout_s)

    def _take_message(self, rank: _Rank, data: bytes) -> None:
        try:
            message = json.loads(data)
        except ValueError:
            return  # cut off by the rank's death
        rank.last_alive = time.monotonic()
        rank.where = message.get("where", rank.where)
        if message["type"] == "result":
            rank.result, rank.finished = message["value"], True
        elif message["type"] == "error":
            rank.error = message
        elif message["type"] != "alive":
            self._on_message(rank.placement.rank, message)

    def _take_line(self, rank: _Rank, text: str) -> None:
        line = parse_line(text)
        rank.log.write(line.text + "\n")
        if line.text == _STACK_HEADER:
            rank.stack = [line.text]
            return
        if rank.stack and _STACK_LINE.match(line.text):
            rank.stack.append(line.text)
            return
        rank.last_lines.append(line.text)
        if rank.placement.rank == 0:
            print(text, flush=True)
        elif line.level >= logging.WARNING or (line == Line(logging.INFO, text) and _ALARMING.search(text)):
            level = max(line.level, logging.WARNING)
            print(format_record(f"[rank {rank.placement.rank}] {line.text}", level=level), flush=True)

    def _reap(self) -> None:
        for rank in self.ranks:
            if rank.exit_code is None:
                pid, status = os.waitpid(rank.pid, os.WNOHANG)
                if pid:
                    self._read(0)  # its last words are in the pipes
                    rank.exit_code = os.waitstatus_to_exitcode(status)

    def _find_culprit(self) -> _Rank:
        """The rank that failed by itself, not because its peers were gone."""
        began = time.monotonic()
        while True:
            waited_s = time.monotonic() - began
            failed = [rank for rank in self.ranks if rank.failed]
            first_hand = [rank for rank in failed if not rank.second_hand]
            # A rank that was killed says nothing; its peers' complaints may come first.
            killed = [rank for rank in first_hand if rank.exit_code is not None and rank.exit_code < 0]
            if killed or (first_hand and waited_s > _CAUSE_GRACE_S):
                return (killed or first_hand)[0]
            if waited_s > _SECOND_HAND_GRACE_S or (failed and all(r.exit_code is not None for r in self.ranks)):
                return (first_hand or failed)[0]
            self._read(_POLL_S)
            self._reap()

    def _ask_for_stacks(self) -> None:
        for rank in self.ranks:
            if rank.exit_code is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(rank.pid, signal.SIGUSR1)
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            self._read(_POLL_S)

    def _stall(self, stalled: list[_Rank]) -> HopsError:
        # Who waits in a collective waits for one who does not.
        others_wait = [rank for rank in stalled if not rank.in_collective]
        culprit = (others_wait or sorted(stalled, key=lambda rank: rank.last_alive))[0]
        others = [r for r in self.ranks if r is not culprit]
        seen = "; ".join(
            f"rank {r.placement.rank} was last seen after {r.where}"
            + (", and waits for the others" if r.in_collective and others_wait else "")
            for r in others
        )
        stack = "\n".join(f"  {line}" for line in culprit.stack[1 : _STACK_LINES + 1])
        return HopsError(
            f"{culprit.placement} made no progress for {self._stall_timeout_s:g} s (stall_timeout_s) after "
            f"{culprit.where}"
            + (f" ({seen})" if seen else "")
            + "; all ranks were ended."
            + (f"\nWhere it stands, the innermost call first:\n{stack}\n" if stack else " ")
            + _quote(culprit)
        )


def _fork(placement: Placement, work: Work, environment: dict[str, str], gang: _Gang, logs: Path) -> _Rank:
    output_read, output_write = os.pipe()
    channel_read, channel_write = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    log = (logs / f"rank-{placement.rank}.log").open("w", buffering=1)
    pid = os.fork()
    if pid == 0:
        for descriptor in (output_read, channel_read, *(d for r in gang.ranks for d in (r.output, r.channel))):
            os.close(descriptor)
        become_rank(placement, work, environment, parent, output_write, channel_write)
    os.close(output_write)
    os.close(channel_write)
    return _Rank(placement, pid, output_read, channel_read, log)


def _failure(rank: _Rank, oom_kills: int) -> HopsError:
    if rank.error is not None:
        message = (
            f"{rank.error['message']} ({rank.placement}, after {rank.where}; all ranks were ended). {_quote(rank)}"
        )
        return HopsError(message) if rank.error["retryable"] else BadInput(message)
    return HopsError(
        f"{rank.placement} was ended by {_describe_exit(rank.exit_code, oom_kills)} after {rank.where}; all ranks were "
        f"ended. {_quote(rank)}"
    )


def _describe_exit(code: int | None, oom_kills: int) -> str:
    if code is None or code >= 0:
        return f"exit code {code} before it was done"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    if name == "SIGKILL":
        struck = _oom_kills() - oom_kills
        why = (
            "the kernel's out-of-memory killer has struck meanwhile"
            if struck > 0
            else "somebody killed it, or a container's memory limit did"
        )
        return f"SIGKILL ({why}; where memory is short, give the gang fewer ranks or smaller batches)"
    return {"SIGSEGV": "SIGSEGV (a crash in native code)", "SIGABRT": "SIGABRT (native code gave up)"}.get(name, name)


def _quote(rank: _Rank) -> str:
    if not rank.last_lines:
        return "Its log is empty."
    return "The last lines of its log:\n" + "\n".join(f"  {line}" for line in rank.last_lines)


def _oom_kills() -> int:
    """How many processes the kernel has killed for want of memory since boot."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(re.findall(r"^oom_kill (\d+)$", Path("/proc/vmstat").read_text(), re.MULTILINE)[0])
    return 0


def _check_forkable() -> None:
    from tensorflow.python.eager import context

    running = context.context_safe()
    if running is not None and running._initialized:
        raise HopsError(
            "TensorFlow runs already in this process, and ranks are forked from it: its threads would not come along; "
            "train before any TensorFlow operation, or in a process of its own"
        )

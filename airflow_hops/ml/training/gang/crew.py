"""Ranks, their places, and the launchers that start them.

A launcher knows hosts, slots and how to start a process there; the supervisor above interprets messages of ranks and
detects failures. Both are independent of the ranks' computation.
"""

from __future__ import annotations

import json
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from airflow_hops.core.errors import BadInput, InvalidArgument
from airflow_hops.core.stability import experimental
from airflow_hops.core.training.rank_places import LOCAL, place_of
from airflow_hops.ml.step.context import StepContext, resolve

_MESSAGE_INTERVAL_S = 0.2


@experimental
@dataclass(frozen=True)
class Placement:
    """The place of a rank in its gang.

    Attributes:
        rank: Number of the rank, 0 to ``size`` - 1.
        size: Ranks of the gang.
        local_rank: Number among the ranks of its host.
        local_size: Ranks of its host.
        host: Name of the host.
        cross_rank: Number of its host among those that have a rank of this local rank.
        cross_size: Number of those hosts.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    host: str
    cross_rank: int = 0
    cross_size: int = 1

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.size} on {self.host}"


def place(hosts: Mapping[str, int], np: int) -> list[Placement]:
    """Returns the placements by rank; hosts are filled in order, so that neighbours share one.

    Args:
        hosts: Slots of each host, which are the most ranks that it takes, by the name that it is reached by.
        np: Number of ranks.

    Raises:
        BadInput: ``np`` is not a positive integer, or the launcher has fewer slots.
    """
    if isinstance(np, bool) or not isinstance(np, int) or np < 1:
        raise InvalidArgument("np", np, ", expected a number of ranks, 1 or more")
    slots = sum(hosts.values())
    if np > slots:
        result = ", ".join(f"{name}: {most}" for name, most in hosts.items()) or "no hosts"
        raise BadInput(
            f"np is {np}, but there are only {slots} slots ({result}); lower np, or give more hosts or slots"
        )
    used: list[int] = []
    for most in hosts.values():
        used.append(min(most, np - sum(used)))
    return [
        Placement(
            rank=sum(used[:number]) + local_rank,
            size=np,
            local_rank=local_rank,
            local_size=used[number],
            host=name,
            cross_rank=sum(1 for others in used[:number] if others > local_rank),
            cross_size=sum(1 for others in used if others > local_rank),
        )
        for number, name in enumerate(hosts)
        for local_rank in range(used[number])
    ]


@experimental
class Channel:
    """A rank's connection to the supervisor.

    Args:
        descriptor: Write end of a pipe; None for a rank without a supervisor (in a notebook).
    """

    def __init__(self, descriptor: int | None = None) -> None:
        self._descriptor = descriptor
        self._last_alive = 0.0
        self._lock = threading.Lock()

    def send(self, kind: str, /, **fields: object) -> None:
        """Sends a message of JSON values; any message is a sign of life."""
        if self._descriptor is not None:
            data = json.dumps({"type": kind, **fields}).encode() + b"\n"
            with self._lock:
                while data:
                    data = data[os.write(self._descriptor, data) :]

    def alive(self, where: str) -> None:
        """Sends a sign of life; frequent calls are cheap.

        Args:
            where: Progress of the rank, such as ``epoch 2 step 31``, for the error if it stalls.
        """
        now = time.monotonic()
        if now - self._last_alive >= _MESSAGE_INTERVAL_S:
            self._last_alive = now
            self.send("alive", where=where)

    def bring_back(self, path: str) -> None:
        """Reports that a file or folder of the output is complete, so that it is copied to the supervisor's host.

        Args:
            path: Path relative to the output folder.
        """
        self.send("files", path=path)


Work = Callable[[Placement, Channel], Any]
"""The work of a rank; returns a JSON value."""


@dataclass(frozen=True)
class RankJob:
    """Work that can run on another host.

    Attributes:
        entry: ``module:function``, called as ``function(placement, channel, folders=…, **params)``.
        params: Keyword arguments; JSON values.
        code_paths: Folders of user code; other hosts get them as an archive, and this package with it.
        inputs: Folders that ranks read, by name. On another host ``folders[name]`` is a copy.
        output: The folder ``folders["output"]`` that rank 0 writes to. Its files are copied back from another host at
            each :meth:`Channel.bring_back`, and when the rank has finished.
        cpu_ranks: Ranks that see and lease no GPU.
    """

    entry: str
    params: Mapping[str, Any] = field(default_factory=dict)
    code_paths: tuple[str, ...] = ()
    inputs: Mapping[str, Path] = field(default_factory=dict)
    output: Path | None = None
    cpu_ranks: frozenset[int] = frozenset()

    def __call__(self, placement: Placement, channel: Channel) -> object:
        """Does the work on this machine, in the original folders."""
        folders = {**self.inputs, **({"output": self.output} if self.output is not None else {})}
        return resolve(self.entry)(placement, channel, folders=folders, **self.params)


@dataclass(frozen=True)
class Event:
    """An event of a rank.

    Attributes:
        rank: Number of the rank.
        kind: ``output``: a line of its standard output or error; ``message``: a message of its channel; ``held_up``:
            ranks of its host waited for a core; ``exit``: its process has ended, and no more events follow.
        value: The text of the line; the message, a dict with ``type``; the seconds; the exit code, or the negative
            number of a signal, or None if only its host's silence is known.
    """

    rank: int
    kind: Literal["output", "message", "held_up", "exit"]
    value: Any


class Crew(ABC):
    """Ranks that have been started, and their events."""

    def __init__(self, placements: Sequence[Placement]) -> None:
        self.placements = tuple(placements)

    @abstractmethod
    def events(self, timeout_s: float) -> list[Event]:
        """Returns the new events; waits for the first for at most ``timeout_s`` seconds.

        A rank's exit is its last event, after all of its output.

        Raises:
            HopsError: ranks can no longer be reached, or could not be started; the message names the host.
        """

    @abstractmethod
    def signal(self, rank: int, number: int) -> None:
        """Signals a rank's process, if it still runs; on SIGUSR1 it writes its stack to its output."""

    def describe_interruption(self) -> str:
        """Describes the links between hosts that are down, once ranks have got SIGUSR1; empty if none is known."""
        return ""

    def find_broken_exchange(self, placement: Placement, line: str) -> tuple[str, str] | None:
        """Returns the host with which a rank's exchange broke, and the reason; None if the network is not at fault.

        Args:
            placement: Placement of the rank.
            line: The last line of its output in which Gloo reports an error; empty if there is none.
        """
        return None

    @abstractmethod
    def end(self) -> None:
        """Kills every rank on every host, with its descendants, within 5 seconds; their output can still be read.

        It may be called more than once.
        """


class RankLauncher(ABC):
    """Starts ranks on some hosts.

    Attributes:
        is_forkable: Whether it works in forks of the step's process, too.
    """

    is_forkable: ClassVar[bool] = True

    @abstractmethod
    def place(self, np: int) -> list[Placement]:
        """Finds a slot for each rank.

        Raises:
            BadInput: the launcher has too few slots.
            HopsError: a host cannot be reached.
        """

    @abstractmethod
    def start(self, placements: Sequence[Placement], work: Work, env: Mapping[str, str]) -> Crew:
        """Starts the ranks.

        Args:
            placements: From :meth:`place`.
            work: Work of the ranks. Ranks on other hosts need a :class:`RankJob`.
            env: Variables for all ranks; the launcher adds those of Horovod for each rank's place.

        Raises:
            BadInput: the work cannot run on other hosts, or a host has other versions or refuses the key.
            HopsError: a host cannot be reached. No rank has started.
        """

    def await_slots(self, least: int, most: int) -> None:  # noqa: B027  # most launchers know their slots
        """Waits until the launcher knows its slots, of ``least`` to ``most``, before :meth:`place`.

        Raises:
            HopsError: fewer than ``least`` come in time.
        """

    def divide(self, gangs: int, ranks: int) -> Sequence[RankLauncher]:
        """Returns a launcher for each of several gangs of ``ranks`` ranks that run at once.

        Raises:
            BadInput: the launcher has too few slots for all of them.
            HopsError: a host cannot be reached.
        """
        self.place(gangs * ranks)
        return [self] * gangs


Where = Mapping[str, Any]
"""The place of ranks: ``kind``, the name of a :class:`.RankPlace`, and its options."""


def rank_launcher(where: Where | None, context: StepContext, *, cpu_ranks: int = 0) -> RankLauncher:
    """Returns the launcher of ranks for an operator's ``where``.

    Args:
        where: :meth:`airflow_hops.core.training.rank_places.RankPlace.where`; None for all slots of this machine.
        context: Context of the step, which for ranks on Spark was launched with spark-submit. It must not have started
            a thread.
        cpu_ranks: Number of ranks without a GPU.

    Raises:
        BadInput: the place is not registered, or cannot be used.
    """
    where = where or {"kind": LOCAL}
    options = {name: value for name, value in where.items() if name != "kind"}
    launcher: RankLauncher = resolve(place_of(where).launcher)(context, cpu_ranks=cpu_ranks, **options)
    return launcher

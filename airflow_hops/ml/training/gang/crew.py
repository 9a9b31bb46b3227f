"""Ranks, their places, and the launchers that start them.

A launcher knows hosts and slots and how to start a process there; the supervisor above knows what a rank says and when
a gang has failed. Neither knows what the ranks compute.
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
from typing import Any, Literal, Protocol

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.ml.step.context import resolve

_MESSAGE_INTERVAL_S = 0.2


@dataclass(frozen=True)
class Host:
    """A machine that takes ranks.

    Attributes:
        name: How it is called, and reached.
        slots: How many ranks it takes: its GPUs, or cores where it has none.
    """

    name: str
    slots: int


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
        cross_size: How many those are.
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


def place(hosts: Sequence[Host], np: int) -> list[Placement]:
    """Gives each rank a slot: hosts are filled in the order given, so that neighbours share one.

    Args:
        hosts: The hosts, in the order in which they are filled.
        np: Number of ranks.

    Returns:
        The placements, by rank.

    Raises:
        BadInput: ``np`` is no number of ranks, or there are fewer slots.
    """
    if isinstance(np, bool) or not isinstance(np, int) or np < 1:
        raise BadInput(f"np is {np!r}, expected a number of ranks, 1 or more")
    slots = sum(host.slots for host in hosts)
    if np > slots:
        result = ", ".join(f"{host.name}: {host.slots}" for host in hosts) or "no hosts"
        raise BadInput(
            f"np is {np}, but there are only {slots} slots ({result}); lower np, or give more hosts or slots"
        )
    used: list[int] = []
    for host in hosts:
        used.append(min(host.slots, np - sum(used)))
    return [
        Placement(
            rank=sum(used[:number]) + local_rank,
            size=np,
            local_rank=local_rank,
            local_size=used[number],
            host=host.name,
            cross_rank=sum(1 for others in used[:number] if others > local_rank),
            cross_size=sum(1 for others in used if others > local_rank),
        )
        for number, host in enumerate(hosts)
        for local_rank in range(used[number])
    ]


class Channel:
    """A rank's line to the process that watches the gang.

    Args:
        descriptor: Write end of a pipe; None for a rank that nobody watches (in a notebook).
    """

    def __init__(self, descriptor: int | None = None) -> None:
        self._descriptor = descriptor
        self._last_alive = 0.0
        self._lock = threading.Lock()

    def send(self, kind: str, **fields: Any) -> None:
        """Sends a message of JSON values; any message is a sign of life."""
        if self._descriptor is not None:
            data = json.dumps({"type": kind, **fields}).encode() + b"\n"
            with self._lock:
                while data:
                    data = data[os.write(self._descriptor, data) :]

    def alive(self, where: str) -> None:
        """Says that work goes on; call it as often as you like.

        Args:
            where: How far the rank is, for the message should it stall: ``epoch 2 step 31``.
        """
        now = time.monotonic()
        if now - self._last_alive >= _MESSAGE_INTERVAL_S:
            self._last_alive = now
            self.send("alive", where=where)

    def bring_back(self, path: str) -> None:
        """Says that a file or folder of the output is whole, so that it is brought to the process that watches.

        On the machine of that process it lies there already.

        Args:
            path: Relative to the output folder.
        """
        self.send("files", path=path)


Work = Callable[[Placement, Channel], Any]
"""The work of a rank: returns a JSON value."""


@dataclass(frozen=True)
class RankJob:
    """Work that can travel to another host.

    Attributes:
        entry: ``module:function``, called as ``function(placement, channel, folders=…, **params)``.
        params: Keyword arguments; JSON values.
        code_paths: Folders of user code; other hosts get them as an archive, and this package with it.
        inputs: Folders that ranks read, by name. On another host ``folders[name]`` is a copy.
        output: The folder ``folders["output"]`` that rank 0 writes to. From another host its files come back whenever
            the rank says :meth:`Channel.bring_back`, and when it has finished.
        cpu_ranks: Ranks that see no GPU, and lease none.
    """

    entry: str
    params: Mapping[str, Any] = field(default_factory=dict)
    code_paths: tuple[str, ...] = ()
    inputs: Mapping[str, Path] = field(default_factory=dict)
    output: Path | None = None
    cpu_ranks: frozenset[int] = frozenset()

    def __call__(self, placement: Placement, channel: Channel) -> Any:
        """Does the work on this machine, in these very folders."""
        folders = {**self.inputs, **({"output": self.output} if self.output is not None else {})}
        return resolve(self.entry)(placement, channel, folders=folders, **self.params)


@dataclass(frozen=True)
class Event:
    """Something that came from a rank.

    Attributes:
        rank: Its number.
        kind: ``output``: a line of its standard output or error; ``message``: what it said on its channel; ``exit``:
            its process has ended, and nothing more will come.
        value: The text of the line; the message, a dict with ``type``; the exit code, or the negative number of a
            signal, or None where only its host's silence is known.
    """

    rank: int
    kind: Literal["output", "message", "exit"]
    value: Any


class Crew(ABC):
    """Ranks that have been started, and what comes from them."""

    def __init__(self, placements: Sequence[Placement]) -> None:
        self.placements = tuple(placements)

    @abstractmethod
    def events(self, timeout_s: float) -> list[Event]:
        """Returns the new events; waits for the first for at most ``timeout_s`` seconds.

        A rank's exit is its last event: what it wrote before comes before.

        Raises:
            HopsError: ranks cannot be reached any more, or could not be started; the message says on which host.
        """

    @abstractmethod
    def signal(self, rank: int, number: int) -> None:
        """Signals a rank's process, if it still runs: SIGUSR1 has it write its stack to its output."""

    @abstractmethod
    def end(self) -> None:
        """Kills every rank on every host, with its descendants, within 5 seconds; what they wrote remains to be read.

        It may be called more than once.
        """


class RankLauncher(Protocol):
    """A place in which ranks can be started."""

    def place(self, np: int) -> list[Placement]:
        """Finds a slot for each rank.

        Raises:
            BadInput: there are too few slots.
            HopsError: a host cannot be reached.
        """
        ...

    def start(self, placements: Sequence[Placement], work: Work, environment: Mapping[str, str]) -> Crew:
        """Starts the ranks.

        Args:
            placements: From :meth:`place`.
            work: What they do. Ranks on other hosts take only a :class:`RankJob`.
            environment: Variables for all ranks; the launcher adds those by which Horovod finds a rank's place.

        Raises:
            BadInput: the work cannot travel, or a host cannot take it: other versions, a refused key.
            HopsError: a host cannot be reached. No rank has started then.
        """
        ...

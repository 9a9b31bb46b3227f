"""Launchers of ranks, and the events of the ranks that they have started.

A launcher knows hosts and slots and how to start a process there; the supervisor above knows what a rank says and when
a gang has failed. Neither knows what the ranks compute.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from airflow_hops.ml.step.context import resolve
from airflow_hops.ml.training.gang.placement import Placement
from airflow_hops.ml.training.gang.rank import Channel

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
            the rank says :meth:`airflow_hops.ml.training.gang.rank.Channel.bring_back`, and when it has finished.
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

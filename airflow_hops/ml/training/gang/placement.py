"""Placement of ranks: hosts with slots, and a place for each rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_hops.core.contract.artifacts import BadInput


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
    taken = []
    left = np
    for host in hosts:
        used = min(host.slots, left)
        left -= used
        if used:
            taken.append((host.name, used))
    return [
        Placement(
            rank=rank,
            size=np,
            local_rank=local_rank,
            local_size=used,
            host=host,
            cross_rank=sum(1 for _, others in taken[:number] if others > local_rank),
            cross_size=sum(1 for _, others in taken if others > local_rank),
        )
        for rank, (number, host, used, local_rank) in enumerate(
            (number, host, used, local_rank) for number, (host, used) in enumerate(taken) for local_rank in range(used)
        )
    ]

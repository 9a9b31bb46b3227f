"""The place of a rank among the others, its channel to the step, and the numbers that ranks exchange."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_hops.ml.training.gang.crew import Channel

if TYPE_CHECKING:
    from airflow_hops.ml.training.stage.rank_group import RankGroup


@dataclass
class Rank:
    """A rank of a training.

    Attributes:
        number: Number of the rank, 0 to ``size`` - 1.
        size: Number of ranks that share the rows.
        local_rank: Number of this rank among those of its host.
        channel: Channel to the watching process.
        group: Its group of another framework than Horovod.
    """

    number: int = 0
    size: int = 1
    local_rank: int = 0
    channel: Channel = field(default_factory=Channel)
    group: RankGroup | None = None

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """Returns the numbers of each rank, by rank; every rank must call it with equally many."""
        if self.size == 1:
            return [[*map(float, values)]]
        if self.group is not None:
            return self.group.gather(values)
        import tensorflow as tf

        from airflow_hops.ml.training.collectives import hvd

        every: list[list[float]] = hvd.allgather(tf.constant([values], tf.float64), name="hops_gather").numpy().tolist()
        return every

    def any(self, flag: bool) -> bool:
        """Returns whether the flag is set on any rank; every rank must call it."""
        return any(raised for (raised,) in self.gather([flag]))

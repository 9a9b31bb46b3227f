"""Training that goes on when its gang loses ranks or takes in others, without starting any process anew.

Every rank keeps a snapshot of the training in memory, taken where checkpoints are: after each epoch, and after so many
steps. When a collective fails because a rank has gone, those that are left meet, agree on the furthest snapshot, and
train on from it; ranks that join get it from them. (The idea is that of Horovod's elastic run; its own implementation
knows the optimizers of the Keras before 3.)
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from horovod.common.exceptions import HorovodInternalError
from horovod.tensorflow.functions import broadcast_object

if TYPE_CHECKING:
    from airflow_hops.hops.checkpoints import Snapshot
    from airflow_hops.hops.context import TrainContext
    from airflow_hops.runtime.gang.meeting import Membership

_OF_HOROVOD = re.compile(r"horovod|/gloo/|nccl", re.IGNORECASE)
_NOTHING = (-1, -1)

log = logging.getLogger(__name__)
Result = TypeVar("Result")


class Elasticity:
    """What a rank of an elastic gang does when the gang changes.

    Args:
        membership: The rank's part in the gang.
        context: The rank's training.
    """

    def __init__(self, membership: Membership, context: TrainContext) -> None:
        self._membership, self._context = membership, context
        self._snapshot: Snapshot | None = None
        self._must_agree = membership.meetings > 1

    @property
    def member(self) -> int:
        """The number that this process was started with, whichever rank it is at present."""
        return self._membership.member

    def begin(self, take: Callable[[], Snapshot]) -> None:
        """Keeps a snapshot of a training that begins; one that goes on has its own.

        Args:
            take: Takes it.
        """
        if self._snapshot is None or self._snapshot.position.fit < self._context.position.fit:
            self.commit(take())

    def commit(self, snapshot: Snapshot) -> None:
        """Keeps a snapshot in memory; it is what is gone back to."""
        self._snapshot = snapshot

    def end(self) -> None:
        """Notes that a training has ended: who is not so far takes over what it has come to."""
        if self._snapshot is not None:
            self._snapshot = replace(self._snapshot, position=self._context.position)

    def make_way(self) -> None:
        """Interrupts the training where ranks wait to join; every rank must call it, after a commit."""
        if self._membership.is_wanted():
            raise _Interruption

    def train(self, model: Any, number: int, train: Callable[[], Result], left_out: Callable[[], Result]) -> Result:
        """Trains until it has ended, with whatever ranks there are.

        Args:
            model: The Keras model.
            number: Which of the trainings of this function it is.
            train: Trains from ``context.snapshot``, if there is one; called again after each change of the gang.
            left_out: Called instead once the others are past this training.
        """
        while True:
            try:
                self._agree()
                return left_out() if number < self._context.position.fit else train()
            except _Interruption:
                self._meet("", model)
            except (HorovodInternalError, tf.errors.OpError) as error:
                if not is_loss(error):
                    raise
                self._meet(str(error), model)

    def finish(self, act: Callable[[], Result]) -> Result:
        """Does what all ranks do together once the training has ended, again if a rank is lost meanwhile.

        Args:
            act: What is to be done.
        """
        while True:
            try:
                self._agree()
                return act()
            except (HorovodInternalError, tf.errors.OpError) as error:
                if not is_loss(error):
                    raise
                self._meet(str(error), closed=True)

    def _meet(self, why: str, model: Any = None, *, closed: bool = False) -> None:
        log.info("leaving Horovod to meet the other ranks anew")
        self._membership.meet(why, closed=closed)
        self._must_agree = True
        self._context.take_place(self._membership.placement)
        if model is not None:
            # A graph that was traced for one rank exchanges nothing; those of many know their number.
            model.train_function = model.test_function = model.predict_function = None

    def _agree(self) -> None:
        """After a change of the gang: all ranks take over the snapshot of the one that is furthest."""
        if not self._must_agree:
            return
        mine = self._snapshot.position if self._snapshot is not None else None
        where = (mine.fit, mine.step) if mine is not None else _NOTHING
        every = _by_rank(where)
        root = max(range(len(every)), key=lambda rank: (every[rank], -rank))
        if every[root] > _NOTHING:
            self._snapshot = broadcast_object(self._snapshot, root_rank=root, name="hops_snapshot")
            self._context.go_back_to(self._snapshot)
        self._must_agree = False
        position = self._context.position
        log.info("rank %d of %d: training goes on %s", hvd.rank(), hvd.size(), position)
        if hvd.rank() == 0:
            self._context.on_message("went_on", epoch=position.epoch, batch=position.batch, step=position.step)


class _Interruption(Exception):
    """Ranks wait to join."""


def is_loss(error: Exception) -> bool:
    """Whether an error says that another rank has gone, as far as this rank can know."""
    if isinstance(error, HorovodInternalError):
        return True
    return isinstance(error, tf.errors.UnknownError) and bool(_OF_HOROVOD.search(str(error)))


def _by_rank(where: tuple[int, int]) -> list[tuple[int, int]]:
    """Trainings and steps that each rank has committed, by rank."""
    mine = tf.constant([where], tf.int64)
    every: np.ndarray[Any, Any] = (mine if hvd.size() == 1 else hvd.allgather(mine, name="hops_where")).numpy()
    return [(int(fit), int(step)) for fit, step in every]

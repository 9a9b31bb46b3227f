"""The state of a training, saved as checkpoints and restored from the last checkpoint of an earlier try."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from airflow_hops.core.errors import BadInput
from airflow_hops.core.processes.temporary_folders import temporary_folder
from airflow_hops.core.training.options import TrainingOptions
from airflow_hops.ml.training.checkpoints import (
    Checkpoint,
    Position,
    Snapshot,
    copy_variables,
    load_snapshot,
    restore_variables,
    write_checkpoint,
)
from airflow_hops.ml.training.rank import Rank

if TYPE_CHECKING:
    from airflow_hops.ml.training.callback_states import CallbackStates
    from airflow_hops.ml.training.stage.rank_group import RankGroup

# A checkpoint in three places: memory (Snapshot, taken by a collective, all ranks), disk (written by rank 0's thread),
# and the store (copied by the step when it reads the message `checkpoint`). Training continues as soon as the snapshot
# is taken. At most one write runs; the next save waits for it and raises its error.

_KEPT = 3

log = logging.getLogger(__name__)


class TrainingState:
    """The state of a training on one rank.

    Args:
        rank: The rank.
        options: Options of the training.
        folder: Folder of the checkpoints.
        resumed_from: The checkpoint of an earlier try, or None.

    Raises:
        BadInput: the checkpoint is of another strategy.

    Attributes:
        position: Position of the training.
        history: Metrics of each epoch, including those before the checkpoint.
        weights: Checksum of the weights after each epoch in :attr:`history`.
        epoch: Number of the last epoch in :attr:`history` that the model has the weights of, from 1; 0 if unknown.
        snapshot: The snapshot to restore from, once :meth:`restore` has read it.
    """

    def __init__(
        self,
        rank: Rank,
        options: TrainingOptions,
        folder: Path,
        resumed_from: Checkpoint | None = None,
    ) -> None:
        self._rank, self._options, self._folder = rank, options, folder
        if resumed_from is not None and resumed_from.strategy not in ("", options.strategy):
            raise BadInput(
                f"{resumed_from.path}: a checkpoint of strategy {resumed_from.strategy!r}, and the training has "
                f"{options.strategy!r}; set strategy={resumed_from.strategy!r}, or delete the checkpoint to start again"
            )
        self._pool: ThreadPoolExecutor | None = None
        self._writing: Future[None] | None = None
        self.resumed_from = resumed_from
        self.position = resumed_from.position if resumed_from else Position()
        self.history: list[dict[str, float]] = [dict(each) for each in resumed_from.history] if resumed_from else []
        self.weights: list[int] = []
        self.epoch = 0
        self.snapshot: Snapshot | None = None
        self._callbacks: CallbackStates | None = None

    @property
    def initial_epoch(self) -> int:
        """Epochs that an earlier try has done; 0 for a first try."""
        return self.resumed_from.position.epoch if self.resumed_from else 0

    def move(self, **changes: Any) -> None:
        """Updates fields of :attr:`position`."""
        self.position = replace(self.position, **changes)

    def track(self, model: object, callbacks: Sequence[object] = ()) -> CallbackStates:
        """Begins a training of a model, whose checkpoints hold the states of these callbacks, too.

        Raises:
            BadInput: a checkpoint cannot hold the state of one.
        """
        from airflow_hops.ml.training.callback_states import CallbackStates

        self._callbacks = CallbackStates(model, callbacks)
        return self._callbacks

    def restore(self, model: object, optimizer: object = None, others: Mapping[str, object] | None = None) -> Position:
        """See :meth:`airflow_hops.ml.training.context.TrainContext.restore`; leaves out callbacks."""
        group = self._rank.group
        if group is not None:
            group.load(model, optimizer, self.resumed_from.path if self.resumed_from else None, others or {})
            return self.position
        _check_keras(model, others)
        from airflow_hops.ml.training.keras import broadcast_weights
        from airflow_hops.ml.training.rank_state import seed_rank

        if self._callbacks is None:
            self.track(model)
        resumed_from, ranks = self.resumed_from, self._rank.size
        if resumed_from is not None:
            snapshot = load_snapshot(resumed_from)
            restore_variables(snapshot, model, optimizer, where=str(resumed_from.path))
            if len(snapshot.rank_states) != ranks:
                seed_rank(self._options.seed + self.position.step * ranks, self._rank.number)
                log.warning(
                    "the checkpoint was written by %d ranks, and now there are %d: training continues %s with new "
                    "shares of the rows that are left, and new random numbers; its weights will not be those of an "
                    "uninterrupted training to the last bit",
                    len(snapshot.rank_states),
                    ranks,
                    self.position,
                )
            self.weights = [*snapshot.weights]
            self.snapshot = replace(snapshot, variables={})  # variables take as much memory as the model
        broadcast_weights(model)
        self.restore_own_state(model, optimizer)
        return self.position

    def restore_again(self, model: object) -> None:
        """Restores all, with callbacks, after these have begun the training or epoch again."""
        assert self.resumed_from is not None
        restore_variables(load_snapshot(self.resumed_from), model, where=str(self.resumed_from.path))
        self.restore_own_state(model)
        self.restore_callbacks()

    def restore_own_state(self, model: object, optimizer: object = None) -> None:
        """Restores this rank's own state, such as random generators; :meth:`restore` calls it."""
        from airflow_hops.ml.training.rank_state import restore_rank_state

        if self.snapshot is not None and len(self.snapshot.rank_states) == self._rank.size:
            restore_rank_state(self.snapshot.rank_states[self._rank.number], model, optimizer)

    def check_callbacks(self) -> None:
        """Checks that a checkpoint can hold the states of callbacks, after these have begun the training."""
        if self._callbacks is not None:
            self._callbacks.read()

    def restore_callbacks(self) -> None:
        """Restores the states of callbacks, and of a model that has methods for its own.

        Raises:
            BadInput: a callback of the checkpoint is missing.
        """
        if self.snapshot is not None and self._callbacks is not None and self.resumed_from is not None:
            self._callbacks.write(self.snapshot.callbacks, str(self.resumed_from.path))

    def save(self, model: object, optimizer: object = None, others: Mapping[str, object] | None = None) -> None:
        """Writes a checkpoint at :attr:`position`."""
        self._rank.channel.alive(f"the checkpoint {self.position}")
        self._save_began = time.monotonic()
        if self._rank.group is not None:
            self._save_parts(self._rank.group, model, optimizer, others or {})
            return
        _check_keras(model, others)
        from airflow_hops.ml.training.rank_state import gather_rank_states

        callbacks = (self._callbacks or self.track(model)).read()
        states = gather_rank_states(model, optimizer)
        if self._rank.number == 0:
            variables, weights = copy_variables(model, optimizer), tuple(self.weights)
            self._write(Snapshot(self.position, variables, states, tuple(self.history), weights, callbacks))

    def _save_parts(self, group: RankGroup, model: object, optimizer: object, others: Mapping[str, object]) -> None:
        """Writes the files of all ranks to a folder beside the checkpoints, which becomes one."""
        if self._rank.number:
            with temporary_folder("part") as folder:
                group.save(model, optimizer, folder, others)
            return
        self.close()  # the checkpoint before takes its files from that folder
        folder = self._folder / ".parts"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        group.save(model, optimizer, folder, others)
        self._write(Snapshot(self.position, {}, (b"",) * self._rank.size, tuple(self.history), parts=folder))

    def save_files(self, files: Mapping[str, bytes]) -> None:
        """Writes a checkpoint of the user's own files at :attr:`position`; ranks other than 0 are ignored."""
        self._save_began = time.monotonic()
        if self._rank.number:
            return
        contents = {name: np.frombuffer(content, np.uint8) for name, content in files.items()}
        self._write(Snapshot(self.position, contents, (b"",) * self._rank.size, tuple(self.history)))

    def read_files(self) -> dict[str, bytes]:
        """Returns the files that :meth:`save_files` saved in the checkpoint that the training resumes from."""
        if self.resumed_from is None:
            return {}
        return {name: content.tobytes() for name, content in load_snapshot(self.resumed_from).variables.items()}

    def close(self) -> None:
        """Waits for the last checkpoint.

        Raises:
            HopsError: it could not be written.
        """
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _write(self, snapshot: Snapshot) -> None:
        """Starts writing a snapshot in a thread, so that training does not wait for the disk."""
        channel, began = self._rank.channel, self._save_began

        def write() -> None:
            path = write_checkpoint(self._folder, replace(snapshot, strategy=self._options.strategy), keep=_KEPT)
            channel.bring_back(f"{self._folder.name}/{path.name}")
            channel.send("checkpoint", name=path.name, seconds=time.monotonic() - began)

        self.close()
        self._pool = self._pool or ThreadPoolExecutor(1, "checkpoint")
        self._writing = self._pool.submit(write)


def _check_keras(model: object, others: Mapping[str, object] | None) -> None:
    import keras

    if not isinstance(model, keras.Model):
        raise BadInput(
            f"the model is a {type(model).__module__}.{type(model).__name__}, expected a model of Keras 3; save others "
            "by context.checkpoint_files, or train on ranks of PyTorch"
        )
    if others:
        raise BadInput(
            "others is for ranks of PyTorch; make further optimizers, metrics and generators attributes of the model, "
            "where checkpoints find them"
        )

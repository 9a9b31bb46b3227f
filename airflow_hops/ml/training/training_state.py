"""The state of a training, saved as checkpoints and restored from the last checkpoint of an earlier try."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.ml.training.checkpoints import (
    CheckpointWriter,
    Position,
    Snapshot,
    copy_variables,
    load_snapshot,
    restore_variables,
)

if TYPE_CHECKING:
    from airflow_hops.ml.training.context import TrainContext

# A checkpoint in three places: memory (Snapshot, taken by a collective, all ranks), disk (written by rank 0's thread),
# and the store (copied by the step when it reads the message `checkpoint`). Training continues as soon as the snapshot
# is taken. At most one write runs; the next save waits for it and raises its error.

log = logging.getLogger(__name__)


class TrainingState:
    """The state of a training on one rank, which its ``TrainContext`` saves and restores.

    Attributes:
        history: Metrics of each epoch, including those before the checkpoint.
        snapshot: The snapshot to restore from, once :meth:`restore` has read it.
        is_restored: Whether :meth:`restore` was called.
    """

    def __init__(self, context: TrainContext) -> None:
        self._context = context
        self._writer: CheckpointWriter | None = None
        result = context.resumed_from
        self.position = result.position if result else Position()
        self.history: list[dict[str, float]] = [dict(metrics) for metrics in result.history] if result else []
        self.snapshot: Snapshot | None = None
        self.is_restored = False

    def move(self, **changes: Any) -> None:
        """Updates fields of :attr:`position`."""
        self.position = replace(self.position, **changes)

    def join(self) -> None:
        """Initializes Horovod in a training of one process, because Keras's callbacks query it."""
        import horovod.tensorflow as hvd

        if self._context.size == 1 and self._context.strategy is None and not hvd.is_initialized():
            hvd.init()

    def restore(self, model: Any, optimizer: Any = None) -> Position:
        """See :meth:`airflow_hops.ml.training.context.TrainContext.restore`."""
        from airflow_hops.ml.training.keras import broadcast_weights
        from airflow_hops.ml.training.rank_state import seed_rank

        self.join()
        resumed_from, self.is_restored = self._context.resumed_from, True
        if resumed_from is not None:
            snapshot = load_snapshot(resumed_from)
            restore_variables(snapshot, model, optimizer, where=str(resumed_from.path))
            if len(snapshot.rank_states) != self._context.size:
                seed_rank(self._context.seed + self.position.step * self._context.size, self._context.rank)
                log.warning(
                    "the checkpoint was written by %d ranks, and now there are %d: training continues %s with new "
                    "shares of the rows that are left, and new random numbers; its weights will not be those of an "
                    "uninterrupted training to the last bit",
                    len(snapshot.rank_states),
                    self._context.size,
                    self.position,
                )
            self.snapshot = replace(snapshot, variables={})  # variables take as much memory as the model
        broadcast_weights(model)
        self.restore_own_state(model, optimizer)
        return self.position

    def restore_own_state(self, model: Any, optimizer: Any = None) -> None:
        """Restores this rank's own state, such as random generators; :meth:`restore` calls it."""
        from airflow_hops.ml.training.rank_state import restore_rank_state

        if self.snapshot is not None and len(self.snapshot.rank_states) == self._context.size:
            restore_rank_state(self.snapshot.rank_states[self._context.rank], model, optimizer)

    def save(self, model: Any, optimizer: Any = None, counters: tuple[Mapping[str, Any], Any] = ({}, {})) -> None:
        """Writes a checkpoint at :attr:`position`."""
        from airflow_hops.ml.training.rank_state import gather_rank_states

        self.refuse_measurement("checkpoint")
        context = self._context
        context.on_alive(f"the checkpoint {self.position}")
        self._save_began = time.monotonic()
        states = gather_rank_states(model, optimizer)
        if context.rank == 0:
            variables = copy_variables(model, optimizer)
            snapshot = Snapshot(self.position, variables, states, tuple(self.history), *counters)
            self._write(snapshot)

    def save_files(self, files: Mapping[str, bytes]) -> None:
        """Writes a checkpoint of the user's own files at :attr:`position`; ranks other than 0 are ignored."""
        self.refuse_measurement("checkpoint_files")
        self._save_began = time.monotonic()
        if self._context.rank:
            return
        contents = {name: np.frombuffer(content, np.uint8) for name, content in files.items()}
        self._write(Snapshot(self.position, contents, (b"",) * self._context.size, tuple(self.history)))

    def read_files(self) -> dict[str, bytes]:
        """Returns the files that :meth:`save_files` saved in the checkpoint that the training resumes from."""
        result = self._context.resumed_from
        if result is None:
            return {}
        return {name: content.tobytes() for name, content in load_snapshot(result).variables.items()}

    def refuse_measurement(self, method: str) -> None:
        """Raises BadInput if the training is only measured: a custom loop would run to its end each time."""
        if self._context.is_measured:
            raise BadInput(
                f"np is 'auto', which measures the first steps of context.fit, but context.{method} is called before "
                "it, as in a training loop of your own; give np a number"
            )

    def close(self) -> None:
        """Waits for the last checkpoint.

        Raises:
            HopsError: it could not be written.
        """
        if self._writer is not None:
            self._writer.finish()

    def _write(self, snapshot: Snapshot) -> None:
        context, began = self._context, self._save_began

        def announce(path: Path) -> None:
            context.bring_back(f"{context.checkpoint_dir.name}/{path.name}")
            context.on_message("checkpoint", name=path.name, seconds=time.monotonic() - began)

        if self._writer is None:
            self._writer = CheckpointWriter(context.checkpoint_dir, context.keep_checkpoints, announce)
        self._writer.write(snapshot)

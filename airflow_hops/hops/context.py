"""What a training function gets: its rank, its data, its hyperparameters, and where things go."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_hops.artifacts import BadInput
from airflow_hops.hops.checkpoints import Checkpoint, restore_checkpoint, save_checkpoint
from airflow_hops.hops.reader import SplitReader, open_split, row_count

if TYPE_CHECKING:
    import tensorflow as tf

    from airflow_hops.runtime.feature_specs import OutputSpec

_EVALUATION_BATCH = 8192

log = logging.getLogger(__name__)


@dataclass
class TrainContext:
    """The argument of a training function, ``train(context) -> keras.Model``.

    Attributes:
        rank: Number of this rank, 0 to ``size`` - 1.
        size: Ranks of the gang.
        local_rank: Number among the ranks of its host.
        params: Hyperparameters.
        seed: Seeds weights and the order of rows; ``keras.utils.set_random_seed`` has been called with it.
        feature_outputs: The transform's outputs by name, with dtype, width and vocabulary size; the model's inputs.
        label: Name of the label column.
        examples_dir: Folder of the transformed examples.
        checkpoint_dir: Folder that outlives this try.
        tensorboard_dir: Where rank 0 writes event files.
        resumed_from: The checkpoint of an earlier try, or None.
        keep_checkpoints: How many checkpoints are kept.
        history: Metrics of each epoch, those before the checkpoint included.
        checksums: Checksum of the weights after each epoch of this try.
    """

    rank: int
    size: int
    local_rank: int
    params: Mapping[str, Any]
    seed: int
    feature_outputs: Mapping[str, OutputSpec]
    label: str
    examples_dir: Path
    checkpoint_dir: Path
    tensorboard_dir: Path
    resumed_from: Checkpoint | None = None
    keep_checkpoints: int = 3
    history: list[dict[str, float]] = field(default_factory=list)
    checksums: list[str] = field(default_factory=list)
    on_message: Callable[..., None] = lambda kind, **fields: None
    on_alive: Callable[[str], None] = lambda _: None
    epoch: int = 0
    rows: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    rows_trained: int = 0
    _shards: dict[str, SplitReader] = field(default_factory=dict)
    _passes: int = 0
    _stop: bool = False
    _events: Any = None

    def __post_init__(self) -> None:
        if self.resumed_from is not None:
            self.epoch = self.resumed_from.epochs
            self.history.extend(dict(metrics) for metrics in self.resumed_from.history)

    @property
    def initial_epoch(self) -> int:
        """Epochs that an earlier try has done; 0 for a first try."""
        return self.resumed_from.epochs if self.resumed_from else 0

    def shard(self, split: str) -> SplitReader:
        """This rank's rows of a split, read once.

        Raises:
            BadInput: there is no such split, or it cannot be read.
        """
        if split not in self._shards:
            folder = self.examples_dir / split
            if not folder.is_dir():
                raise BadInput(f"{self.examples_dir}: there is no split {split!r} among the transformed examples")
            self.on_alive(f"reading {split}")
            self._shards[split] = open_split(
                folder, self.feature_outputs, rank=self.rank, size=self.size, label=self.label
            )
            self.rows[split] = self._shards[split].rows
        return self._shards[split]

    def steps(self, split: str, batch_size: int) -> int:
        """Steps of an epoch, the same on every rank.

        Args:
            split: ``train``, ``eval``.
            batch_size: Rows of a step over all ranks.
        """
        return self.shard(split).steps(batch_size)

    def examples(self, split: str, batch_size: int, *, shuffle: bool = False, repeat: bool = False) -> tf.data.Dataset:
        """This rank's share of a split, as pairs of features by name and labels.

        Each rank gets its own rows, every row is given once an epoch, and all ranks take the same number of steps,
        whatever the sizes of files.

        Args:
            split: ``train``, ``eval``.
            batch_size: Rows of a step over all ranks; this rank's batches are a ``size``-th of it.
            shuffle: Whether each pass has an order of its own, from seed, rank and epoch.
            repeat: Whether the dataset begins anew when it ends.
        """
        if batch_size < self.size:
            raise BadInput(f"batch_size is {batch_size}, fewer rows than the {self.size} ranks that share them")
        dataset = self.shard(split).dataset(
            batch_size, shuffle_seed=self.seed if shuffle else None, epoch=self._next_pass
        )
        return dataset.repeat() if repeat else dataset

    def begin_epoch(self, epoch: int) -> None:
        """Tells the data which epoch it is; :meth:`fit` does. A resumed epoch has the order that it had."""
        self.epoch, self._passes = epoch, 0

    def report(self, step: int, **metrics: float) -> None:
        """Streams metrics to the task's log and to TensorBoard; rank 0's count, the others' are ignored.

        Args:
            step: Where training is, counted as you like.
            metrics: Numbers by name.
        """
        self.on_alive(f"step {step}")
        if self.rank == 0:
            numbers = {name: float(value) for name, value in metrics.items()}
            self.on_message("report", step=int(step), metrics=numbers)
            self.write_events("train", step, numbers)

    def write_events(self, run: str, step: int, metrics: Mapping[str, float]) -> None:
        """Writes scalars to rank 0's TensorBoard event files."""
        import tensorflow as tf

        if self._events is None:
            self._events = {}
        if run not in self._events:
            self._events[run] = tf.summary.create_file_writer(str(self.tensorboard_dir / run))
        with self._events[run].as_default():
            for name, value in metrics.items():
                tf.summary.scalar(name, float(value), step=step)
        self._events[run].flush()

    def request_stop(self) -> None:
        """Asks all ranks to stop after this epoch."""
        self._stop = True

    def should_stop(self) -> bool:
        """Whether any rank has asked to stop. Every rank must call it, and all get the same answer."""
        import horovod.tensorflow as hvd
        import tensorflow as tf

        if self.size == 1:
            return self._stop
        asked = hvd.allreduce(tf.constant(int(self._stop)), op=hvd.Max, name="hops_stop")
        self._stop = bool(asked.numpy())
        return self._stop

    def restore(self, model: Any) -> int:
        """Restores the checkpoint of an earlier try, if there is one, and gives all ranks rank 0's weights.

        Args:
            model: A compiled Keras model, built.

        Returns:
            Epochs done.
        """
        from airflow_hops.hops.keras import broadcast_weights

        if self.resumed_from is not None:
            restore_checkpoint(self.resumed_from, model)
        broadcast_weights(model)
        return self.initial_epoch

    def checkpoint(self, model: Any, epochs: int, metrics: Mapping[str, float]) -> None:
        """Notes an epoch's metrics, and lets rank 0 write a checkpoint; :meth:`fit` does.

        Args:
            model: The model.
            epochs: Epochs done.
            metrics: This epoch's.
        """
        self.history.append({name: float(value) for name, value in metrics.items()})
        if self.rank == 0:
            path = save_checkpoint(
                self.checkpoint_dir, model, epochs=epochs, history=self.history, keep=self.keep_checkpoints
            )
            self.on_message("checkpoint", name=path.name)

    def callbacks(self, *, epochs: int, checksum_every_steps: int | None = None) -> list[Any]:
        """The callbacks that :meth:`fit` adds, for a ``model.fit`` of one's own.

        Args:
            epochs: How many there will be, for the progress.
            checksum_every_steps: Compare the ranks' weights after so many steps, besides after every epoch.
        """
        from airflow_hops.hops.callbacks import guarding_callbacks, recording_callbacks

        return [*guarding_callbacks(self, checksum_every_steps), *recording_callbacks(self, epochs)]

    def fit(
        self,
        model: Any,
        *,
        epochs: int,
        batch_size: int,
        split: str = "train",
        validation_split: str | None = "eval",
        callbacks: Sequence[Any] = (),
        checksum_every_steps: int | None = None,
    ) -> list[dict[str, float]]:
        """``model.fit`` on all ranks: from the last checkpoint, with weights broadcast, checked and saved each epoch.

        Args:
            model: A compiled Keras 3 model whose optimizer is a :func:`airflow_hops.hops.keras.DistributedOptimizer`.
            epochs: Passes over the examples.
            batch_size: Rows of a step over all ranks.
            split: What to train on.
            validation_split: What to measure after each epoch; None for nothing.
            callbacks: Callbacks of one's own; they see metrics averaged over the ranks.
            checksum_every_steps: Compare the ranks' weights after so many steps, besides after every epoch.

        Returns:
            Metrics of each epoch, those before the checkpoint included.
        """
        from airflow_hops.hops.callbacks import guarding_callbacks, recording_callbacks

        training = self.examples(split, batch_size, shuffle=True)
        validation = None
        if validation_split is not None and self._can_share(validation_split):
            validation = self.examples(validation_split, max(_EVALUATION_BATCH, self.size))
        if self.size > 1 and model.jit_compile:
            # Keras turns it on by itself where it can; XLA has no all-reduce of Horovod's.
            log.info("jit_compile is off: XLA has no Horovod all-reduce")
            model.jit_compile = False
        self.restore(model)
        model.fit(
            training,
            validation_data=validation,
            epochs=epochs,
            initial_epoch=self.initial_epoch,
            shuffle=False,
            verbose=0,
            callbacks=[
                *guarding_callbacks(self, checksum_every_steps),
                *callbacks,
                *recording_callbacks(self, epochs, rows=self.shard(split).total_rows),
            ],
        )
        return self.history

    def close(self) -> None:
        """Closes the event files."""
        for writer in (self._events or {}).values():
            with contextlib.suppress(Exception):
                writer.close()

    def _can_share(self, split: str) -> bool:
        rows = row_count(self.examples_dir / split)
        if rows < self.size:
            log.warning("split %r holds %d rows for %d ranks: it is not measured", split, rows, self.size)
        return rows >= self.size

    def _next_pass(self) -> int:
        """The epoch; further passes within one have the numbers after it."""
        number = self.epoch + self._passes
        self._passes += 1
        return number

"""The context of a training function: its rank, its data, its hyperparameters, and its folders."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_hops.contract.artifacts import HopsError
from airflow_hops.hops.checkpoints import (
    Checkpoint,
    CheckpointWriter,
    Position,
    Snapshot,
    copy_variables,
    load_snapshot,
    restore_variables,
)
from airflow_hops.hops.shares import Shares

if TYPE_CHECKING:
    import tensorflow as tf

    from airflow_hops.data.feature_specs import OutputSpec
    from airflow_hops.hops.keras import Guard
    from airflow_hops.hops.reader import SplitReader

log = logging.getLogger(__name__)


@dataclass
class TrainContext:
    """The argument of a training function, ``train(context) -> keras.Model``.

    Attributes:
        rank: Number of this rank, 0 to ``size`` - 1.
        size: Ranks of the gang.
        local_rank: Number among the ranks of its host.
        params: Hyperparameters.
        seed: Seeds weights and the order of rows; all generators have been seeded with it and the rank.
        feature_outputs: The transform's outputs by name, with dtype, width and vocabulary size; the model's inputs.
        label: Name of the label column.
        examples_dir: Folder of the transformed examples; None where the training was given none.
        checkpoint_dir: Folder that outlives this try.
        tensorboard_dir: Where rank 0 writes event files.
        splits_uri: Where the splits lie that the ranks read from a remote store; empty: in ``examples_dir``.
        storage_options: For fsspec, of that store.
        resumed_from: The checkpoint of an earlier try, or None.
        checkpoint_every_steps: Steps between checkpoints within an epoch; 0 for none.
        guard_every_steps: Steps between two comparisons of the ranks' weights; 0 for none, None for the default.
        keep_checkpoints: How many checkpoints are kept.
        history: Metrics of each epoch, those before the checkpoint included.
        position: Where the training stands.
        snapshot: What is restored from, once :meth:`restore` has read it.
        guards: What guarded each training of this try.
        strategy: The ``tf.distribute.Strategy`` of a training that does not work with Horovod.
    """

    rank: int
    size: int
    local_rank: int
    params: Mapping[str, Any]
    seed: int
    feature_outputs: Mapping[str, OutputSpec]
    label: str
    examples_dir: Path | None
    checkpoint_dir: Path
    tensorboard_dir: Path
    splits_uri: str = ""
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    resumed_from: Checkpoint | None = None
    checkpoint_every_steps: int = 0
    guard_every_steps: int | None = None
    keep_checkpoints: int = 3
    history: list[dict[str, float]] = field(default_factory=list)
    position: Position = field(default_factory=Position)
    snapshot: Snapshot | None = None
    guards: list[Guard] = field(default_factory=list)
    strategy: tf.distribute.Strategy | None = None
    on_message: Callable[..., None] = lambda kind, **fields: None
    on_alive: Callable[[str], None] = lambda _: None
    bring_back: Callable[[str], None] = lambda _: None
    epoch: int = 0
    first_batch: int = 0
    rows: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    exchange_seconds: float = 0.0
    rows_trained: int = 0
    epochs_begun: int = 0
    _epochs_written: int = 0
    _fits: int = 0
    is_restored: bool = False
    stop_requested: bool = False
    _agreed_stop: bool = False
    _stop_calls: int = 0
    _shares: Shares = field(init=False)
    _writer: CheckpointWriter | None = None
    _events: Any = None

    def __post_init__(self) -> None:
        self._shares = Shares(self)
        if self.resumed_from is not None:
            self.position = self.resumed_from.position
            self.epoch = self.position.epoch
            self.history.extend(dict(metrics) for metrics in self.resumed_from.history)

    @property
    def initial_epoch(self) -> int:
        """Epochs that an earlier try has done; 0 for a first try."""
        return self.resumed_from.position.epoch if self.resumed_from else 0

    def reader(self, split: str, columns: Sequence[str] | None = None) -> SplitReader:
        """This rank's rows of a split.

        Args:
            split: ``train``, ``eval``.
            columns: Which of :attr:`feature_outputs` to read; None for all.

        Raises:
            BadInput: there is no such split or column, or it cannot be read.
        """
        return self._shares.reader(split, columns)

    def steps(self, split: str, batch_size: int) -> int:
        """Steps of an epoch, the same on every rank.

        Args:
            split: ``train``, ``eval``.
            batch_size: Rows of a step over all ranks.
        """
        return self._shares.steps(split, batch_size)

    def examples(
        self,
        split: str,
        batch_size: int,
        *,
        shuffle: bool = False,
        repeat: bool = False,
        first_step: int = 0,
        columns: Sequence[str] | None = None,
    ) -> tf.data.Dataset:
        """This rank's share of a split, as pairs of features by name and labels.

        Each rank gets its own rows, every row is given once an epoch, and all ranks take the same number of steps,
        whatever the sizes of files.

        Args:
            split: ``train``, ``eval``.
            batch_size: Rows of a step over all ranks; this rank's batches are a ``size``-th of it.
            shuffle: Whether each pass has an order of its own, from seed, rank and epoch.
            repeat: Whether the dataset begins anew when it ends.
            first_step: The batch to begin with, in an epoch that is resumed; those that follow are what the whole epoch
                would have given.
            columns: Which of :attr:`feature_outputs` to read; None for all.
        """
        dataset = self._shares.dataset(split, batch_size, shuffle=shuffle, first_step=first_step, columns=columns)
        return dataset.repeat() if repeat else dataset

    def can_share(self, split: str) -> bool:
        """Whether a split has rows for every rank."""
        return self._shares.suffice(split)

    def begin_epoch(self, epoch: int) -> None:
        """Tells the data which epoch it is; :meth:`fit` does. A resumed epoch has the order that it had."""
        self.epoch = epoch
        self.epochs_begun += 1

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

    def write_epochs(self) -> None:
        """Writes the metrics of the epochs that are not in the event files yet, those of earlier tries included."""
        for number in range(self._epochs_written, len(self.history)):
            metrics = {name: value for name, value in self.history[number].items() if name != "seconds"}
            validation = {n.removeprefix("val_"): v for n, v in metrics.items() if n.startswith("val_")}
            self.write_events("train", number, {n: v for n, v in metrics.items() if not n.startswith("val_")})
            if validation:
                self.write_events("validation", number, validation)
        self._epochs_written = len(self.history)

    def request_stop(self) -> None:
        """Asks all ranks to stop when they next look; :meth:`fit` looks after each epoch."""
        self.stop_requested = True

    def should_stop(self, every: int = 1) -> bool:
        """Whether any rank has asked to stop. Every rank must call it equally often, and all get the same answer.

        Asking the others takes a cycle of Horovod's and an all-reduce, a few ms. In a loop over steps let it do so at
        every hundredth call only; between them the answer is the last one.

        Args:
            every: Calls of which the first asks the other ranks.
        """
        if self._stop_calls % every == 0:
            self._agreed_stop = self.any_rank(self.stop_requested)
        self._stop_calls += 1
        return self._agreed_stop

    def any_rank(self, flag: bool) -> bool:
        """Whether the flag is set on any rank; every rank must call it."""
        import horovod.tensorflow as hvd
        import tensorflow as tf

        if self.size == 1:
            return flag
        return bool(hvd.allreduce(tf.constant(int(flag)), op=hvd.Max, name="hops_any_rank").numpy())

    def restore(self, model: Any, optimizer: Any = None) -> Position:
        """Goes back to where an earlier try stood, if there was one, and gives all ranks rank 0's weights.

        Python's, NumPy's, TensorFlow's and Keras's generators, the states of the model's random layers and metrics, and
        the optimizer come back with the weights. A checkpoint of another number of ranks begins its epoch anew, with
        the shards that there are now.

        Args:
            model: A Keras model, built.
            optimizer: Its optimizer, where it was not compiled with one.

        Returns:
            Where the training stands: how many steps and epochs, and steps of the epoch after them, are done.

        Raises:
            BadInput: the checkpoint is of another architecture.
        """
        from airflow_hops.hops.keras import broadcast_weights

        self.is_restored = True
        if self.resumed_from is not None:
            snapshot = load_snapshot(self.resumed_from)
            restore_variables(snapshot, model, optimizer, where=str(self.resumed_from.path))
            if len(snapshot.rank_states) != self.size:
                self._begin_epoch_anew(len(snapshot.rank_states))
            self.snapshot = replace(snapshot, variables={})  # they take as much memory as the model
        broadcast_weights(model)
        self.restore_own_state(model, optimizer)
        return self.position

    @property
    def is_at_snapshot(self) -> bool:
        """Whether nothing has been trained since what is restored from."""
        if self.snapshot is None:
            return False
        there, here = self.snapshot.position, self.position
        return (there.fit, there.step) == (here.fit, here.step)

    def restore_own_state(self, model: Any, optimizer: Any = None) -> None:
        """Puts back what of the checkpoint is this rank's own, such as random generators; :meth:`restore` does."""
        from airflow_hops.hops.rank_state import restore_rank_state

        if self.snapshot is not None and len(self.snapshot.rank_states) == self.size:
            restore_rank_state(self.snapshot.rank_states[self.rank], model, optimizer)

    def checkpoint(
        self,
        model: Any,
        *,
        step: int,
        epoch: int = 0,
        batch: int = 0,
        optimizer: Any = None,
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """Writes a checkpoint in a training loop of one's own; :meth:`fit` does it by itself. Every rank must call it.

        Training goes on while it is written. That it could not be written is raised by the next call.

        Args:
            model: The Keras model.
            step: Steps done, over all epochs.
            epoch: Epochs done.
            batch: Steps done of the epoch after them.
            optimizer: The optimizer, where the model was not compiled with one.
            metrics: Of the epoch that has ended, for ``training.json``.

        Raises:
            HopsError: the checkpoint before could not be written.
            BadInput: a weight is not a number.
        """
        if metrics is not None:
            self.history.append({name: float(value) for name, value in metrics.items()})
        self.position = replace(self.position, step=int(step), epoch=int(epoch), batch=int(batch))
        self.save(model, optimizer)

    def save(self, model: Any, optimizer: Any = None, counters: tuple[Mapping[str, Any], Any] = ({}, {})) -> None:
        """Writes a checkpoint of where the training stands, by :attr:`position`; :meth:`checkpoint` does."""
        from airflow_hops.hops.rank_state import gather_rank_states

        self.on_alive(f"the checkpoint {self.position}")
        states = gather_rank_states(model, optimizer)
        if self.rank == 0:
            variables = copy_variables(model, optimizer)
            snapshot = Snapshot(self.position, variables, states, tuple(self.history), *counters)
            if self._writer is None:
                self._writer = CheckpointWriter(self.checkpoint_dir, self.keep_checkpoints, self._announce)
            self._writer.write(snapshot)

    def callbacks(
        self, *, epochs: int, reader: SplitReader | None = None, guard_every_steps: int | None = None
    ) -> list[Any]:
        """The callbacks that :meth:`fit` adds, for a ``model.fit`` of one's own; checkpoints come after each epoch.

        Args:
            epochs: How many there will be, for the progress.
            reader: Of the split that is trained on, ``context.reader("train")``: each epoch must give all of its rows,
                once. None for other data, whose rows are not compared.
            guard_every_steps: Compare the ranks' weights after so many steps; the context's own by default.
        """
        from airflow_hops.hops.callbacks import RecordCallback, guarding_callbacks

        guard = self.make_guard(guard_every_steps, reader)
        rows = reader.total_rows if reader else 0
        return [*guarding_callbacks(self, guard), RecordCallback(self, epochs, rows=rows)]

    def fit(
        self,
        model: Any,
        *,
        epochs: int,
        batch_size: int,
        split: str = "train",
        validation_split: str | None = "eval",
        callbacks: Sequence[Any] = (),
        guard_every_steps: int | None = None,
        checkpoint_every_steps: int | None = None,
    ) -> list[dict[str, float]]:
        """``model.fit`` on all ranks: from the last checkpoint, with weights broadcast, checked and saved each epoch.

        A training function may call it several times. When it is resumed, calls that had ended are left out.

        Args:
            model: A compiled Keras 3 model whose optimizer is a :func:`airflow_hops.hops.keras.DistributedOptimizer`.
            epochs: Passes over the examples.
            batch_size: Rows of a step over all ranks.
            split: What to train on.
            validation_split: What to measure after each epoch; None for nothing.
            callbacks: Callbacks of one's own; they see metrics over all ranks. In an epoch that is resumed they see
                batches counted from 0. Checkpoints hold the counters of Keras's own callbacks, and of those that have
                methods ``get_state() -> JSON`` and ``set_state(JSON)``.
            guard_every_steps: Compare the ranks' weights after so many steps; by default as the operator says.
            checkpoint_every_steps: Write a checkpoint after so many steps, too; by default as the operator says.

        Returns:
            Metrics of each epoch, those before the checkpoint included.
        """
        from airflow_hops.hops.fitting import fit_model

        number, self._fits = self._fits, self._fits + 1
        if number < self.position.fit:
            log.info("call %d of context.fit had ended before the checkpoint: it is left out", number + 1)
            return self.history
        return fit_model(
            self,
            model,
            number,
            epochs=epochs,
            batch_size=batch_size,
            split=split,
            validation_split=validation_split,
            callbacks=callbacks,
            guard_every_steps=guard_every_steps,
            checkpoint_every_steps=checkpoint_every_steps,
        )

    def close(self) -> None:
        """Waits for the last checkpoint, and closes the event files.

        Raises:
            HopsError: the checkpoint could not be written.
        """
        for writer in (self._events or {}).values():
            with contextlib.suppress(Exception):
                writer.close()
        if self._writer is not None:
            self._writer.finish()

    @property
    def reading_failure(self) -> Exception | None:
        """What went wrong while examples were read: TensorFlow's own error does not tell whether a retry may help."""
        return self._shares.failure

    def _announce(self, path: Path) -> None:
        self.bring_back(f"{self.checkpoint_dir.name}/{path.name}")
        self.on_message("checkpoint", name=path.name)

    def _begin_epoch_anew(self, ranks: int) -> None:
        from airflow_hops.hops.rank_state import seed_rank

        self.position = replace(self.position, batch=0)
        seed_rank(self.seed + self.position.step * self.size, self.rank)
        log.warning(
            "the checkpoint is of %d ranks, and there are %d: training goes on %s with new shards and new random "
            "numbers; its weights will not be those of an uninterrupted training to the last bit",
            ranks,
            self.size,
            self.position,
        )

    def make_guard(self, every_steps: int | None, reader: SplitReader | None = None) -> Guard:
        """The guard of a training, which is noted in :attr:`guards`."""
        from airflow_hops.hops.keras import GUARD_EVERY_STEPS, Guard

        every = self.guard_every_steps if every_steps is None else every_steps
        guard = Guard(
            GUARD_EVERY_STEPS if every is None else every,
            reader.rows_given if reader else None,
            reader.total_rows if reader else None,
        )
        self.guards.append(guard)
        return guard


_current: list[TrainContext] = []


def current_context() -> TrainContext:
    """The context of this rank, for a script, which is given none.

    Raises:
        HopsError: this process is no rank of a training.
    """
    if not _current:
        raise HopsError("there is no training in this process; HorovodTrainOperator runs scripts as ranks of one")
    return _current[-1]


@contextlib.contextmanager
def made_current(context: TrainContext) -> Iterator[None]:
    """Has :func:`current_context` answer a context within the ``with`` block."""
    _current.append(context)
    try:
        yield
    finally:
        _current.pop()

"""The context of a training function: its rank, its data, its hyperparameters, and its folders."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_hops.core.contract.artifacts import HopsError
from airflow_hops.ml.training.checkpoints import Checkpoint, Position
from airflow_hops.ml.training.event_files import EventFiles
from airflow_hops.ml.training.preemption import Gather, PreemptedRank, Preemption
from airflow_hops.ml.training.shares import Shares
from airflow_hops.ml.training.training_state import TrainingState

if TYPE_CHECKING:
    import tensorflow as tf

    from airflow_hops.core.contract.target import Target
    from airflow_hops.ml.features.feature_specs import OutputSpec
    from airflow_hops.ml.training.keras import Guard
    from airflow_hops.ml.training.reader import SplitReader
    from airflow_hops.ml.training.tables import SplitTable

log = logging.getLogger(__name__)


@dataclass
class TrainContext:
    """The argument of a training function, ``train(context) -> keras.Model``.

    Attributes:
        rank: Number of this rank, 0 to ``size`` - 1.
        size: Number of ranks.
        local_rank: Number of this rank among those of its host.
        params: Hyperparameters.
        seed: Seeds weights and the order of rows; all generators have been seeded with it and the rank.
        feature_outputs: The transform's outputs by name, with dtype, width and vocabulary size; the model's inputs.
        target: The label's column, the problem, its classes, the column of the rows' weights, and further labels; None
            without examples.
        examples_dir: Folder of the transformed examples; None without examples.
        checkpoint_dir: Folder that outlives this try.
        tensorboard_dir: Folder of rank 0's event files.
        splits_uri: Address of the splits if the ranks read them from a remote store; empty for ``examples_dir``.
        storage_options: fsspec options of that store.
        resumed_from: The checkpoint of an earlier try, or None.
        checkpoint_every_steps: Steps between checkpoints within an epoch; 0 for none.
        guard_every_steps: Steps between two comparisons of the ranks' weights; 0 for none, None for the default.
        keep_checkpoints: Number of checkpoints to keep.
        guards: The guards of this try's trainings.
        strategy: The ``tf.distribute.Strategy`` of a training without Horovod.
        is_measured: Whether :meth:`fit` only measures its first steps: see :mod:`airflow_hops.ml.training.fitting`.
        state: Position and state of the training, for checkpoints.
        events: Rank 0's TensorBoard event files.
        preemption: Whether the training is to end, and checks for that.
    """

    rank: int
    size: int
    local_rank: int
    params: Mapping[str, Any]
    seed: int
    feature_outputs: Mapping[str, OutputSpec]
    target: Target | None
    examples_dir: Path | None
    checkpoint_dir: Path
    tensorboard_dir: Path
    splits_uri: str = ""
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    resumed_from: Checkpoint | None = None
    checkpoint_every_steps: int = 0
    guard_every_steps: int | None = None
    keep_checkpoints: int = 3
    guards: list[Guard] = field(default_factory=list)
    strategy: tf.distribute.Strategy | None = None
    is_measured: bool = False
    on_message: Callable[..., None] = lambda kind, **fields: None
    on_alive: Callable[[str], None] = lambda _: None
    bring_back: Callable[[str], None] = lambda _: None
    gather: Gather | None = None
    epoch: int = 0
    first_batch: int = 0
    rows: dict[str, int] = field(default_factory=dict)
    columns_taken: tuple[str, ...] | None = None
    seconds: float = 0.0
    exchange_seconds: float = 0.0
    slowest: list[dict[str, Any]] = field(default_factory=list)
    rows_trained: int = 0
    epochs_begun: int = 0
    _fits: int = 0
    stop_requested: bool = False
    _agreed_stop: bool = False
    _stop_calls: int = 0
    _steps_asked: int = 0
    state: TrainingState = field(init=False)
    events: EventFiles = field(init=False)
    preemption: Preemption = field(init=False)
    _shares: Shares = field(init=False)

    def __post_init__(self) -> None:
        self.state, self.events, self._shares = TrainingState(self), EventFiles(self.tensorboard_dir), Shares(self)
        self.epoch, self.preemption = self.initial_epoch, Preemption(self.gather_from_ranks)

    @property
    def position(self) -> Position:
        """The position of the training."""
        return self.state.position

    @property
    def history(self) -> list[dict[str, float]]:
        """Metrics of each epoch, including those before the checkpoint."""
        return self.state.history

    @property
    def initial_epoch(self) -> int:
        """Epochs that an earlier try has done; 0 for a first try."""
        return self.resumed_from.position.epoch if self.resumed_from else 0

    def reader(self, split: str, columns: Sequence[str] | None = None) -> SplitReader:
        """Opens this rank's rows of a split.

        Args:
            split: ``train`` or ``eval``.
            columns: Names of the :attr:`feature_outputs` to read; None for all.

        Raises:
            BadInput: the split or a column does not exist, or cannot be read.
        """
        return self._shares.reader(split, columns)

    def steps(self, split: str, batch_size: int) -> int:
        """Returns the number of steps of an epoch, the same on every rank.

        Args:
            split: ``train`` or ``eval``.
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
        """Returns this rank's share of a split: features by name, labels and, if the examples have them, row weights.

        Labels are class numbers (int64) or, in a regression, float32; several labels are a dict. Weights are float32.

        Each rank gets its own rows, every row occurs once per epoch, and all ranks take the same number of steps,
        whatever the file sizes.

        Args:
            split: ``train`` or ``eval``.
            batch_size: Rows of a step over all ranks; this rank's batches are a ``size``-th of it.
            shuffle: Whether to shuffle each pass, seeded with seed, rank and epoch.
            repeat: Whether the dataset starts again when it ends.
            first_step: First batch of a resumed epoch; later batches are those of the complete epoch.
            columns: Names of the :attr:`feature_outputs` to read; None for all.
        """
        dataset = self._shares.dataset(split, batch_size, shuffle=shuffle, first_step=first_step, columns=columns)
        return dataset.repeat() if repeat else dataset

    def batches(
        self,
        split: str,
        batch_size: int,
        *,
        shuffle: bool = False,
        first_step: int = 0,
        columns: Sequence[str] | None = None,
    ) -> Iterator[tuple[Any, ...]]:
        """Yields the batches of :meth:`examples` as NumPy arrays, for PyTorch and JAX; a thread reads ahead.

        Call :meth:`begin_epoch` before each epoch, since the order depends on it.

        Args:
            split: ``train`` or ``eval``.
            batch_size: Rows of a step over all ranks; this rank's batches are a ``size``-th of it.
            shuffle: Whether to shuffle, seeded with seed, rank and epoch.
            first_step: First batch of a resumed epoch; later batches are those of the complete epoch.
            columns: Names of the :attr:`feature_outputs` to read; None for all.

        Yields:
            Features by name, ``[batch]`` or ``[batch, width]``; labels (or several, by name); row weights, if any.
        """
        return self._shares.batches(split, batch_size, shuffle=shuffle, first_step=first_step, columns=columns)

    def table(self, split: str, columns: Sequence[str] | None = None) -> SplitTable:
        """Reads all of this rank's rows of a split, for NumPy, pandas, PyTorch, XGBoost or LightGBM.

        ``columns`` names the :attr:`feature_outputs` to read, in this order; None for all. A served model that takes a
        matrix gets the columns that were read of the split ``train``.
        """
        return self._shares.table(split, columns)

    def can_share(self, split: str) -> bool:
        """Returns whether a split has rows for every rank."""
        return self._shares.suffice(split)

    def begin_epoch(self, epoch: int) -> None:
        """Sets the epoch that seeds shuffling; :meth:`fit` calls it. A resumed epoch keeps its order."""
        self.epoch = epoch
        self.epochs_begun += 1

    def report(self, step: int, **metrics: float) -> None:
        """Streams metrics of rank 0 to the task's log and to TensorBoard; those of other ranks are ignored.

        Args:
            step: The position of the training, in any unit.
            metrics: Numbers by name.
        """
        self.on_alive(f"step {step}")
        if self.rank == 0:
            numbers = {name: float(value) for name, value in metrics.items()}
            self.on_message("report", step=int(step), metrics=numbers)
            self.events.write("train", step, numbers)

    def request_stop(self) -> None:
        """Asks all ranks to stop at their next check; :meth:`fit` checks after each epoch."""
        self.stop_requested = True

    def should_stop(self, every: int = 1) -> bool:
        """Returns whether any rank has asked to stop. Every rank must call it equally often; all get the same answer.

        In a trial of a search, it also returns True once the trial is pruned or stopped: return then within 5 seconds.

        Asking the other ranks takes one Horovod cycle and an all-reduce, a few ms. In a loop over steps, pass
        ``every=100``: the calls in between return the last answer.

        Args:
            every: Ask the other ranks only once in this many calls.
        """
        if self._stop_calls == 0:
            self.on_message("heeds_stop")
        if self._stop_calls % every == 0:
            self._agreed_stop = self.any_rank(self.stop_requested)
        self._stop_calls += 1
        return self._agreed_stop

    def should_checkpoint(self, every: int) -> bool:
        """Returns whether to call :meth:`checkpoint` or :meth:`checkpoint_files` now, in your own training loop.

        Call it after each step, on every rank. The checkpoint after a notice ends the training, and a retry resumes
        from it: see :mod:`airflow_hops.ml.training.preemption`.

        Args:
            every: Steps between two checkpoints if there is no notice; 0 for none.
        """
        self._end_if_preempted()
        self._steps_asked += 1
        return self.preemption.agree() or (every > 0 and self._steps_asked % every == 0)

    def any_rank(self, flag: bool) -> bool:
        """Returns whether the flag is set on any rank; every rank must call it."""
        return any(raised for (raised,) in self.gather_from_ranks([flag]))

    def gather_from_ranks(self, values: Sequence[float]) -> list[list[float]]:
        """Returns the numbers of each rank, by rank; every rank must call it with equally many."""
        if self.size == 1:
            return [[*map(float, values)]]
        if self.gather is not None:
            return self.gather(values)
        import horovod.tensorflow as hvd
        import tensorflow as tf

        every: list[list[float]] = hvd.allgather(tf.constant([values], tf.float64), name="hops_gather").numpy().tolist()
        return every

    def restore(self, model: Any, optimizer: Any = None) -> Position:
        """Restores the state of an earlier try, if any, and gives all ranks the weights of rank 0.

        Besides the weights, it restores the optimizer, the random generators of Python, NumPy, TensorFlow and Keras,
        and the states of the model's random layers and metrics. If the number of ranks has changed, the ranks
        share the rows that are left of the epoch.

        Args:
            model: A Keras model, built.
            optimizer: Its optimizer, if it was not compiled with one.

        Returns:
            The position of the training: the steps and epochs done, and the steps done of the current epoch.

        Raises:
            BadInput: the checkpoint is of a model with another architecture.
        """
        return self.state.restore(model, optimizer)

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
        """Writes a checkpoint, in your own training loop; :meth:`fit` writes them for you. Every rank must call it.

        Training continues while it is written. If writing fails, the next call raises the error.

        Args:
            model: The Keras model.
            step: Steps done, over all epochs.
            epoch: Epochs done.
            batch: Steps done of the current epoch.
            optimizer: The optimizer, if the model was not compiled with one.
            metrics: Metrics of the epoch that has just ended, for ``training.json``.

        Raises:
            HopsError: the previous checkpoint could not be written.
            BadInput: a weight is NaN or infinite.
        """
        if metrics is not None:
            self.history.append({name: float(value) for name, value in metrics.items()})
        self.state.move(step=int(step), epoch=int(epoch), batch=int(batch))
        self.state.save(model, optimizer)
        self._end_if_preempted()

    def checkpoint_files(self, step: int, files: Mapping[str, bytes]) -> None:
        """Writes a checkpoint of a model of another library than Keras, after ``step`` steps, from files by name."""
        self.state.move(step=int(step))
        self.state.save_files(files)
        self._end_if_preempted()

    def _end_if_preempted(self) -> None:
        if self.preemption.is_agreed:
            raise PreemptedRank

    def resumed_files(self) -> dict[str, bytes]:
        """Returns the files that the last :meth:`checkpoint_files` of an earlier try saved, or none."""
        return self.state.read_files()

    def callbacks(
        self, *, epochs: int, reader: SplitReader | None = None, guard_every_steps: int | None = None
    ) -> list[Any]:
        """Returns the callbacks that :meth:`fit` adds, for your own ``model.fit``, with a checkpoint after each epoch.

        Args:
            epochs: Number of epochs, for the progress report.
            reader: Reader of the training split, ``context.reader("train")``; each of its rows must occur once per
                epoch. None for other data, whose rows are not checked.
            guard_every_steps: Steps between comparisons of the ranks' weights; by default the context's.
        """
        from airflow_hops.ml.training.callbacks import RecordCallback, guarding_callbacks

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
        """Runs ``model.fit`` on all ranks from the last checkpoint on; checks and saves the weights each epoch.

        A training function may call it several times. In a resumed training, calls that had finished are skipped.

        Args:
            model: A compiled Keras 3 model whose optimizer is a
                :func:`airflow_hops.ml.training.keras.DistributedOptimizer`.
            epochs: Passes over the examples.
            batch_size: Rows of a step over all ranks.
            split: Split to train on.
            validation_split: Split to evaluate after each epoch; None for none.
            callbacks: Your own callbacks; they see metrics over all ranks. In a resumed epoch they see batches counted
                from 0. Checkpoints hold the counters of Keras's own callbacks, and of those that have methods
                ``get_state() -> JSON`` and ``set_state(JSON)``.
            guard_every_steps: Steps between comparisons of the ranks' weights; by default the operator's.
            checkpoint_every_steps: Steps between checkpoints within an epoch; by default the operator's.

        Returns:
            Metrics of each epoch, including those before the checkpoint.
        """
        from airflow_hops.ml.training.fitting import fit_model

        number, self._fits = self._fits, self._fits + 1
        if number < self.position.fit:
            log.info("call %d of context.fit had finished before the checkpoint: it is skipped", number + 1)
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
        self.events.close()
        self.state.close()

    @property
    def reading_failure(self) -> Exception | None:
        """The error that occurred while reading examples; TensorFlow's error does not tell whether a retry may help."""
        return self._shares.failure

    def make_guard(self, every_steps: int | None, reader: SplitReader | None = None) -> Guard:
        """Returns a new guard of a training, which is also added to :attr:`guards`."""
        from airflow_hops.ml.training.keras import GUARD_EVERY_STEPS, Guard

        self.state.join()
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
    """Returns the context of this rank, for a script, which is called without arguments.

    Raises:
        HopsError: this process is not a rank of a training.
    """
    if not _current:
        raise HopsError("there is no training in this process; run the script with HorovodTrainOperator")
    return _current[-1]


@contextlib.contextmanager
def made_current(context: TrainContext) -> Iterator[None]:
    """Makes :func:`current_context` return a context within the ``with`` block."""
    _current.append(context)
    try:
        yield
    finally:
        _current.pop()

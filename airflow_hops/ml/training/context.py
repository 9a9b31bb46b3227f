"""The context of a training function: its rank, its data, its hyperparameters, and its folders."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.ml.training.checkpoints import Position
from airflow_hops.ml.training.session import Session

if TYPE_CHECKING:
    import tensorflow as tf

    from airflow_hops.ml.models.champion import Champion
    from airflow_hops.ml.training.reader import SplitReader
    from airflow_hops.ml.training.row_shares import RowShares
    from airflow_hops.ml.training.tables import SplitTable


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
        checkpoint_dir: Folder that outlives this try.
        tensorboard_dir: Folder of rank 0's event files.
        resumed_from: The checkpoint of an earlier try, or None.
        strategy: The ``tf.distribute.Strategy`` of a training without Horovod.
        session: The parts of the training, for extensions.
    """

    def __init__(self, session: Session) -> None:
        rank, self.session = session.rank, session
        self.rank, self.size, self.local_rank = rank.number, rank.size, rank.local_rank
        self.params, self.seed = session.options.params, session.options.seed
        self.feature_outputs, self.target = session.source.outputs, session.source.target
        self.checkpoint_dir, self.tensorboard_dir = session.output / "checkpoints", session.output / "tensorboard"
        self.resumed_from = session.resumed_from
        self.strategy = None if rank.group is None else rank.group.strategy

    @property
    def champion(self) -> Champion | None:
        """The live model and the window of its data, to continue from; None if there is none.

        Raises:
            BadInput: the operator was not given ``continue_from``.
        """
        if self.session.options.continue_from is None:
            raise BadInput("context.champion needs continue_from; give the operator the name of the served model")
        return self.session.champion

    @property
    def position(self) -> Position:
        """The position of the training."""
        return self.session.state.position

    @property
    def history(self) -> list[dict[str, float]]:
        """Metrics of each epoch, including those before the checkpoint."""
        return self.session.state.history

    @property
    def initial_epoch(self) -> int:
        """Epochs that an earlier try has done; 0 for a first try."""
        return self.session.state.initial_epoch

    def reader(self, split: str, columns: Sequence[str] | None = None) -> SplitReader:
        """Opens this rank's rows of a split.

        Args:
            split: ``train`` or ``eval``.
            columns: Names of the :attr:`feature_outputs` to read; None for all.

        Raises:
            BadInput: the split or a column does not exist, or cannot be read.
        """
        return self.session.data.reader(split, columns)

    def steps(self, split: str, batch_size: int) -> int:
        """Returns the number of steps of an epoch, the same on every rank.

        Args:
            split: ``train`` or ``eval``.
            batch_size: Rows of a step over all ranks.
        """
        return self.session.data.steps(split, batch_size)

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
        dataset = self.session.data.dataset(split, batch_size, shuffle=shuffle, first_step=first_step, columns=columns)
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

        Raises:
            BadInput: an argument cannot be used.
        """
        return self.session.data.batches(split, batch_size, shuffle=shuffle, first_step=first_step, columns=columns)

    def table(self, split: str, columns: Sequence[str] | None = None) -> SplitTable:
        """Reads all of this rank's rows of a split, for NumPy, pandas, PyTorch, XGBoost or LightGBM.

        ``columns`` names the :attr:`feature_outputs` to read, in this order; None for all. A served model that takes a
        matrix gets the columns that were read of the split ``train``.
        """
        return self.session.data.table(split, columns)

    def begin_epoch(self, epoch: int) -> None:
        """Sets the epoch that seeds shuffling; :meth:`fit` calls it. A resumed epoch keeps its order."""
        self.session.data.begin_epoch(epoch)

    def report(self, step: int, **metrics: float) -> None:
        """Streams metrics of rank 0 to the task's log and to TensorBoard; those of other ranks are ignored.

        Args:
            step: The position of the training, in any unit.
            metrics: Numbers by name.
        """
        session = self.session
        session.rank.channel.alive(f"step {step}")
        if self.rank == 0:
            numbers = {name: float(value) for name, value in metrics.items()}
            session.rank.channel.send("report", step=int(step), metrics=numbers)
            session.events.write("train", step, numbers)

    def request_stop(self) -> None:
        """Asks all ranks to stop at their next check; :meth:`fit` checks after each epoch."""
        self.session.is_stop_requested = True

    def should_stop(self, every: int = 1) -> bool:
        """Returns whether any rank has asked to stop. Every rank must call it equally often; all get the same answer.

        In a trial of a search, it also returns True once the trial is pruned or stopped: return then within 5 seconds.

        Asking the other ranks takes one Horovod cycle and an all-reduce, a few ms. In a loop over steps, pass
        ``every=100``: the calls in between return the last answer.

        Args:
            every: Ask the other ranks only once in this many calls.
        """
        return self.session.should_stop(every)

    def should_checkpoint(self, every: int) -> bool:
        """Returns whether to call :meth:`checkpoint` or :meth:`checkpoint_files` now, in your own training loop.

        Call it after each step, on every rank. The checkpoint after a notice ends the training, and a retry resumes
        from it: see :mod:`airflow_hops.ml.training.preemption`.

        Args:
            every: Steps between two checkpoints if there is no notice; 0 for none.
        """
        return self.session.preemption.is_checkpoint_due(every)

    def restore(self, model: object, optimizer: object = None, others: Mapping[str, object] | None = None) -> Position:
        """Restores the state of an earlier try, if any, and gives all ranks the weights of rank 0.

        Besides the weights, it restores the optimizer, the random generators of Python, NumPy, TensorFlow and Keras,
        and the states of the model's random layers and metrics. If the number of ranks has changed, the ranks
        share the rows that are left of the epoch.

        Args:
            model: A Keras model, built; on ranks of PyTorch, a ``torch.nn.Module`` that is wrapped or sharded.
            optimizer: Its optimizer, if it was not compiled with one.
            others: On ranks of PyTorch, by name: schedulers, scalers, averages, further modules and optimizers, and
                generators.

        Returns:
            The position of the training: the steps and epochs done, and the steps done of the current epoch.

        Raises:
            BadInput: the checkpoint is of a model with another architecture, or of other ``others``.
        """
        if self.session.rank.group is None:
            self.session.join()
        position = self.session.state.restore(model, optimizer, others)
        self.session.state.restore_callbacks()
        return position

    def checkpoint(
        self,
        model: object,
        *,
        step: int,
        epoch: int = 0,
        batch: int = 0,
        optimizer: object = None,
        metrics: Mapping[str, float] | None = None,
        others: Mapping[str, object] | None = None,
    ) -> None:
        """Writes a checkpoint, in your own training loop; :meth:`fit` writes them for you. Every rank must call it.

        Training continues while it is written. If writing fails, the next call raises the error.

        Args:
            model: The Keras model or, on ranks of PyTorch, the module.
            step: Steps done, over all epochs.
            epoch: Epochs done.
            batch: Steps done of the current epoch.
            optimizer: The optimizer, if the model was not compiled with one.
            metrics: Metrics of the epoch that has just ended, for ``training.json``.
            others: The same as for :meth:`restore`.

        Raises:
            HopsError: the previous checkpoint could not be written.
            BadInput: a weight is NaN or infinite.
        """
        state = self.session.state
        if metrics is not None:
            state.history.append({name: float(value) for name, value in metrics.items()})
        state.move(step=int(step), epoch=int(epoch), batch=int(batch))
        state.save(model, optimizer, others)
        self.session.preemption.end_if_agreed()

    def checkpoint_files(self, step: int, files: Mapping[str, bytes]) -> None:
        """Writes a checkpoint of a model of another library than Keras, after ``step`` steps, from files by name."""
        self.session.state.move(step=int(step))
        self.session.state.save_files(files)
        self.session.preemption.end_if_agreed()

    def resumed_files(self) -> dict[str, bytes]:
        """Returns the files that the last :meth:`checkpoint_files` of an earlier try saved, or none."""
        return self.session.state.read_files()

    def callbacks(self, *, epochs: int, reader: SplitReader | None = None) -> list[object]:
        """Returns the callbacks that :meth:`fit` adds, for your own ``model.fit``, with a checkpoint after each epoch.

        Args:
            epochs: Number of epochs, for the progress report.
            reader: Reader of the training split, ``context.reader("train")``; each of its rows must occur once per
                epoch. None for other data, whose rows are not checked.
        """
        from airflow_hops.ml.training.callbacks import RecordCallback, guarding_callbacks, make_guard

        session = self.session
        session.join()
        guard = make_guard(session, reader)
        rows = (reader.rows, reader.total_rows) if reader else (0, 0)
        return [*guarding_callbacks(session, guard), RecordCallback(session, epochs, rows=lambda first: rows)]

    def fit(
        self,
        model: object,
        *,
        epochs: int,
        batch_size: int,
        split: str = "train",
        validation_split: str | None = "eval",
        callbacks: Sequence[object] = (),
        checkpoint_every_steps: int | None = None,
        shares: type[RowShares] | None = None,
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
            callbacks: Further callbacks; they see metrics over all ranks. Checkpoints hold the state of Keras's; your
                own with attributes need ``get_state()``, which returns numbers, text, arrays, and lists or dicts of
                these, and ``set_state(state)``.
            checkpoint_every_steps: Steps between checkpoints within an epoch; by default the operator's.
            shares: Divides the rows among the ranks for each epoch, such as
                ``airflow_hops.extensions.ranks.BySpeed``; None for equal shares.

        Returns:
            Metrics of each epoch, including those before the checkpoint.

        Raises:
            BadInput: a callback has attributes and no ``get_state()``, or is Keras's ``BackupAndRestore``, whose work
                ``fit`` does, or the model draws random numbers in a way that no checkpoint can resume, such as
                ``tf.random.normal`` in its graph.
        """
        from airflow_hops.ml.training.fitting import fit_model

        return fit_model(
            self.session,
            model,
            epochs=epochs,
            batch_size=batch_size,
            split=split,
            validation_split=validation_split,
            callbacks=callbacks,
            checkpoint_every_steps=checkpoint_every_steps,
            shares=shares,
        )


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

"""The callbacks of :meth:`~airflow_hops.ml.training.context.TrainContext.fit`: guards first, then epoch records."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from airflow_hops.core.errors import BadInput
from airflow_hops.ml.training.collectives import hvd
from airflow_hops.ml.training.epoch_times import report_epoch
from airflow_hops.ml.training.keras import (
    GUARD_EVERY_STEPS,
    BroadcastCallback,
    Guard,
    MetricAverageCallback,
    exchange_seconds,
)
from airflow_hops.ml.training.keras.callbacks import metric_value
from airflow_hops.ml.training.keras.weights import short_checksum
from airflow_hops.ml.training.preemption import PreemptedRank

if TYPE_CHECKING:
    from airflow_hops.ml.training.reader import SplitReader
    from airflow_hops.ml.training.row_shares import RowShares
    from airflow_hops.ml.training.session import Session

# Order of the callbacks, the same on all ranks, because several call collectives: broadcast of weights, epoch
# check, averages of statistics and metrics, guard, the user's callbacks, record. The user's callbacks see
# averaged metrics, and so decide the same on all ranks; the record comes last, so that its checkpoint has their state,
# and so that it can restore what they change at the beginning of a resumed training or epoch, which had begun before.
# The end of an epoch: join (ranks wait for the longest), compare steps, average, evaluate, report, agree to stop, save.
# A rank that has raised an error is missing in the next collective; the supervisor then ends all.


class FitCallbacks(keras.callbacks.CallbackList):
    """The callbacks of a training that Keras runs in parts: the rest of a resumed epoch, then the other epochs.

    Keras's ``fit`` takes one number of steps for all epochs, so each part is a separate ``fit``; the callbacks see one
    training, between :meth:`begin` and :meth:`end`, and the batches of whole epochs.
    """

    def __init__(self, session: Session, *args: object, **named: object) -> None:
        super().__init__(*args, verbose=0, **named)
        self._session = session

    def on_train_batch_begin(self, batch: int, logs: dict[str, object] | None = None) -> None:
        """Passes the number of the batch in its epoch."""
        super().on_train_batch_begin(self._session.first_batch + batch, logs)

    def on_train_batch_end(self, batch: int, logs: dict[str, object] | None = None) -> None:
        """Passes the number of the batch in its epoch."""
        super().on_train_batch_end(self._session.first_batch + batch, logs)

    def begin(self) -> None:
        """Begins the training."""
        super().on_train_begin()

    def end(self) -> None:
        """Ends the training."""
        super().on_train_end()

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """No-op: a part begins."""

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """No-op: a part has ended."""


def make_guard(session: Session, reader: SplitReader | None) -> Guard:
    """Returns a new guard of a training."""
    every = session.options.guard_every_steps
    guard = Guard(
        GUARD_EVERY_STEPS if every is None else every,
        reader.rows_given if reader else None,
        reader.total_rows if reader else None,
    )
    session.guards.append(guard)
    return guard


def guarding_callbacks(session: Session, guard: Guard, shares: RowShares | None = None) -> list[object]:
    """Returns the callbacks that check weights, loss and steps, and average metrics over all ranks."""
    return [
        BroadcastCallback(),
        _EpochCallback(session),
        MetricAverageCallback(shares.weight) if shares else MetricAverageCallback(),
        guard,
    ]


class _EpochCallback(keras.callbacks.Callback):
    """Sets the epoch of the data, reports that the rank is alive, and makes ranks end the epoch together."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session, self._channel = session, session.rank.channel
        self._where = ""
        self._steps = 0
        self._open = False

    def on_train_begin(self, logs: dict[str, object] | None = None) -> None:
        """Compares the ranks' numbers of steps per epoch, if they are known in advance."""
        steps = self.params.get("steps")
        by_rank = _gather_int(-1 if steps is None else steps, "hops_steps")
        if len(set(by_rank)) > 1:
            result = ", ".join(
                f"rank {rank}: {steps if steps >= 0 else 'an unknown number'}" for rank, steps in enumerate(by_rank)
            )
            raise BadInput(
                f"the ranks would take different numbers of steps an epoch ({result}), and all but the shortest "
                "would wait forever; give each rank equally many batches, as context.examples does"
            )

    def on_epoch_begin(self, epoch: int, logs: dict[str, object] | None = None) -> None:
        self._session.data.begin_epoch(epoch)
        self._where, self._steps, self._open = f"epoch {epoch + 1}", 0, True
        self._channel.alive(f"{self._where} begins")

    def on_train_batch_end(self, batch: int, logs: dict[str, object] | None = None) -> None:
        self._steps = batch + 1
        self._channel.alive(f"{self._where} step {batch + 1}")

    def on_test_begin(self, logs: dict[str, object] | None = None) -> None:
        self._end_steps()

    def on_test_batch_end(self, batch: int, logs: dict[str, object] | None = None) -> None:
        self._channel.alive(f"{self._where} evaluation step {batch + 1}")

    def on_epoch_end(self, epoch: int, logs: dict[str, object] | None = None) -> None:
        self._end_steps()

    def _end_steps(self) -> None:
        """Waits for all ranks to end the epoch; longer ranks continue without this one's gradients."""
        if not self._open:
            return
        self._open = False
        self._channel.send("alive", where=f"the last of {self._steps} steps of {self._where}")
        if hvd.size() == 1:
            return
        _join(hvd.join)
        by_rank = _gather_int(self._steps, "hops_steps")
        if len(set(by_rank)) > 1:
            result = ", ".join(f"rank {rank}: {steps}" for rank, steps in enumerate(by_rank))
            raise BadInput(
                f"the ranks took different numbers of steps in {self._where} ({result}): the batches of "
                f"rank {by_rank.index(min(by_rank))} ran out first; give each rank equally many, as context.examples "
                "does"
            )


def _join(join: Callable[[], object]) -> None:
    """Waits for all ranks, which may continue without this one's gradients until then.

    Horovod built with NCCL has this operation only for GPUs. Without a GPU, this does not wait: ranks with different
    numbers of steps then hang, and each reports its position.
    """
    try:
        # TensorFlow 2.16: would reuse an operation that it considers free of side effects, so the function is new each
        # time.
        tf.function(join).get_concrete_function()()
    except tf.errors.InvalidArgumentError as error:
        if "No OpKernel was registered" not in error.message:
            raise


class RecordCallback(keras.callbacks.Callback):
    """Reports an epoch, writes its events and checkpoints, and makes all ranks stop together. The last callback.

    Args:
        session: The training on this rank.
        epochs: Number of epochs.
        rows: Returns the rows from a batch of an epoch on, of this rank and over all ranks; zeros if unknown.
        every_steps: Steps between checkpoints within an epoch; 0 for none, None if an epoch cannot be resumed within.
        waited_s: Returns the seconds so far in which the model waited for rows.
        shares: Divides the rows of the next epoch; None for equal shares.
    """

    def __init__(
        self,
        session: Session,
        epochs: int,
        *,
        rows: Callable[[int], tuple[int, int]] = lambda first: (0, 0),
        every_steps: int | None = None,
        waited_s: Callable[[], float] = lambda: 0.0,
        shares: RowShares | None = None,
    ) -> None:
        super().__init__()
        self._shares = shares
        self._session, self._epochs, self._rows = session, epochs, rows
        self._every_steps, self._waited_s = every_steps, waited_s
        self._began = self._trained_until = self._waited_before = self._exchanged_before = 0.0
        self._saved_at = 0

    def on_train_begin(self, logs: dict[str, object] | None = None) -> None:
        """Restores the state that other callbacks have reset."""
        state = self._session.state
        state.check_callbacks()
        self._saved_at = state.position.step
        snapshot, here = state.snapshot, state.position
        if snapshot is not None and (snapshot.position.fit, snapshot.position.step) == (here.fit, here.step):
            state.restore_again(self.model)

    def on_epoch_begin(self, epoch: int, logs: dict[str, object] | None = None) -> None:
        """Starts counting; in a resumed epoch, restores what its beginning has changed."""
        session = self._session
        if session.first_batch:
            session.state.restore_again(self.model)
        session.state.move(epoch=epoch, batch=session.first_batch)
        self._epoch_rows = self._rows(session.first_batch)
        self._waited_before, self._exchanged_before = self._waited_s(), exchange_seconds(self.model.optimizer)
        self._began = self._trained_until = time.monotonic()

    def on_train_batch_end(self, batch: int, logs: dict[str, object] | None = None) -> None:
        """Writes a checkpoint if it is due."""
        self._trained_until = time.monotonic()
        session, steps = self._session, self.params.get("steps")
        done = min(batch + 1, steps) if steps else batch + 1
        step = session.state.position.step + done - session.state.position.batch
        session.state.move(step=step, batch=done)
        if self._shares:
            self._shares.note(done)
        session.preemption.is_heeded = self._every_steps is not None
        if self._every_steps is None or done == steps:
            return
        preempted = session.preemption.agree()
        if preempted or (self._every_steps and step - self._saved_at >= self._every_steps):
            self._save()
        if preempted:
            raise PreemptedRank

    def on_epoch_end(self, epoch: int, logs: dict[str, object] | None = None) -> None:
        """Records the epoch."""
        session, metrics = self._session, {name: metric_value(name, value) for name, value in (logs or {}).items()}
        seconds = self._trained_until - self._began
        own_rows, rows = self._epoch_rows
        session.seconds += seconds
        session.rows_trained += rows
        session.state.history.append({**metrics, "seconds": seconds})
        session.state.weights.append(short_checksum(self.model.trainable_weights))
        waited = self._waited_s() - self._waited_before
        session.waited_seconds += waited
        exchanged = exchange_seconds(self.model.optimizer) - self._exchanged_before
        row_seconds = self._shares.row_seconds() if self._shares else 0.0
        own = [self.model.stop_training or session.is_stop_requested, session.preemption.is_noticed, row_seconds]
        by_rank = session.rank.gather([*own, seconds, waited, exchanged, own_rows])
        stops, notices, rows_take, *times = zip(*by_rank, strict=True)
        self.model.stop_training, session.preemption.is_agreed = any(stops), any(notices)
        if session.rank.size > 1:
            report_epoch(session, epoch + 1, *times)
        if session.rank.number == 0:
            speed = {"examples_per_second": rows / seconds} if rows and seconds else {}
            session.rank.channel.send(
                "progress",
                epoch=len(session.state.history),
                text=f"epoch {epoch + 1} of {self._epochs}",
                fraction=(epoch + 1) / self._epochs,
                metrics={**metrics, **speed},
            )
            session.events.write_epochs(session.state.history)
        stopped = self.model.stop_training and epoch + 1 < self._epochs
        session.state.move(epoch=epoch + 1, batch=0, stopped=stopped)
        if self._shares and not self.model.stop_training and epoch + 1 < self._epochs:
            self._shares.decide(rows_take)
        self._save()
        if session.preemption.is_agreed:
            raise PreemptedRank

    def _save(self) -> None:
        self._saved_at = self._session.state.position.step
        self._session.state.save(self.model)


def _gather_int(value: int, name: str) -> list[int]:
    """Returns a number of each rank, by rank."""
    if hvd.size() == 1:
        return [value]
    return [int(result) for result in hvd.allgather(tf.constant([value], tf.int64), name=name).numpy()]

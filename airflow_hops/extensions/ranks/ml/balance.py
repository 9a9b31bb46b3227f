"""Unequal shares of the rows for ranks of different speeds: of ``context.fit``, and of loops on ranks of PyTorch."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from airflow_hops.core.errors import BadInput
from airflow_hops.ml.training.epoch_times import report_epoch

if TYPE_CHECKING:
    from airflow_hops.ml.training.context import TrainContext
    from airflow_hops.ml.training.session import Session


# An epoch has the same steps, of as many rows over all ranks, whatever the shares: a rank with fewer rows has them in
# each step. A step's gradient is the mean over all its rows, so a rank's own mean weighs as many times the ranks as the
# part of the step's rows that it has.
# After each epoch the ranks gather the seconds that a row took each, without the exchange, in which they wait for each
# other. All decide the same from these. A rank's time also has a part for each step, not each row, so the shares that
# make ranks equally fast are reached over some epochs.

TOLERATED = 1.1
"""Times of an epoch, of the slowest rank by the fastest one, below which shares are left as they are."""


def refuse_deterministic(is_deterministic: bool) -> None:
    """Raises BadInput if the operations of a balanced training are deterministic."""
    if is_deterministic:
        raise BadInput(
            "shares by speed and deterministic are set, but measured speeds, and so the weights, differ from run to "
            "run; leave one of them out"
        )


class Balance(ABC):
    """Divides the rows of a split among the ranks by their speeds.

    Args:
        session: The training on this rank.
        split: The split.
        batch_size: Rows of a step over all ranks.
        columns: Features to read; None for all.

    Attributes:
        reader: Reader of this rank's rows.
        weights: Weights of this rank's mean gradients in the average of each step, from the epoch's first batch on.
        steps_done: Steps of the epoch, from its first batch on, that were noted.
    """

    def __init__(self, session: Session, split: str, batch_size: int, columns: Sequence[str] | None) -> None:
        self._session, self._split, self._batch_size = session, split, batch_size
        self.reader = session.data.open(split, columns)

    @abstractmethod
    def exchange_seconds(self) -> float:
        """Returns the seconds so far in which this rank exchanged gradients, including the wait for others."""

    def begin(self, first_batch: int) -> bool:
        """Divides the rows as the position says, for an epoch from a batch on; returns whether the share is another."""
        session, old_share = self._session, self.reader.share
        self.reader.divide(session.state.position.rows_by_rank(session.rank.size))
        session.data.rows[self._split] = self.reader.rows
        self._rows, self._all_rows = session.data.step_rows(self.reader, self._batch_size, first_batch)
        self.weights = self._rows * session.rank.size / self._all_rows
        self._first_batch, self.steps_done = first_batch, 0
        self._measured_from: tuple[int, float, float] | None = None
        return self.reader.share != old_share

    def weight(self) -> float:
        """Returns this rank's part of the rows since the first batch, as a multiple of an equal part."""
        return float(self._rows.sum() * self._session.rank.size / self._all_rows.sum())

    def note(self, batch: int) -> None:
        """Notes the time after an execution, which ends with a batch of the epoch.

        The first one of an epoch, which may trace or compile the model, is not measured.
        """
        self.steps_done, self._ended = batch - self._first_batch, time.monotonic()
        if self._measured_from is None:
            self._measured_from = (self.steps_done, self._ended, self.exchange_seconds())

    def row_seconds(self) -> float:
        """Returns the seconds of a row in this epoch, without the exchange; 0 after less than two executions."""
        if self._measured_from is None:
            return 0.0
        first, began, exchanged = self._measured_from
        seconds = self._ended - began - (self.exchange_seconds() - exchanged)
        rows = self._rows[first : self.steps_done].sum()
        return max(seconds, 0.0) / rows if rows else 0.0

    def decide(self, row_seconds: Sequence[float]) -> None:
        """Sets the shares of the next epoch from the ranks' :meth:`row_seconds` in this one; the same on all ranks."""
        state, share, epoch = self._session.state, self.reader.share, self._session.data.epoch + 1
        if min(row_seconds) <= 0:
            self._say(
                f"the ranks' speeds were not measured in epoch {epoch}, as that takes two executions of the training "
                "step or more; shares of the rows stay as they are"
            )
            return
        new = divide_rows(share.by_rank, row_seconds, self.reader.steps(self._batch_size))
        if new == share.by_rank:
            return
        state.move(shares=(*state.position.shares, (state.position.fit, epoch, new)))
        slow, fast = int(np.argmax(row_seconds)), int(np.argmin(row_seconds))
        self._say(
            f"from epoch {epoch + 1} on, rank {slow} takes {new[slow] / share.total_rows:.0%} of the rows (it "
            f"has {row_seconds[fast] / row_seconds[slow]:.2f} of rank {fast}'s speed), and rank {fast} "
            f"{new[fast] / share.total_rows:.0%}"
        )

    def _say(self, text: str) -> None:
        if self._session.rank.number == 0:
            self._session.rank.channel.send("shares", text=text)


class BalancedBatches(Balance):
    """Divides the rows of an own training loop on ranks of PyTorch by the ranks' speeds.

    Args:
        context: The context of the training function.
        model: The model within ``DistributedDataParallel``.
        split: ``train`` or ``eval``.
        batch_size: Rows of a step over all ranks.
        columns: Features to read; None for all.

    Raises:
        BadInput: the strategy, the model or an argument does not go with it.
    """

    def __init__(
        self, context: TrainContext, model: object, split: str, batch_size: int, columns: Sequence[str] | None = None
    ) -> None:
        session = context.session
        if session.options.strategy != "torch":
            raise BadInput(
                f"BalancedBatches are for ranks of PyTorch that hold the whole model, but the strategy is "
                f"{session.options.strategy!r}; set strategy='torch'. On Horovod's, context.fit takes shares=BySpeed"
            )
        refuse_deterministic(session.options.deterministic)
        session.data.steps(split, batch_size)  # checks them
        self._clock = ExchangeClock(model)
        super().__init__(session, split, batch_size, columns)

    def exchange_seconds(self) -> float:
        """Returns the seconds so far in which this rank exchanged gradients, including the wait for others."""
        return self._clock.seconds()

    def epoch(self, *, shuffle: bool = False, first_step: int = 0) -> Iterator[tuple[Any, ...]]:
        """Yields the batches of an epoch, as ``context.batches`` does; then divides the rows of the next.

        Args:
            shuffle: Whether to shuffle, seeded with seed, rank and epoch.
            first_step: First batch of a resumed epoch.

        Yields:
            Features by name; labels; row weights, if any; and the weight of the mean loss over the batch's rows, a
            float: multiply them, so that the ranks' average is the mean over all rows of the step.

        Raises:
            BadInput: the model has exchanged no gradients.
        """
        session, clock = self._session, self._clock
        self.begin(first_step)
        batches = session.data.batches(
            self._split, self._batch_size, shuffle=shuffle, first_step=first_step, reader=self.reader
        )
        with clock:
            began, waited, start_s = time.monotonic(), 0.0, clock.seconds()
            for weight in self.weights.tolist():
                asked = time.monotonic()
                batch = next(batches)
                waited += time.monotonic() - asked
                yield (*batch, weight)
                if self.steps_done in (0, len(self.weights) - 1):
                    clock.synchronize()
                self.note(first_step + self.steps_done + 1)
            seconds, exchanged = time.monotonic() - began, clock.seconds() - start_s
        if self.steps_done and not clock.exchanges:
            raise BadInput(
                f"BalancedBatches has the model {type(clock.model.module).__name__}, which exchanged no gradients in "
                f"{self.steps_done} steps; expected the one that is trained"
            )
        session.seconds += seconds
        session.exchange_seconds += exchanged
        session.rows_trained += int(self._all_rows.sum())
        if session.rank.size > 1:
            own = [self.row_seconds(), seconds, waited, exchanged, self._rows.sum()]
            row_seconds, *times = zip(*session.rank.gather(own), strict=True)
            report_epoch(session, session.data.epoch + 1, *times)
            self.decide(row_seconds)


def divide_rows(by_rank: Sequence[int], row_seconds: Sequence[float], steps: int) -> tuple[int, ...]:
    """Returns new rows of each rank, in proportion to speeds, but at least one in each step.

    Args:
        by_rank: Rows of each rank in the measured epoch; returned if ranks took about as long as each other.
        row_seconds: Seconds of a row on each rank.
        steps: Steps of an epoch.
    """
    rows, seconds = sum(by_rank), np.array(row_seconds)
    times = np.array(by_rank) * seconds
    if times.max() < TOLERATED * times.min():
        return tuple(by_rank)
    more = np.maximum(rows / seconds / (1 / seconds).sum() - steps, 0)
    ends = np.rint(np.cumsum(more) * (rows - steps * len(more)) / max(more.sum(), 1e-9)).astype(int)
    return tuple((steps + np.diff(ends, prepend=0)).tolist())


class ExchangeClock:
    """Measures how long a rank waits for the average of its gradients, within a ``with`` block.

    Args:
        model: The model within ``DistributedDataParallel``.

    Raises:
        BadInput: it is another model, or ranks wait for each other outside of the exchange of gradients.

    Attributes:
        model: The model.
        exchanges: Number of backward passes that exchanged gradients.
    """

    # A backward pass ends as follows: the last gradient of this rank (the hook begins the measurement), then the
    # engine's callbacks in the order in which they were queued. DistributedDataParallel queues its own, which waits for
    # the averages, when it gets the last gradient, after the hook. So the hook queues one that queues another, which is
    # then last. A GPU works behind the program: it notes both times itself, by events of its stream.

    def __init__(self, model: object) -> None:
        import torch
        from torch.nn.parallel import DistributedDataParallel

        if not isinstance(model, DistributedDataParallel):
            raise BadInput(
                f"the model is a {type(model).__name__}, expected the model within "
                "torch.nn.parallel.DistributedDataParallel, whose exchange of gradients tells the ranks' speeds"
            )
        name = next((n for n, m in model.named_modules() if isinstance(m, torch.nn.SyncBatchNorm)), None)
        if name is not None:
            raise BadInput(
                f"the model has SyncBatchNorm ({name!r}), in which ranks wait for each other before they "
                "have gradients, so that all seem equally fast; use BatchNorm, or context.batches"
            )
        self.model, self.exchanges = model, 0
        self._parameters = [each for each in model.parameters() if each.requires_grad]
        self._is_on_gpu = any(each.is_cuda for each in self._parameters)
        self._seconds, self._pending = 0.0, deque[tuple[Any, Any]]()

    def __enter__(self) -> ExchangeClock:
        from torch.autograd.graph import register_multi_grad_hook

        self._hook = register_multi_grad_hook(self._parameters, self._begin)
        return self

    def __exit__(self, *_: object) -> None:
        self._hook.remove()

    def seconds(self) -> float:
        """Returns the seconds so far from this rank's last gradient until all ranks' averages."""
        self.synchronize()
        self._add_pending()
        return self._seconds

    def synchronize(self) -> None:
        """Waits until the GPU has done what the step asked for."""
        import torch

        if self._is_on_gpu:
            torch.cuda.synchronize()

    def _begin(self, gradients: object) -> None:
        from torch.autograd import Variable

        if self.model.require_backward_grad_sync:  # false within no_sync()
            began, queue = self._now(), Variable._execution_engine.queue_callback
            queue(lambda: queue(lambda: self._end(began)))

    def _end(self, began: object) -> None:
        self.exchanges += 1
        self._pending.append((began, self._now()))
        self._add_pending()

    def _now(self) -> object:
        import torch

        if not self._is_on_gpu:
            return time.monotonic()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _add_pending(self) -> None:
        """Adds the exchanges that have ended."""
        while self._pending and (not self._is_on_gpu or self._pending[0][1].query()):
            began, ended = self._pending.popleft()
            self._seconds += began.elapsed_time(ended) / 1000 if self._is_on_gpu else ended - began

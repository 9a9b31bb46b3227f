"""Batches requests for one model, as TensorFlow Serving does.

Each pair of signature and set of outputs has a queue of batches that are being filled. The queues of all models in a
process share ``num_batch_threads`` slots: a batch that is due takes a slot or waits for one, and can still grow while
it waits. Batching starts no threads: the thread of one request runs the batch, and passes the slot on to the next
batch before it wakes the threads of the other requests.
"""

from __future__ import annotations

import functools
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import grpc
import numpy as np

from airflow_hops.serving.errors import ServingError, invalid_argument
from airflow_hops.serving.models.batch_arrays import check_rows, joined, padded, row_shapes, split
from airflow_hops.serving.models.batching_options import BatchingOptions
from airflow_hops.serving.models.servable import Signature
from airflow_hops.serving.monitoring.batch_counts import BATCHES

# Clients choose the set of outputs, so empty queues beyond this number are dropped.
_MAX_QUEUES = 64

Run = Callable[[Signature, Sequence[np.ndarray], tuple[str, ...], float], Sequence[np.ndarray]]


class _Task:
    """A queued request; the lock of the slots guards all attributes except ``wake``."""

    __slots__ = ("batch", "deadline_s", "error", "feeds", "leads", "outputs", "queued_s", "rows", "wake")

    def __init__(self, feeds: Sequence[np.ndarray], rows: int, deadline_s: float) -> None:
        self.feeds = feeds
        self.rows = rows
        self.deadline_s = deadline_s
        self.queued_s = time.monotonic()
        self.batch: _Batch
        self.leads = False
        self.outputs: Sequence[np.ndarray] = ()
        self.error: Exception | None = None
        self.wake = threading.Lock()
        self.wake.acquire()


class _Batch:
    """Requests that run together. A due batch waits only for a slot; a started batch no longer changes."""

    __slots__ = ("due", "due_s", "queue", "rows", "started", "tasks")

    def __init__(self, queue: list[_Batch], due_s: float) -> None:
        self.queue = queue
        self.due_s = due_s
        self.due = self.started = False
        self.tasks: list[_Task] = []
        self.rows = 0


class BatchSlots:
    """Slots that limit how many batches run at once."""

    def __init__(self, count: int) -> None:
        self.lock = threading.Lock()
        self._free = count
        self._due: deque[_Batch] = deque()

    def make_due(self, batch: _Batch) -> bool:
        """Gives the batch a slot if one is free, else queues it for one; returns whether it got one. Needs the lock."""
        batch.due = True
        if self._free:
            self._free -= 1
            _start(batch)
            return True
        self._due.append(batch)
        return False

    def leave(self, task: _Task) -> None:
        """Removes a request from its batch, and removes the batch if it is then empty. Needs the lock."""
        batch = task.batch
        batch.tasks.remove(task)
        batch.rows -= task.rows
        if not batch.tasks:
            batch.queue.remove(batch)
            if batch.due:
                self._due.remove(batch)

    def pass_on(self) -> None:
        """Gives the slot of a finished batch to the batch that has waited longest."""
        with self.lock:
            if self._due:
                batch = self._due.popleft()
                _start(batch)
                lead(batch)
            else:
                self._free += 1


def _start(batch: _Batch) -> None:
    batch.started = True
    batch.queue.remove(batch)


def lead(batch: _Batch) -> None:
    """Makes the first request of a started batch run it. Needs the lock."""
    batch.tasks[0].leads = True
    batch.tasks[0].wake.release()


@functools.cache
def slots_of_process(count: int) -> BatchSlots:
    """Returns the slots shared by all models of this process."""
    return BatchSlots(count)


class Batcher:
    """Runs requests of one version in batches; thread-safe.

    Args:
        run: Runs the model: takes the signature, the feeds, the aliases of the outputs, and the deadline.
        options: Batching parameters.
        slots: Slots shared among models; None for those of the process.
    """

    def __init__(self, run: Run, options: BatchingOptions, slots: BatchSlots | None = None) -> None:
        self._run_model = run
        self._options = options
        self._slots = slots or slots_of_process(options.num_batch_threads)
        self._timeout_s = options.batch_timeout_micros / 1e6
        self._queues: dict[tuple[str, tuple[str, ...]], list[_Batch]] = {}

    def run(
        self, signature: Signature, feeds: Sequence[np.ndarray], aliases: tuple[str, ...], deadline_s: float = math.inf
    ) -> Sequence[np.ndarray]:
        """Runs one request together with others.

        Args:
            signature: The requested signature.
            feeds: An array for each of ``signature.inputs``, ``[rows, ...]`` with equal ``rows``.
            aliases: The requested outputs.
            deadline_s: Deadline of the client, on the clock of ``time.monotonic()``.

        Returns:
            An array for each of ``aliases``, ``[rows, ...]``.

        Raises:
            ServingError: INVALID_ARGUMENT if there are too many rows or inputs differ in rows; UNAVAILABLE if the queue
                is full; RESOURCE_EXHAUSTED if the deadline passed in the queue; or the model's error.
        """
        options = self._options
        rows = check_rows(feeds)
        if rows > options.max_batch_size:
            raise invalid_argument(f"Task size {rows} is larger than maximum input batch size {options.max_batch_size}")
        if not rows:
            return self._run_model(signature, feeds, aliases, deadline_s)
        if rows <= options.batch_rows:
            return self._run_part(signature, feeds, rows, aliases, deadline_s)
        parts = [
            self._run_part(
                signature, part := [feed[first : first + options.batch_rows] for feed in feeds], len(part[0]), aliases,
                deadline_s,
            )
            for first in range(0, rows, options.batch_rows)
        ]  # fmt: skip
        return [np.concatenate(values) for values in zip(*parts, strict=True)]

    def _run_part(
        self, signature: Signature, feeds: Sequence[np.ndarray], rows: int, aliases: tuple[str, ...], deadline_s: float
    ) -> Sequence[np.ndarray]:
        task = _Task(feeds, rows, deadline_s)
        if self._enqueue(task, (signature.name, aliases)) or self._wait(task):
            self._run_batch(signature, aliases, task.batch, task)
        if task.error is not None:
            raise task.error
        return task.outputs

    def _enqueue(self, task: _Task, key: tuple[str, tuple[str, ...]]) -> bool:
        """Adds a request to a batch; returns True if the batch got a slot, and so this request must run it."""
        options = self._options
        with self._slots.lock:
            queue = self._queues.get(key)
            if queue is None:
                if len(self._queues) >= _MAX_QUEUES:
                    self._queues = {known: waiting for known, waiting in self._queues.items() if waiting}
                queue = self._queues.setdefault(key, [])
            batch = queue[-1] if queue else None
            if batch is None or batch.rows + task.rows > options.batch_rows:
                if len(queue) >= options.max_enqueued_batches:
                    raise ServingError(
                        grpc.StatusCode.UNAVAILABLE,
                        f"The batch scheduling queue to which this task was submitted is full; currently {len(queue)} "
                        f"batches enqueued and max_enqueued_batches is {options.max_enqueued_batches}",
                    )
                if batch is not None and not batch.due and self._slots.make_due(batch):
                    lead(batch)
                batch = _Batch(queue, task.queued_s + self._timeout_s)
                queue.append(batch)
            task.batch = batch
            batch.tasks.append(task)
            batch.rows += task.rows
            is_due = not self._timeout_s or batch.rows >= options.batch_rows
            return not batch.due and is_due and self._slots.make_due(batch)

    def _wait(self, task: _Task) -> bool:
        """Waits until the request has run; returns True if this request must run its batch."""
        while True:
            batch = task.batch
            until_s = task.deadline_s if batch.due else min(task.deadline_s, batch.due_s)
            if until_s == math.inf:
                task.wake.acquire()
                return task.leads
            if task.wake.acquire(timeout=min(max(0.0, until_s - time.monotonic()), threading.TIMEOUT_MAX)):
                return task.leads
            with self._slots.lock:
                if task.leads:
                    return True
                now_s = time.monotonic()
                if batch.started:
                    if now_s >= task.deadline_s:
                        raise ServingError(grpc.StatusCode.DEADLINE_EXCEEDED, "Timed out waiting for notification")
                elif now_s >= task.deadline_s:
                    self._slots.leave(task)
                    raise _timed_out_in_queue()
                elif now_s >= batch.due_s and not batch.due and self._slots.make_due(batch):
                    return True

    def _run_batch(self, signature: Signature, aliases: tuple[str, ...], batch: _Batch, leader: _Task) -> None:
        """Runs a started batch for all of its requests."""
        try:
            now_s = time.monotonic()
            waits_s = [now_s - task.queued_s for task in batch.tasks]
            BATCHES.observe(self._options.thread_pool_name, self._options.padded_rows(batch.rows), waits_s)
            for group in self._groups(batch.tasks, now_s):
                self._run_group(signature, aliases, group)
        except BaseException as error:
            for task in batch.tasks:
                task.error = task.error or RuntimeError(f"batch failed: {type(error).__name__}: {error}")
            raise
        finally:
            self._slots.pass_on()
            for task in batch.tasks:
                if task is not leader:
                    task.wake.release()

    def _groups(self, tasks: list[_Task], now_s: float) -> Iterable[list[_Task]]:
        """Returns the requests in groups that can be concatenated, without those whose deadline has passed."""
        groups: dict[object, list[_Task]] = {}
        for task in tasks:
            if task.deadline_s <= now_s:
                task.error = _timed_out_in_queue()
                continue
            shapes = None if self._options.pad_variable_length_inputs else row_shapes(task.feeds)
            groups.setdefault(shapes, []).append(task)
        return groups.values()

    def _run_group(self, signature: Signature, aliases: tuple[str, ...], tasks: list[_Task]) -> None:
        rows = sum([task.rows for task in tasks])
        padded_rows = self._options.padded_rows(rows)
        try:
            feeds = tasks[0].feeds if padded_rows == tasks[0].rows else self._joined(tasks, padded_rows - rows)
            values = self._run_model(signature, feeds, aliases, max([task.deadline_s for task in tasks]))
        except Exception as error:
            if len(tasks) == 1:
                tasks[0].error = error
                return
            # Running each request alone shows which of them fails.
            for task in tasks:
                self._run_group(signature, aliases, [task])
            return
        try:
            parts = split(values, [task.rows for task in tasks], padded_rows)
        except ServingError as error:
            for task in tasks:
                task.error = ServingError(error.code, error.message)
            return
        for task, outputs in zip(tasks, parts, strict=True):
            task.outputs = outputs

    def _joined(self, tasks: list[_Task], filling: int) -> list[np.ndarray]:
        columns = list(zip(*(task.feeds for task in tasks), strict=True))
        if self._options.pad_variable_length_inputs:
            columns = [padded(arrays) for arrays in columns]
        return [joined(arrays, filling) for arrays in columns]


def _timed_out_in_queue() -> ServingError:
    return ServingError(grpc.StatusCode.RESOURCE_EXHAUSTED, "Run() timeout exceeded while waiting in batching queue")

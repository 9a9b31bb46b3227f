"""Batches requests for one model, as TensorFlow Serving does.

Each pair of signature and set of outputs has a queue of batches that are being filled. The queues of all models in a
process share ``num_batch_threads`` threads. A batch that is due waits for one of them, and can grow until it runs.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

import grpc
import numpy as np

from airflow_hops.extensions.server_extras.serving.parameters import BatchingOptions
from airflow_hops.serving.errors import ServingError, deadline_exceeded, invalid_argument
from airflow_hops.serving.models.servable import Run, Signature
from airflow_hops.serving.monitoring.batches import BATCHES

# States of a batch: filling (last in its queue) → due (submitted to the threads, may still grow) → started (in no
# queue). It becomes due when it is full, when a request does not fit and starts the next one, or when its oldest
# request has waited for the time-out; the waiting request's own thread does the latter, so no timer is needed.
# _lock guards queues and batches until they start. A task's future decides races without it: a client that gives up
# cancels it, and a starting batch sets it to running; only one of both succeeds.
# A failed batch is run again request by request, so that an error reaches only the request that causes it.

# Clients choose the set of outputs, so empty queues beyond this number are dropped.
_MAX_QUEUES = 64


@dataclass(eq=False)
class _Task:
    """A queued request; ``answer`` is pending until its batch starts, and cancelled if the client does not wait."""

    feeds: Sequence[np.ndarray]
    rows: int
    deadline_s: float
    answer: Future[Sequence[np.ndarray]] = field(default_factory=Future)
    queued_s: float = field(default_factory=time.monotonic)
    started_s: float = math.nan


@dataclass(eq=False)
class _Batch:
    """Requests that run together. A due batch waits only for a thread; a started batch is in no queue."""

    signature: Signature
    aliases: tuple[str, ...]
    queue: list[_Batch]
    due_s: float
    is_due: bool = False
    tasks: list[_Task] = field(default_factory=list)
    rows: int = 0


@functools.cache
def _threads_of_process(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, "batch")


class Batcher:
    """Runs requests of one version in batches; thread-safe.

    Args:
        run: Runs the model: takes the signature, the feeds, the aliases of the outputs, and the deadline.
        options: Batching parameters.
        threads: Threads that run the batches; None for those that the models of the process share.
    """

    def __init__(self, run: Run, options: BatchingOptions, threads: ThreadPoolExecutor | None = None) -> None:
        self._run_model = run
        self._options = options
        self._threads = threads or _threads_of_process(options.num_batch_threads)
        self._timeout_s = options.batch_timeout_micros / 1e6
        self._lock = threading.Lock()
        self._queues: dict[tuple[str, tuple[str, ...]], list[_Batch]] = {}

    def run(
        self, signature: Signature, feeds: Sequence[np.ndarray], aliases: tuple[str, ...], deadline_s: float = math.inf
    ) -> Sequence[np.ndarray]:
        """Runs one request together with others.

        Args:
            signature: The requested signature.
            feeds: An array for each of ``signature.inputs``, at least one, ``[rows, ...]`` with equal ``rows``.
            aliases: The requested outputs.
            deadline_s: Deadline of the client, on the clock of ``time.monotonic()``.

        Returns:
            An array for each of ``aliases``, ``[rows, ...]``.

        Raises:
            ServingError: INVALID_ARGUMENT for too many rows; UNAVAILABLE if the queue is full;
                RESOURCE_EXHAUSTED if the deadline passed in the queue; or the model's error.
        """
        options = self._options
        rows = len(feeds[0])
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
        batch = self._enqueue(task, signature, aliases)
        if not batch.is_due and not _is_answered(task, min(batch.due_s, deadline_s)):
            # Even if the client has given up: a batch must not remain that no request waits for.
            with self._lock:
                self._make_due(batch)
        if not _is_answered(task, deadline_s):
            raise _timed_out_in_queue() if task.answer.cancel() else deadline_exceeded()
        return task.answer.result()

    def _enqueue(self, task: _Task, signature: Signature, aliases: tuple[str, ...]) -> _Batch:
        """Adds a request to a batch that has room for it, or to a new one."""
        options = self._options
        with self._lock:
            queue = self._queues.get((signature.name, aliases))
            if queue is None:
                if len(self._queues) >= _MAX_QUEUES:
                    self._queues = {known: waiting for known, waiting in self._queues.items() if waiting}
                queue = self._queues.setdefault((signature.name, aliases), [])
            if not queue or queue[-1].rows + task.rows > options.batch_rows:
                if len(queue) >= options.max_enqueued_batches:
                    raise ServingError(
                        grpc.StatusCode.UNAVAILABLE,
                        f"The batch scheduling queue to which this task was submitted is full; currently {len(queue)} "
                        f"batches enqueued and max_enqueued_batches is {options.max_enqueued_batches}",
                    )
                if queue:
                    self._make_due(queue[-1])
                queue.append(_Batch(signature, aliases, queue, task.queued_s + self._timeout_s))
            batch = queue[-1]
            batch.tasks.append(task)
            batch.rows += task.rows
            if not self._timeout_s or batch.rows >= options.batch_rows:
                self._make_due(batch)
            return batch

    def _make_due(self, batch: _Batch) -> None:
        """Queues a batch for a thread, unless that was done before. Needs the lock."""
        if not batch.is_due:
            batch.is_due = True
            self._threads.submit(self._run_batch, batch)

    def _run_batch(self, batch: _Batch) -> None:
        with self._lock:
            batch.queue.remove(batch)
        tasks = [task for task in batch.tasks if task.answer.set_running_or_notify_cancel()]
        if not tasks:
            return
        try:
            now_s = time.monotonic()
            for task in tasks:
                task.started_s = now_s
            rows = self._options.padded_rows(sum(task.rows for task in tasks))
            BATCHES.observe(self._options.thread_pool_name, rows, [now_s - task.queued_s for task in tasks])
            for group in self._groups(tasks, now_s):
                self._run_group(batch, group)
        except Exception as error:
            for task in tasks:
                with contextlib.suppress(InvalidStateError):  # it has its answer
                    task.answer.set_exception(RuntimeError(f"batch failed: {type(error).__name__}: {error}"))

    def _groups(self, tasks: list[_Task], now_s: float) -> Iterable[list[_Task]]:
        """Returns the requests in groups that can be concatenated, without those whose deadline has passed."""
        groups: dict[object, list[_Task]] = {}
        for task in tasks:
            if task.deadline_s <= now_s:
                task.answer.set_exception(_timed_out_in_queue())
                continue
            shapes = None if self._options.pad_variable_length_inputs else row_shapes(task.feeds)
            groups.setdefault(shapes, []).append(task)
        return groups.values()

    def _run_group(self, batch: _Batch, tasks: list[_Task]) -> None:
        rows = sum([task.rows for task in tasks])
        padded_rows = self._options.padded_rows(rows)
        deadline_s = max([task.deadline_s for task in tasks])
        try:
            feeds = tasks[0].feeds if padded_rows == tasks[0].rows else self._joined(tasks, padded_rows - rows)
            values = self._run_model(batch.signature, feeds, batch.aliases, deadline_s)
        except Exception as error:
            if len(tasks) == 1:
                tasks[0].answer.set_exception(error)
                return
            # Running each request alone shows which of them fails.
            for task in tasks:
                self._run_group(batch, [task])
            return
        try:
            parts = split(values, [task.rows for task in tasks], padded_rows)
        except ServingError as error:
            for task in tasks:
                task.answer.set_exception(ServingError(error.code, error.message))
            return
        for task, outputs in zip(tasks, parts, strict=True):
            task.answer.set_result(outputs)

    def _joined(self, tasks: list[_Task], filling: int) -> list[np.ndarray]:
        columns = list(zip(*(task.feeds for task in tasks), strict=True))
        if self._options.pad_variable_length_inputs:
            columns = [padded(arrays) for arrays in columns]
        return [joined(arrays, filling) for arrays in columns]


def _is_answered(task: _Task, until_s: float) -> bool:
    left_s = min(max(0.0, until_s - time.monotonic()), threading.TIMEOUT_MAX)
    return bool(wait([task.answer], left_s).done)


def _timed_out_in_queue() -> ServingError:
    return ServingError(grpc.StatusCode.RESOURCE_EXHAUSTED, "Run() timeout exceeded while waiting in batching queue")


# TensorFlow 2.16: limit of its Pad operation.
_MAX_PADDED_RANK = 6


def row_shapes(feeds: Sequence[np.ndarray]) -> tuple[tuple[int, ...], ...]:
    """Returns the shape of one row of each input; requests with equal shapes can be concatenated."""
    return tuple([feed.shape[1:] for feed in feeds])


def joined(arrays: Sequence[np.ndarray], filling: int) -> np.ndarray:
    """Concatenates the rows of several requests in a new array.

    Args:
        arrays: One input of each request; all have the same row shape.
        filling: Number of rows to append: copies of the first row of the last request, which are valid for the model.
    """
    rows: np.ndarray = np.concatenate([*arrays, np.repeat(arrays[-1][:1], filling, axis=0)] if filling else arrays)
    return rows


def padded(arrays: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
    """Pads one input of several requests to the largest shape among them; each array is filled with its first value.

    Raises:
        ServingError: The ranks differ or are over 6, or an array that needs padding is empty.
    """
    shapes = {array.shape[1:] for array in arrays}
    if len(shapes) == 1:
        return arrays
    ranks = {len(shape) + 1 for shape in shapes}
    if len(ranks) > 1:
        raise invalid_argument(f"Tensors of one batch have ranks {sorted(ranks)}; expected one rank")
    if max(ranks) > _MAX_PADDED_RANK:
        raise invalid_argument("Only tensors with rank from 1 to 6 can be padded.")
    largest = np.max(list(shapes), axis=0)
    return [_padded_to(array, largest) for array in arrays]


def _padded_to(array: np.ndarray, shape: np.ndarray) -> np.ndarray:
    widths = [(0, 0), *((0, int(size)) for size in shape - array.shape[1:])]
    if not any(after for _, after in widths):
        return array
    if not array.size:
        raise invalid_argument("Got empty tensor in batch of non-empty tensors.")
    filled: np.ndarray = np.full([len(array), *shape], array.flat[0], array.dtype)
    filled[tuple(slice(size) for size in array.shape)] = array
    return filled


def split(values: Sequence[np.ndarray], rows: Sequence[int], total: int) -> list[list[np.ndarray]]:
    """Splits the outputs of a batch, ``[total, ...]`` each, into views for each request.

    Args:
        values: The outputs.
        rows: Number of rows of each request, in the order of the batch.
        total: Number of rows of the batch, including filling.

    Raises:
        ServingError: The number of rows of an output is not ``total``.
    """
    for value in values:
        if not value.ndim:
            raise ServingError(grpc.StatusCode.FAILED_PRECONDITION, "Batched output tensor has 0 dimensions")
        if len(value) != total:
            raise ServingError(
                grpc.StatusCode.FAILED_PRECONDITION,
                "Batched output tensor's 0th dimension does not equal the sum of the 0th dimension sizes of the input "
                "tensors",
            )
    if len(rows) == 1 and rows[0] == total:
        return [list(values)]
    parts = []
    first = 0
    for count in rows:
        parts.append([value[first : first + count] for value in values])
        first += count
    return parts

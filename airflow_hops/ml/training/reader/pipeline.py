"""The ``tf.data`` pipeline of a pass.

Python cuts each batch, in one call, from windows that a thread reads ahead. The graph around it is deliberately small:
TensorFlow prepares it again for each pass, and preparing a graph that slices every column takes longer than a pass over
a hundred thousand rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from airflow_hops.ml.features.column_decoders import ColumnDecoder
from airflow_hops.ml.training.reader.columns import SplitColumnType
from airflow_hops.ml.training.reader.units import Piece, RankShare

if TYPE_CHECKING:
    import tensorflow as tf

# Two windows are in memory: batches are cut from one while a thread reads the next. The contents of a window depend on
# seed, rank, epoch and number only, so a resumed pass starts in the middle without reading what was before. rows_given
# counts what the model has taken, which the guard compares with the split; prefetched batches do not count.


class PassPlan:
    """Divides a pass into windows of complete batches. Their contents depend only on seed, rank and epoch.

    A share in memory is shuffled as a whole. Otherwise its pieces (row groups) are shuffled, and then the rows of each
    window, which consists of several pieces (about ``window_rows`` rows). Without a seed, rows are in the order of the
    files.

    Attributes:
        rows_before: Rows that count as returned before the first one.
    """

    def __init__(
        self, share: RankShare, rank: int, steps: int, seed: int | None, window_rows: int, rows_before: int = 0
    ) -> None:
        self.steps, self.rows_before = steps, rows_before
        self.bounds = share.bounds(steps)
        self.steps_per_window = max(1, min(steps, window_rows * steps // share.rows))
        self.windows = -(-steps // self.steps_per_window)
        self._share, self._rank, self._seed = share, rank, seed
        self._known_rows: tuple[int, np.ndarray] | None = None

    def rows(self, window: int) -> tuple[int, int]:
        """Returns the start and end of a window, in rows of the pass."""
        last = min((window + 1) * self.steps_per_window, self.steps)
        return int(self.bounds[window * self.steps_per_window]), int(self.bounds[last])

    def step_rows(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the number of rows of each step: of this rank, and over all ranks."""
        return self._share.step_rows(self.steps)

    def batch(self, step: int) -> tuple[int, int, int]:
        """Returns the window that a batch is in, and the batch's start and end in it."""
        window = step // self.steps_per_window
        base = int(self.bounds[window * self.steps_per_window])
        return window, int(self.bounds[step]) - base, int(self.bounds[step + 1]) - base

    def rows_in_memory(self, epoch: int, window: int) -> np.ndarray | slice:
        """Returns the rows of a window, for a share that is shuffled as a whole."""
        low, high = self.rows(window)
        if self._seed is None:
            return slice(low, high)
        known = self._known_rows
        if known is None or known[0] != epoch:
            self._known_rows = known = (epoch, self._random(epoch, 0).permutation(self._share.rows))
        return known[1][low:high]

    def pieces(self, epoch: int, window: int) -> list[Piece]:
        """Returns the pieces whose rows are in a window, cut to it."""
        pieces = list(self._share.pieces)
        if self._seed is not None:
            pieces = [pieces[number] for number in self._random(epoch, 0).permutation(len(pieces))]
        starts = np.cumsum([0, *(piece.rows for piece in pieces)])[:-1]
        low, high = self.rows(window)
        taken = []
        for number in range(int(np.searchsorted(starts, low, side="right")) - 1, len(pieces)):
            piece, start = pieces[number], int(starts[number])
            if start >= high:
                break
            first, last = max(low - start, 0), min(high - start, piece.rows)
            taken.append(Piece(piece.unit, piece.first + first, piece.first + last))
        return taken

    def rows_of_pieces(self, epoch: int, window: int) -> np.ndarray | slice:
        """Returns the order of the rows of a window's pieces."""
        low, high = self.rows(window)
        if self._seed is None:
            return slice(0, high - low)
        order: np.ndarray = self._random(epoch, window + 1).permutation(high - low)
        return order

    def _random(self, epoch: int, part: int) -> np.random.Generator:
        return np.random.default_rng([self._seed or 0, self._rank, epoch, part])


_PREFETCHED_BATCHES = 8

Window = Mapping[str, np.ndarray]


def read_ahead(load: Callable[[int, int], Window], windows: int) -> Callable[[int, int], Window]:
    """Returns ``load``, which reads a window of an epoch, so that a thread reads the next one in the meantime."""
    reading, lock = ThreadPoolExecutor(1, "hops-reader"), Lock()
    begun: dict[tuple[int, int], Future[Window]] = {}

    def get(epoch: int, window: int) -> Window:
        nonlocal begun
        wanted = [(epoch, number) for number in (window, window + 1) if number < windows]
        with lock:
            begun = {key: begun.get(key) or reading.submit(load, *key) for key in wanted}
            future = begun[epoch, window]
        return future.result()

    return get


def batches(
    plan: PassPlan,
    kinds: Mapping[str, SplitColumnType],
    targets: Sequence[str | tuple[str, ...]],
    begin: Callable[[], tuple[int, int]],
    give: Callable[[int, int], list[np.ndarray]],
    rows_given: tf.Variable,
    waited: tf.Variable | None,
    *,
    decoders: Mapping[str, ColumnDecoder],
    threads: int,
) -> tf.data.Dataset:
    """Returns the batches of a pass.

    Args:
        plan: Number and boundaries of the batches.
        kinds: Types of the columns.
        targets: The label's column, or those of several labels, and the weights' column; each only if it exists.
        begin: Called at the beginning of each pass; returns its epoch and first step.
        give: Called with epoch and step; returns the batch's arrays, in the order of ``kinds``.
        rows_given: int64; counts the rows that have been returned in this pass.
        waited: float64; counts the seconds in which the model waited for rows. None to count nothing.
        decoders: Decoders of columns of encoded values.
        threads: Number of batches that are decoded in parallel.
    """
    import tensorflow as tf

    bounds = tf.constant(plan.bounds)
    dtypes = [tf.as_dtype(kind.dtype) for kind in kinds.values()]

    def begun() -> tuple[Any, Any, Any]:
        epoch, first = begin()
        # One number encodes epoch and step.
        return np.int64(first), np.int64(epoch * plan.steps + first), np.int64((epoch + 1) * plan.steps)

    def one_pass(_: object) -> tf.data.Dataset:
        first, low, high = tf.numpy_function(begun, [], [tf.int64] * 3)
        rows_given.assign(tf.reshape(bounds[first], []) + plan.rows_before)
        return tf.data.Dataset.range(tf.reshape(low, []), tf.reshape(high, []))

    def cut(number: Any) -> list[Any]:
        return give(*divmod(int(number), plan.steps))

    def batch(number: object) -> Any:
        columns = dict(zip(kinds, tf.numpy_function(cut, [number], dtypes), strict=True))
        for name, kind in kinds.items():
            columns[name].set_shape([None] if kind.width is None else [None, kind.width])
        return (columns, *take_targets(columns, targets, tf.cast)) if targets else columns

    def count(*element: Any) -> Any:
        rows_given.assign_add(tf.shape(tf.nest.flatten(element[1 if targets else 0])[0], tf.int64)[0])
        return element if targets else element[0]

    def note_wait(asked: Any, element: Any, returned: Any) -> Any:
        assert waited is not None
        waited.assign_add(returned - asked)
        return element

    def decode(*element: Any) -> Any:
        decoded = {name: decoder.decode(element[0][name]) for name, decoder in decoders.items()}
        features = {**element[0], **decoded}
        return (features, *element[1:]) if targets else features

    unconverted = tf.autograph.experimental.do_not_convert
    dataset = tf.data.Dataset.range(1).flat_map(unconverted(one_pass)).map(unconverted(batch))
    if decoders:
        dataset = dataset.map(unconverted(decode), num_parallel_calls=threads, deterministic=True)
    dataset = dataset.prefetch(_PREFETCHED_BATCHES)
    if waited is not None:
        # A zip asks for its parts in order: a time, the batch, a time.
        clock = tf.data.Dataset.range(1).repeat().map(unconverted(lambda _: tf.timestamp()))
        dataset = tf.data.Dataset.zip((clock, dataset, clock)).map(unconverted(note_wait))
    # Counts rows after the prefetch: those returned, not those that are ready.
    options = tf.data.Options()
    options.deterministic = True
    options.threading.private_threadpool_size = threads if decoders else 1
    options.autotune.enabled = False
    options.experimental_optimization.inject_prefetch = False
    return dataset.map(unconverted(count)).with_options(options)


def take_targets(
    columns: dict[str, Any], targets: Sequence[str | tuple[str, ...]], cast: Callable[[Any, str], object]
) -> list[Any]:
    """Removes labels, several by name, and weights from the columns of a batch, and returns them; float64 as float32.

    Args:
        columns: Arrays or tensors by name.
        targets: As for :func:`batches`.
        cast: Converts values to a type.
    """

    def take(name: str) -> Any:
        values = columns.pop(name)
        return cast(values, "float32") if values.dtype == "float64" else values

    return [take(each) if isinstance(each, str) else {name: take(name) for name in each} for each in targets]

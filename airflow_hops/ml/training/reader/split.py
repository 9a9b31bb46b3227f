"""A rank's share of a split as ``tf.data``: held in memory if it fits, otherwise read window by window."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from airflow_hops.core import machine_memory
from airflow_hops.core.errors import BadInput, InvalidArgument
from airflow_hops.ml.features.column_decoders import ColumnDecoder, check_values, column_decoder
from airflow_hops.ml.features.feature_specs import OutputSpec
from airflow_hops.ml.training.reader.columns import SplitColumnType, to_array
from airflow_hops.ml.training.reader.files import CACHE_BYTES, SplitFiles
from airflow_hops.ml.training.reader.parquet import ParquetUnits, parquet_rows
from airflow_hops.ml.training.reader.pipeline import PassPlan, Window, batches, read_ahead, take_targets
from airflow_hops.ml.training.reader.tfrecord import TFRecordUnits, record_counts
from airflow_hops.ml.training.reader.units import Piece, RankShare, Rest, Unit, own_rows, share

if TYPE_CHECKING:
    import tensorflow as tf

BUFFER_BYTES = 64 << 20
_MEMORY_SHARE = 4


@dataclass(eq=False, repr=False)
class SplitReader:
    """A rank's share of a split; see :func:`open_split`, whose arguments are the other attributes.

    Attributes:
        rows: Rows of this rank.
        total_rows: Rows of the split, over all ranks.
        in_memory: Whether the share is held in memory.
        kinds: Types of the columns.
        failure: The error that occurred while a dataset was read; TensorFlow's error does not show whether a retry may
            help.

    Example:
        >>> import pyarrow as pa, pyarrow.parquet as pq
        >>> from airflow_hops import open_split
        >>> pq.write_table(pa.table({"km": [1.0, 2.0, 3.0], "late": [0, 1, 0]}), "part.parquet")
        >>> reader = open_split("part.parquet", ["km"], rank=0, size=2, label="late")
        >>> reader.rows, reader.total_rows
        (1, 3)
    """

    units: Any
    share: RankShare
    rank: int
    size: int
    label: str | Sequence[str] | None
    weight: str | None
    where: str
    in_memory: bool
    buffer_bytes: int
    decoders: Mapping[str, ColumnDecoder]
    threads: int

    def __post_init__(self) -> None:
        self.kinds: dict[str, SplitColumnType] = self.units.kinds
        self.failure: Exception | None = None
        self._last_unit: tuple[Unit, pa.Table] | None = None
        self._take_share()

    def _take_share(self) -> None:
        self.rows, self.total_rows = self.share.rows, self.share.total_rows
        self._columns: Window | None = None  # two shares would take twice the memory
        self._columns = self._read(self.share.pieces) if self.in_memory else None

    def divide(self, by_rank: Sequence[int] = ()) -> None:
        """Reads another share of the split from now on; a dataset or batches that were made before must not be used.

        Args:
            by_rank: Rows of each rank, equal on all ranks; by default, shares differ by at most one row.
        """
        new = share(self.units.units, self.rank, self.size, self.where, by_rank)
        if new != self.share:
            self.share = new
            self._take_share()

    def step_rows(self, batch_size: int, rest: Rest | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Returns the number of rows of each step of a pass, or of its rest: of this rank, and over all ranks."""
        return self._pass(batch_size, None, rest)[0].step_rows()

    def steps(self, batch_size: int) -> int:
        """Returns the number of steps of an epoch, the same on every rank.

        Args:
            batch_size: Rows of a step over all ranks.
        """
        return self.share.steps(batch_size)

    def rows_given(self) -> int:
        """Returns the number of rows of the current pass returned so far, including those before its first step."""
        return int(self._given.numpy())

    def waited_s(self) -> float:
        """Returns the seconds of waiting for :meth:`dataset`; 0 for one rank and for deterministic operations."""
        return float(self._waited.numpy())

    @cached_property
    def _given(self) -> tf.Variable:
        return _counter("int64")

    @cached_property
    def _waited(self) -> tf.Variable:
        return _counter("float64")

    def batches(
        self,
        batch_size: int,
        *,
        shuffle_seed: int | None = None,
        epoch: int = 0,
        first_step: int = 0,
        rest: Rest | None = None,
    ) -> Iterator[tuple[Any, ...]]:
        """Yields the batches of :meth:`dataset` as NumPy arrays, without TensorFlow; encoded values as bytes.

        Args:
            batch_size: Rows of a step over all ranks; this rank's batches have a ``size``-th of them.
            shuffle_seed: Seed of the order; None for the order of the files.
            epoch: Number of the pass.
            first_step: First batch of the pass.
            rest: What other numbers of ranks have left of the pass; ``first_step`` counts their steps.

        Yields:
            Features by name, then the label (or several, by name) and the weight, if any.

        Raises:
            BadInput: ``batch_size`` is less than 1, or ``first_step`` is after the pass.
        """
        plan, load = self._pass(batch_size, shuffle_seed, rest)
        first_step -= rest.steps if rest else 0
        self._check_first_step(first_step, plan)
        read = read_ahead(load, plan.windows)
        for step in range(first_step, plan.steps):
            window, first, last = plan.batch(step)
            columns = {name: array[first:last] for name, array in read(epoch, window).items()}
            yield columns, *take_targets(columns, self._targets, np.asarray)

    def dataset(
        self,
        batch_size: int,
        *,
        shuffle_seed: int | None = None,
        epoch: Callable[[], int] | None = None,
        first_step: int = 0,
        rest: Rest | None = None,
    ) -> tf.data.Dataset:
        """Returns this rank's batches of a pass, each row once.

        Args:
            batch_size: Rows of a step over all ranks; this rank's batches have a ``size``-th of them.
            shuffle_seed: Seed of the order; None for the order of the files. The order depends only on this seed, the
                rank and the epoch.
            epoch: Called at the start of each pass; returns its number. None counts passes from 0.
            first_step: First batch of each pass; later batches are those of the complete pass.
            rest: What other numbers of ranks have left of the pass; ``first_step`` counts their steps.

        Returns:
            A finite dataset of features by name, with the label (or several, by name) and the weight, if there is one:
            ``[batch]`` or ``[batch, width]``. Labels and weights of float64 become float32, as Keras expects.

        Raises:
            BadInput: ``batch_size`` is less than 1, or ``first_step`` is after the pass.
        """
        import tensorflow as tf

        plan, load = self._pass(batch_size, shuffle_seed, rest)
        first_step -= rest.steps if rest else 0
        self._check_first_step(first_step, plan)
        read = read_ahead(load, plan.windows)
        passes = count()

        def begin() -> tuple[int, int]:
            return next(passes) if epoch is None else epoch(), first_step

        def give(number: int, step: int) -> list[np.ndarray]:
            try:
                window, first, last = plan.batch(step)
                return [array[first:last] for array in read(number, window).values()]
            except Exception as error:
                self.failure = error
                raise

        from tensorflow.python.framework.config import is_op_determinism_enabled

        # TensorFlow 2.16: has no clock if operations must be deterministic. One rank waits for nobody.
        waited = None if self.size == 1 or is_op_determinism_enabled() else self._waited
        how: Any = {"decoders": self.decoders, "threads": self.threads}
        dataset = batches(plan, self.kinds, self._targets, begin, give, self._given, waited, **how)
        return dataset.apply(tf.data.experimental.assert_cardinality(plan.steps - first_step))

    @property
    def _targets(self) -> list[str | tuple[str, ...]]:
        """The label's column, or those of several labels, and the weights' column; each only if it exists."""
        label = self.label if self.label is None or isinstance(self.label, str) else tuple(self.label)
        return [each for each in (label, self.weight) if each is not None]

    def _pass(
        self, batch_size: int, shuffle_seed: int | None, rest: Rest | None
    ) -> tuple[PassPlan, Callable[[int, int], Window]]:
        """Returns the plan of a pass, and what reads one of its windows."""
        if batch_size < 1:
            raise InvalidArgument("batch_size", batch_size, ", expected 1 row or more")
        plan = self._plan(self.share, self.rank, batch_size, shuffle_seed)
        if rest is None:
            return plan, partial(self._window, plan)

        def order(rank: int, size: int) -> np.ndarray:
            part = share(self.units.units, rank, size, self.where, rest.by_rank)
            first = sum(part.by_rank[:rank])
            return self._order(self._plan(part, rank, batch_size, shuffle_seed), first, rest.epoch)

        all_steps = share(self.units.units, 0, rest.parts[0][0], self.where).steps(batch_size)
        left = rest.rows(all_steps, order)
        mine, steps = own_rows(left, self.rank, self.size), all_steps - rest.steps
        if all_steps != plan.steps or len(left) // self.size < steps:
            raise BadInput(
                f"{self.where}: {self.size} ranks cannot share the {len(left)} rows that {steps} steps of the epoch "
                "have left; give the task fewer ranks, or a larger batch_size"
            )
        window_rows = len(mine) if self.in_memory else plan.steps_per_window * len(mine) // steps
        taken = self.total_rows - len(left)
        own = RankShare((), self.rank, tuple(len(own_rows(left, rank, self.size)) for rank in range(self.size)))
        plan = PassPlan(own, self.rank, steps, None, window_rows, rows_before=0 if self.rank else taken)
        return plan, lambda epoch, window: self._read_rows(mine[slice(*plan.rows(window))])

    def _plan(self, share: RankShare, rank: int, batch_size: int, shuffle_seed: int | None) -> PassPlan:
        window_rows = max(1, int(self.buffer_bytes * share.rows / max(share.size_bytes, 1)))
        return PassPlan(share, rank, share.steps(batch_size), shuffle_seed, window_rows)

    def _order(self, plan: PassPlan, first: int, epoch: int) -> np.ndarray:
        """Returns the rows of a share in the order of a pass, by their numbers in the split; it begins at ``first``."""
        starts, rows = self._starts(), []
        for window in range(plan.windows):
            if self.in_memory:
                numbers, order = np.arange(first, first + int(plan.bounds[-1])), plan.rows_in_memory(epoch, window)
            else:
                pieces = plan.pieces(epoch, window)
                numbers = np.concatenate([starts[p.unit] + np.arange(p.first, p.last) for p in pieces])
                order = plan.rows_of_pieces(epoch, window)
            rows.append(numbers[order])
        return np.concatenate(rows)

    def _starts(self) -> dict[Unit, int]:
        """Returns the number of each unit's first row in the split."""
        starts = np.cumsum([0] + [unit.rows for unit in self.units.units[:-1]])
        return dict(zip(self.units.units, starts.tolist(), strict=True))

    def _read_rows(self, rows: np.ndarray) -> Window:
        """Returns the columns of rows, by their numbers in the split, in their order."""
        order = np.argsort(rows, kind="stable")
        in_files, back = rows[order], np.empty(len(rows), np.int64)
        back[order] = np.arange(len(rows))
        tables = []
        for unit, start in self._starts().items():
            low, high = np.searchsorted(in_files, [start, start + unit.rows])
            if low < high:
                tables.append(self._table(unit).take(in_files[low:high] - start))
        columns = self._arrays(pa.concat_tables(tables))
        return {name: array[back] for name, array in columns.items()}

    def _check_first_step(self, step: int, plan: PassPlan) -> None:
        if not 0 <= step <= plan.steps:
            raise InvalidArgument("first_step", step, f", but a pass has {plan.steps} steps")

    def _window(self, plan: PassPlan, epoch: int, window: int) -> Window:
        """Returns the columns of a window, in its order."""
        if self._columns is not None:
            columns, rows = self._columns, plan.rows_in_memory(epoch, window)
        else:
            columns, rows = self._read(plan.pieces(epoch, window)), plan.rows_of_pieces(epoch, window)
        return {name: array[rows] for name, array in columns.items()}

    def _read(self, pieces: Sequence[Piece]) -> Window:
        return self._arrays(
            pa.concat_tables([self._table(piece.unit).slice(piece.first, piece.rows) for piece in pieces])
        )

    def _arrays(self, table: pa.Table) -> Window:
        return {
            name: to_array(table.column(name), kind, f"{self.where}: column {name!r}")
            for name, kind in self.kinds.items()
        }

    def _table(self, unit: Unit) -> pa.Table:
        """Returns a decoded unit; caches the last one, since the next window may begin in it."""
        if self.in_memory:
            return self._checked(unit)
        last = self._last_unit
        if last is None or last[0] != unit:
            self._last_unit = last = None  # two at once would take twice the memory
            self._last_unit = last = (unit, self._checked(unit))
        return last[1]

    def _checked(self, unit: Unit) -> pa.Table:
        table = self.units.read(unit)
        for name, decoder in self.decoders.items():
            check_values(decoder, table.column(name), f"{self.units.where(unit)}: column {name!r}")
        return table


def _counter(dtype: str) -> tf.Variable:
    import tensorflow as tf

    with tf.device("/CPU:0"):
        return tf.Variable(0, dtype=dtype, trainable=False)


def open_split(
    source: str | Path,
    columns: Sequence[str] | Mapping[str, OutputSpec | None],
    *,
    rank: int = 0,
    size: int = 1,
    label: str | Sequence[str] | None = None,
    weight: str | None = None,
    format: str | None = None,
    storage_options: Mapping[str, object] | None = None,
    cache_dir: str | Path | None = None,
    cache_bytes: int = CACHE_BYTES,
    memory_bytes: int | None = None,
    buffer_bytes: int = BUFFER_BYTES,
    threads: int | None = None,
) -> SplitReader:
    """Opens one of ``size`` equal shares of the rows of a split.

    Args:
        source: Folder, file or glob of Parquet or TFRecord files: a local path, or any URI that fsspec opens.
        columns: The features to read, by name, with their expected types as in ``features.json``.
        rank: Number of the share.
        size: Number of shares.
        label: The label's column, or the columns of several labels; None for none.
        weight: The column of the row weights; None for none. It requires a label.
        format: ``parquet`` or ``tfrecord``; None prefers Parquet.
        storage_options: Options for fsspec.
        cache_dir: Folder for fetched remote files; None for this user's cache.
        cache_bytes: Maximum size of that folder.
        memory_bytes: A share is held in memory if the decoded split, divided by ``size``, takes no more than this.
            None: a quarter of the memory of the machine, or of the control group, divided by ``size``. (Not of the
            memory that is currently free: a resumed training must keep its order.)
        buffer_bytes: Decoded bytes of a window. A share that is not held in memory is shuffled window by window, with
            about three windows and one row group in memory.
        threads: Number of batches of encoded values, such as images, that are decoded in parallel. None: the number of
            TensorFlow's threads.

    Raises:
        BadInput: the split has no files or fewer rows than ranks; a file cannot be read, lacks a column, or has a
            column of another type than the first file; a value is missing, or a row has another width.
    """
    wanted = dict(columns) if isinstance(columns, Mapping) else dict.fromkeys(columns)
    if weight is not None and label is None:
        raise InvalidArgument("weight", weight, ", but there is no label; expected both, or no weight")
    for name in (*((label,) if isinstance(label, str) else label or ()), *(() if weight is None else (weight,))):
        wanted.setdefault(name, None)
    files = SplitFiles(
        source, format=format, storage_options=storage_options, cache_dir=cache_dir, cache_bytes=cache_bytes
    )
    units: Any = ParquetUnits(files, wanted) if files.format == "parquet" else TFRecordUnits(files, wanted)
    split_bytes = sum(unit.size_bytes for unit in units.units)
    budget = machine_memory.memory_bytes() // _MEMORY_SHARE // size if memory_bytes is None else memory_bytes
    return SplitReader(
        units,
        share(units.units, rank, size, str(source)),
        rank=rank,
        size=size,
        label=label,
        weight=weight,
        where=str(source),
        in_memory=split_bytes // size <= budget,
        buffer_bytes=buffer_bytes,
        decoders={name: column_decoder(spec.encoding) for name, spec in wanted.items() if spec and spec.encoding},
        threads=threads or _threads_of_tensorflow() or len(os.sched_getaffinity(0)),
    )


def _threads_of_tensorflow() -> int:
    """Returns TensorFlow's configured number of threads; 0 if not configured, or if TensorFlow is not imported."""
    tensorflow = sys.modules.get("tensorflow")
    return 0 if tensorflow is None else int(tensorflow.config.threading.get_intra_op_parallelism_threads())


def row_count(source: str | Path, *, storage_options: Mapping[str, object] | None = None) -> int:
    """Returns the number of rows of a split, without reading them.

    Raises:
        BadInput: the split has no files, or one cannot be read.

    Example:
        >>> import pyarrow as pa, pyarrow.parquet as pq
        >>> from airflow_hops import row_count
        >>> pq.write_table(pa.table({"km": [1.0, 2.0, 3.0]}), "part.parquet")
        >>> row_count("part.parquet")
        3
    """
    files = SplitFiles(source, storage_options=storage_options)
    return parquet_rows(files) if files.format == "parquet" else sum(record_counts(files))

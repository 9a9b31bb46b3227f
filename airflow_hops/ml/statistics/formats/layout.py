"""Layout of a file in each format, and limits of a batch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import TypeAlias

import pyarrow as pa

from airflow_hops.ml.statistics.formats.feature_types import Types, batch_of, with_plain_types

BATCH_ROWS = 65_536
"""Rows of a batch: enough to make the overhead per batch negligible (measured: 4,096 takes 1.5 times as long)."""

BATCH_BYTES = 32 << 20
"""Bytes of a batch, unless a single row is larger."""


@dataclass(frozen=True)
class Span:
    """Part of a source that can be read separately.

    Attributes:
        size: Bytes, for balancing.
        start: First unit of the format (byte, row group or batch).
        stop: The one after the last; None for the end of the file.
        units: Approximate number of units of rows that can be dealt out (:class:`UnitShare`).
        file: Name of the file; empty if the source is not a file.
    """

    size: int
    start: int = 0
    stop: int | None = None
    units: int = 1
    file: str = ""


class UnitShare:
    """Share of one process in the units of a part: runs of rows that depend on the file alone.

    All processes read the part, but each decodes or processes its units only.

    Args:
        number: Number of the first run of units in the share; every ``of``-th follows.
        of: Number of shares.
        length: Units of a run.

    Attributes:
        units: Number of units that the reader has come across so far, in this share or not.
    """

    def __init__(self, number: int = 0, of: int = 1, length: int = 1) -> None:
        self._number, self._of, self._length = number, of, length
        self.units = 0

    def has(self, unit: int) -> bool:
        """Returns whether a unit is in the share; readers ask for each unit, in order."""
        self.units = unit + 1
        return unit // self._length % self._of == self._number


Layout: TypeAlias = tuple[Types, tuple[Span, ...]]
"""Types of a file's columns, in order, and spans that cover each row once, known before the file is read."""


@dataclass(frozen=True)
class ColumnSelection:
    """Selection of columns to read: all, or ``columns``, without ``exclude``."""

    exclude: frozenset[str]
    columns: frozenset[str] | None

    def __call__(self, name: str) -> bool:
        """Returns whether a column is read."""
        return name not in self.exclude and (self.columns is None or name in self.columns)

    def among(self, columns: Collection[str] | None) -> ColumnSelection:
        """Restricts the selection to these columns; None for no restriction."""
        if columns is None:
            return self
        return ColumnSelection(
            self.exclude, frozenset(columns) if self.columns is None else self.columns & frozenset(columns)
        )

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Selects the wanted columns of a batch."""
        names = [name for name in batch.schema.names if self(name)]
        if len(names) == batch.num_columns:
            return batch
        return batch_of([batch.column(batch.schema.get_field_index(name)) for name in names], names, batch.num_rows)


def batch_rows(row_bytes: float) -> int:
    """Returns how many rows of this size make a batch, at least one."""
    return max(1, min(BATCH_ROWS, int(BATCH_BYTES / max(row_bytes, 1e-9))))


def bounded(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Regroups batches by limits of rows and bytes, with types that TFDV supports.

    Small batches with the same columns are concatenated, large ones cut into equal slices.
    """
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        nbytes = batch.nbytes
        is_full = rows + batch.num_rows > BATCH_ROWS or size + nbytes > BATCH_BYTES
        if waiting and (is_full or not batch.schema.equals(waiting[0].schema)):
            yield from _slices(waiting, rows, size)
            waiting, rows, size = [], 0, 0
        waiting.append(batch)
        rows += batch.num_rows
        size += nbytes
    if waiting:
        yield from _slices(waiting, rows, size)


def _slices(batches: list[pa.RecordBatch], rows: int, size: int) -> Iterator[pa.RecordBatch]:
    if len(batches) > 1:
        batches = pa.Table.from_batches(batches).combine_chunks().to_batches()
    count = math.ceil(rows / batch_rows(size / rows))
    step = math.ceil(rows / count)
    for batch in batches:
        for start in range(0, batch.num_rows, step):
            yield with_plain_types(batch.slice(start, step))


def bounded_units(pieces: Iterable[tuple[int, pa.RecordBatch]]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Regroups the pieces of each unit like :func:`bounded`; pieces have the number of their unit, in order."""
    for unit, run in itertools.groupby(pieces, key=itemgetter(0)):
        for batch in bounded(batch for _, batch in run):
            yield unit, batch


def units_of_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Numbers units, each of as many batches as reach :data:`BATCH_ROWS` or :data:`BATCH_BYTES` together."""
    unit = rows = size = 0
    for batch in batches:
        yield unit, batch
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= BATCH_ROWS or size >= BATCH_BYTES:
            unit, rows, size = unit + 1, 0, 0

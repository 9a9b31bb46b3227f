"""Layout of a file in each format, and limits of a batch."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from airflow_hops.ml.statistics.formats.feature_types import Types, batch_of, with_plain_types

BATCH_ROWS = 65_536
"""Rows of a batch: enough to make the overhead per batch negligible (measured: 4,096 takes 1.5 times as long)."""

BATCH_BYTES = 32 << 20
"""Bytes of a batch, unless a single row is larger."""


@dataclass(frozen=True)
class Span:
    """Part of a file that can be read separately.

    The batches of a span can be dealt out to several processes, which each read all of it: the cost is in processing.

    Attributes:
        size: Bytes, for balancing.
        start: First unit (byte, row group or batch, depending on the format).
        stop: Unit after the last; None for the end of the file.
        batches: Approximate number of batches that can be dealt out.
        share: Number of the first batch to process; every ``shares``-th follows.
        shares: Number of processes that the batches are dealt out to.
    """

    size: int
    start: int = 0
    stop: int | None = None
    batches: int = 1
    share: int = 0
    shares: int = 1

    def has(self, number: int) -> bool:
        """Returns whether the span includes a batch, by its number from 0."""
        return number % self.shares == self.share

    def dealt(self, processes: int) -> tuple[Span, ...]:
        """Deals the span's batches out to at most this many processes."""
        shares = max(1, min(processes, self.batches))
        return tuple(replace(self, size=self.size // shares, share=share, shares=shares) for share in range(shares))


@dataclass(frozen=True)
class Layout:
    """Types of a file's columns, in order, and spans that cover each row once, known before the file is read."""

    types: Types
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class Wanted:
    """Selection of columns to read: all, or ``columns``, without ``exclude``."""

    exclude: frozenset[str]
    columns: frozenset[str] | None

    def __call__(self, name: str) -> bool:
        """Returns whether a column is read."""
        return name not in self.exclude and (self.columns is None or name in self.columns)

    def among(self, columns: Collection[str] | None) -> Wanted:
        """Restricts the selection to these columns; None for no restriction."""
        if columns is None:
            return self
        return Wanted(self.exclude, frozenset(columns) if self.columns is None else self.columns & frozenset(columns))

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

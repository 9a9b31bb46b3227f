"""The layout of a file in each format, and the bounds of a batch."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from airflow_hops.ml.statistics.formats.feature_types import Types, batch_of, with_plain_types

BATCH_ROWS = 65_536
"""Rows of a batch: large enough that the cost of a batch does not count (measured: 4,096 takes 1.5 times as long)."""

BATCH_BYTES = 32 << 20
"""Bytes of a batch, but for a row that is larger by itself."""


@dataclass(frozen=True)
class Span:
    """A stretch of a file that can be read apart from the rest.

    Attributes:
        size: Bytes, for balancing.
        start: Where it begins, in the format's own unit: a byte, a row group, a batch.
        stop: Where it ends, exclusive; None if only the end of the file tells.
        batches: About how many batches it makes, where they can be dealt out to processes that each read all of the
            span: what costs is what is made of a batch.
        share: Which of the dealt batches are meant: every ``shares``-th, from this one on.
        shares: Among how many processes the batches are dealt out.
    """

    size: int
    start: int = 0
    stop: int | None = None
    batches: int = 1
    share: int = 0
    shares: int = 1

    def has(self, number: int) -> bool:
        """Whether the batch of a number, from 0, is meant."""
        return number % self.shares == self.share

    def dealt(self, processes: int) -> tuple[Span, ...]:
        """The span, dealt out to so many processes at most."""
        shares = max(1, min(processes, self.batches))
        return tuple(replace(self, size=self.size // shares, share=share, shares=shares) for share in range(shares))


@dataclass(frozen=True)
class Layout:
    """The facts of a file before it is read.

    Attributes:
        types: Its columns, in order.
        spans: They cover each row once.
    """

    types: Types
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class Wanted:
    """Which columns to read.

    Attributes:
        exclude: Columns that are left out.
        columns: Those that are read; None for all.
    """

    exclude: frozenset[str]
    columns: frozenset[str] | None

    def __call__(self, name: str) -> bool:
        """Whether a column is read."""
        return name not in self.exclude and (self.columns is None or name in self.columns)

    def among(self, columns: Collection[str] | None) -> Wanted:
        """Returns those of the columns that are read; None for all."""
        if columns is None:
            return self
        return Wanted(self.exclude, frozenset(columns) if self.columns is None else self.columns & frozenset(columns))

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with the columns that are read."""
        names = [name for name in batch.schema.names if self(name)]
        if len(names) == batch.num_columns:
            return batch
        return batch_of([batch.column(batch.schema.get_field_index(name)) for name in names], names, batch.num_rows)


def batch_rows(row_bytes: float) -> int:
    """Rows of a batch whose rows are of this size, at least one."""
    return max(1, min(BATCH_ROWS, int(BATCH_BYTES / max(row_bytes, 1e-9))))


def bounded(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of batches in batches of bounded rows and bytes, of types that TFDV knows.

    Small batches are put together, as long as they have the same columns, and large ones are cut into equal slices.
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

"""What a format says of a file, and the bounds of a batch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from airflow_hops.runtime.statistics.formats.feature_types import Types

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
        stop: Where it ends, exclusive; None where only the end of the file tells.
    """

    size: int
    start: int = 0
    stop: int | None = None


@dataclass(frozen=True)
class Layout:
    """What is known of a file before it is read.

    Attributes:
        types: Its columns, in order.
        spans: They cover each row once.
        rows: Its rows, where they are known without reading.
    """

    types: Types
    spans: tuple[Span, ...]
    rows: int | None = None


def batch_rows(row_bytes: float) -> int:
    """Rows of a batch whose rows are of this size, at least one."""
    return max(1, min(BATCH_ROWS, int(BATCH_BYTES / max(row_bytes, 1e-9))))


def bounded(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch in slices of bounded rows and bytes, all of about the same length."""
    if not batch.num_rows:
        return
    slices = math.ceil(batch.num_rows / batch_rows(batch.nbytes / batch.num_rows))
    rows = math.ceil(batch.num_rows / slices)
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)

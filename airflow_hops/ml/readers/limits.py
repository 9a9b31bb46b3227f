"""Limits of a file's contents, not of its size on disk; one machine can process all contents within them."""

from __future__ import annotations

import re

import numpy as np

from airflow_hops.core.errors import BadInput
from airflow_hops.core.sources.sources import Source
from airflow_hops.ml.readers.csv_quotes import without_quoted

MAX_ROW_BYTES = 64 << 20
"""Limit for a row of CSV or JSON lines, a TFRecord, or a Parquet value."""
MAX_COLUMNS = 50_000
"""Limit for columns of a table, or fields of a JSON object."""
MAX_ROW_GROUP_BYTES = 16 << 30
"""Limit for a decoded Parquet row group."""
_FIELD = re.compile(rb'"((?:[^"\\]|\\.)*+)"\s*+:')
_SAMPLES, _SAMPLE_BYTES, _MANY_FIELDS = 16, 8 << 10, 1000


def check_row_bytes(size: int, name: str, hint: str = "") -> None:
    """Raises ``BadInput`` for a row of more than :data:`MAX_ROW_BYTES`, which may have no end."""
    if size > MAX_ROW_BYTES:
        raise BadInput(f"{name}: a row does not end within {MAX_ROW_BYTES} bytes, the limit of a row{hint}")


def check_columns(count: int, name: str) -> None:
    """Raises ``BadInput`` for a table of more than :data:`MAX_COLUMNS`."""
    if count > MAX_COLUMNS:
        raise BadInput(f"{name}: {count} columns; the limit is {MAX_COLUMNS} columns: write them as lists or as rows")


def check_width(rows: bytes, source: Source, name: str) -> None:
    """Raises ``BadInput`` for a CSV row of more than :data:`MAX_COLUMNS`, on which Arrow's parser would crash."""
    mark = source.delimiter.encode()
    if len(rows) <= MAX_COLUMNS or rows.count(mark) <= MAX_COLUMNS:
        return
    ends = np.append(np.flatnonzero(np.frombuffer(rows, np.uint8) == ord("\n")), len(rows))
    starts = np.append(0, ends[:-1] + 1)
    for index in np.flatnonzero(ends - starts > MAX_COLUMNS):
        line = rows[starts[index] : ends[index]]
        if line.count(mark) >= MAX_COLUMNS:
            check_columns(without_quoted(line, source).count(mark) + 1, name)


def check_fields(lines: bytes, name: str) -> None:
    """Raises ``BadInput`` for JSON lines of more than ``MAX_COLUMNS`` fields: their columns would not fit memory."""
    if lines.count(b'":') <= MAX_COLUMNS:
        return
    # A sample shows whether fields repeat, as they do in a table.
    step = max(_SAMPLE_BYTES, len(lines) // _SAMPLES)
    sample = b" ".join(lines[start : start + _SAMPLE_BYTES] for start in range(0, len(lines), step))
    if len(set(_FIELD.findall(sample))) > _MANY_FIELDS:
        check_columns(len(set(_FIELD.findall(lines))), name)

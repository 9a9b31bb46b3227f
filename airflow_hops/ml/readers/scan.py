"""Scans the Parquet files that steps and the model server write: footers, batches of bounded size, and tables.

A file is a local path, or an object with ``open()``, such as a file of a store, of which only what is asked for is
read. Its text names it in messages. Files of sources, whose types and values are checked, have readers of their own
(:func:`airflow_hops.ml.readers.read`).
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from airflow_hops.core.errors import MissingColumn
from airflow_hops.core.versions import parquet_file
from airflow_hops.ml.readers.raw_file import explained

_BATCH_ROWS, _BATCH_VALUES, _BUFFER_BYTES = 1 << 16, 1 << 22, 1 << 20


class Openable(Protocol):
    """File that is not a local path."""

    def open(self) -> Any:
        """Opens the file for reading; a context manager."""


Scannable = Path | Openable


def footer(file: Scannable) -> Any:
    """Returns a file's ``pyarrow.parquet.FileMetaData``; raises ``BadInput`` if it is damaged or not Parquet."""
    with _opened(file) as parquet:
        return parquet.metadata


def schema(file: Scannable) -> pa.Schema:
    """Returns a file's columns; raises ``BadInput`` if it is damaged or not Parquet."""
    with _opened(file) as parquet:
        return parquet.schema_arrow


def has_float_bounds(file: Scannable) -> bool:
    """Returns whether a file records bounds of floats, which may lack NaN (:mod:`airflow_hops.core.parquet_writer`)."""
    metadata = footer(file)
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    return any(
        column.physical_type in ("FLOAT", "DOUBLE") and column.is_stats_set and column.statistics.has_min_max
        for group in groups
        for column in map(group.column, range(group.num_columns))
    )


def parts(footer: Any, rows: int) -> Iterator[tuple[tuple[int, ...], int]]:
    """Divides a file with this footer into runs of row groups; yields each with its rows, at least ``rows`` but one."""
    run: list[int] = []
    size = 0
    for group in range(footer.num_row_groups):
        run.append(group)
        size += footer.row_group(group).num_rows
        if size and (size >= rows or group == footer.num_row_groups - 1):
            yield tuple(run), size
            run, size = [], 0


def batches(
    file: Scannable,
    columns: Iterable[str] | None = None,
    *,
    rows: int | None = None,
    row_groups: Sequence[int] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yields a file's rows in batches, none of them empty.

    Args:
        file: The file.
        columns: Columns in their order in the batches; None for all.
        rows: Maximum rows of a batch; None for 65,536, or fewer if there are many columns.
        row_groups: Row groups to read; None for all.

    Raises:
        BadInput: the file is damaged, or lacks a column.
    """
    with _opened(file) as parquet:
        names = _names(parquet, columns, file)
        rows = rows or max(1, min(_BATCH_ROWS, _BATCH_VALUES // max(len(names), 1)))
        for batch in parquet.iter_batches(rows, row_groups=row_groups, columns=None if columns is None else names):
            if batch.schema.names != names:  # another order, or a field "b" of a struct "a" beside a column "a.b"
                batch = pa.RecordBatch.from_arrays([batch[name] for name in names], names)
            if batch.num_rows:
                yield batch


def table(files: Iterable[Scannable], columns: Sequence[str] | None = None) -> pa.Table:
    """Returns the rows of files, which have the same types, as one table; arguments and errors as :func:`batches`."""
    return pa.concat_tables([rows(file, columns, 0, sys.maxsize) for file in files])


def rows(file: Scannable, columns: Sequence[str] | None, first: int, last: int) -> pa.Table:
    """Returns the rows ``first <= row < last`` of a file; errors as :func:`batches`.

    Memory is that of these rows and a few MB: other row groups are not read, and a part of one is read in pieces.
    """
    with _opened(file, buffer_size=_BUFFER_BYTES if last < sys.maxsize else 0) as parquet:
        names = _names(parquet, columns, file)
        if first <= 0 and last >= parquet.metadata.num_rows:
            return parquet.read(columns=None if columns is None else names).select(names)
        sizes = [parquet.metadata.row_group(group).num_rows for group in range(parquet.num_row_groups)]
        spans = list(itertools.pairwise(itertools.accumulate(sizes, initial=0)))
        groups = [group for group, (start, end) in enumerate(spans) if max(start, first) < min(end, last)]
        schema, results = parquet.schema_arrow.empty_table().select(names).schema, []
        # One column after the other: PyArrow 10 holds buffers of 4 MB for each column that it reads.
        for name in names if groups else ():
            chunks, position = [], spans[groups[0]][0]
            for batch in parquet.iter_batches(_BATCH_ROWS, row_groups=groups, columns=[name]):
                low, high = (min(max(row - position, 0), batch.num_rows) for row in (first, last))
                chunks += [batch[name].slice(low, high - low)] if low < high else []
                position += batch.num_rows
            results.append(pa.chunked_array(chunks))
    return pa.table(results, schema=schema) if groups else schema.empty_table()


@contextlib.contextmanager
def _opened(file: Scannable, buffer_size: int = 0) -> Iterator[Any]:
    with explained(str(file)), contextlib.ExitStack() as stack:
        source = file if isinstance(file, Path) else stack.enter_context(file.open())
        # Without read-ahead of whole row groups, which would not be bounded.
        yield stack.enter_context(parquet_file(source, pre_buffer=False, buffer_size=buffer_size))


def _names(parquet: Any, columns: Iterable[str] | None, file: Scannable) -> list[str]:
    """Returns the names of the columns to read, each once."""
    there: list[str] = parquet.schema_arrow.names
    names = there if columns is None else list(dict.fromkeys(columns))
    if lacking := [name for name in names if name not in there]:
        raise MissingColumn(file, lacking[0], f"; it has {', '.join(there)}")
    return names

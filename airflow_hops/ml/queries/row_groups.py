"""Rows of Parquet files by their places, read from those row groups alone that hold them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet


@dataclass(frozen=True)
class RowGroup:
    """A row group of a file.

    Attributes:
        path: The file.
        index: Which one in it; -1 if the file has none, and no rows.
        rows: How many rows it has.
    """

    path: Path
    index: int
    rows: int

    def read(self, columns: Sequence[str] | None) -> Any:
        """Its rows as a table; all columns where none are named."""
        file = parquet.ParquetFile(self.path)
        return file.read(columns=columns) if self.index < 0 else file.read_row_group(self.index, columns=columns)


def row_groups(paths: Sequence[Path]) -> list[RowGroup]:
    """The row groups of some files in order; of files that have no rows, one without rows."""
    results = []
    for path in paths:
        footer = parquet.read_metadata(path)
        results += [RowGroup(path, index, footer.row_group(index).num_rows) for index in range(footer.num_row_groups)]
    return results or [RowGroup(paths[0], -1, 0)]


def rows_at(groups: Sequence[RowGroup], places: Any, columns: Sequence[str] | None = None) -> Any:
    """A table of the rows at some places.

    Args:
        groups: Row groups, at least one.
        places: Integers, ascending, shape ``(rows,)``: 0 is the first row of the first group.
        columns: What to read; all where none are named.
    """
    tables: list[Any] = []
    first = 0
    for group in groups:
        mine = places[(places >= first) & (places < first + group.rows)] - first
        first += group.rows
        if len(mine) or not tables:
            tables.append(group.read(columns).take(pa.array(mine, pa.int64())))
    return pa.concat_tables(tables, promote=True)

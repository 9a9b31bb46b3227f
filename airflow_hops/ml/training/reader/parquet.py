"""Parquet files of a split: their row groups, and the columns to read."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa

from airflow_hops.core.errors import MissingColumn, SchemaMismatch
from airflow_hops.core.versions import parquet_file
from airflow_hops.ml.features.feature_specs import OutputSpec
from airflow_hops.ml.readers import scan
from airflow_hops.ml.readers.raw_file import explained
from airflow_hops.ml.training.reader.columns import SplitColumnType, arrow_type, column_type, plain_types
from airflow_hops.ml.training.reader.files import SplitFiles
from airflow_hops.ml.training.reader.units import Unit

_FOOTERS_AT_ONCE = 8


class ParquetUnits:
    """The row groups of a split's Parquet files.

    Args:
        files: The files.
        columns: The columns to read, with their expected types, or None.

    Attributes:
        units: The row groups that are not empty, in the order of the files.
        kinds: Types of the columns.

    Raises:
        BadInput: a file cannot be read, lacks a column, or has a column with another type than the first file.
    """

    def __init__(self, files: SplitFiles, columns: Mapping[str, OutputSpec | None]) -> None:
        self._files = files
        self._opened: tuple[int, Any] | None = None
        self._lock = threading.Lock()
        with ThreadPoolExecutor(_FOOTERS_AT_ONCE) as pool:
            footers = list(pool.map(lambda number: scan.footer(files.stored(number)), range(len(files))))
        self.kinds: dict[str, SplitColumnType] = {}
        self.units: list[Unit] = []
        for number, footer in enumerate(footers):
            kinds = _kinds(footer, columns, files.name(number))
            self.kinds = self.kinds or kinds
            for column, kind in self.kinds.items():
                if kinds[column] != kind:
                    raise SchemaMismatch(files.name(number), column, kinds[column], kind).with_text(
                        f"{files.name(number)}: column {column!r} is {kinds[column]}, but {kind} in {files.name(0)}; "
                        "all files of a split must have the same types"
                    )
            self.units += _row_groups(footer, number, self.kinds)

    def read(self, unit: Unit) -> pa.Table:
        """Reads and decodes the columns of a row group.

        Raises:
            BadInput: it cannot be read.
        """
        with self._lock, explained(self.where(unit)):
            if self._opened is None or self._opened[0] != unit.file:
                self._opened = (unit.file, parquet_file(self._files.fetched(unit.file).path))
            rows = self._opened[1].read_row_group(unit.index, list(self.kinds), use_threads=True)
            return plain_types(rows, self.kinds)

    def where(self, unit: Unit) -> str:
        """Returns a unit's name, for errors."""
        return f"{self._files.name(unit.file)}, row group {unit.index}"


def parquet_rows(files: SplitFiles) -> int:
    """Returns the number of rows of Parquet files, from their footers."""
    with ThreadPoolExecutor(_FOOTERS_AT_ONCE) as pool:
        footers = pool.map(lambda number: scan.footer(files.stored(number)), range(len(files)))
        return sum(footer.num_rows for footer in footers)


def _kinds(footer: Any, columns: Mapping[str, OutputSpec | None], name: str) -> dict[str, SplitColumnType]:
    with explained(name):
        schema = footer.schema.to_arrow_schema()
    kinds = {}
    for column, spec in columns.items():
        if column not in schema.names:
            raise MissingColumn(
                name,
                column,
                f"; it has {', '.join(schema.names)}. Give columns that all files "
                "have; a features.json belongs to the examples that were written with it",
            )
        width = spec.width if spec else None
        kinds[column] = kind = column_type(schema.field(column).type, f"{name}: column {column!r}", width=width)
        if spec is None or spec.encoding is not None:
            continue
        expected = SplitColumnType(arrow_type(spec.dtype), width)
        if str(expected) != str(kind):
            raise SchemaMismatch(name, column, kind, expected).with_text(
                f"{name}: column {column!r} is {kind}, but features.json says {expected}"
            )
    return kinds


def _row_groups(footer: Any, file: int, kinds: Mapping[str, SplitColumnType]) -> list[Unit]:
    units = []
    for index in range(footer.num_row_groups):
        group = footer.row_group(index)
        if not group.num_rows:
            continue
        size = 0.0
        for number in range(group.num_columns):
            chunk = group.column(number)
            path = chunk.path_in_schema  # for a list: <column>.list.<name of its values>
            kind = kinds.get(path) or kinds.get(path.rsplit(".", 2)[0])
            if kind is not None:
                size += group.num_rows * kind.row_bytes(chunk.total_uncompressed_size / max(chunk.num_values, 1))
        units.append(Unit(file, index, group.num_rows, int(size)))
    return units

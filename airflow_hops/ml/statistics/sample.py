"""Sample of a split's rows: ``<split>/sample.parquet`` in a ``statistics`` artifact."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_hops.core.errors import BadInput
from airflow_hops.core.parquet_writer import write_parquet
from airflow_hops.ml.readers import scan
from airflow_hops.ml.readers.joined_types import is_text, join, of_batches, widened
from airflow_hops.ml.readers.vectors import list_lengths, lists_of
from airflow_hops.ml.statistics.formats.feature_types import Types, is_list
from airflow_hops.ml.statistics.row_keys import Keys

MAX_VALUE_BYTES = 1024
"""Longer text is replaced by its digest."""

_is = pa.types

# Why samples can be merged: each row has a random priority that depends on its place only, and the sample keeps the
# lowest ones. The limit, the lowest priority that was dropped, only falls: a row above it can never be in the result,
# because more rows were kept before it, and those of other parts only add to them. The byte limit works in the same
# order, which is why rows are cut by their cumulative size after sorting.

SAMPLE_FILE = "sample.parquet"
SAMPLE_ROWS = 20_000
"""Maximum rows of a sample, by default."""
MAX_BYTES = 64 << 20
"""Maximum bytes of a sample, without compression."""
FEW_ROWS = 1_000
"""Number of rows with a limit of four times as many bytes."""


_Rows: TypeAlias = tuple[Keys, np.ndarray, dict[str, pa.Array]]
"""Rows drawn: their priorities, uint64, their bytes, int64, and their columns."""


@dataclass
class RowSample:
    """Uniform sample of rows without replacement: those with the lowest priorities, which are random numbers.

    It holds at most ``most_rows`` rows, and at most as many as fit in :data:`MAX_BYTES` in order of their priority
    (the first :data:`FEW_ROWS` in four times as many bytes). A row that is among the first of all rows is among the
    first of any part of them; therefore, samples of parts can be merged, in any order, into the sample of all.

    Attributes:
        most_rows: Maximum number of rows.
        types: Types of all rows added, drawn or not, by column.
    """

    most_rows: int
    types: Types = field(default_factory=dict)
    _drawn: list[_Rows] = field(default_factory=list)
    _limit: int = (1 << 64) - 1
    _waiting_rows: int = 0
    _waiting_bytes: int = 0

    def add(self, batch: pa.RecordBatch, priorities: Keys) -> None:
        """Adds rows with their priorities (:func:`~airflow_hops.ml.statistics.row_keys.priorities_of`).

        Raises:
            BadInput: a column's type differs from that in earlier batches.
        """
        self._join({item.name: item.type for item in batch.schema})
        rows = np.flatnonzero(priorities < np.uint64(self._limit))
        if len(rows) > self.most_rows:
            rows = rows[np.argpartition(priorities[rows], self.most_rows)[: self.most_rows]]
        if not len(rows):
            return
        columns = [shortened(column.take(pa.array(rows))) for column in batch.columns]
        sizes = sum(map(value_bytes, columns), np.zeros(len(rows), np.int64))
        self._drawn.append((priorities[rows], sizes, dict(zip(batch.schema.names, columns, strict=True))))
        self._waiting_rows += len(rows)
        self._waiting_bytes += int(sizes.sum())
        if self._waiting_rows >= self.most_rows or self._waiting_bytes >= MAX_BYTES:
            self.compact()

    def merged(self, other: RowSample) -> RowSample:
        """Adds the rows of a sample of other rows, which must not be used afterwards; returns this one."""
        self._join(other.types)
        self._limit = min(self._limit, other._limit)
        self._drawn += other._drawn
        return self.compact()

    def compact(self) -> RowSample:
        """Drops the rows that the sample does not need any more; returns it."""
        if self._drawn:
            priorities, sizes = (np.concatenate([rows[column] for rows in self._drawn]) for column in (0, 1))
            order = np.argsort(priorities, kind="stable")
            order = order[: np.searchsorted(priorities[order], np.uint64(self._limit))]
            places = np.arange(len(order))
            room = np.where(places < FEW_ROWS, 4 * MAX_BYTES, MAX_BYTES)
            count = int(((np.cumsum(sizes[order]) <= room) & (places < self.most_rows)).sum())
            if count < len(order):
                self._limit = int(priorities[order[count]])
            order = order[:count]
            columns = {name: self._column(name).take(pa.array(order)) for name in self.types}
            self._drawn = [(priorities[order], sizes[order], columns)]
        self._waiting_rows = self._waiting_bytes = 0
        return self

    def table(self, types: Types) -> pa.Table:
        """Returns the sampled rows in order of their priority, so that the first rows are a uniform sample, too.

        Args:
            types: Columns that come first, with the types of the source; a column without values is null.
        """
        self._join(types)
        self.compact()
        ordered = [*types, *sorted(self.types.keys() - types.keys())]
        kinds = {name: join(decoded(types.get(name, pa.null())), self.types[name], of_batches) for name in ordered}
        drawn = self._drawn[0][2] if self._drawn else {}
        columns = [widened(drawn.get(name, pa.nulls(0)), kind, rounded=True) for name, kind in kinds.items()]
        return pa.Table.from_arrays(columns, ordered)

    def _join(self, types: Types) -> None:
        for name, kind in types.items():
            known = self.types.get(name, pa.null())
            joined = join(known, decoded(kind), of_batches)
            if joined is None:
                raise BadInput(f"column {name!r} is {kind}, but {known} in earlier rows; expected one type")
            self.types[name] = joined

    def _column(self, name: str) -> pa.Array:
        kind = self.types[name]
        parts = [columns.get(name, pa.nulls(len(priorities))) for priorities, _, columns in self._drawn]
        try:
            return pa.concat_arrays([widened(part, kind, rounded=True) for part in parts])
        except pa.ArrowInvalid as error:
            raise BadInput(f"column {name!r} is {kind} in some rows: {error}; write one type in all files") from error


def write_sample(table: pa.Table, folder: Path) -> None:
    """Writes ``sample.parquet``, equal bytes for equal rows; columns of objects without fields are left out."""
    storable = [item.name for item in table.schema if not _has_empty_struct(item.type)]
    write_parquet(table.select(storable), folder / SAMPLE_FILE, compression="zstd")


def load_sample(folder: Path, columns: Sequence[str] | None = None) -> pa.Table | None:
    """Reads the sample of a split's rows; None without a sample, as in artifacts of earlier versions.

    Args:
        folder: Folder of the split.
        columns: Columns to read, if they exist; None for all.

    Raises:
        BadInput: the file cannot be read.

    Example:
        >>> from pathlib import Path
        >>> from airflow_hops import load_sample
        >>> load_sample(Path("statistics/train")) is None  # an artifact without a sample
        True
    """
    path = folder / SAMPLE_FILE
    if not path.exists():
        return None
    return scan.table(
        [path], None if columns is None else [name for name in scan.schema(path).names if name in columns]
    )


def _has_empty_struct(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return not kind.num_fields or any(_has_empty_struct(item.type) for item in kind)
    return hasattr(kind, "value_type") and _has_empty_struct(kind.value_type)


def decoded(kind: pa.DataType) -> pa.DataType:
    """Returns the type of :func:`shortened` values: a dictionary's are plain ones, at any depth."""
    if _is.is_dictionary(kind):
        return decoded(kind.value_type)
    if is_list(kind) and decoded(kind.value_type) != kind.value_type:
        return (pa.large_list if _is.is_large_list(kind) else pa.list_)(decoded(kind.value_type))
    if _is.is_struct(kind):
        return pa.struct([(field.name, decoded(field.type)) for field in kind])
    return kind


def shortened(array: pa.Array) -> pa.Array:
    """Replaces text and bytes of more than :data:`MAX_VALUE_BYTES` by ``sha256:<hex> (<n> bytes)``, at any depth.

    Values of dictionaries become plain ones.
    """
    kind = array.type
    if _is.is_dictionary(kind):
        return shortened(array.dictionary_decode())
    if _is.is_struct(kind) and kind.num_fields:
        fields = [shortened(field) for field in array.flatten()]
        return pa.StructArray.from_arrays(fields, [field.name for field in kind], mask=array.is_null())
    if is_list(kind):
        return lists_of(shortened(array.flatten()), array, large=_is.is_large_list(kind))
    if not is_text(kind):
        return array
    is_long = pc.greater(pc.binary_length(array), MAX_VALUE_BYTES)
    if not pc.any(is_long).as_py():
        return array
    long = array.filter(is_long).cast(pa.large_binary()).to_pylist()
    digests = [f"sha256:{hashlib.sha256(value).hexdigest()} ({len(value)} bytes)" for value in long]
    return pc.replace_with_mask(array, pc.fill_null(is_long, False), pa.array(digests, pa.string()).cast(kind))


def value_bytes(array: pa.Array) -> np.ndarray:
    """Returns the bytes of each row's value, int64; a missing one has none."""
    kind = array.type
    if is_text(kind):
        return np.asarray(pc.fill_null(pc.binary_length(array), 0), np.int64)
    if is_list(kind):
        ends = np.append(0, np.cumsum(value_bytes(array.flatten())))[np.append(0, np.cumsum(list_lengths(array)))]
        return np.diff(ends)
    if _is.is_struct(kind):
        return sum((value_bytes(field) for field in array.flatten()), np.zeros(len(array), np.int64))
    return np.asarray(array.is_valid(), np.int64) * (0 if _is.is_null(kind) else max(1, kind.bit_width // 8))

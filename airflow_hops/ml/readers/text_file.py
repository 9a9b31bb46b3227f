"""Scans text files, CSV and JSON lines, block by block: for the types of their columns, and for their rows.

A format parses a block of whole rows into columns, of text or of JSON's values. The rest is the same for both: types
are joined over blocks (:mod:`~airflow_hops.ml.readers.joined_types`), and a block whose values do not fit the types of
the others is reported, so that all blocks are read for their types.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from typing import Protocol

import pyarrow as pa

from airflow_hops.core.errors import BadInput
from airflow_hops.ml.readers.csv import CsvFile, check_header
from airflow_hops.ml.readers.joined_types import join_texts, without_empty
from airflow_hops.ml.readers.jsonl import JsonLines
from airflow_hops.ml.readers.notation import as_given
from airflow_hops.ml.readers.notices import Notices
from airflow_hops.ml.readers.raw_file import RawFile
from airflow_hops.ml.readers.text_types import FLOAT, INTEGER, TEXT, TIMES
from airflow_hops.ml.readers.types import Types, TypesDoNotFit, batch_of, check_text, type_named

log = logging.getLogger(__name__)


class _Format(Protocol):
    """A file of a format, which is read once from its beginning."""

    WITHOUT_ROWS: str

    def blocks(self) -> Iterator[tuple[bytes, int]]:
        """Streams blocks of whole rows, with the position in the raw file."""

    def skip(self, block: bytes) -> int:
        """Returns the number of rows of a block that is not read; inexact if values have newlines."""

    def parse(self, block: bytes, rows_before: int, types: Types | None) -> pa.RecordBatch | None:
        """Returns the columns of a block, which need not have these types; None if it is blank.

        Args:
            block: The block.
            rows_before: Number of earlier rows in the file.
            types: Types of the columns to read; None for all columns, of any type.
        """

    def type_of(self, column: pa.Array) -> pa.DataType:
        """Returns the type of a column of :meth:`parse`."""

    def as_type(self, column: pa.Array, kind: pa.DataType) -> pa.Array | None:
        """Converts a column of :meth:`parse`; None if a value is not of the type."""


def types_of(file: RawFile, *, first_block_only: bool = False) -> Types:
    """Returns a file's columns, with types that hold the values of its first block, or of all.

    Without ``file.notices``, it logs why a column becomes text.

    Raises:
        BadInput: the file has no rows or no header, or a row cannot be read.
    """
    source, form = file.source, _format(file)
    types: Types = {}
    rows = 0
    for block, _ in form.blocks():
        batch = form.parse(block, rows, None)
        if batch is None:
            continue
        texts = []
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if name in source.schema:
                types[name] = type_named(source.schema[name], name, source)
            elif (old := types.get(name, pa.null())) != TEXT:
                types[name] = join_texts(old, form.type_of(column))
                texts += [name] if types[name] == TEXT else []
        # The first block's were logged when it was read alone.
        if texts and file.notices is None and (rows or first_block_only):
            _log_texts(batch, texts, file, rows)
        rows += batch.num_rows
        if first_block_only:
            if file.format == "csv":
                check_header(types, batch, file)
            types = {name: kind if name in source.schema else without_empty(kind) for name, kind in types.items()}
            break
    if not types:
        raise BadInput(f"{file.name}: {form.WITHOUT_ROWS}")
    return types


def rows_of(
    file: RawFile,
    types: Types,
    *,
    has_block: Callable[[int], bool] = lambda number: True,
    is_wanted: Callable[[str], bool] | None = None,
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Streams the rows, with the position in the raw file.

    Args:
        file: The file.
        types: Types by column; batches of CSV lack the columns that the file does not have.
        has_block: Returns whether to read a block, by its number from 0.
        is_wanted: Returns whether a field of JSON without a type is wanted, too; None for all, unless the source names
            columns.

    Raises:
        TypesDoNotFit: a value is not of its column's type, or an object has another wanted field.
        BadInput: a row cannot be read, or a value does not fit the source's schema.
    """
    form, rows = _format(file), 0
    for number, (block, position) in enumerate(form.blocks()):
        if not has_block(number):
            rows += form.skip(block)
        elif (batch := form.parse(block, rows, types)) is not None:
            batch = _typed(batch, form, file, types, rows, is_wanted or (lambda name: file.source.columns is None))
            if file.format == "jsonl":
                check_text(batch, file, rows)
            rows += batch.num_rows
            yield batch, position


def _format(file: RawFile) -> _Format:
    return CsvFile(file) if file.format == "csv" else JsonLines(file)


def _log_texts(batch: pa.RecordBatch, names: Collection[str], file: RawFile, rows_before: int) -> None:
    notices = Notices()
    columns = {name: column for name, column in zip(batch.schema.names, batch.columns, strict=True) if name in names}
    notices.add_texts(pa.table(columns), file.name, rows_before)
    for sentence in notices.sentences(file.source):
        log.warning("%s", sentence)


def _typed(
    batch: pa.RecordBatch,
    form: _Format,
    file: RawFile,
    types: Types,
    rows_before: int,
    is_wanted: Callable[[str], bool],
) -> pa.RecordBatch:
    """Converts columns to their types, and drops those without one."""
    schema, notices = file.source.schema, file.notices
    columns: dict[str, pa.Array] = {}
    misfits: Types = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        kind = types.get(name)
        if kind is None:
            misfits |= {name: form.type_of(column)} if is_wanted(name) else {}
        elif name in schema and column.type != kind:
            columns[name] = as_given(column, name, kind, file, rows_before)
        elif (values := form.as_type(column, kind)) is None:
            misfits[name] = join_texts(kind, form.type_of(column))
        else:
            columns[name] = values
    if misfits:
        raise TypesDoNotFit(file.name, misfits, f"rows {rows_before + 1} to {rows_before + batch.num_rows}")
    if notices is not None:
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            kind = types.get(name)
            if name not in schema and column.type == TEXT and kind in TIMES:
                notices.add_times(name, column, kind, file.name, rows_before)
            elif file.source.units and column.type == TEXT and kind in (INTEGER, FLOAT):
                notices.add_units(name, column, file.source.units, file.name, rows_before)
    return batch_of(list(columns.values()), list(columns), batch.num_rows)

"""Sources of statistics: files of any format, an Arrow table, or a stream of record batches.

A plan lists the parts of a source, and each part has units of rows; both depend on the source alone. Processes read
parts in parallel, or the units of one part. A plan has no open files, and plans of files can be pickled. The size of
batches is limited and independent of the source's size.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

from airflow_hops.core.errors import BadInput, MissingColumn, SchemaMismatch
from airflow_hops.core.sources.source_files import list_files
from airflow_hops.core.sources.sources import Source
from airflow_hops.ml.readers.joined_types import settled
from airflow_hops.ml.readers.raw_file import EmptyFile, RawFile, explained, identify
from airflow_hops.ml.readers.types import type_named
from airflow_hops.ml.statistics.formats import format_of
from airflow_hops.ml.statistics.formats.feature_types import (
    Types,
    TypesDoNotFit,
    as_joined,
    check_type,
    types_of,
)
from airflow_hops.ml.statistics.formats.layout import (
    ColumnSelection,
    Span,
    UnitShare,
    batch_rows,
    bounded,
    units_of_rows,
)
from airflow_hops.ml.statistics.row_keys import Keys, numbered_on, split_keys

__all__ = ["SourcePlan", "TypesDoNotFit", "plan_source"]


Units: TypeAlias = Iterator[tuple[int, pa.RecordBatch, Keys]]
"""Batches of bounded rows and bytes, each with the number of its unit and the keys of its rows."""


@dataclass(frozen=True, kw_only=True)
class SourcePlan:
    """Parts of a source to read.

    Attributes:
        name: Name of the source, for messages.
        parts: Parts that cover each row once.
        types: The columns to read, in order; null if they had no value yet. Sources whose rows can have different
            columns (JSON lines, a stream of batches) can add columns later.
        units: Streams the rows of a share of a part, given the plan's types.
        infer: Infers the types of a source of files from all rows; None for other sources.
        is_stream: Whether the source can be read once, in this process.
    """

    name: str
    parts: tuple[Span, ...]
    types: Types
    units: Callable[[Types, Span, UnitShare], Units]
    infer: Callable[[], Types] | None = None
    is_stream: bool = False

    def read(self, part: Span) -> Iterator[pa.RecordBatch]:
        """Streams a part's rows."""
        return (batch for _, batch, _ in self.read_units(part, UnitShare()))

    def read_units(self, part: Span, share: UnitShare) -> Units:
        """Streams the rows of a share of a part, with the columns of its file.

        Raises:
            TypesDoNotFit: values do not fit the plan's types; start again with :meth:`widen`.
            BadInput: the file cannot be read.
        """
        return self.units(self.types, part, share)

    def widen(self, misfit: TypesDoNotFit) -> SourcePlan:
        """Returns the plan with types that hold all rows, so that they need not be widened again."""
        if self.infer is None:
            raise misfit
        return replace(self, types=self.infer())


def plan_source(
    source: object,
    *,
    exclude: Collection[str] = (),
    columns: Collection[str] | None = None,
) -> SourcePlan:
    """Plans the reading of a source.

    Args:
        source: A path or an fsspec URI of a file, a glob or a folder (including subfolders, without hidden files); an
            ``airflow_hops.core.sources.sources.Source`` for further settings; a ``pyarrow.Table``; an iterable of
            ``pyarrow.RecordBatch``, which is read once; or a plan. Files are Parquet, CSV or JSON
            lines, identified by name or by content.
        exclude: Columns to leave out.
        columns: Columns to read; None for all.

    Raises:
        BadInput: no file is readable, or a column has a type without statistics or different types in different
            files.
    """
    if isinstance(source, SourcePlan):
        return source
    wanted = ColumnSelection(frozenset(exclude), None if columns is None else frozenset(columns))
    if isinstance(source, pa.Table):
        return _plan_table(source, wanted)
    if isinstance(source, str | Path | Source):
        if not isinstance(source, Source):
            text = str(source)
            source = Source(text if "://" in text else str(Path(text).expanduser().absolute()))
        return _plan_files(source, wanted.among(source.columns))
    if isinstance(source, Iterable):
        stream = iter(source)
        head: Sequence[Any] = list(itertools.islice(stream, 1))
        types = {item.name: item.type for batch in head for item in _checked_batch(batch, wanted).schema}
        units = partial(_batch_units, itertools.chain(head, stream), wanted)
        return SourcePlan(name="record batches", parts=(Span(0),), types=types, units=units, is_stream=True)
    raise BadInput(
        f"source is of type {type(source).__name__}, expected a path, a URI, a Source, a pyarrow.Table or an iterable "
        "of record batches"
    )


def _file_units(
    files: Mapping[str, RawFile], wanted: ColumnSelection, types: Types, part: Span, share: UnitShare
) -> Units:
    file = files[part.file]
    # Not its path, so that a copy of the files gives the same sample.
    number = list(files).index(part.file)
    with explained(file.name):
        for unit, batch in format_of(file).read(file, part, types, wanted, share):
            rows, keys = split_keys(batch, number)
            yield unit, as_joined(rows, types, file.name), keys


def _infer_types(files: Mapping[str, RawFile], wanted: ColumnSelection) -> Types:
    types = {}
    for name, file in files.items():
        # read() reports damaged files.
        with contextlib.suppress(BadInput), explained(file.name):
            types[name] = format_of(file).all_types(file)
    return _joined(types, files, wanted)


def _plan_files(source: Source, wanted: ColumnSelection) -> SourcePlan:
    for name, alias in source.schema.items():
        check_type(name, type_named(alias, name, source), f"source {source.uri!r}")
    fs, listed = list_files(source)
    files: dict[str, RawFile] = {}
    types_of_files: dict[str, Types] = {}
    parts: list[Span] = []
    for item in listed:
        with contextlib.suppress(EmptyFile), explained(item.name):
            file = identify(fs, item, source)
            types_of_files[item.name], spans = format_of(file).lay_out(file)
            files[item.name] = file
            parts += spans
    if not files:
        raise BadInput(f"source {source.uri!r}: none of its files has a row")
    examples = {file.format: f"{file.format} ({name})" for name, file in reversed(files.items())}
    if len(examples) > 1:
        raise BadInput(
            f"source {source.uri!r}: files of different formats: {', '.join(sorted(examples.values()))}; expected one: "
            "name its files by a glob"
        )
    for name in files:
        if partitions := [column for column in files[name].partitions if wanted(column)]:
            raise BadInput(
                f"{name}: the folder names the column {partitions[0]!r}, which statistics of raw files do not read; "
                f"ingest the files first, or leave the column out: exclude=[{partitions[0]!r}]"
            )
    types = _joined(types_of_files, files, wanted)
    if lacking := [name for name in source.columns or () if wanted(name) and name not in types]:
        raise MissingColumn(source.uri, lacking[0]).with_text(
            f"source {source.uri!r}: no file has column {lacking[0]!r}, which its 'columns' names"
        )
    if not types and any(types_of_files.values()):
        raise BadInput(f"source {source.uri!r}: no column is left to read; expected at least one")
    return SourcePlan(
        name=source.uri,
        parts=tuple(parts),
        types=types,
        units=partial(_file_units, files, wanted),
        infer=partial(_infer_types, files, wanted),
    )


def _joined(types_of_files: Mapping[str, Types], files: Mapping[str, RawFile], wanted: ColumnSelection) -> Types:
    """Returns the types of all files together."""
    types: Types = {}
    seen: dict[str, str] = {}
    for file, own in types_of_files.items():
        for column, kind in own.items():
            if not wanted(column):
                continue
            check_type(column, settled(kind), file)
            joined = format_of(files[file]).join(types.get(column, pa.null()), kind)
            if joined is None:
                raise SchemaMismatch(file, column, kind, types[column]).with_text(
                    f"{file}: column {column!r} is {kind}, but {types[column]} in {seen[column]}; expected one type "
                    "in all files"
                )
            if types.get(column) != joined:
                seen[column] = file
            types[column] = joined
    return {column: settled(kind) for column, kind in types.items()}


def _table_units(table: pa.Table, types: Types, part: Span, share: UnitShare) -> Units:
    """Reads a table, whose memory forked processes share."""
    start, stop = part.start, part.stop or 0
    return keyed_units(numbered_on(table.slice(start, stop - start).to_batches(), first=start), share)


def _plan_table(table: pa.Table, wanted: ColumnSelection) -> SourcePlan:
    types = {name: kind for name, kind in types_of(table.schema, "table").items() if wanted(name)}
    if not types:
        raise BadInput("table: no column is left to read; expected at least one")
    for name, kind in types.items():
        check_type(name, kind, "table")
    table = table.select(list(types)).combine_chunks()
    row_bytes = table.nbytes / max(1, table.num_rows)
    rows = batch_rows(row_bytes)
    parts = []
    for start in range(0, table.num_rows, rows):
        stop = min(start + rows, table.num_rows)
        parts.append(Span(int((stop - start) * row_bytes), start, stop))
    return SourcePlan(name="table", parts=tuple(parts), types=types, units=partial(_table_units, table))


def _batch_units(
    batches: Iterator[pa.RecordBatch], wanted: ColumnSelection, types: Types, part: Span, share: UnitShare
) -> Units:
    return keyed_units(numbered_on(_checked_batch(batch, wanted) for batch in batches), share)


def _checked_batch(batch: object, wanted: ColumnSelection) -> pa.RecordBatch:
    if not isinstance(batch, pa.RecordBatch):
        raise BadInput(
            f"source holds a value of type {type(batch).__name__}, expected record batches of pyarrow; for a pandas "
            "data frame, give pyarrow.Table.from_pandas(frame)"
        )
    types_of(batch.schema, "record batches")
    retained = wanted.of(batch)
    for column in retained.schema:
        check_type(column.name, column.type, "record batches")
    return retained


def keyed_units(batches: Iterable[pa.RecordBatch], share: UnitShare, source: int = 0) -> Units:
    """Yields the units of a share of batches that have the hidden column of keys; ``source`` as in ``split_keys``."""
    for unit, batch in units_of_rows(bounded(batches)):
        if share.has(unit):
            yield unit, *split_keys(batch, source)

"""Sources of statistics: files of any format, an Arrow table, or a stream of record batches.

A plan lists the parts of a source, and each part has units of rows; both depend on the source alone. Processes read
parts in parallel, or the units of one part. A plan has no open files, and plans of files can be pickled. The size of
batches is limited and independent of the source's size.
"""

from __future__ import annotations

import contextlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

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
    Layout,
    Span,
    UnitShare,
    batch_rows,
    bounded,
    units_of_rows,
)
from airflow_hops.ml.statistics.row_keys import Keys, numbered_on, split_keys

__all__ = ["SourcePart", "SourcePlan", "TypesDoNotFit", "plan_source"]


@dataclass(frozen=True)
class SourcePart:
    """Piece of a source that can be read separately.

    ``size`` is in bytes, for balancing; ``file`` is empty if the source is not a file.
    """

    size: int
    file: str
    span: Span


@dataclass(frozen=True, kw_only=True)
class SourcePlan(ABC):
    """Parts of a source to read.

    Attributes:
        name: Name of the source, for messages.
        parts: Parts that cover each row once.
        types: The columns to read, in order; null if they had no value yet. Sources whose rows can have different
            columns (JSON lines, a stream of batches) can add columns later.
    """

    name: str
    parts: tuple[SourcePart, ...]
    types: Types

    def read(self, part: SourcePart) -> Iterator[pa.RecordBatch]:
        """Streams a part's rows."""
        return (batch for _, batch, _ in self.read_units(part, UnitShare()))

    @abstractmethod
    def read_units(self, part: SourcePart, share: UnitShare) -> Iterator[tuple[int, pa.RecordBatch, Keys]]:
        """Streams the rows of a share of a part, in batches of bounded rows and bytes with the columns of its file.

        Each batch comes with the number of its unit and the keys of its rows.

        Raises:
            TypesDoNotFit: values do not fit the plan's types; start again with :meth:`widen`.
            BadInput: the file cannot be read.
        """

    def widen(self, misfit: TypesDoNotFit) -> SourcePlan:
        """Returns the plan with types that hold the values that did not fit."""
        raise misfit


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
        parts = (SourcePart(0, "", Span(0)),)
        return BatchPlan(
            name="record batches", parts=parts, types=types, batches=itertools.chain(head, stream), wanted=wanted
        )
    raise BadInput(
        f"source is of type {type(source).__name__}, expected a path, a URI, a Source, a pyarrow.Table or an iterable "
        "of record batches"
    )


@dataclass(frozen=True, kw_only=True)
class FilePlan(SourcePlan):
    """Plan for a source of files."""

    files: Mapping[str, RawFile]
    wanted: ColumnSelection

    def read_units(self, part: SourcePart, share: UnitShare) -> Iterator[tuple[int, pa.RecordBatch, Keys]]:
        file = self.files[part.file]
        # Not its path, so that a copy of the files gives the same sample.
        number = list(self.files).index(part.file)
        with explained(file.name):
            for unit, batch in format_of(file).read(file, part.span, self.types, self.wanted, share):
                rows, keys = split_keys(batch, number)
                yield unit, as_joined(rows, self.types, file.name), keys

    def widen(self, misfit: TypesDoNotFit) -> FilePlan:
        """Infers the types from all rows, so that they need not be widened again."""
        layouts = {}
        for name, file in self.files.items():
            # read() reports damaged files.
            with contextlib.suppress(BadInput), explained(file.name):
                layouts[name] = Layout(format_of(file).all_types(file), ())
        return replace(self, types=_joined(layouts, self.files, self.wanted))


def _plan_files(source: Source, wanted: ColumnSelection) -> FilePlan:
    for name, alias in source.schema.items():
        check_type(name, type_named(alias, name, source), f"source {source.uri!r}")
    fs, listed = list_files(source)
    files: dict[str, RawFile] = {}
    layouts: dict[str, Layout] = {}
    for item in listed:
        with contextlib.suppress(EmptyFile), explained(item.name):
            file = identify(fs, item, source)
            layouts[item.name] = format_of(file).lay_out(file)
            files[item.name] = file
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
    types = _joined(layouts, files, wanted)
    if lacking := [name for name in source.columns or () if wanted(name) and name not in types]:
        raise MissingColumn(source.uri, lacking[0]).with_text(
            f"source {source.uri!r}: no file has column {lacking[0]!r}, which its 'columns' names"
        )
    if not types and any(layout.types for layout in layouts.values()):
        raise BadInput(f"source {source.uri!r}: no column is left to read; expected at least one")
    return FilePlan(
        name=source.uri,
        parts=tuple(SourcePart(span.size, name, span) for name, layout in layouts.items() for span in layout.spans),
        types=types,
        files=files,
        wanted=wanted,
    )


def _joined(layouts: Mapping[str, Layout], files: Mapping[str, RawFile], wanted: ColumnSelection) -> Types:
    """Returns the types of all files together."""
    types: Types = {}
    seen: dict[str, str] = {}
    for file, layout in layouts.items():
        for column, kind in layout.types.items():
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


@dataclass(frozen=True, kw_only=True)
class TablePlan(SourcePlan):
    """Plan for an Arrow table, whose memory forked processes share."""

    table: pa.Table

    def read_units(self, part: SourcePart, share: UnitShare) -> Iterator[tuple[int, pa.RecordBatch, Keys]]:
        start, stop = part.span.start, part.span.stop or 0
        return keyed_units(numbered_on(self.table.slice(start, stop - start).to_batches(), first=start), share)


def _plan_table(table: pa.Table, wanted: ColumnSelection) -> TablePlan:
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
        size = int((stop - start) * row_bytes)
        parts.append(SourcePart(size, "", Span(size, start, stop)))
    return TablePlan(name="table", parts=tuple(parts), types=types, table=table)


@dataclass(frozen=True, kw_only=True)
class BatchPlan(SourcePlan):
    """Plan for a stream of record batches, which can be read once."""

    batches: Iterator[pa.RecordBatch]
    wanted: ColumnSelection

    def read_units(self, part: SourcePart, share: UnitShare) -> Iterator[tuple[int, pa.RecordBatch, Keys]]:
        return keyed_units(numbered_on(_checked_batch(batch, self.wanted) for batch in self.batches), share)


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


def keyed_units(
    batches: Iterable[pa.RecordBatch], share: UnitShare, source: int = 0
) -> Iterator[tuple[int, pa.RecordBatch, Keys]]:
    """Yields the units of a share of batches that have the hidden column of keys; ``source`` as in ``split_keys``."""
    for unit, batch in units_of_rows(bounded(batches)):
        if share.has(unit):
            yield unit, *split_keys(batch, source)

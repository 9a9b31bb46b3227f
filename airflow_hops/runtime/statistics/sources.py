"""What statistics are computed from: files of any format, an Arrow table, or a stream of record batches.

A plan says what there is to read, in parts that processes read side by side. It holds no open file and, of files,
pickles; its batches are of bounded size, whatever the size of the source.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from airflow_hops.artifacts import BadInput
from airflow_hops.runtime.readers.raw_file import RawFile, identify
from airflow_hops.runtime.readers.types import type_named
from airflow_hops.runtime.statistics.formats import format_of
from airflow_hops.runtime.statistics.formats.feature_types import Types, TypesDoNotFit, check_type, join
from airflow_hops.runtime.statistics.formats.layout import Layout, Span, batch_rows, bounded
from airflow_hops.sources import Source, list_files

__all__ = ["CorruptFile", "Part", "Plan", "TypesDoNotFit", "plan_source"]


class CorruptFile(BadInput):
    """A file that cannot be read.

    Attributes:
        file: Its name, as a plan's ``without`` takes it.
        reason: What is wrong, the file's name included.
    """

    def __init__(self, file: str, reason: str) -> None:
        super().__init__(reason)
        self.file = file
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        return CorruptFile, (self.file, self.reason)


@dataclass(frozen=True)
class Part:
    """A share of a source that one process reads at a time.

    Attributes:
        size: Bytes, for balancing.
        file: The file's name; empty where the source is no file.
        span: Which of its rows.
    """

    size: int
    file: str
    span: Span


@dataclass(frozen=True, kw_only=True)
class Plan(ABC):
    """What there is to read of a source.

    Attributes:
        name: The source, for messages.
        parts: They cover each row once.
        types: The columns to read, in order; null where no value has been seen. A source that tells its columns row
            by row (TFRecord, JSON lines, a stream of batches) may have more.
        rows: How many, where that is known without reading.
        skipped: Files left out, with the reason.
    """

    name: str
    parts: tuple[Part, ...]
    types: Types
    rows: int | None = None
    skipped: Mapping[str, str] = field(default_factory=dict)

    @abstractmethod
    def read(self, part: Part) -> Iterator[pa.RecordBatch]:
        """Streams the rows of a part, in batches of bounded rows and bytes with the columns that its file has.

        Raises:
            TypesDoNotFit: values are not of the types in the plan: start over with :meth:`widen`'s.
            CorruptFile: the file cannot be read; :meth:`without` leaves it out.
        """

    def widen(self, misfit: TypesDoNotFit) -> Plan:
        """The same plan with types that hold what did not fit."""
        raise misfit

    def without(self, file: str, reason: str) -> Plan:
        """The same plan without a file.

        Raises:
            BadInput: no file is left.
        """
        raise CorruptFile(file, reason)


def plan_source(
    source: Any,
    *,
    exclude: Collection[str] = (),
    columns: Collection[str] | None = None,
    on_corrupt: Literal["fail", "skip"] = "fail",
) -> Plan:
    """Looks at a source, and says how to read it.

    Args:
        source: A path or an fsspec URI of a file, a glob or a folder (its files and those of its subfolders, hidden
            ones left aside); an ``airflow_hops.sources.Source`` where more is to be said of it; a ``pyarrow.Table``;
            or an iterable of ``pyarrow.RecordBatch``, which is read once. Formats: Parquet, CSV, JSON lines, Arrow
            IPC, TFRecord of ``tf.Example``; told by name or content.
        exclude: Columns to leave out.
        columns: Columns to read; None for all.
        on_corrupt: What a file that cannot be read does: "fail" raises, "skip" leaves it out.

    Raises:
        BadInput: there is no file, none can be read, a column is of a type without statistics, or of different types
            in different files.
    """
    if on_corrupt not in ("fail", "skip"):
        raise BadInput(f"on_corrupt is {on_corrupt!r}, expected 'fail' or 'skip'")
    wanted = _Wanted(frozenset(exclude), None if columns is None else frozenset(columns))
    if isinstance(source, pa.Table):
        return _plan_table(source, wanted)
    if isinstance(source, str | Path | Source):
        return _plan_files(_source_of(source), wanted, on_corrupt)
    if isinstance(source, Iterable):
        return _plan_batches(source, wanted)
    raise BadInput(
        f"source is a {type(source).__name__}, expected a path, a URI, a Source, a pyarrow.Table or record batches"
    )


@dataclass(frozen=True)
class _Wanted:
    """Which columns to read."""

    exclude: frozenset[str]
    columns: frozenset[str] | None

    def __call__(self, name: str) -> bool:
        return name not in self.exclude and (self.columns is None or name in self.columns)

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        names = [name for name in batch.schema.names if self(name)]
        if len(names) == batch.num_columns:
            return batch
        return pa.RecordBatch.from_arrays([batch.column(batch.schema.get_field_index(name)) for name in names], names)


@dataclass(frozen=True, kw_only=True)
class FilePlan(Plan):
    """The plan of a source of files."""

    files: Mapping[str, RawFile]

    def read(self, part: Part) -> Iterator[pa.RecordBatch]:
        file = self.files[part.file]
        try:
            yield from format_of(file).read(file, part.span, self.types)
        except BadInput as error:
            raise CorruptFile(file.name, str(error)) from error

    def widen(self, misfit: TypesDoNotFit) -> FilePlan:
        return replace(self, types={**self.types, **misfit.types})

    def without(self, file: str, reason: str) -> FilePlan:
        files = {name: kept for name, kept in self.files.items() if name != file}
        return _checked(
            replace(
                self,
                parts=tuple(part for part in self.parts if part.file != file),
                files=files,
                skipped={**self.skipped, file: reason},
                rows=None,
            )
        )


def _plan_files(source: Source, wanted: _Wanted, on_corrupt: str) -> FilePlan:
    given = {name: type_named(alias, name, source) for name, alias in source.schema.items()}
    for name, kind in given.items():
        check_type(name, kind, source.uri)
    fs, listed = list_files(source)
    layouts: dict[str, Layout] = {}
    files: dict[str, RawFile] = {}
    skipped: dict[str, str] = {}
    for item in listed:
        try:
            if item.size_bytes == 0 and len(listed) > 1 and not item.path.endswith(".parquet"):
                continue  # no rows
            file = identify(fs, item, source)
            layouts[file.name] = format_of(file).lay_out(file)
            files[file.name] = file
        except BadInput as error:
            if on_corrupt == "fail":
                raise CorruptFile(item.name, str(error)) from error
            skipped[item.name] = str(error)
    types = _joined(layouts, wanted)
    if source.columns is not None and (lacking := set(source.columns) - set(types)):
        raise BadInput(f"source {source.uri!r}: there is no column {sorted(lacking)[0]!r}, which 'columns' names")
    rows = [layout.rows for layout in layouts.values()]
    return _checked(
        FilePlan(
            name=source.uri,
            parts=tuple(Part(s.size, name, s) for name, layout in layouts.items() for s in layout.spans),
            types=types,
            rows=None if None in rows else sum(filter(None, rows)),
            files=files,
            skipped=skipped,
        )
    )


def _checked(plan: FilePlan) -> FilePlan:
    if not plan.files:
        reasons = "; ".join(itertools.islice(plan.skipped.values(), 3))
        raise BadInput(f"source {plan.name!r}: none of its files can be read" + (f": {reasons}" if reasons else ""))
    return plan


def _source_of(source: str | Path | Source) -> Source:
    if isinstance(source, Source):
        return source
    text = str(source)
    # TFDV takes no text but the empty one for a missing value.
    return Source(text if "://" in text else str(Path(text).expanduser().absolute()), null_values=("",))


def _joined(layouts: Mapping[str, Layout], wanted: _Wanted) -> Types:
    """The types of all files together.

    Raises:
        BadInput: a type has no statistics, or no type holds those of two files.
    """
    types: Types = {}
    seen: dict[str, str] = {}
    for file, layout in layouts.items():
        for column, kind in layout.types.items():
            if not wanted(column):
                continue
            check_type(column, kind, file)
            joined = join(types.get(column, pa.null()), kind)
            if joined is None:
                raise BadInput(
                    f"{file}: column {column!r} is {kind}, but {types[column]} in {seen[column]}; expected one type "
                    "in all files"
                )
            if types.get(column) != joined:
                seen[column] = file
            types[column] = joined
    return types


@dataclass(frozen=True, kw_only=True)
class TablePlan(Plan):
    """The plan of an Arrow table: processes that are forked read it where it lies."""

    table: pa.Table

    def read(self, part: Part) -> Iterator[pa.RecordBatch]:
        start, stop = part.span.start, part.span.stop or 0
        for batch in self.table.slice(start, stop - start).to_batches():
            yield from bounded(batch)


def _plan_table(table: pa.Table, wanted: _Wanted) -> TablePlan:
    table = table.select([name for name in table.schema.names if wanted(name)]).combine_chunks()
    for column in table.schema:
        check_type(column.name, column.type, "table")
    row_bytes = table.nbytes / max(1, table.num_rows)
    rows = batch_rows(row_bytes)
    parts = []
    for start in range(0, table.num_rows, rows):
        stop = min(start + rows, table.num_rows)
        size = int((stop - start) * row_bytes)
        parts.append(Part(size, "", Span(size, start, stop)))
    types = {item.name: item.type for item in table.schema}
    return TablePlan(name="table", parts=tuple(parts), types=types, rows=table.num_rows, table=table)


@dataclass(frozen=True, kw_only=True)
class BatchPlan(Plan):
    """The plan of a stream of record batches, which can be read once."""

    batches: Iterator[pa.RecordBatch]
    wanted: _Wanted

    def read(self, part: Part) -> Iterator[pa.RecordBatch]:
        for batch in self.batches:
            kept = _batch(batch, self.wanted)
            for column in kept.schema:
                check_type(column.name, column.type, self.name)
            yield from bounded(kept)


def _plan_batches(batches: Iterable[Any], wanted: _Wanted) -> BatchPlan:
    stream = iter(batches)
    head: Sequence[Any] = list(itertools.islice(stream, 1))
    types = {item.name: item.type for batch in head for item in _batch(batch, wanted).schema}
    parts = (Part(0, "", Span(0)),)
    return BatchPlan(
        name="record batches", parts=parts, types=types, batches=itertools.chain(head, stream), wanted=wanted
    )


def _batch(batch: Any, wanted: _Wanted) -> pa.RecordBatch:
    if not isinstance(batch, pa.RecordBatch):
        raise BadInput(f"source holds a {type(batch).__name__}, expected record batches of pyarrow")
    return wanted.of(batch)

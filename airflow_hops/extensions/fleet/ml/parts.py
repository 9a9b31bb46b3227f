"""Parts of a fleet's rows: row groups of examples, or files of a source, which are divided into splits here.

A part's name is made of its content and of all else that its rows depend on, so that what an earlier fleet has noted
of a part of this name holds for this one, too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from fsspec.implementations.local import LocalFileSystem

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.artifacts.properties import ExamplesProperties
from airflow_hops.core.errors import BadInput, MissingColumn
from airflow_hops.core.prepare.options import EVAL, TRAIN
from airflow_hops.core.sources.source_files import list_files, source_root
from airflow_hops.core.sources.sources import SourceFile
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.store.checksums import remembered_checksums
from airflow_hops.extensions.fleet.core.source import SegmentSource
from airflow_hops.extensions.fleet.ml.columns import Columns
from airflow_hops.ml.prepare.classes import REJECTED, Classifier
from airflow_hops.ml.prepare.columns import CLASS_COLUMN, IDENTITY_COLUMN
from airflow_hops.ml.prepare.label import numbers
from airflow_hops.ml.readers import first_types, infer_types, read, scan
from airflow_hops.ml.readers.artifact_files import example_files
from airflow_hops.ml.readers.parquet import row_groups
from airflow_hops.ml.readers.raw_file import EmptyFile, RawFile, identify
from airflow_hops.ml.readers.types import TypesDoNotFit, unify

_PART_ROWS = 250_000
_PART_BYTES = 32 << 20
"""Size above which a Parquet file of a source is divided."""

Choose = Callable[[pa.Schema], Columns]
"""Returns the columns of a fleet for those of a file. Raises BadInput if it lacks one."""


@dataclass(frozen=True)
class PartRows:
    """Rows of a part by split, and the keys of segments of rejected ones by reason.

    ``unusable`` is why none of its rows can be used; all are rejected then.
    """

    splits: Mapping[str, pa.Table]
    rejected: Mapping[str, pa.ChunkedArray]
    unusable: str = ""


@dataclass(frozen=True)
class Part:
    """A part: its name, its file for messages, and what reads its rows in a process of the pool."""

    name: str
    file: str
    read: Callable[[Choose], PartRows]


def example_parts(store: ArtifactStore, examples: Artifact, key: str) -> list[Part]:
    """Divides the files of examples into parts; ``key`` is what their rows depend on besides their content."""
    folder = store.local(examples)
    manifest = store.find(examples)[1]
    digests = {entry.path: entry.sha256 for entry in manifest.files}
    names = ExamplesProperties.of(manifest).splits or sorted({path.parent.name for path in folder.glob("*/*.parquet")})
    return [
        Part(
            _name(key, path := f"{split}/{file.name}", digests[path], groups),
            file.name,
            partial(_read_examples, split, file, groups),
        )
        for split in names
        for file in example_files(folder, split)
        for groups, _ in scan.parts(scan.footer(file), _PART_ROWS)
    ]


def source_parts(source: SegmentSource, segment: str, key: str) -> tuple[list[Part], tuple[SourceFile, ...]]:
    """Divides the files of a source into parts, each file one, and large ones of Parquet by row groups.

    Returns:
        The parts, and the files, for :func:`airflow_hops.core.sources.source_files.check_unchanged`.

    Raises:
        BadInput: as :func:`airflow_hops.core.sources.source_files.list_files`.
    """
    fs, files = list_files(source)
    root, parts = source_root(fs, source.uri), []
    plain = replace(source, storage_options={})
    with remembered_checksums() as checksums:
        for file in files:
            is_local = isinstance(fs, LocalFileSystem)
            digest = checksums.of(Path(file.path)) if is_local else f"{file.size_bytes} {file.version}"
            path = file.path.removeprefix(root)
            for groups in _row_groups(fs, file, plain):
                name = _name(key, path, digest, groups)
                parts.append(Part(name, file.name, partial(_read_source, plain, segment, fs, file, groups)))
    return parts, files


def _name(*facts: object) -> str:
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:32]


def _row_groups(fs: Any, file: SourceFile, source: SegmentSource) -> Iterator[tuple[range, int] | None]:
    """Yields row groups with the number of their first row; None for a whole file."""
    raw = identify(fs, file, source) if file.size_bytes > _PART_BYTES else None
    if raw is None or raw.format != "parquet":
        yield None
        return
    begin = first = rows = 0
    groups = row_groups(raw)
    for number, (count, _) in enumerate(groups, 1):
        rows += count
        if rows - first >= _PART_ROWS or number == len(groups):
            yield range(begin, number), first
            begin, first = number, rows


def _read_examples(split: str, file: Path, groups: Sequence[int], choose: Choose) -> PartRows:
    names = choose(scan.schema(file)).read
    return PartRows({split: pa.Table.from_batches(scan.batches(file, names, row_groups=groups))}, {})


def _read_source(
    source: SegmentSource,
    segment: str,
    fs: Any,
    file: SourceFile,
    groups: tuple[range, int] | None,
    choose: Choose,
) -> PartRows:
    try:
        raw = identify(fs, file, source)
    except EmptyFile:
        return PartRows({}, {})
    if groups is not None:
        raw = replace(raw, row_groups=groups[0], first_row=groups[1])
    try:
        table = _table(raw, unify({file.name: first_types(raw)}, are_texts=raw.is_text))
    except TypesDoNotFit:
        table = _table(raw, unify({file.name: infer_types(raw)}, are_texts=raw.is_text))
    if not len(table):  # such as a header alone, which has no types
        return PartRows({}, {})
    for number, field in enumerate(table.schema):
        if field.type in (pa.null(), pa.string()) and table.column(number).null_count == len(table):  # of no known type
            is_number = field.name == source.weight or (field.name == source.label and not source.classes)
            empty = pa.nulls(len(table), pa.float64() if is_number else pa.string())
            table = table.set_column(number, field.name, empty)
    try:
        choose(table.schema)
        _check_columns(source, file.name, table.schema)
    except BadInput as error:  # of this file alone, perhaps: only its segments fail then
        position = table.schema.get_field_index(segment)
        if position < 0 or not (pa.types.is_string(kind := table.schema.types[position]) or pa.types.is_integer(kind)):
            raise
        reason = f"{file.name.rpartition('/')[2]}: {str(error).removeprefix(f'{file.name}: ')}"
        return PartRows({}, {reason: table[segment].cast(pa.string())}, reason)
    classifier = Classifier(source.options, table.schema, None, {})
    batches = [classifier.classify(batch) for batch in table.combine_chunks().to_batches()]
    rows = pa.Table.from_batches(batches, classifier.output)
    label = rows.schema.get_field_index(source.label)
    splits = {}
    for name in (TRAIN, EVAL):
        chosen = rows.filter(pc.equal(rows[CLASS_COLUMN], name))
        chosen = chosen.set_column(label, source.label, numbers(chosen[source.label], source.target))
        splits[name] = chosen.drop([each for each in (CLASS_COLUMN, IDENTITY_COLUMN) if each in chosen.column_names])
    reasons = [name for name in rows[CLASS_COLUMN].unique().to_pylist() if name.startswith(REJECTED)]
    keys = {name: rows[segment].filter(pc.equal(rows[CLASS_COLUMN], name)) for name in reasons}
    return PartRows(splits, {name.removeprefix(REJECTED): own for name, own in keys.items()})


def _table(raw: RawFile, types: Any) -> pa.Table:
    batches = [batch for batch, _ in read(raw, types)]
    return pa.Table.from_batches(batches) if batches else pa.schema(list(types.items())).empty_table()


def _check_columns(source: SegmentSource, file: str, schema: pa.Schema) -> None:
    """Raises BadInput if label, key or weight is missing, or of a type that cannot be used."""
    number = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean)
    text = (pa.types.is_string, pa.types.is_large_string)
    for argument, name, allowed in (
        ("label", source.label, (*number, *text) if source.classes else number),
        ("key", source.key, (pa.types.is_integer, *text)),
        ("weight", source.weight, number),
    ):
        if name is None:
            continue
        if name not in schema.names:
            raise MissingColumn(file, name, f", the {argument}; it has {', '.join(schema.names)}")
        if not any(is_kind(schema.field(name).type) for is_kind in allowed):
            expected = "a string or an integer" if argument == "key" else "a number, or a string that is one of classes"
            raise BadInput(f"{file}: {argument} {name!r} is of the type {schema.field(name).type}; expected {expected}")

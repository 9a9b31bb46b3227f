"""Writes examples by split; equal rows result in equal bytes, on every engine."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_hops.core.artifacts.artifact import FileEntry
from airflow_hops.core.artifacts.target import MAX_CLASSES, Target
from airflow_hops.core.errors import BadInput
from airflow_hops.core.parquet_writer import parquet_writer
from airflow_hops.ml.prepare.classes import DUPLICATE_KEY, NO_CLASS, REJECTED, Classifier
from airflow_hops.ml.prepare.columns import CLASS_COLUMN, EXACT
from airflow_hops.ml.prepare.label import numbers
from airflow_hops.ml.readers import scan
from airflow_hops.ml.readers.artifact_files import File, OutputFolder, StoreFile, fetched
from airflow_hops.ml.spark.pools import Pool, StagedFiles, WorkSummary, run_parts, uploaded_files

# Files are written twice if labels are text, whose numbers are known only after all rows are written, or become floats,
# or if integer columns with missing values do, in all files if in one. Other files are moved where they belong.

log = logging.getLogger(__name__)

_CLASSES = ".classes"
_ROW_GROUP_ROWS = 1 << 17
_FINAL = {"compression": "snappy", "version": "2.6"}
_TO_REWRITE = {"compression": "none", "use_dictionary": False, "version": "2.6"}


@dataclass(kw_only=True)
class PartitionSummary(WorkSummary):
    """Summary of a partition of classified rows.

    Attributes:
        splits: Number of rows by split.
        rejected: Number of rows by reason to reject them.
        unknown: By label, its values that are none of the classes, with their numbers of rows; the most frequent.
        files: Paths of the files, in the order of ``splits``.
    """

    splits: dict[str, int] = field(default_factory=dict)
    rejected: dict[str, int] = field(default_factory=dict)
    unknown: dict[str, list[tuple[Any, int]]] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)


def write_part(classifier: Classifier, folder: OutputFolder, part: int, batches: Iterable[Any]) -> str:
    """Writes the rows of a partition, sorted, a file for each split below ``.classes``.

    Returns:
        A :class:`PartitionSummary` as JSON.
    """
    summary, output = PartitionSummary(), classifier.output
    with summary.recording_errors(folder.path):
        labels = classifier.options.of_labels
        usable, rejected = [], Counter[str]()
        unknown = {each.label: Counter[Any]() for each in labels if each.classes is not None}
        for batch in batches:
            rows = pa.table(batch.columns, output)
            for each in rows[CLASS_COLUMN].value_counts().to_pylist():
                if each["values"].startswith(REJECTED):
                    rejected[each["values"].removeprefix(REJECTED)] += each["counts"]
            for label, values in unknown.items():
                unclassed = rows.filter(pc.equal(rows[CLASS_COLUMN], f"{REJECTED}{label} is {NO_CLASS}"))
                values.update(unclassed[label].to_pylist())
            usable.append(rows.filter(pc.invert(pc.starts_with(rows[CLASS_COLUMN], REJECTED))))
        splits, duplicates = classifier.finish(pa.concat_tables([output.empty_table(), *usable]))
        if duplicates:
            rejected[DUPLICATE_KEY] = duplicates
        summary.rejected = dict(rejected)
        summary.unknown = {label: values.most_common(MAX_CLASSES) for label, values in unknown.items()}
        has_text_label = any(pa.types.is_string(output.field(each.label).type) for each in labels)
        options = _TO_REWRITE if has_text_label else _FINAL
        with folder.writing(summary.uploaded) as target, StagedFiles() as files:
            for name, table in splits.items():
                path = f"{_CLASSES}/{name}/part-{part:05d}.parquet"
                writer = files.open(target / path, partial(parquet_writer, schema=table.schema, **options))
                writer.write_table(table, _ROW_GROUP_ROWS)
                summary.splits[name] = table.num_rows
                summary.files.append(path)
    return summary.to_json()


@dataclass(frozen=True)
class ClassifiedRows:
    """Contents of the partitions of classified rows.

    Attributes:
        splits: Files by split.
        rows: Number of rows by split.
        rejected: Number of rows by reason.
        unknown: By label, its values that are none of the classes, with their numbers of rows.
    """

    splits: dict[str, list[File]]
    rows: dict[str, int]
    rejected: dict[str, int]
    unknown: dict[str, Counter[Any]]

    @classmethod
    def of(cls, summaries: Iterable[PartitionSummary], folder: OutputFolder) -> ClassifiedRows:
        """Returns the sum of partitions, whose files are in a folder."""
        splits: dict[str, list[File]] = {}
        rows, rejected, unknown = Counter[str](), Counter[str](), dict[str, Counter[Any]]()
        for summary in summaries:
            rows.update(summary.splits)
            rejected.update(summary.rejected)
            for label, values in summary.unknown.items():
                unknown.setdefault(label, Counter()).update(dict(values))
            entries = {each["path"]: FileEntry(**each) for each in summary.uploaded}
            for name, path in zip(summary.splits, summary.files, strict=True):
                file = Path(folder.path, path) if folder.store is None else _stored(folder, entries[path])
                splits.setdefault(name, []).append(file)
        by_name = {name: sorted(splits[name], key=lambda file: file.name) for name in sorted(splits)}
        by_label = {label: counts for label, counts in unknown.items() if counts}
        return cls(by_name, dict(rows), dict(sorted(rejected.items())), by_label)


def _stored(folder: OutputFolder, entry: FileEntry) -> StoreFile:
    assert folder.store is not None
    return StoreFile(folder.store, folder.path, entry)


def write_examples(
    rows: ClassifiedRows,
    targets: Sequence[Target],
    folder: OutputFolder,
    pool: Pool,
    progress: Callable[[float, str], None],
) -> list[FileEntry]:
    """Writes the rows of each split to ``<split>/part-*.parquet``; equal rows result in equal bytes.

    Labels become numbers of their targets. The files of ``rows`` are deleted, in a remote store with their folder.

    Returns:
        The files that the pool wrote to a remote store.
    """
    copies = [
        (file, f"{split}/part-{number:05}.parquet")
        for split, files in rows.splits.items()
        for number, file in enumerate(files)
    ]
    as_floats = _integers_with_nulls([file for file, _ in copies])
    if folder.store is not None:
        plan = folder, as_floats, targets
        return uploaded_files(run_parts(pool, _rewrite_file, plan, copies, WorkSummary, progress))
    for split in rows.splits:
        (Path(folder.path) / split).mkdir()
    schema = scan.schema(copies[0][0]) if copies else pa.schema([])
    # A writer that has seen no label of text has written a file as it has to be.
    if (
        copies
        and not as_floats
        and all(each.classes is None and schema.field(each.label).type == each.dtype for each in targets)
    ):
        for file, path in copies:
            assert isinstance(file, Path)
            file.rename(Path(folder.path) / path)
    else:
        # Arrow decodes a file's columns in its own threads: more parallel files take more memory, not less time.
        with ThreadPoolExecutor(max(1, len(os.sched_getaffinity(0)) // 2)) as threads:
            list(threads.map(lambda copy: _rewrite(copy[0], Path(folder.path) / copy[1], as_floats, targets), copies))
    shutil.rmtree(Path(folder.path) / _CLASSES)
    return []


def _rewrite_file(plan: tuple[OutputFolder, set[str], Sequence[Target]], copy: tuple[File, str]) -> str:
    output, as_floats, targets = plan
    summary = WorkSummary()
    with summary.recording_errors(output.path), output.writing(summary.uploaded) as folder:
        path = folder / copy[1]
        path.parent.mkdir(parents=True)
        _rewrite(copy[0], path, as_floats, targets)
    return summary.to_json()


def _integers_with_nulls(files: Iterable[File]) -> set[str]:
    """Returns the integer columns with a null in any file, from the files' statistics."""
    result: set[str] = set()
    for file in files:
        metadata = scan.footer(file)
        for group in range(metadata.num_row_groups):
            for index in range(metadata.num_columns):
                column = metadata.row_group(group).column(index)
                if column.physical_type == "INT64" and column.statistics and column.statistics.null_count:
                    result.add(column.path_in_schema)
    if result:
        log.warning(
            "Integer columns with missing values become float64: %s; cast them to double in prepare, so that they are "
            "floats in every window",
            ", ".join(sorted(result)),
        )
    return result


def _rewrite(source: File, copy: Path, as_floats: set[str], targets: Sequence[Target]) -> None:
    """Copies a file of classified rows, with the labels' numbers."""
    types = dict.fromkeys(as_floats, pa.float64())
    types |= {each.label: pa.type_for_alias(each.dtype) for each in targets}
    with contextlib.ExitStack() as stack:
        path = stack.enter_context(fetched(source))
        schema = pa.schema([pa.field(f.name, types.get(f.name, f.type)) for f in scan.schema(path)])
        writer = stack.enter_context(parquet_writer(copy, schema, **_FINAL))
        for batch in scan.batches(path, rows=_ROW_GROUP_ROWS):
            table = pa.Table.from_batches([batch]).replace_schema_metadata()
            for each in targets:
                label = schema.get_field_index(each.label)
                table = table.set_column(label, each.label, numbers(table.column(label), each))
            for name in as_floats:
                for value in pc.min_max(table.column(name)).as_py().values():
                    if value is not None and abs(value) > EXACT:
                        raise BadInput(
                            f"prepare's column {name!r} has missing values, so that it becomes float64, which cannot "
                            f"hold {value} exactly; an identifier is a string: cast it in prepare, or drop it"
                        )
            writer.write_table(table.cast(schema))

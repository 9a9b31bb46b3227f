"""Writes examples by class in one Spark job; equal rows result in equal bytes."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import functions as F

from airflow_hops.core.contract.artifacts import BadInput, FileEntry
from airflow_hops.core.contract.prepare import PrepareOptions
from airflow_hops.core.contract.target import Target
from airflow_hops.ml.readers.artifact_files import File, OutputFolder, StoreFile, fetched, opened
from airflow_hops.ml.spark.pools import Pool, StagedFiles, WorkSummary, run_parts, uploaded_files
from airflow_hops.ml.stages.prepare.classes import CLASS_COLUMN, REJECTED, python_failures, quoted
from airflow_hops.ml.stages.prepare.label import numbers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Files are written twice: Spark's writer puts times and random names into its files, so they are copied by Arrow into
# files that depend on the rows alone. The copy also turns labels into numbers, which are known only after all rows are
# written, and integer columns with missing values into floats, in all files if in one.

log = logging.getLogger(__name__)

_CLASSES = ".classes"
_ROW_GROUP_ROWS = 1 << 17
_EXACT = 2**53
"""Doubles represent every integer up to it."""


@dataclass(frozen=True)
class ClassifiedRows:
    """Files written by Spark: those of each split, and of each reason to reject."""

    splits: dict[str, list[File]]
    rejected: dict[str, list[File]]

    def add(self, name: str, files: Sequence[File]) -> None:
        """Adds the files of a class."""
        if name.startswith(REJECTED):
            self.rejected[name.removeprefix(REJECTED)] = [*files]
        else:
            self.splits[name] = [*files]


def write_classes(examples: DataFrame, given: PrepareOptions, folder: OutputFolder) -> ClassifiedRows:
    """Writes the rows by class, sorted, to the subfolder ``.classes``, in one Spark job.

    Raises:
        BadInput: a Python function of the user raised in an executor.
    """
    # Rows without a key are sorted by a hash of their contents: arbitrary, but always the same order.
    names = [name for name in examples.columns if name != CLASS_COLUMN]
    order = [name for name in (given.time, given.key) if name is not None]
    contents = [] if given.key else [F.xxhash64(*map(quoted, names))]
    rows = ClassifiedRows({}, {})
    sorted_rows = examples.sortWithinPartitions(CLASS_COLUMN, *map(quoted, order), *contents)
    with python_failures():
        if folder.store is not None:
            # Arrow in Python workers writes to any store; Spark's own client would need a JAR for most.
            numbered = sorted_rows.select(*(quoted(name).alias(f"c{i}") for i, name in enumerate(examples.columns)))
            write = partial(_write_part, folder, examples.columns)
            written: dict[str, list[File]] = {}
            for (line,) in sorted(numbered.mapInArrow(write, "summary string").collect()):
                _, name, entry = json.loads(line)
                written.setdefault(name, []).append(StoreFile(folder.store, folder.path, FileEntry(**entry)))
            for name in sorted(written):
                rows.add(name, written[name])
            return rows
        staging = Path(folder.path) / _CLASSES
        (
            sorted_rows.write.partitionBy(CLASS_COLUMN)
            .option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
            .parquet(spark_path(staging))
        )
    for class_folder in sorted(staging.glob(f"{CLASS_COLUMN}=*")):
        rows.add(unquote(class_folder.name.partition("=")[2]), sorted(class_folder.glob("*.parquet")))
    return rows


def _write_part(folder: OutputFolder, names: Sequence[str], batches: Iterable[Any]) -> Iterator[Any]:
    """Writes a partition, a file for each class; yields number, class and file entry of each as JSON."""
    from pyspark import TaskContext

    part = f"{TaskContext.get().partitionId():05d}"
    uploaded: list[Mapping[str, Any]] = []
    classes: dict[str, str] = {}  # by name of the file
    with folder.writing(uploaded) as target, StagedFiles() as files:
        writers: dict[str, Any] = {}
        for batch in batches:
            table = pa.table(batch.columns, names)
            for name in pc.unique(table[CLASS_COLUMN]).to_pylist():
                of_class = table.filter(pc.equal(table[CLASS_COLUMN], name)).drop([CLASS_COLUMN])
                if name not in writers:
                    path = target / _CLASSES / f"part-{part}-{len(writers)}.parquet"
                    classes[f"{_CLASSES}/{path.name}"] = name
                    writers[name] = files.open(path, partial(pq.ParquetWriter, schema=of_class.schema))
                writers[name].write_table(of_class)
    lines = [json.dumps([part, classes[entry["path"]], entry]) for entry in uploaded]
    yield pa.RecordBatch.from_arrays([pa.array(lines, pa.string())], ["summary"])


@dataclass(frozen=True)
class _Rewrite:
    """Common plan of writing examples; each part has a file of Spark and the path of its copy."""

    folder: OutputFolder
    as_floats: set[str]
    target: Target


def write_examples(
    rows: ClassifiedRows, target: Target, folder: OutputFolder, pool: Pool, progress: Callable[[float, str], None]
) -> list[FileEntry]:
    """Writes the rows of each split to ``<split>/part-*.parquet``; equal rows result in equal bytes.

    Labels become numbers of the target. The files of ``rows`` are deleted, in a remote store with their folder.

    Returns:
        The files that the pool wrote to a remote store.
    """
    copies = [
        (file, f"{split}/part-{number:05}.parquet")
        for split, files in rows.splits.items()
        for number, file in enumerate(files)
    ]
    plan = _Rewrite(folder, _integers_with_nulls([file for file, _ in copies]), target)
    if folder.store is not None:
        return uploaded_files(run_parts(pool, _rewrite_file, plan, copies, WorkSummary, progress))
    for split in rows.splits:
        (Path(folder.path) / split).mkdir()
    # Arrow decodes a file's columns in its own threads: more parallel files take more memory, not less time.
    with ThreadPoolExecutor(max(1, len(os.sched_getaffinity(0)) // 2)) as threads:
        list(threads.map(lambda copy: _rewrite(copy[0], Path(folder.path) / copy[1], plan), copies))
    shutil.rmtree(Path(folder.path) / _CLASSES)
    return []


def _rewrite_file(plan: _Rewrite, copy: tuple[File, str]) -> str:
    summary = WorkSummary()
    with summary.recording_errors(plan.folder.path), plan.folder.writing(summary.uploaded) as folder:
        path = folder / copy[1]
        path.parent.mkdir(parents=True)
        _rewrite(copy[0], path, plan)
    return summary.to_json()


def count_rows(files: Mapping[str, Sequence[File]]) -> dict[str, int]:
    """Returns the rows by split or reason, from the files' footers."""
    return {name: sum(pq.read_metadata(opened(file)).num_rows for file in those) for name, those in files.items()}


def spark_path(folder: Path) -> str:
    """Returns a local folder's URI for Spark, which decodes no percent-encoding; run IDs contain a plus sign."""
    return f"file://{folder.absolute()}"


def _integers_with_nulls(files: Iterable[File]) -> set[str]:
    """Returns the integer columns with a null in any file, from the files' statistics."""
    result: set[str] = set()
    for file in files:
        metadata = pq.read_metadata(opened(file))
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


def _rewrite(source: File, copy: Path, plan: _Rewrite) -> None:
    """Copies a Parquet file of Spark, whose footer varies, to a deterministic one."""
    types = dict.fromkeys(plan.as_floats, pa.float64())
    types |= {each.label: pa.type_for_alias(each.dtype) for each in plan.target.all}
    with contextlib.ExitStack() as stack:
        file = pq.ParquetFile(stack.enter_context(fetched(source)))
        schema = pa.schema([pa.field(f.name, types.get(f.name, f.type)) for f in file.schema_arrow])
        writer = stack.enter_context(pq.ParquetWriter(copy, schema, version="2.6", compression="snappy"))
        for batch in file.iter_batches(_ROW_GROUP_ROWS):
            table = pa.Table.from_batches([batch]).replace_schema_metadata()
            for each in plan.target.all:
                label = schema.get_field_index(each.label)
                table = table.set_column(label, each.label, numbers(table.column(label), each))
            for name in plan.as_floats:
                for value in pc.min_max(table.column(name)).as_py().values():
                    if value is not None and abs(value) > _EXACT:
                        raise BadInput(
                            f"prepare's column {name!r} has missing values, so that it becomes float64, which cannot "
                            f"hold {value} exactly; an identifier is a string: cast it in prepare, or drop it"
                        )
            writer.write_table(table.cast(schema))

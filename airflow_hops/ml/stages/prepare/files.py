"""Writes examples by class in one Spark job; equal rows result in equal bytes."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import functions as F

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.core.contract.prepare import PrepareOptions
from airflow_hops.core.contract.target import Target
from airflow_hops.ml.stages.prepare.classes import CLASS_COLUMN, REJECTED, python_failures, quoted
from airflow_hops.ml.stages.prepare.label import numbers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)

_ROW_GROUP_ROWS = 1 << 17
_EXACT = 2**53
"""Doubles represent every integer up to it."""


@dataclass(frozen=True)
class ClassifiedRows:
    """Files written by Spark: those of each split, and of each reason to reject."""

    folder: Path
    splits: dict[str, list[Path]]
    rejected: dict[str, list[Path]]


def write_classes(examples: DataFrame, given: PrepareOptions, folder: Path) -> ClassifiedRows:
    """Writes the rows by class, sorted, in one Spark job.

    Raises:
        BadInput: a Python function of the user raised in an executor.
    """
    # Rows without a key are sorted by a hash of their contents: arbitrary, but always the same order.
    names = [name for name in examples.columns if name != CLASS_COLUMN]
    order = [name for name in (given.time, given.key) if name is not None]
    contents = [] if given.key else [F.xxhash64(*map(quoted, names))]
    staging = folder / ".classes"
    with python_failures():
        (
            examples.sortWithinPartitions(CLASS_COLUMN, *map(quoted, order), *contents)
            .write.partitionBy(CLASS_COLUMN)
            .option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
            .parquet(spark_path(staging))
        )
    rows = ClassifiedRows(staging, {}, {})
    for class_folder in sorted(staging.glob(f"{CLASS_COLUMN}=*")):
        name, files = unquote(class_folder.name.partition("=")[2]), sorted(class_folder.glob("*.parquet"))
        if name.startswith(REJECTED):
            rows.rejected[name.removeprefix(REJECTED)] = files
        else:
            rows.splits[name] = files
    return rows


def write_examples(rows: ClassifiedRows, target: Target, folder: Path) -> None:
    """Writes the rows of each split to ``<split>/part-*.parquet``; equal rows result in equal bytes.

    Labels become numbers of the target. The files of ``rows`` are deleted.
    """
    copies: dict[Path, Path] = {}
    for split, files in rows.splits.items():
        (folder / split).mkdir()
        copies |= {file: folder / split / f"part-{number:05}.parquet" for number, file in enumerate(files)}
    as_floats = _integers_with_nulls(copies)
    # Arrow decodes a file's columns in its own threads: more parallel files take more memory, not less time.
    with ThreadPoolExecutor(max(1, len(os.sched_getaffinity(0)) // 2)) as pool:
        list(pool.map(lambda source: _rewrite(source, copies[source], as_floats, target), copies))
    shutil.rmtree(rows.folder)


def count_rows(files: Mapping[str, Sequence[Path]]) -> dict[str, int]:
    """Returns the rows by split or reason, from the files' footers."""
    return {name: sum(pq.read_metadata(path).num_rows for path in paths) for name, paths in files.items()}


def spark_path(folder: Path) -> str:
    """Returns a local folder's URI for Spark, which decodes no percent-encoding; run IDs contain a plus sign."""
    return f"file://{folder.absolute()}"


def _integers_with_nulls(files: Iterable[Path]) -> set[str]:
    """Returns the integer columns with a null in any file, from the files' statistics."""
    result: set[str] = set()
    for file in files:
        metadata = pq.read_metadata(file)
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


def _rewrite(source: Path, copy: Path, as_floats: set[str], target: Target) -> None:
    """Copies a Parquet file of Spark, whose footer varies, to a deterministic one."""
    file = pq.ParquetFile(source)
    types = dict.fromkeys(as_floats, pa.float64())
    types |= {each.label: pa.type_for_alias(each.dtype) for each in target.all}
    schema = pa.schema([pa.field(f.name, types.get(f.name, f.type)) for f in file.schema_arrow])
    with pq.ParquetWriter(copy, schema, version="2.6", compression="snappy") as writer:
        for batch in file.iter_batches(_ROW_GROUP_ROWS):
            table = pa.Table.from_batches([batch]).replace_schema_metadata()
            for each in target.all:
                label = schema.get_field_index(each.label)
                table = table.set_column(label, each.label, numbers(table.column(label), each))
            for name in as_floats:
                for value in pc.min_max(table.column(name)).as_py().values():
                    if value is not None and abs(value) > _EXACT:
                        raise BadInput(
                            f"prepare's column {name!r} has missing values, so that it becomes float64, which cannot "
                            f"hold {value} exactly; an identifier is a string: cast it in prepare, or drop it"
                        )
            writer.write_table(table.cast(schema))

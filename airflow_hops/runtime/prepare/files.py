"""Examples as files: one Spark job writes the rows by class, and equal rows come out as equal bytes."""

from __future__ import annotations

import logging
import shutil
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import PythonException
from pyspark.sql import functions as F

from airflow_hops.contract.artifacts import BadInput
from airflow_hops.runtime.prepare.classes import (
    CLASS_COLUMN,
    LABEL_TEXT_COLUMN,
    REJECTED,
    UNSUPPORTED_LABEL,
    ExampleColumns,
    quoted,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)

_VALUES_NAMED = 10
_ROW_GROUP_ROWS = 1 << 17


def write_examples(examples: DataFrame, columns: ExampleColumns, folder: Path) -> dict[str, int]:
    """Writes the rows of each split to ``<split>/part-*.parquet``, the same rows always to the same bytes.

    Args:
        examples: What :func:`classify` returned.
        columns: Label, key and time.
        folder: Where the splits go.

    Returns:
        Rows by class, those of rejected ones included.

    Raises:
        BadInput: a Python function of the user's raised in an executor, or labels are other than 0 and 1.
    """
    # Rows without a key come in the order of their contents, which is no order, but always the same one.
    names = [name for name in examples.columns if name != CLASS_COLUMN]
    order = [name for name in (columns.time, columns.key) if name is not None]
    contents = [] if columns.key else [F.xxhash64(*map(quoted, names))]
    staging = folder / ".classes"
    try:
        (
            examples.sortWithinPartitions(CLASS_COLUMN, *map(quoted, order), *contents)
            .write.partitionBy(CLASS_COLUMN)
            .option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
            .parquet(spark_path(staging))
        )
    except PythonException as error:
        raise BadInput(f"a Python function in prepare raised: {_python_error(error)}") from error
    _check_supported(staging / f"{CLASS_COLUMN}={UNSUPPORTED_LABEL}", columns.label)
    counts: dict[str, int] = {}
    copies: dict[Path, Path] = {}
    for class_folder in sorted(staging.glob(f"{CLASS_COLUMN}=*")):
        name = unquote(class_folder.name.partition("=")[2])
        files = sorted(class_folder.glob("*.parquet"))
        counts[name] = sum(pq.read_metadata(file).num_rows for file in files)
        if not name.startswith(REJECTED):
            (folder / name).mkdir()
            copies |= {file: folder / name / f"part-{number:05}.parquet" for number, file in enumerate(files)}
    as_floats = _integers_with_nulls(copies)
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda source: _rewrite(source, copies[source], as_floats), copies))
    shutil.rmtree(staging)
    return counts


def spark_path(folder: Path) -> str:
    """A local folder for Spark, which reads no percent-encoding: a run's id has a plus sign in it."""
    return f"file://{folder.absolute()}"


def _check_supported(folder: Path, label: str) -> None:
    """Raises for rows whose label is neither 0 nor 1, if there are any in the folder."""
    counts: Counter[str] = Counter()
    for file in folder.glob("*.parquet"):
        counts.update(pq.read_table(file, columns=[LABEL_TEXT_COLUMN])[LABEL_TEXT_COLUMN].to_pylist())
    if counts:
        most = sorted(counts.items(), key=lambda item: (-item[1], float(item[0])))
        more = f" and {len(most) - _VALUES_NAMED} more" if len(most) > _VALUES_NAMED else ""
        raise BadInput(
            f"label {label!r} is neither 0 nor 1 in {counts.total()} rows: "
            f"{', '.join(f'{value} in {rows}' for value, rows in most[:_VALUES_NAMED])}{more}; a label of two classes "
            "is supported, 0 and 1, or false and true: derive one in prepare(), or give those rows a reject_reason"
        )


def _integers_with_nulls(files: Iterable[Path]) -> set[str]:
    """Integer columns that have a null in any of the files, by the files' own statistics."""
    found: set[str] = set()
    for file in files:
        metadata = pq.read_metadata(file)
        for group in range(metadata.num_row_groups):
            for index in range(metadata.num_columns):
                column = metadata.row_group(group).column(index)
                if column.physical_type == "INT64" and column.statistics and column.statistics.null_count:
                    found.add(column.path_in_schema)
    if found:
        log.warning(
            "Integer columns with missing values become float64: %s; cast them to double in prepare, so that they are "
            "floats in every window",
            ", ".join(sorted(found)),
        )
    return found


def _rewrite(source: Path, target: Path, as_floats: set[str]) -> None:
    """Copies a Parquet file of Spark's, whose footer is never twice the same, to one that is."""
    file = pq.ParquetFile(source)
    kept = [field for field in file.schema_arrow if field.name != LABEL_TEXT_COLUMN]
    schema = pa.schema([pa.field(f.name, pa.float64() if f.name in as_floats else f.type) for f in kept])
    with pq.ParquetWriter(target, schema, version="2.6", compression="snappy") as writer:
        for batch in file.iter_batches(_ROW_GROUP_ROWS, columns=schema.names):
            writer.write_table(pa.Table.from_batches([batch]).replace_schema_metadata().cast(schema))


def _python_error(error: Exception) -> str:
    """The last line of a Python traceback inside a Spark error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in reversed(lines) if not line.startswith(("at ", "...", "JVM"))), "no message")

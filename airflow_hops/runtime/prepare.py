"""Prepare: raw tables to labelled examples, by the user's Spark code.

Everything takes one Spark job: rows are classified (a split, or a reason to reject), shuffled once by their key, and
written by class; counts and checks then come from the footers of the files.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_hops.artifacts import Artifact, BadInput, RowCounts, RowsNotConserved
from airflow_hops.runtime.context import StepContext, resolve

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

log = logging.getLogger(__name__)

TRAIN, EVAL, NEWEST = "train", "eval", "newest"
REASON_COLUMN = "reject_reason"
DUPLICATE_KEY = "duplicate key"
_CLASS_COLUMN = "__class__"
_REJECTED = "rejected:"
_FILE_ROWS = 250_000
_ROW_GROUP_ROWS = 1 << 17


@dataclass(frozen=True)
class ExampleColumns:
    """The columns of examples that are no features.

    Attributes:
        label: 0 or 1.
        key: Identity of an example; decides its side of the split.
        time: When the question was asked.
    """

    label: str
    key: str
    time: str


@dataclass(frozen=True)
class Splits:
    """How examples are split.

    Attributes:
        eval_percent: Share of the keys that are never trained on.
        newest_from_s: Examples at or after this time (seconds since the epoch) are in the split ``newest``; None for
            no such split.
    """

    eval_percent: int
    newest_from_s: int | None = None


def run(
    context: StepContext,
    *,
    prepare: str,
    label: str,
    key: str,
    time: str,
    eval_percent: int = 20,
    newest_s: float | None = None,
    table: str | None = None,
    reject: Mapping[str, str] | None = None,
) -> Artifact:
    """The prepare step: writes ``<split>/*.parquet``.

    Args:
        context: The step's context, with the input ``tables``, a snapshot.
        prepare: ``module:function`` of the user's ``prepare(spark, tables)``.
        label: Column of the label.
        key: Column of the key.
        time: Column of the time.
        eval_percent: Share of the keys in the split ``eval``.
        newest_s: Length of the split ``newest`` at the end of the window, in seconds; None for no such split.
        table: The main table, each row of which becomes one example; the snapshot's first one by default.
        reject: SQL conditions over the columns of ``prepare`` by the reason to reject the rows for which they hold.
    """
    user_function = resolve(prepare)
    snapshot = context.input("tables")
    manifest = context.store.manifest(snapshot.uri)
    names = list(manifest.properties["tables"])
    main = table or names[0]
    if main not in names:
        raise BadInput(f"table is {main!r}, which the snapshot does not have; it has {', '.join(names)}")
    columns = ExampleColumns(label, key, time)
    splits = Splits(eval_percent, _newest_from_s(newest_s, manifest.properties["window"]))
    rows_in = manifest.rows[main].rows_out

    with context.starting():
        spark = start_spark(context.spec.step)
    set_parts(spark, rows_in)
    context.progress(0.1, "Spark has started")
    folder = context.store.local(snapshot)
    tables = {name: read_table(spark, folder / name) for name in names}
    frame = call_prepare(user_function, prepare, spark, tables)
    examples = classify(frame, columns, splits, reject=reject or {})
    context.progress(0.2, "prepare() is planned")
    with context.output() as writer:
        counts = write_examples(examples, columns, writer.path)
        context.progress(0.95, "examples are written")
        kept = {name: rows for name, rows in counts.items() if not name.startswith(_REJECTED)}
        rejected = {name.removeprefix(_REJECTED): rows for name, rows in counts.items() if name.startswith(_REJECTED)}
        total = RowCounts(rows_in, sum(kept.values()), rejected)
        log.info("%s: %d rows in, %d out, rejected: %s", main, total.rows_in, total.rows_out, rejected or "none")
        _check_rows(total, main, prepare)
        _check_splits(kept, splits, total)
        _check_label(writer.path / TRAIN, columns.label)
        expected = [name for name in (TRAIN, EVAL, NEWEST) if name in kept]
        return writer.commit(
            rows={main: total, **{name: RowCounts(kept[name], kept[name]) for name in expected}},
            metrics={"rows": total.rows_out, "rejected": total.rows_rejected},
            properties={
                "window": manifest.properties["window"],
                "label": label,
                "key": key,
                "time": time,
                "splits": expected,
            },
        )


def start_spark(name: str) -> SparkSession:
    """The Spark session of this process: the one that spark-submit configured, else one on this machine."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.appName(name).config("spark.sql.session.timeZone", "UTC").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    return spark


def set_parts(spark: SparkSession, rows: int) -> None:
    """Makes every shuffle one into as many parts as there shall be files for this many rows.

    The shuffle in which duplicates are found then serves the files too, and the same rows come to the same files.
    """
    spark.conf.set("spark.sql.shuffle.partitions", max(2, -(-rows // _FILE_ROWS)))
    spark.conf.set("spark.sql.adaptive.coalescePartitions.enabled", "false")


def read_table(spark: SparkSession, folder: Path) -> DataFrame:
    """A table of a snapshot. Its schema is read here, since Spark would start a job for that."""
    from pyspark.sql.pandas.types import from_arrow_schema

    first = min(folder.glob("*.parquet"))
    schema = from_arrow_schema(pq.read_schema(first).remove_metadata(), prefer_timestamp_ntz=True)
    return spark.read.schema(schema).parquet(_spark_path(folder))


def call_prepare(
    function: Callable[..., Any], name: str, spark: SparkSession, tables: Mapping[str, DataFrame]
) -> DataFrame:
    """Calls the user's function.

    Raises:
        BadInput: it raised, or returned something other than a DataFrame.
    """
    from pyspark.sql import DataFrame

    try:
        frame = function(spark, dict(tables))
    except Exception as error:
        raise BadInput(f"{name} raised {type(error).__name__}: {_first_line(error)}") from error
    if not isinstance(frame, DataFrame):
        raise BadInput(f"{name} returned a {type(frame).__name__}, expected a Spark DataFrame")
    return frame


def classify(
    frame: DataFrame,
    columns: ExampleColumns,
    splits: Splits,
    *,
    reject: Mapping[str, str] | None = None,
) -> DataFrame:
    """Gives each row its final types and its class: a split, or a reason to be rejected.

    A row of a key that another row has too is rejected, but for the first one in the order of time.

    Args:
        frame: What ``prepare`` returned.
        columns: Label, key and time.
        splits: How to split.
        reject: SQL conditions by reason.

    Returns:
        Key, time, label, the features, and the class; a rejected row's class is ``rejected:`` and the reason.

    Raises:
        BadInput: a column is missing, or of a type that examples cannot have.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    _check_columns(frame, columns)
    special = (columns.key, columns.time, columns.label)
    types = {item.name: item.dataType.typeName() for item in frame.schema}
    features = [name for name in frame.columns if name not in (*special, REASON_COLUMN)]
    key = _quoted(columns.key).cast("string")
    time = _time(columns.time, types[columns.time])
    label = _quoted(columns.label)
    reasons = [_quoted(REASON_COLUMN).cast("string")] if REASON_COLUMN in frame.columns else []
    reasons += [F.when(F.expr(condition), F.lit(reason)) for reason, condition in (reject or {}).items()]
    reasons += [
        F.when(key.isNull() | (key == ""), F.lit(f"{columns.key} is missing")),
        F.when(time.isNull(), F.lit(f"{columns.time} is missing")),
        F.when(label.isNull(), F.lit(f"{columns.label} is missing")),
        F.when(~label.cast("double").isin(0.0, 1.0), F.lit(f"{columns.label} is not 0 or 1")),
    ]
    typed = frame.select(
        key.alias(columns.key),
        time.alias(columns.time),
        label.cast("bigint").alias(columns.label),
        *(_feature(name, types[name]).alias(name) for name in features),
        F.coalesce(*reasons).alias(_CLASS_COLUMN),
    )
    # The hash of the key alone decides: a row stays on its side whatever the window.
    side = F.when(F.pmod(F.xxhash64(_quoted(columns.key)), F.lit(100)) < splits.eval_percent, EVAL).otherwise(TRAIN)
    if splits.newest_from_s is not None:
        side = F.when(_quoted(columns.time) >= splits.newest_from_s, NEWEST).otherwise(side)
    reason = F.col(_CLASS_COLUMN)
    same_key = Window.partitionBy(_quoted(columns.key)).orderBy(
        reason.isNotNull(), _quoted(columns.time), F.xxhash64(*(_quoted(name) for name in (*special, *features)))
    )
    reason = F.when(reason.isNull() & (F.row_number().over(same_key) > 1), DUPLICATE_KEY).otherwise(reason)
    return typed.withColumn(_CLASS_COLUMN, F.when(reason.isNull(), side).otherwise(F.concat(F.lit(_REJECTED), reason)))


def write_examples(examples: DataFrame, columns: ExampleColumns, folder: Path) -> dict[str, int]:
    """Writes the rows of each split to ``<split>/part-*.parquet``, the same rows always to the same bytes.

    Args:
        examples: What :func:`classify` returned.
        columns: Label, key and time.
        folder: Where the splits go.

    Returns:
        Rows by class, those of rejected ones included.

    Raises:
        BadInput: a Python function of the user's raised in an executor.
    """
    from pyspark.errors import PythonException

    key, time = _quoted(columns.key), _quoted(columns.time)
    staging = folder / ".classes"
    try:
        (
            examples.sortWithinPartitions(_CLASS_COLUMN, time, key)
            .write.partitionBy(_CLASS_COLUMN)
            .option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
            .parquet(_spark_path(staging))
        )
    except PythonException as error:
        raise BadInput(f"a Python function in prepare raised: {_python_error(error)}") from error
    counts: dict[str, int] = {}
    copies: dict[Path, Path] = {}
    for class_folder in sorted(staging.glob(f"{_CLASS_COLUMN}=*")):
        name = unquote(class_folder.name.partition("=")[2])
        files = sorted(class_folder.glob("*.parquet"))
        counts[name] = sum(pq.read_metadata(file).num_rows for file in files)
        if not name.startswith(_REJECTED):
            (folder / name).mkdir()
            copies |= {file: folder / name / f"part-{number:05}.parquet" for number, file in enumerate(files)}
    as_floats = _integers_with_nulls(copies)
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda source: _rewrite(source, copies[source], as_floats), copies))
    shutil.rmtree(staging)
    return counts


def _spark_path(folder: Path) -> str:
    """A local folder for Spark, which reads no percent-encoding: a run's id has a plus sign in it."""
    return f"file://{folder.absolute()}"


def _check_columns(frame: DataFrame, columns: ExampleColumns) -> None:
    names = frame.columns
    if twice := [name for name in names if names.count(name) > 1]:
        raise BadInput(f"prepare returned two columns {twice[0]!r}; rename or drop one of them after the join")
    for argument in ("label", "key", "time"):
        if (name := getattr(columns, argument)) not in names:
            raise BadInput(f"{argument} is {name!r}, but prepare returned no such column; it has {', '.join(names)}")
    types = {item.name: item.dataType for item in frame.schema}
    numbers = {"byte", "short", "integer", "long", "float", "double", "decimal"}
    allowed = {
        columns.label: numbers | {"boolean"},
        columns.key: {"string", "byte", "short", "integer", "long"},
        columns.time: numbers | {"timestamp", "timestamp_ntz", "date"},
        REASON_COLUMN: {"string", "void"},
    }
    # Label, key and time come first: what the arguments confuse would else be called a feature of a wrong type.
    for name, type_ in sorted(types.items(), key=lambda item: item[0] not in allowed):
        found = type_.typeName()
        if found not in allowed.get(name, numbers | {"boolean", "string"}):
            raise BadInput(
                f"prepare's column {name!r} is of type {type_.simpleString()}; expected "
                f"{', '.join(sorted(allowed.get(name, {'an integer', 'float', 'double', 'boolean', 'string'})))}"
            )


def _quoted(name: str) -> Column:
    from pyspark.sql import functions as F

    return F.col("`{}`".format(name.replace("`", "``")))


def _time(name: str, type_: str) -> Column:
    column = _quoted(name)
    if type_ in ("date", "timestamp_ntz"):
        column = column.cast("timestamp")
    return column.cast("bigint")


def _feature(name: str, type_: str) -> Column:
    from pyspark.sql import functions as F

    column = _quoted(name)
    if type_ in ("float", "double"):
        return F.when(~F.isnan(column), column)
    if type_ == "string":
        return column
    return column.cast("double" if type_ == "decimal" else "bigint")


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
    schema = pa.schema([pa.field(f.name, pa.float64() if f.name in as_floats else f.type) for f in file.schema_arrow])
    with pq.ParquetWriter(target, schema, version="2.6", compression="snappy") as writer:
        for batch in file.iter_batches(_ROW_GROUP_ROWS):
            writer.write_table(pa.Table.from_batches([batch]).replace_schema_metadata().cast(schema))


def _newest_from_s(newest_s: float | None, window: Sequence[str | None] | None) -> int | None:
    if newest_s is None:
        return None
    if not window or window[1] is None:
        raise BadInput("newest needs a window that ends; give window_end to the ingest step, or newest=None")
    return int(datetime.fromisoformat(window[1]).timestamp() - newest_s)


def _check_rows(rows: RowCounts, table: str, prepare: str) -> None:
    unaccounted = rows.rows_in - rows.rows_out - rows.rows_rejected
    if unaccounted == 0:
        return
    hint = (
        "a join duplicates rows: its columns are no unique key of the other table"
        if unaccounted < 0
        else "a filter or an inner join drops rows: use a left join, and the column 'reject_reason' for those that "
        "cannot be used"
    )
    raise RowsNotConserved(
        f"{prepare}: table {table!r} has {rows.rows_in} rows, {rows.rows_out + rows.rows_rejected} came out; {hint}"
    )


def _check_splits(kept: Mapping[str, int], splits: Splits, rows: RowCounts) -> None:
    expected = [TRAIN, *([EVAL] if splits.eval_percent else []), *([NEWEST] if splits.newest_from_s else [])]
    for name in expected:
        if not kept.get(name):
            raise BadInput(
                f"no rows are left in split {name!r}: {rows.rows_in} rows in, {rows.rows_rejected} rejected "
                f"({dict(rows.rejected)}), the rest by split: {dict(kept)}"
            )


def _check_label(folder: Path, label: str) -> None:
    classes: set[int] = set()
    rows = 0
    for file in folder.glob("*.parquet"):
        metadata = pq.read_metadata(file)
        rows += metadata.num_rows
        index = metadata.schema.to_arrow_schema().get_field_index(label)
        for group in range(metadata.num_row_groups):
            found = metadata.row_group(group).column(index).statistics
            classes |= {found.min, found.max}
    if len(classes) == 1:
        raise BadInput(
            f"label {label!r} is {classes.pop()} in all {rows} rows of split {TRAIN!r}; expected both 0 and 1"
        )


def _first_line(error: Exception) -> str:
    return (str(error).strip() or "no message").splitlines()[0]


def _python_error(error: Exception) -> str:
    """The last line of a Python traceback inside a Spark error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in reversed(lines) if not line.startswith(("at ", "...", "JVM"))), "no message")

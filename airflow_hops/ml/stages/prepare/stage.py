"""Prepares labelled examples from raw tables with the user's Spark code.

The stage takes one Spark job: rows are classified (a split, or a reason to reject), shuffled once by their key (or, if
there is none, by their contents), and written by class. Counts and checks then come from the files' footers, the
target from the label column.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from airflow_hops.core.contract.artifacts import Artifact, BadInput, RowCounts, RowsNotConserved
from airflow_hops.core.contract.prepare import EVAL, NEWEST, TRAIN, PrepareOptions
from airflow_hops.core.contract.properties import ExamplesProperties, SnapshotProperties
from airflow_hops.ml.readers.artifact_files import File, fetched, files_below, opened
from airflow_hops.ml.spark.context import start_spark_context
from airflow_hops.ml.spark.pools import spark_pool
from airflow_hops.ml.stages.prepare.classes import NO_CLASS, Splits, classify, latest_time
from airflow_hops.ml.stages.prepare.files import count_rows, spark_path, write_classes, write_examples
from airflow_hops.ml.stages.prepare.label import find_target, read_values
from airflow_hops.ml.step.context import StepContext, resolve

# Order: plan the user's function (nothing runs yet), classify rows as a column of the same plan, run one Spark job that
# writes them by class, count from the files' footers, check that rows in = rows out + rejected, find classes from the
# label column, rewrite the files deterministically with class numbers. Only the one job uses Spark; the rest reads the
# written files with Arrow.
# A kill leaves files in an uncommitted folder of the artifact; a retry starts again.

log = logging.getLogger(__name__)

_FILE_ROWS = 250_000
_PARTS = 4  # minimum: keeps four cores busy, and sorts half of the rows that a task would with two


def run(context: StepContext, **options: Any) -> Artifact:
    """Writes ``<split>/*.parquet``.

    Args:
        context: Step with the input ``tables``, a snapshot.
        options: Fields of :class:`airflow_hops.core.contract.prepare.PrepareOptions`.

    Raises:
        BadInput: an option, ``prepare`` or its result is unusable, the label is ambiguous or has only one value, or too
            many rows are rejected.
        RowsNotConserved: ``prepare`` dropped or duplicated rows.
    """
    values = PrepareOptions(**options)
    user_function = resolve(values.prepare)
    ingested = context.input("tables")
    manifest = context.store.manifest(ingested.uri)
    snapshot = SnapshotProperties.of(manifest)
    names = list(snapshot.tables)
    main = values.table or names[0]
    if main not in names:
        raise BadInput(f"table is {main!r}, which the snapshot does not have; it has {', '.join(names)}")
    rows_in = manifest.rows[main].rows_out

    start_spark_context(context)
    spark = start_spark(context.spec.step)
    pool = spark_pool(spark.sparkContext, context.store)
    # Every shuffle has as many parts as there will be files: one shuffle then serves both duplicates and files, and
    # equal rows get into the same files.
    spark.conf.set("spark.sql.shuffle.partitions", max(_PARTS, -(-rows_in // _FILE_ROWS)))
    spark.conf.set("spark.sql.adaptive.coalescePartitions.enabled", "false")
    context.progress(0.1, "Spark has started")
    if pool.reads_store:
        tables = {name: read_stored_table(spark, files_below(context.store, ingested, [name])[name]) for name in names}
    else:
        folder = context.store.local(ingested)
        tables = {name: read_table(spark, folder / name) for name in names}
    frame = call_prepare(user_function, values.prepare, spark, tables)
    newest_from_s = None
    if values.newest_s is not None:
        # Counted from the window's end, or without one, from the last row.
        if snapshot.window and snapshot.window[1] is not None:
            latest: float | None = datetime.fromisoformat(snapshot.window[1]).timestamp()
        else:
            latest = latest_time(frame, values)
        if latest is None:
            raise BadInput(f"newest needs a time, but no row has one in column {values.time!r}")
        newest_from_s = int(latest - values.newest_s)
    splits = Splits(values.eval_percent, newest_from_s)
    examples = classify(frame, values, splits)
    context.progress(0.2, "prepare() is planned")
    with context.output() as writer:
        target_folder = pool.folder(context, writer)
        classified = write_classes(examples, values, target_folder)
        retained, rejected = count_rows(classified.splits), count_rows(classified.rejected)
        context.progress(0.9, "rows are counted")
        total = RowCounts(rows_in, sum(retained.values()), rejected)
        log.info("%s: %d rows in, %d out, rejected: %s", main, total.rows_in, total.rows_out, rejected or "none")
        for each in values.of_labels:
            reason = f"{each.label} is {NO_CLASS}"
            if files := classified.rejected.get(reason):
                classes = ", ".join(map(repr, each.classes or ()))
                log.warning("%s (%s): %s", reason, classes, read_values({reason: files}, each.label))
        if unaccounted := total.rows_in - total.rows_out - total.rows_rejected:
            hint = (
                "a join duplicates rows: its columns are not a unique key of the other table"
                if unaccounted < 0
                else "a filter or an inner join drops rows: use a left join, and the column 'reject_reason' for those "
                "that cannot be used"
            )
            raise RowsNotConserved(
                f"{values.prepare}: table {main!r} has {total.rows_in} rows, {total.rows_out + total.rows_rejected} "
                f"came out; {hint}"
            )
        total.check_rejected(values.max_rejected, f"table {main!r}")
        for name in (TRAIN, *([EVAL] if splits.eval_percent else []), *([NEWEST] if splits.newest_from_s else [])):
            if not retained.get(name):
                raise BadInput(
                    f"no rows are left in split {name!r}: {total.rows_in} rows in, {total.rows_rejected} rejected "
                    f"({dict(total.rejected)}), the rest by split: {dict(retained)}"
                )
        target, *more = (find_target(classified.splits, each) for each in values.of_labels)
        target = replace(target, more=tuple(more))
        uploaded = write_examples(classified, target, target_folder, pool, context.progress)
        writer.add(uploaded)
        context.progress(0.95, "examples are written")
        expected = [name for name in (TRAIN, EVAL, NEWEST) if name in retained]
        return writer.commit(
            rows={main: total, **{name: RowCounts(retained[name], retained[name]) for name in expected}},
            metrics={"rows": total.rows_out, "rejected": total.rows_rejected},
            properties=ExamplesProperties(
                values.label,
                values.key,
                values.time,
                snapshot.window,
                tuple(expected),
                target.problem,
                target.classes,
                values.weight,
                target.more_labels,
                target_folder.columns(TRAIN, uploaded),
            ).to_dict(),
        )


def start_spark(name: str) -> SparkSession:
    """Returns the Spark session of this process: the one configured by spark-submit, or a local one."""
    spark = SparkSession.builder.appName(name).config("spark.sql.session.timeZone", "UTC").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    return spark


def read_table(spark: SparkSession, folder: Path) -> DataFrame:
    """Opens a table of a snapshot with the schema of its first file, since Spark would start a job to read it."""
    first = min(folder.glob("*.parquet"))
    schema = from_arrow_schema(pq.read_schema(first).remove_metadata(), prefer_timestamp_ntz=True)
    _tell_case_apart(spark, schema.names)
    # Arrow and Spark 3 use the same calendar, so dates are not rebased; Spark refuses to guess before 1582.
    return spark.read.schema(schema).option("datetimeRebaseMode", "CORRECTED").parquet(spark_path(folder))


def read_stored_table(spark: SparkSession, files: Sequence[File]) -> DataFrame:
    """Opens a table in a remote store; executors read its files with Arrow, one partition each."""
    schema = from_arrow_schema(pq.read_schema(opened(files[0])).remove_metadata(), prefer_timestamp_ntz=True)
    _tell_case_apart(spark, schema.names)
    read = partial(_read_files, list(files), to_arrow_schema(schema))
    # Not spark.range: with a single file its rows would count as clustered already, and none be shuffled.
    numbers = spark.sparkContext.parallelize([(number,) for number in range(len(files))], len(files))
    return spark.createDataFrame(numbers, "number long").mapInArrow(read, schema)


def _read_files(
    files: Sequence[File], schema: pa.Schema, numbers: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for number in (number for batch in numbers for number in batch.column(0).to_pylist()):
        with fetched(files[number]) as path:
            for batch in pq.ParquetFile(path).iter_batches():
                yield from pa.Table.from_batches([batch]).replace_schema_metadata().cast(schema).to_batches()


def call_prepare(
    function: Callable[..., Any], name: str, spark: SparkSession, tables: Mapping[str, DataFrame]
) -> DataFrame:
    """Calls the user's function.

    Raises:
        BadInput: it raised, or did not return a DataFrame.
    """
    try:
        frame = function(spark, dict(tables))
    except Exception as error:
        first_line = (str(error).strip() or "no message").splitlines()[0]
        raise BadInput(f"{name} raised {type(error).__name__}: {first_line}") from error
    if not isinstance(frame, DataFrame):
        raise BadInput(f"{name} returned a {type(frame).__name__}, expected a Spark DataFrame")
    _tell_case_apart(spark, frame.columns)
    return frame


def _tell_case_apart(spark: SparkSession, names: Sequence[str]) -> None:
    """Makes Spark case-sensitive if names differ only in case; by default it would treat them as equal."""
    if len({name.lower() for name in names}) < len(set(names)):
        spark.conf.set("spark.sql.caseSensitive", "true")

"""Prepares on Spark: ``prepare(spark, tables)`` with a DataFrame for each table."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark import TaskContext
from pyspark.errors import PySparkException, PythonException
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema, to_arrow_type

from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.prepare.options import PrepareOptions
from airflow_hops.ml.prepare.classes import Classifier
from airflow_hops.ml.prepare.columns import REASON_COLUMN, check_columns
from airflow_hops.ml.prepare.engine import PreparedRows, WritePart, call_prepare
from airflow_hops.ml.readers import scan
from airflow_hops.ml.readers.artifact_files import File, fetched
from airflow_hops.ml.spark.context import data_error, last_words, let_workers_import, start_spark_context
from airflow_hops.ml.spark.pools import Pool, spark_pool
from airflow_hops.ml.step.context import StepContext


class SparkRows(PreparedRows):
    """A DataFrame; tasks of its executors classify and write."""

    def __init__(self, frame: DataFrame, schema: pa.Schema, pool: Pool) -> None:
        self.frame, self.schema, self.pool = frame, schema, pool

    def summarize(self, columns: Sequence[str], work: Callable[[Iterable[Any]], str]) -> list[str]:
        """Calls ``work`` in a task for each partition of the DataFrame."""
        frame = self.frame.select(*_numbered(columns))
        return _lines(frame, lambda batches: [work(batches)])

    def write(self, classifier: Classifier, parts: int, write: WritePart) -> list[str]:
        """Classifies in the tasks that end the user's plan, and writes behind one shuffle."""
        output = classifier.output
        schema = from_arrow_schema(pa.schema([field.with_name(f"c{i}") for i, field in enumerate(output)]))
        classified = self.frame.select(*_numbered(self.schema.names)).mapInArrow(
            lambda batches: map(classifier.classify, batches), schema
        )
        partitioned = classified.repartition(parts, f"c{output.get_field_index(classifier.identity)}")
        return _lines(partitioned, lambda batches: [write(TaskContext.get().partitionId(), batches)])


@contextmanager
def prepared_rows(
    context: StepContext, options: PrepareOptions, function: Callable[..., object], tables: Sequence[str], parts: int
) -> Iterator[SparkRows]:
    """Starts Spark and calls the user's function; see :class:`airflow_hops.ml.prepare.engine.EngineRows`."""
    let_workers_import()
    start_spark_context(context)
    spark = start_spark(context.spec.step)
    pool = spark_pool(spark.sparkContext, context.store)
    # Of the user's own joins, too: as many as there will be files.
    spark.conf.set("spark.sql.shuffle.partitions", parts)
    context.progress(0.1, "Spark has started")
    if pool.reads_store:
        files = pool.splits(context, "tables", tables)
        frames = {name: read_stored_table(spark, files[name]) for name in tables}
    else:
        frames = {name: read_table(spark, context.local("tables") / name) for name in tables}
    yield SparkRows(*call_on_spark(spark, options, function, frames), pool)


def start_spark(name: str) -> SparkSession:
    """Returns the Spark session of this process: the one configured by spark-submit, or a local one."""
    spark = SparkSession.builder.appName(name).config("spark.sql.session.timeZone", "UTC").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    return spark


def call_on_spark(
    spark: SparkSession, options: PrepareOptions, function: Callable[..., object], tables: Mapping[str, DataFrame]
) -> tuple[DataFrame, pa.Schema]:
    """Returns the result of the user's function, with the conditions of ``reject`` in its reason to reject a row.

    Raises:
        BadInput: it raised, or did not return a DataFrame of columns that examples can have; or Spark does not
            understand a condition.
    """
    frame = call_prepare(options.prepare, function, spark, dict(tables))
    if not isinstance(frame, DataFrame):
        raise BadInput(f"{options.prepare} returned a {type(frame).__name__}, expected a Spark DataFrame")
    _tell_case_apart(spark, frame.columns)
    schema = _arrow_schema(frame)
    check_columns(schema, options)
    reasons = [quoted(REASON_COLUMN).cast("string")] if REASON_COLUMN in frame.columns else []
    for reason, condition in options.reject.items():
        try:
            reasons.append(F.when(F.expr(condition), F.lit(reason)))
            frame.select(reasons[-1])
        except PySparkException as error:
            raise BadInput(f"reject[{reason!r}]: {condition!r}: {str(error).strip().splitlines()[0]}") from error
    if reasons:
        frame = frame.withColumn(REASON_COLUMN, F.coalesce(*reasons))
        schema = _arrow_schema(frame)
    return frame, schema


def read_table(spark: SparkSession, folder: Path) -> DataFrame:
    """Opens a table of a snapshot with the schema of its first file, since Spark would start a job to read it."""
    first = min(folder.glob("*.parquet"))
    schema = from_arrow_schema(scan.schema(first).remove_metadata(), prefer_timestamp_ntz=True)
    # Spark 3.5: skips row groups by bounds, which may lack NaN, and by dictionaries, in which -0.0 is not 0.0.
    spark.conf.set("spark.sql.parquet.filterPushdown", "false")
    _tell_case_apart(spark, schema.names)
    # Spark 3.5: refuses to guess the calendar before 1582; it is Arrow's, so dates are not rebased.
    reader = spark.read.schema(schema).option("datetimeRebaseMode", "CORRECTED")
    # Spark 3.5: decodes no percent-encoding; run IDs contain a plus sign.
    return reader.parquet(f"file://{folder.absolute()}")


def read_stored_table(spark: SparkSession, files: Sequence[File]) -> DataFrame:
    """Opens a table in a remote store; executors read its files with Arrow, one partition each."""
    schema = from_arrow_schema(scan.schema(files[0]).remove_metadata(), prefer_timestamp_ntz=True)
    _tell_case_apart(spark, schema.names)
    read = partial(_read_files, list(files), to_arrow_schema(schema))
    # Not spark.range: with a single file its rows would count as clustered already, and none be shuffled.
    numbers = spark.sparkContext.parallelize([(number,) for number in range(len(files))], len(files))
    return spark.createDataFrame(numbers, "number long").mapInArrow(read, schema)


def quoted(name: str) -> Column:
    """Returns a column by a name of any characters."""
    return F.col("`{}`".format(name.replace("`", "``")))


def _read_files(
    files: Sequence[File], schema: pa.Schema, numbers: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for number in (number for batch in numbers for number in batch.column(0).to_pylist()):
        with fetched(files[number]) as path:
            for batch in scan.batches(path):
                yield from pa.Table.from_batches([batch]).replace_schema_metadata().cast(schema).to_batches()


def _numbered(names: Sequence[str]) -> list[Column]:
    """Returns columns with names that ``mapInArrow`` takes; it takes none with a dot."""
    return [quoted(name).alias(f"c{i}") for i, name in enumerate(names)]


def _arrow_schema(frame: DataFrame) -> pa.Schema:
    fields = []
    for field in frame.schema:
        try:
            fields.append(pa.field(field.name, to_arrow_type(field.dataType)))
        except (PySparkException, TypeError) as error:
            raise BadInput(
                f"prepare's column {field.name!r} is of type {field.dataType.simpleString()}; expected numbers, text, "
                "times, or arrays of numbers"
            ) from error
    return pa.schema(fields)


def _lines(frame: DataFrame, work: Callable[[Iterable[Any]], Iterable[str]]) -> list[str]:
    """Calls ``work`` with the batches of each partition; returns the lines that it returns."""

    def run(batches: Iterable[object]) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_arrays([pa.array(work(batches), pa.string())], ["line"])

    with _job_failures():
        return [line for (line,) in frame.mapInArrow(run, "line string").collect()]


@contextmanager
def _job_failures() -> Iterator[None]:
    """Converts errors of Spark's data exceptions (SQLSTATE 22), and of the user's functions, to BadInput."""
    try:
        yield
    except PythonException as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        last = next((line for line in reversed(lines) if not line.startswith(("at ", "...", "JVM"))), "no message")
        raised, _, message = last.partition(": ")
        if raised.endswith(f".{BadInput.__name__}"):
            raise BadInput(message) from error
        places = re.findall(r'File "[^"]*?(airflow_hops/ml/prepare/[^"]*)", line \d+', str(error))
        where = re.findall(r'File "([^"]*)", line \d+', str(error))
        if places and where[-1].endswith(places[-1]):
            raise HopsError(f"a Spark task failed in {places[-1]}: {last}") from error
        raise BadInput(f"a Python function in prepare raised: {last}") from error
    except (Py4JJavaError, CapturedException) as error:
        if reason := data_error(error):
            raise BadInput(f"an expression of prepare or reject cannot be computed: {reason}") from error
        raise HopsError(f"Spark failed: {last_words(error)}") from error


def _tell_case_apart(spark: SparkSession, names: Sequence[str]) -> None:
    """Makes Spark case-sensitive if names differ only in case; by default it would treat them as equal."""
    if len({name.lower() for name in names}) < len(set(names)):
        spark.conf.set("spark.sql.caseSensitive", "true")

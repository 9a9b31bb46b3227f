"""Rows of a table in the catalogue of the Spark session, copied by Spark's tasks."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import AnalysisException, PySparkTypeError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.extensions.tables.core.sources import TableSource
from airflow_hops.extensions.tables.ml.read import lake
from airflow_hops.extensions.tables.ml.read.open_table import OpenTable, check_duplicates, columns_to_read
from airflow_hops.ml.ingest.window import Window
from airflow_hops.ml.spark.context import as_spark_failure, let_workers_import
from airflow_hops.ml.spark.pools import Pool

_UNKNOWN = "unknown-"


def state_of(source: TableSource) -> list[list[Any]]:
    """Returns a hash of the names, sizes and times of modification of the table's files, as one row.

    Of a table that Spark reads from no files, the state is unknown, and so a new text each time.
    """
    return [[_fingerprint(_frame(source)) or f"{_UNKNOWN}{uuid.uuid4().hex}"]]


@contextmanager
def opened(source: TableSource, window: Window, state: str) -> Iterator[OpenTable]:
    """Opens a table for the rows in a window; Spark prunes partitions by the time column.

    Raises:
        BadInput: the table or a column is missing, or a key occurs twice.
        HopsError: Spark failed, or the table has changed since it was planned.
    """
    frame = _frame(source)
    columns = columns_to_read(source, frame.columns, source.uri)
    with _failing(source):
        schema: pa.Schema = to_arrow_schema(frame.select(*map(_column, columns)).schema)
    bounds = lake.bounds(source, window, schema)
    time = _column(source.time_column) if source.time_column is not None else F.lit(None)
    inside = frame
    for compared, bound in bounds:
        limit = F.lit(bound.as_py())
        if not pa.types.is_integer(bound.type):
            limit = F.lit(bound.as_py().isoformat()).cast(frame.schema[str(source.time_column)].dataType)
        inside = inside.filter(time >= limit if compared == ">=" else time < limit)
    with _failing(source):
        without_time = frame.filter(time.isNull()).count() if bounds else 0
        names = [*map(str, range(len(source.key))), "count"]
        counts = inside.groupBy(*map(_column, source.key)).agg(F.count("*")).toDF(*names)
        repeated = counts.filter("count > 1").limit(1).collect() if source.key else []
    check_duplicates([tuple(row) for row in repeated], source, source.uri)
    # mapInArrow looks for a column "a.b" in a struct "a".
    chosen = inside.select(*(_column(name).alias(str(number)) for number, name in enumerate(columns)))

    def span() -> tuple[str | None, str | None]:
        with _failing(source):
            first, last = frame.agg(F.min(time).cast("string"), F.max(time).cast("string")).collect()[0]
        return first, last

    yield OpenTable(
        source.uri,
        {name: schema.field(name).type for name in columns},
        [None],
        partial(_named, columns),
        without_time=without_time,
        span=span,
        pool=Pool(partial(_run, chosen, source.uri)),
    )
    if not state.startswith(_UNKNOWN) and _fingerprint(_frame(source)) != state:
        raise HopsError(f"{source.uri}: the table has changed since its read was planned; retry")


def _named(names: list[str], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return (pa.RecordBatch.from_arrays(batch.columns, names) for batch in batches)


def _run(
    frame: DataFrame, uri: str, work: Callable[[Any], str], _parts: Sequence[object], _report: Callable[[int], None]
) -> list[str]:
    """Runs a task for each of Spark's partitions, with its record batches; returns their summaries."""

    def summarise(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        yield pa.RecordBatch.from_arrays([pa.array([work((context.partitionId(), batches))])], ["summary"])

    with as_spark_failure(uri):
        return [row["summary"] for row in frame.mapInArrow(summarise, "summary string").collect()]


def _frame(source: TableSource) -> DataFrame:
    """Returns the table; starts the Spark session if it does not run yet."""
    let_workers_import()
    builder = SparkSession.builder.appName("ingest").config("spark.sql.session.timeZone", "UTC")
    if source.uri.startswith("hive://"):
        builder = builder.enableHiveSupport()
    with as_spark_failure():
        spark = builder.getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        catalogue = spark.conf.get("spark.sql.catalogImplementation")
    if source.uri.startswith("hive://") and catalogue != "hive":
        raise BadInput(
            f"{source.uri}: the Spark session was started without Hive; give the operator "
            "conf={'spark.sql.catalogImplementation': 'hive'}"
        )
    name = source.uri.partition("://")[2]
    with _failing(source):
        spark.catalog.refreshTable(name)
        return spark.table(name)


def _column(name: str) -> Column:
    return F.col("`{}`".format(name.replace("`", "``")))


def _failing(source: TableSource) -> AbstractContextManager[None]:
    """Converts errors of Spark to ours; a retry cannot help if the table, a column or a type is missing."""
    return as_spark_failure(source.uri, AnalysisException, PySparkTypeError)


def _fingerprint(frame: DataFrame) -> str | None:
    with as_spark_failure():
        spark = frame.sparkSession
        configuration = spark._jsc.hadoopConfiguration()
        path_of = spark._jvm.org.apache.hadoop.fs.Path
        files = []
        for name in sorted(frame.inputFiles()):
            path = path_of(name)
            status = path.getFileSystem(configuration).getFileStatus(path)
            files.append([name, status.getLen(), status.getModificationTime()])
    return hashlib.sha256(json.dumps(files).encode()).hexdigest() if files else None

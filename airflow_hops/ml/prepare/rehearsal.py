"""Runs the operations of Spark steps on a few rows, so that Spark's JVM loads their classes.

:mod:`airflow_hops.runner.environments.class_archive` has the JVM archive them.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

from airflow_hops.core.parquet_writer import write_parquet
from airflow_hops.core.prepare.options import PrepareOptions
from airflow_hops.core.processes.temporary_folders import temporary_folder
from airflow_hops.ml.prepare.classes import Classifier
from airflow_hops.ml.prepare.files import PartWriter
from airflow_hops.ml.prepare.spark import SparkRows, call_on_spark, read_table, start_spark
from airflow_hops.ml.readers.artifact_files import OutputFolder
from airflow_hops.ml.spark.context import let_workers_import
from airflow_hops.ml.spark.pools import IN_PROCESS

_ROWS = 2000


def rehearse() -> None:
    """Reads tables, joins and aggregates them, writes examples, and runs Python in executors."""
    from pyspark.sql import functions as F

    with temporary_folder("rehearsal") as folder:
        _write_tables(folder)
        let_workers_import()
        spark = start_spark("rehearsal")
        main, other = (read_table(spark, folder / name) for name in ("main", "other"))
        counts = main.groupBy("group", "time").agg(F.count("*").alias("count"), F.avg("number").alias("mean"))
        joined = main.join(F.broadcast(counts), ["group", "time"], "left").join(F.broadcast(other), "group", "left")
        date = F.make_date(F.lit(2013), F.lit(1), (F.col("id") % 28 + 1).cast("int"))
        frame = joined.select(
            F.concat_ws("-", "group", date.cast("string"), F.col("id").cast("string")).alias("key"),
            (F.unix_timestamp("time") + 60 * (F.col("id") % 60)).alias("time"),
            (F.col("number") > 0.5).cast("bigint").alias("label"),
            F.weekday(date).alias("weekday"),
            F.when(F.col("number") < 0.9, F.col("number")).alias("number"),
            F.upper(F.trim("group")).alias("group"),
            *("count", "mean", "weight"),
            F.when(F.col("id") % 50 == 0, "rejected").alias("reject_reason"),
        )
        values = PrepareOptions("rehearsal", "label", "key", "time")
        rows = SparkRows(*call_on_spark(spark, values, lambda *_: frame, {}), IN_PROCESS)
        classifier = Classifier(values, rows.schema, 1_357_000_000, {})
        rows.write(classifier, 2, PartWriter(classifier, OutputFolder(str(folder / "examples"))))
        spark.sparkContext.parallelize(range(2), 2).map(abs).collect()


def _write_tables(folder: Path) -> None:
    numbers = range(_ROWS)
    main = pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "group": [("a", "b", "c")[number % 3] for number in numbers],
            "number": [(number * 7919 % 1000) / 1000 for number in numbers],
            "time": pa.array([datetime(2013, 1, 1, number % 24, tzinfo=UTC) for number in numbers], pa.timestamp("us")),
        }
    )
    other = pa.table({"group": ["a", "b"], "weight": [1.5, None]})
    for name, table in (("main", main), ("other", other)):
        (folder / name).mkdir()
        write_parquet(table, folder / name / "part-00000.parquet")
    (folder / "examples").mkdir()

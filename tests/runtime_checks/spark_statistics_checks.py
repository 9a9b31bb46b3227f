"""Statistics by the Spark engine beside those of the local one; one Spark application for all."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import statistics_equality
from statistics_equality import compare, flights_like_table, nested_table
from tfdv_checks import mixed_table

from airflow_hops.artifacts import HopsError
from airflow_hops.runtime.context import StepContext
from airflow_hops.runtime.spark_context import start_spark_context_of
from airflow_hops.runtime.statistics import generate_statistics
from airflow_hops.runtime.statistics.generate import collect_statistics

CASES = ("mixed", "nested", "weights", "slices", "slicing_config", "cross_features", "many_strings")


def compare_engines(context: StepContext) -> dict[str, Any]:
    """Differences by case, and the messages of what cannot be done."""
    start_spark_context_of(context)
    from pyspark.sql import SparkSession

    from airflow_hops.runtime.statistics import spark as engine

    engine._SMALL_TASK_BYTES = 1  # several tasks for small data, too
    spark = SparkSession.builder.getOrCreate()
    return {
        "cases": {name: _case(name, context.scratch) for name in CASES},
        "formats": _formats(context.scratch),
        "tables": _tables(spark),
        "sample": _sample(spark),
        "tree": _tree(spark),
        "errors": _errors(spark, context.scratch),
    }


def _case(name: str, scratch: Path) -> list[str]:
    make, options = statistics_equality.cases()[name]
    table = make()
    folder = scratch / name
    _write_parts(table, folder, 5)
    ours = generate_statistics(folder, options=options(), engine="spark")
    return compare(ours, generate_statistics(folder, options=options(), workers=1), table)


def _write_parts(table: pa.Table, folder: Path, parts: int) -> None:
    folder.mkdir()
    rows = table.num_rows // parts + 1
    for part in range(parts):
        pq.write_table(table.slice(part * rows, rows), folder / f"part-{part}.parquet", row_group_size=rows // 3 + 1)


def _formats(scratch: Path) -> dict[str, list[str]]:
    """CSV whose columns turn out to be of wider types only late, in many ranges; gzip; JSON lines."""
    rows = 400_000
    late = ["1"] * (rows - 1)
    table = pa.table(
        {"n": range(rows), "float_late": [*late, "1.5"], "text_late": [*late, "word"], "both": [*late[1:], "0.5", "x"]}
    )
    folder = scratch / "formats"
    folder.mkdir()
    pa.csv.write_csv(table, folder / "wide.csv")
    with gzip.open(folder / "small.csv.gz", "wb", compresslevel=1) as file:
        pa.csv.write_csv(table.slice(rows - 1000), file)
    lines = (json.dumps({"x": i, "y": "a" * (i % 3), "z": [i] * (i % 2)}) for i in range(3000))
    (folder / "lines.jsonl").write_text("\n".join(lines))
    found = {}
    for name in ("wide.csv", "small.csv.gz", "lines.jsonl"):
        ours = generate_statistics(folder / name, engine="spark")
        theirs = generate_statistics(folder / name, workers=1)
        found[name] = compare(ours, theirs, table)
        found[f"{name} types"] = [f"{f.path.step[0]} {f.type}" for f in ours.datasets[0].features]
    return found


def _tables(spark: Any) -> dict[str, list[str]]:
    """DataFrames of several and of empty partitions, a table by its name, and columns left out."""
    table = flights_like_table()
    frame = spark.createDataFrame(table.to_pandas().astype({"carrier": object}).where(lambda f: f.notna(), None))
    wanted = generate_statistics(table)
    frame.repartition(7).createOrReplaceTempView("flights_like")
    nested = nested_table(200).select(["numbers", "words", "structs"])
    nested_frame = spark.createDataFrame(nested.to_pandas())
    without = generate_statistics(frame, engine="spark", exclude=["late", "hour"])
    dotted = pa.table({"a.b": [1, 2], "q`x": ["u", "v"], "a": [{"b": 3, "c.d": "x"}, None]})
    renamed = spark.createDataFrame(
        [(1, "u", (3, "x")), (2, "v", None)], "`a.b` long, `q``x` string, a struct<b: long, `c.d`: string>"
    )
    return {
        "odd names": compare(generate_statistics(renamed, engine="spark"), generate_statistics(dotted), dotted),
        "frame": compare(generate_statistics(frame.repartition(3), engine="spark"), wanted, table),
        "empty partitions": compare(
            generate_statistics(frame.coalesce(1).repartition(9, "late"), engine="spark"), wanted, table
        ),
        "table": compare(generate_statistics("spark://flights_like", engine="spark"), wanted, table),
        "nested": compare(generate_statistics(nested_frame, engine="spark"), generate_statistics(nested), nested),
        "excluded": sorted(feature.path.step[0] for feature in without.datasets[0].features),
    }


def _sample(spark: Any) -> int:
    import tensorflow_data_validation as tfdv

    options = tfdv.StatsOptions(sample_rate=0.2)
    frame = spark.range(0, 7000, 1, 5)
    return int(generate_statistics(frame, options=options, engine="spark").datasets[0].num_examples)


def _tree(spark: Any) -> dict[str, Any]:
    """Seventeen tasks: what the job's stages were, and the progress."""
    context, shares = spark.sparkContext, []
    context.setJobGroup("tree", "a tree of merges")
    found = collect_statistics(spark.range(0, 7000, 1, 17), engine="spark", progress=shares.append)
    tracker = context.statusTracker()
    stages = [stage for job in tracker.getJobIdsForGroup("tree") for stage in tracker.getJobInfo(job).stageIds]
    table = pa.table({"id": range(7000)})
    return {
        "tasks": sorted((tracker.getStageInfo(stage).numTasks for stage in stages), reverse=True),
        "differences": compare(found.statistics, generate_statistics(table), table),
        "rows": found.rows,
        "shares": shares,
    }


def _errors(spark: Any, scratch: Path) -> dict[str, str]:
    import tensorflow_data_validation as tfdv

    corrupt = scratch / "corrupt"
    _write_parts(mixed_table(100), corrupt, 2)
    (corrupt / "part-9.parquet").write_bytes(b"PAR1 this is not Parquet PAR1")
    damaged = scratch / "damaged"
    damaged.mkdir()
    pq.write_table(pa.table({"x": range(100_000)}), damaged / "part-0.parquet", use_dictionary=False)
    content = bytearray((damaged / "part-0.parquet").read_bytes())
    content[10_000:60_000] = bytes(50_000)
    (damaged / "part-1.parquet").write_bytes(content)
    times = spark.sql("select timestamp '2013-01-01' as t")
    twice = spark.sql("select 1 as x, 2 as x")

    def by_nothing(batch: pa.RecordBatch) -> Any:
        raise KeyError("no such slice")

    sliced = tfdv.StatsOptions(experimental_slice_functions=[by_nothing])
    skipped = generate_statistics(damaged, engine="spark", on_corrupt="skip")
    return {
        "corrupt": _message(corrupt),
        "damaged": _message(damaged),
        "skipped": str(skipped.datasets[0].num_examples),
        "no table": _message("spark://no_such_table"),
        "timestamp": _message(times),
        "two columns": _message(twice),
        "no rows": _message(spark.sql("select 1 as x where false")),
        "no column": _message(spark.range(3), exclude=["id"]),
        "batches": _message(iter(mixed_table(10).to_batches())),
        "no file": _message(scratch / "nothing"),
        "slice function": _message(spark.range(3), options=sliced),
    }


def _message(source: Any, **given: Any) -> str:
    try:
        generate_statistics(source, engine="spark", **given)
    except HopsError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"

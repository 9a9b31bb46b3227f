"""Statistics by Spark: the same as those of this machine, from files, DataFrames and tables."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import tensorflow_data_validation as tfdv
from crafted_files import AS_STORED, write_crafted
from scipy import stats
from statistics_equality import compare, flights_like_table, mixed_table, nested_table

from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.ml.statistics import generate_statistics
from airflow_hops.ml.statistics.generate import collect_statistics

pytestmark = pytest.mark.spark


def _types(statistics: Any) -> dict[str, int]:
    return {feature.path.step[0]: feature.type for feature in statistics.datasets[0].features}


def test_executors_read_text_with_late_wider_types(spark: Any, tmp_path: Path) -> None:
    rows = 200_000  # of more than one block
    late = ["1"] * (rows - 1)
    table = pa.table(
        {"n": [f"{n:030}" for n in range(rows)], "float_late": [*late, "1.5"], "both": [*late[1:], "0.5", "x"]}
    )
    pa.csv.write_csv(table, tmp_path / "wide.csv")
    with gzip.open(tmp_path / "lines.jsonl.gz", "wt", compresslevel=1) as file:
        file.writelines(json.dumps({"x": i, "y": "a" * (i % 3), "z": [i] * (i % 2)}) + "\n" for i in range(3000))
    types = {"wide.csv": {"n": 2, "float_late": 1, "both": 2}, "lines.jsonl.gz": {"x": 0, "y": 2, "z": 0}}
    for name, expected in types.items():
        ours = generate_statistics(tmp_path / name, engine="spark")
        assert compare(ours, generate_statistics(tmp_path / name, processes=1), table) == []
        assert _types(ours) == expected


def test_a_dataframe_has_the_statistics_of_its_rows(spark: Any) -> None:
    table = flights_like_table(600)
    pandas = table.to_pandas().astype({"carrier": object})
    frame = spark.createDataFrame(pandas.where(lambda f: f.notna(), None))
    frame.repartition(3).createOrReplaceTempView("flights_like")
    expected = generate_statistics(table)
    for values in (frame.coalesce(1).repartition(9, "late"), "spark://flights_like"):  # some partitions are empty
        assert compare(generate_statistics(values, engine="spark"), expected, table) == []
    without = generate_statistics(frame, engine="spark", exclude=["late", "hour", "photo"])
    assert sorted(_types(without)) == ["carrier", "delay", "weight"]


def test_a_dataframe_may_have_lists_structs_and_odd_names(spark: Any) -> None:
    nested = nested_table(200).select(["numbers", "words", "structs"])
    odd = pa.table({"a.b": [1, 2], "q`x": ["u", "v"], "a": [{"b": 3, "c.d": "x"}, None]})
    frame = spark.createDataFrame(
        [(1, "u", (3, "x")), (2, "v", None)], "`a.b` long, `q``x` string, a struct<b: long, `c.d`: string>"
    )
    for values, table in ((spark.createDataFrame(nested.to_pandas()), nested), (frame, odd)):
        assert compare(generate_statistics(values, engine="spark"), generate_statistics(table), table) == []


def test_rows_and_sample_of_a_dataframe_are_uniform(spark: Any) -> None:
    frame = spark.range(0, 20_000, 1, 5).selectExpr("id", "id % 10 AS few")
    options = {"options": tfdv.StatsOptions(sample_rate=0.5), "engine": "spark", "sample_rows": 2000}
    first, again = (collect_statistics(frame, **options) for _ in range(2))
    assert first.sample == again.sample
    # 10,000 of 20,000 rows are expected, with a standard deviation of 71.
    assert 9600 < first.statistics.datasets[0].num_examples < 10_400
    ids = first.sample.column("id").to_numpy()
    assert len(np.unique(ids)) == 2000
    assert stats.kstest(ids / 20_000, "uniform").pvalue > 1e-3
    assert stats.chisquare(np.bincount(first.sample.column("few").to_numpy())).pvalue > 1e-3


def test_many_tasks_are_merged_as_a_tree(spark: Any) -> None:
    context, shares = spark.sparkContext, []
    context.setJobGroup("tree", "a tree of merges")
    statistics = collect_statistics(spark.range(0, 7000, 1, 17), engine="spark", progress=shares.append)
    tracker = context.statusTracker()
    stages = [stage for job in tracker.getJobIdsForGroup("tree") for stage in tracker.getJobInfo(job).stageIds]
    assert sorted((tracker.getStageInfo(stage).numTasks for stage in stages), reverse=True) == [17, 3, 1]
    table = pa.table({"id": range(7000)})
    assert compare(statistics.statistics, generate_statistics(table), table) == []
    assert statistics.rows == 7000
    assert shares == sorted(shares) and shares[-1] == 1.0


def _damaged(folder: Path) -> Path:
    pq.write_table(pa.table({"x": range(100_000)}), folder / "part-0.parquet", use_dictionary=False)
    content = bytearray((folder / "part-0.parquet").read_bytes())
    content[10_000:60_000] = bytes(50_000)
    (folder / "part-1.parquet").write_bytes(content)
    return folder


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (lambda spark, folder: _damaged(folder), ["part-1.parquet", "cannot be read"]),
        (lambda spark, folder: "spark://no_such_table", ["spark://no_such_table", "cannot be found"]),
        (lambda spark, folder: spark.sql("select 1 as x, 2 as x"), ["two columns are called 'x'"]),
        (lambda spark, folder: spark.sql("select 1 as x where false"), ["no rows"]),
        (lambda spark, folder: iter(mixed_table(10).to_batches()), ["a stream of record batches"]),
    ],
)
def test_bad_input_is_named(spark: Any, tmp_path: Path, source: Callable[[Any, Path], Any], words: list[str]) -> None:
    with pytest.raises(HopsError) as refused:
        generate_statistics(source(spark, tmp_path), engine="spark")
    for word in words:
        assert word in str(refused.value)


def test_error_of_a_slice_function_is_named(spark: Any) -> None:
    def by_nothing(batch: pa.RecordBatch) -> Any:
        raise KeyError("no such slice")

    options = tfdv.StatsOptions(experimental_slice_functions=[by_nothing])
    with pytest.raises(BadInput, match=r"slices.*by_nothing.*KeyError\('no such slice'\)"):
        generate_statistics(spark.range(3), engine="spark", options=options)


def test_damaged_file_found_by_an_executor_is_left_out(spark: Any, tmp_path: Path) -> None:
    result = generate_statistics(_damaged(tmp_path), engine="spark", on_corrupt="skip")
    assert result.datasets[0].num_examples == 100_000


def test_worker_does_not_run_code_of_a_crafted_file(spark: Any, tmp_path: Path) -> None:
    def read(path: str) -> str:  # travels by value: this package is not imported for it
        import pyarrow.parquet

        try:
            return f"{pyarrow.parquet.read_table(path).num_rows} rows"
        except RuntimeError as error:
            return str(error)

    path = write_crafted(tmp_path / "crafted.parquet", tmp_path / "proof")
    (answer,) = spark.sparkContext.parallelize([str(path)], 1).map(read).collect()
    assert answer.startswith("3 rows" if AS_STORED else "Disallowed deserialization of 'arrow.py_extension_type'")
    assert not (tmp_path / "proof").exists()

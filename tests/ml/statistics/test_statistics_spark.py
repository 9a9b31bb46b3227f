"""Statistics by Spark: the same as those of this machine."""

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
from statistics_equality import compare, mixed_table

from airflow_hops.core.errors import BadInput
from airflow_hops.ml.statistics import generate_statistics
from airflow_hops.ml.statistics import spark as spark_engine
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


def test_many_tasks_are_merged_as_a_tree(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_engine, "_TASKS_PER_CORE", 10)
    for part, ids in enumerate(np.array_split(np.arange(7000), 17)):
        pq.write_table(pa.table({"id": ids}), tmp_path / f"{part:02}.parquet")
    context, shares = spark.sparkContext, []
    context.setJobGroup("tree", "a tree of merges")
    statistics = collect_statistics(tmp_path, engine="spark", progress=shares.append)
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
        (_damaged, ["part-1.parquet", "cannot be read"]),
        (lambda folder: iter(mixed_table(10).to_batches()), ["a stream of record batches"]),
    ],
)
def test_bad_input_is_named(spark: Any, tmp_path: Path, source: Callable[[Path], Any], words: list[str]) -> None:
    with pytest.raises(BadInput) as refused:
        generate_statistics(source(tmp_path), engine="spark")
    for word in words:
        assert word in str(refused.value)


def test_error_of_a_slice_function_is_named(spark: Any) -> None:
    def by_nothing(batch: pa.RecordBatch) -> Any:
        raise KeyError("no such slice")

    options = tfdv.StatsOptions(experimental_slice_functions=[by_nothing])
    with pytest.raises(BadInput, match=r"slices.*by_nothing.*KeyError\('no such slice'\)"):
        generate_statistics(pa.table({"id": range(3)}), engine="spark", options=options)


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

"""Statistics depend on rows and options alone: equal bytes for any number of processes and on Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from written_tables import generated_columns, write

from airflow_hops.ml.statistics import quantiles
from airflow_hops.ml.statistics.generate import collect_statistics
from airflow_hops.ml.statistics.options import options_from

OPTIONS: dict[str, dict[str, Any]] = {
    "slices": {"slice_by": ["few", "many"], "semantic_domains": True},
    "sample": {"sample_rate": 0.3, "weight_feature": "weight"},
}


def columns(rows: int) -> pa.Table:
    """Numbers, strings and lists of every kind: few, many and unique values, missing ones, NaN and infinities."""
    random = np.random.default_rng(rows)
    floats = random.normal(size=rows) * 10.0 ** random.integers(-9, 9, rows)
    odd = np.where(random.random(rows) < 0.01, np.inf, np.where(random.random(rows) < 0.1, np.nan, floats))
    some = random.random(rows) < 0.3
    return pa.table(
        {
            "float": floats,
            "float32": pa.array(floats.astype(np.float32), mask=some),
            "odd": np.where(random.random(rows) < 0.01, -np.inf, odd),
            "integer": random.integers(-(2**62), 2**62, rows),
            "digit": pa.array(random.integers(0, 10, rows), mask=some),
            "few": random.choice(["a", "b", "cé"], rows),
            "many": pa.array([f"m{v}" for v in random.zipf(1.5, rows) % 30], mask=some),
            "unique": [f"u-{v}" for v in random.permutation(rows)],
            "bytes": [b"\xff%d" % (i % 7) if i % 5 else b"x" * 2000 for i in range(rows)],
            "none": pa.nulls(rows, pa.float64()),
            "late": pa.array([None] * (rows - 50) + ["late"] * 50),
            "lists": [floats[i : i + i % 4].tolist() if i % 6 else None for i in range(rows)],
            "structs": [{"x": float(v), "y": [[i % 3], []]} for i, v in enumerate(floats)],
            "weight": random.random(rows),
            "label": random.choice(["yes", "no"], rows),
        }
    )


def collected(source: Path, options: dict[str, Any], **given: Any) -> tuple[bytes, str]:
    result = collect_statistics(source, options=options_from(options), sample_rows=100, **given)
    return result.statistics.SerializeToString(deterministic=True), str(result.sample.to_pydict())


def write_files(folder: Path, rows: int) -> Path:
    """Nine files of more and more rows, in one row group or many, and one without rows."""
    table = columns(rows)
    pq.write_table(table.slice(0, 0), folder / "0.parquet")
    for number in range(9):
        start, stop = number**2 * rows // 81, (number + 1) ** 2 * rows // 81
        groups = rows if number % 2 else rows // 20
        pq.write_table(table.slice(start, stop - start), folder / f"{number + 1}.parquet", row_group_size=groups)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS)
def test_processes_do_not_change_statistics(
    tmp_path: Path, small_parts: None, monkeypatch: pytest.MonkeyPatch, options: str
) -> None:
    monkeypatch.setattr(quantiles, "FEATURE_VALUES", 150)  # so that summaries are thinned
    write_files(tmp_path, 600)
    one, three = (collected(tmp_path, OPTIONS[options], processes=processes) for processes in (1, 3))
    assert one == three


@pytest.mark.slow
@pytest.mark.parametrize("format_", ["parquet", "csv"])
def test_units_of_one_file_are_shared_without_changing_statistics(
    tmp_path: Path, small_parts: None, format_: str
) -> None:
    path = tmp_path / f"t.{format_}"
    if format_ == "parquet":
        pq.write_table(generated_columns(), path)
    else:
        write(generated_columns(), path)
    weights = {"weight_feature": "weight", "num_quantiles_histogram_buckets": 100}
    one, two = (collected(path, weights, processes=processes) for processes in (1, 2))
    assert one == two


@pytest.mark.spark
@pytest.mark.parametrize("options", OPTIONS)
def test_spark_does_not_change_statistics(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: str
) -> None:
    monkeypatch.setattr(quantiles, "FEATURE_VALUES", 300)
    write_files(tmp_path, 1200)
    assert collected(tmp_path, OPTIONS[options], engine="spark") == collected(tmp_path, OPTIONS[options], processes=1)

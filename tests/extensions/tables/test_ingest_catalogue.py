"""Ingest of tables in Spark's catalogue: a Hive metastore on embedded Derby."""

from __future__ import annotations

import os
import subprocess
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from airflow_hops.extensions.tables import TableSource
from airflow_hops.hooks.runtime import StepFailed
from airflow_hops.launchers.spark import SparkLauncher

pytestmark = [pytest.mark.runtime, pytest.mark.spark]

RUN, STATES = "airflow_hops.ml.stages.ingest:run", "airflow_hops.extensions.tables.ml.read.tables:states_of"
SCRIPT = Path(__file__).with_name("make_catalogue.py")
WINDOW = {"window_start": "2013-01-05", "window_end": "2013-01-07"}


def test_hive_table_is_pruned_to_the_window_and_changes_are_seen(run_step: Any, runtime: Path, tmp_path: Path) -> None:
    conf = {
        "spark.sql.warehouse.dir": f"{tmp_path}/warehouse",
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={tmp_path}/metastore;create=true",
        "spark.ui.enabled": "false",
    }
    options = " ".join(f"--conf '{name}={value}'" for name, value in conf.items())
    environment = {**os.environ, "PYSPARK_SUBMIT_ARGS": f"--master local[2] {options} pyspark-shell"}
    subprocess.run([runtime / "bin" / "python", SCRIPT], env=environment, cwd=tmp_path, check=True)
    launcher = SparkLauncher(runtime, "spark_local", conf)

    def ingest(
        states: dict[str, str] | None = None, window_end: str = WINDOW["window_end"], **sources: TableSource
    ) -> Any:
        params = {"sources": {name: source.to_dict() for name, source in sources.items()}, **WINDOW}
        params["window_end"] = window_end
        return run_step(RUN, params={**params, "plans": states}, kind="snapshot", launcher=launcher)

    pruned = TableSource("hive://shop.rows", time_column="day", key=("id",))
    states = run_step(STATES, params={"sources": {"rows": pruned.to_dict()}}, launcher=launcher)
    artifact = ingest(states, rows=pruned, hours=TableSource("hive://shop.rows", time_column="at", columns=("id",)))
    folder = run_step.store.local(artifact)
    table = pq.read_table(folder / "rows")
    rows = sorted(table.to_pylist(), key=lambda row: row["id"])
    assert [row["id"] for row in rows] == list(range(96, 144))
    assert rows[1]["price"] == Decimal("24.25")
    assert [row["flag"] for row in rows[:3]] == [None, False, True]
    assert str(table.schema.field("at").type) == "timestamp[us, tz=UTC]"
    assert sorted(pq.read_table(folder / "hours")["id"].to_pylist()) == list(range(96, 144))
    assert artifact.properties["plans"] == states

    # A file outside the window is damaged: only a read that prunes does not notice.
    next((tmp_path / "warehouse" / "shop.db" / "rows" / "day=2013-01-20").glob("part-*")).write_bytes(b"damaged")
    with pytest.raises(
        StepFailed, match=r"hive://shop\.rows: the table has changed since its read was planned"
    ) as failure:
        ingest(states, rows=pruned)
    assert failure.value.retryable
    assert ingest(rows=pruned).rows["rows"].rows_out == 48

    odd = TableSource("hive://shop.odd", columns=("a.b", "Ti`ck ü%"), time_column="select", key=("a.b",))
    folder = run_step.store.local(ingest(rows=odd, window_end="2050-01-01"))
    expected = [{"a.b": 2 * n, "Ti`ck ü%": "ü"} for n in range(4, 9)]
    assert sorted(pq.read_table(folder / "rows").to_pylist(), key=lambda row: row["a.b"]) == expected
    for table, fields, message in (
        ("gone", {}, "TABLE_OR_VIEW_NOT_FOUND"),
        ("a-b", {}, "INVALID_IDENTIFIER"),
        ("odd", {}, "YearMonthIntervalType"),
        ("odd", {"columns": ("a",), "key": ("count",)}, "MAP"),
    ):
        with pytest.raises(StepFailed, match=rf"hive://shop\.{table}: .*{message}") as failure:
            ingest(rows=TableSource(f"hive://shop.{table}", **fields))
        assert not failure.value.retryable

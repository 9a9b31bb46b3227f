"""Ingest of a Hive table: a metastore on embedded Derby. tests/ml/extensions/tables/test_catalogue.py has the rules."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from airflow_hops.core.errors import StepFailed
from airflow_hops.extensions.tables import TableSource
from airflow_hops.runner.launchers.spark import SparkLauncher

pytestmark = [pytest.mark.runtime, pytest.mark.spark, pytest.mark.scheduled(part="clusters")]

RUN, STATES = "airflow_hops.ml.ingest:run", "airflow_hops.extensions.tables.ml.read.tables:states_of"
MAKE = """
from pyspark.sql import SparkSession

spark = SparkSession.builder.enableHiveSupport().config("spark.sql.session.timeZone", "UTC").getOrCreate()
spark.sql("CREATE DATABASE shop")
spark.sql("SET hive.exec.dynamic.partition.mode=nonstrict")
spark.sql("CREATE TABLE shop.rows (id BIGINT) PARTITIONED BY (day DATE) STORED AS PARQUET")
spark.sql(
    "INSERT INTO shop.rows SELECT id, date_add(DATE'2013-01-01', CAST(floor(id / 24) AS INT)) FROM range(1000)"
)
"""


def test_hive_table_is_pruned_to_the_window_and_changes_are_seen(run_step: Any, runtime: Path, tmp_path: Path) -> None:
    conf = {
        "spark.sql.warehouse.dir": f"{tmp_path}/warehouse",
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={tmp_path}/metastore;create=true",
        "spark.ui.enabled": "false",
    }
    options = " ".join(f"--conf '{name}={value}'" for name, value in conf.items())
    environment = {**os.environ, "PYSPARK_SUBMIT_ARGS": f"--master local[2] {options} pyspark-shell"}
    subprocess.run([runtime / "bin" / "python", "-c", MAKE], env=environment, cwd=tmp_path, check=True)
    launcher = SparkLauncher(runtime, "spark_local", conf)
    source = TableSource("hive://shop.rows", time_column="day", key=("id",)).to_dict()
    params = {"sources": {"rows": source}, "window_start": "2013-01-05", "window_end": "2013-01-07"}
    states = run_step(STATES, params={"sources": params["sources"]}, launcher=launcher)
    artifact = run_step(RUN, params={**params, "plans": states}, kind="snapshot", launcher=launcher)
    table = pq.read_table(run_step.store.local(artifact) / "rows")
    assert sorted(table["id"].to_pylist()) == list(range(96, 144))
    assert artifact.properties["plans"] == states

    # A file outside the window is damaged: only a read that prunes does not notice.
    next((tmp_path / "warehouse" / "shop.db" / "rows" / "day=2013-01-20").glob("part-*")).write_bytes(b"damaged")
    with pytest.raises(StepFailed, match=r"hive://shop\.rows: the table has changed since its read was planned"):
        run_step(RUN, params={**params, "plans": states}, kind="snapshot", launcher=launcher)

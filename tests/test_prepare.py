"""The prepare operator, and prepare in a DAG run."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from world import World, results, states

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.errors import BadInput

pytestmark = pytest.mark.runtime


@pytest.mark.spark
def test_flights_become_examples_in_a_dag_run_and_come_from_the_cache_in_the_next(
    world: World, run_dag: Any, runtime: Path, flights_raw: Path
) -> None:
    store = world.connect(runtime=str(runtime)).store
    conf = {"raw": str(flights_raw), "start": "2013-01-01", "end": "2013-02-01"}
    runs = [run_dag("ingest_prepare", conf) for _ in range(2)]
    for run, cached in zip(runs, (False, True), strict=True):
        assert states(run) == {"ingest": "success", "prepare": "success"}
        assert [results(run)[task]["cached"] for task in ("prepare", "ingest")] == [cached, cached]
    first = results(runs[0])
    manifest = store.manifest(first["prepare"]["uri"])
    assert manifest.inputs["tables"][0].fingerprint == first["ingest"]["fingerprint"]
    rows = manifest.rows["flights"]
    assert rows.rows_in == 26_865
    assert rows.rejected == {"cancelled": 512, "diverted or arrival not recorded": 85}
    folder = store.local(Artifact.from_dict(first["prepare"]))
    january = pa.concat_tables(pq.read_table(folder / split) for split in ("train", "eval", "newest"))
    assert january.num_rows == rows.rows_out == 26_865 - 597
    assert january["late"].to_pylist().count(1) == 6108
    flights = {row["flight_id"]: row for row in january.to_pylist()}
    assert flights["UA1545-EWR-2013-01-01"] == {
        "flight_id": "UA1545-EWR-2013-01-01",
        "scheduled_at": int(datetime(2013, 1, 1, 10, 15, tzinfo=UTC).timestamp()),
        "late": 0,
        "carrier": "UA",
        "origin": "EWR",
        "dest": "IAH",
        "plane_manufacturer": "BOEING",
        "scheduled_minute": 5 * 60 + 15,
        "scheduled_arrival_minute": 8 * 60 + 19,
        "weekday": 1,
        "origin_departures_hour": 2,
        "distance": 1400.0,
        "plane_age": 14.0,
        "plane_seats": 149.0,
        "temp": 39.02,
        "dewp": 28.04,
        "humid": 64.43,
        "wind_speed": pytest.approx(12.65858),
        "precip": 0.0,
        "pressure": 1011.9,
        "visib": 10.0,
        "dest_lat": pytest.approx(29.984433),
        "dest_lon": pytest.approx(-95.341442),
    }


def test_missing_spark_connection_is_named(shared_run_step: Any, runtime: Path) -> None:
    from airflow_hops.runner.launchers.spark import SparkLauncher

    with pytest.raises(BadInput, match=r"no Spark connection 'spark_nowhere'.*AIRFLOW_CONN_SPARK_NOWHERE"):
        shared_run_step("airflow_hops.ml.prepare:run", launcher=SparkLauncher(runtime, "spark_nowhere"))


def test_missing_java_is_reported_in_one_line(
    shared_run_step: Any, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_hops.runner.environments.java import own_java
    from airflow_hops.runner.launchers.spark import SparkLauncher

    if own_java(runtime) is not None:
        pytest.skip("the runtime environment has a Java of its own")
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(
        BadInput, match=r"Spark \d\.\d needs Java .*17.*, found none; install one, run 'airf.*engine='duckdb'$"
    ) as failure:
        shared_run_step("airflow_hops.ml.prepare:run", launcher=SparkLauncher(runtime, "spark_local"))
    assert "\n" not in str(failure.value)

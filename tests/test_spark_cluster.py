"""A Spark cluster whose hosts share no folder with this one: stages there give the same artifacts as here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import spark_cluster
from conftest import StepRunner
from spark_cluster import SparkCluster

from airflow_hops.core.contract.artifacts import Artifact
from airflow_hops.launchers.spark import SparkLauncher

pytestmark = [
    pytest.mark.runtime,
    pytest.mark.spark,
    pytest.mark.skipif(bool(spark_cluster.why_not()), reason=spark_cluster.why_not() or "there can be one"),
]
REPOSITORY = Path(__file__).resolve().parent.parent
DAGS = (str(REPOSITORY / "dags"),)


@pytest.fixture(scope="module")
def cluster(runtime: Path) -> Iterator[SparkCluster]:
    with spark_cluster.spark_cluster(runtime) as cluster, pytest.MonkeyPatch.context() as patch:
        host, _, port = cluster.master.removeprefix("spark://").partition(":")
        connection = {"conn_type": "spark", "host": f"spark://{host}", "port": int(port)}
        patch.setenv("AIRFLOW_CONN_SPARK_CLUSTER", json.dumps(connection))
        yield cluster


@pytest.fixture(scope="module")
def run_step(cluster: SparkCluster, runtime: Path) -> Iterator[StepRunner]:
    """Runs steps in a store on S3, which the cluster's hosts reach."""
    import s3fs
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address=cluster.address, port=0)
    server.start()
    options = {
        "key": "testing",
        "secret": "testing",
        "endpoint_url": "http://{}:{}".format(*server.get_host_and_port()),
        "use_listings_cache": False,
    }
    s3fs.S3FileSystem(**options).mkdir("cluster")
    yield StepRunner("s3://cluster/hops", runtime, options)
    server.stop()


@pytest.fixture(scope="module")
def launchers(cluster: SparkCluster, runtime: Path) -> dict[str, SparkLauncher]:
    return {
        "here": SparkLauncher(runtime, "spark_local", {"spark.sql.shuffle.partitions": "2"}),
        "cluster": SparkLauncher(runtime, "spark_cluster", cluster.conf),
    }


@pytest.fixture(scope="module")
def snapshot(run_step: StepRunner, flights_raw: Path, warm_launcher: Any) -> Artifact:
    sources = {
        name: {"uri": str(flights_raw / file), "time_column": time}
        for name, file, time in (
            ("flights", "flights.csv.zip", "time_hour"),
            ("weather", "weather.csv", "time_hour"),
            ("planes", "planes.csv", None),
            ("airports", "airports.csv", None),
        )
    }
    result: Artifact = run_step(
        "airflow_hops.ml.stages.ingest:run",
        params={"sources": sources, "window_start": "2013-01-01T05:00:00Z", "window_end": "2013-01-20T05:00:00Z"},
        kind="snapshot",
        launcher=warm_launcher,
    )
    return result


def test_stages_on_a_cluster_write_the_artifacts_that_they_write_here(
    run_step: StepRunner, snapshot: Artifact, launchers: dict[str, SparkLauncher], warm_launcher: Any
) -> None:
    written: dict[str, list[dict[str, str]]] = {}
    for launcher in launchers.values():

        def run(stage: str, kind: str, launcher: Any = launcher, **of: Any) -> Artifact:
            result: Artifact = run_step(
                f"airflow_hops.ml.stages.{stage}:run", kind=kind, launcher=launcher, code_paths=DAGS, **of
            )
            files = run_step.store.manifest(result.uri).files
            written.setdefault(stage, []).append({entry.path: entry.sha256 for entry in files})
            assert run_step.store.damage(result.uri, run_step.store.manifest(result.uri)) is None
            return result

        columns = {"label": "late", "key": "flight_id", "time": "scheduled_at"}
        examples = run(
            "prepare.stage",
            "examples",
            params={"prepare": "flights.prepare:prepare", **columns},
            inputs={"tables": snapshot},
        )
        statistics = run("statistics", "statistics", inputs={"examples": examples}, params={"engine": "spark"})
        schema = run("schema", "schema", warm_launcher, inputs={"statistics": statistics})
        run(
            "transform.stage",
            "transformed_examples",
            params={"preprocess": "flights.features:preprocess"},
            inputs={"examples": examples, "statistics": statistics, "schema": schema},
        )
    here, there = written["prepare.stage"]
    assert here == there and len(here) > 4
    here, there = (
        {path: sha for path, sha in files.items() if path.endswith(".parquet")} for files in written["transform.stage"]
    )
    assert here == there and len(here) > 2
    for stage in ("statistics", "schema"):
        here, there = written[stage]
        assert list(here) == list(there)
    store = run_step.store
    assert not [uri for uri in store.files.remote().fs.find(store.root) if ".staging-" in uri]

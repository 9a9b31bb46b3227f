"""A Spark cluster whose hosts share no folder with this one: stages there give the same artifacts as here."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import flights_examples
import pyarrow as pa
import pytest
import spark_cluster
from conftest import StepRunner
from hdfs_cluster import HdfsCluster
from spark_cluster import SparkCluster

from airflow_hops.core.contract.artifacts import Artifact
from airflow_hops.hooks.runtime import StepFailed
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


@pytest.fixture(scope="module", params=["s3", "hdfs"])
def run_step(
    request: pytest.FixtureRequest, cluster: SparkCluster, runtime: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StepRunner]:
    """Runs steps in a store on S3 or HDFS, which the cluster's hosts reach."""
    if request.param == "hdfs":
        with HdfsCluster(tmp_path_factory.mktemp("hdfs"), cluster.address) as hdfs:
            runner = StepRunner(f"{hdfs.url}/hops", runtime)
            runner.cluster = cluster
            yield runner
        return
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
    runner = StepRunner("s3://cluster/hops", runtime, options)
    runner.cluster = cluster
    yield runner
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


COLUMNS = {"label": "late", "key": "flight_id", "time": "scheduled_at"}


def checksums(run_step: StepRunner, artifact: Artifact, ending: str = "") -> dict[str, str]:
    """Returns the checksums of an artifact's files, after comparing the files with them."""
    manifest = run_step.store.verify(artifact)
    return {entry.path: entry.sha256 for entry in manifest.files if entry.path.endswith(ending)}


def test_stages_on_a_cluster_write_the_artifacts_that_they_write_here(
    run_step: StepRunner, snapshot: Artifact, launchers: dict[str, SparkLauncher], warm_launcher: Any
) -> None:
    """Runs each stage here and on the cluster, where an executor is killed while it prepares and transforms."""

    def run(stage: str, kind: str, launcher: Any, kill_after: str = "", **of: Any) -> Artifact:
        with killing_an_executor(run_step, kill_after):
            result: Artifact = run_step(
                f"airflow_hops.ml.stages.{stage}:run", kind=kind, launcher=launcher, code_paths=DAGS, **of
            )
        return result

    def prepare(launcher: Any, **of: Any) -> Artifact:
        params = {"prepare": "flights.prepare:prepare", **COLUMNS}
        return run("prepare.stage", "examples", launcher, params=params, inputs={"tables": snapshot}, **of)

    def describe(examples: Artifact, launcher: Any) -> Artifact:
        return run("statistics", "statistics", launcher, params={"engine": "spark"}, inputs={"examples": examples})

    here, there = prepare(launchers["here"]), prepare(launchers["cluster"], kill_after="prepare() is planned")
    assert checksums(run_step, here) == checksums(run_step, there)
    assert {path.partition("/")[0] for path in checksums(run_step, there)} == {"eval", "train"}
    statistics, others = describe(here, launchers["here"]), describe(there, launchers["cluster"])
    assert set(checksums(run_step, statistics)) == set(checksums(run_step, others))
    assert (statistics.rows, statistics.metrics) == (others.rows, others.metrics)
    schema = run("schema", "schema", warm_launcher, inputs={"statistics": statistics})

    def transform(launcher: Any, **of: Any) -> Artifact:
        inputs = {"examples": there, "statistics": statistics, "schema": schema}
        params = {"preprocess": "flights.features:preprocess"}
        return run("transform.stage", "transformed_examples", launcher, params=params, inputs=inputs, **of)

    here, there = transform(launchers["here"]), transform(launchers["cluster"], kill_after="traced flights.features")
    assert checksums(run_step, here, ".parquet") == checksums(run_step, there, ".parquet")
    assert set(checksums(run_step, here)) == set(checksums(run_step, there))

    def train(launcher: Any, where: str) -> dict[str, Any]:
        params = {"train": "flights.model:train", "np": 2, "params": {"epochs": 1}}
        ranks = {"ranks": json.dumps({"kind": where})}
        model = run("train", "model", launcher, params=params, inputs={"examples": there}, services=ranks)
        summary: dict[str, Any] = json.loads((run_step.store.local(model) / "training.json").read_text())
        return summary

    alone, on_executors = train(warm_launcher, "local"), train(launchers["cluster"], "spark")
    assert on_executors["rows"] == alone["rows"]
    assert on_executors["checksum"] == alone["checksum"]
    assert len(on_executors["hosts"]) == 2
    store = run_step.store
    assert not [uri for uri in store.files.remote().fs.find(store.root) if ".staging-" in uri]


@contextlib.contextmanager
def killing_an_executor(run_step: StepRunner, after: str) -> Iterator[None]:
    """Kills an executor once the step has printed a text; without a text, kills none."""
    ended, killed = threading.Event(), []
    run_step.lines = []

    def watch() -> None:
        while not ended.wait(0.05) and not killed:
            if any(after in line.text for line in run_step.lines):
                for executor in run_step.cluster.executors()[:1]:
                    executor.kill()
                    killed.append(executor)

    watcher = threading.Thread(target=watch)
    if after:
        watcher.start()
    try:
        yield
    finally:
        ended.set()
        if after:
            watcher.join()
    assert killed or not after


def test_a_store_that_executors_do_not_see_is_named(
    cluster: SparkCluster, launchers: dict[str, SparkLauncher], tmp_path: Path, runtime: Path
) -> None:
    runner = StepRunner(str(tmp_path / "store"), runtime)
    examples = flights_examples.write_examples(runner.store, {"train": pa.table({"x": [1.0, 2.0]})})
    with pytest.raises(StepFailed) as failure:
        runner(
            "airflow_hops.ml.stages.transform.stage:run",
            params={"preprocess": "flights.features:preprocess"},
            inputs={"examples": examples},
            kind="transformed_examples",
            launcher=launchers["cluster"],
            code_paths=DAGS,
        )
    assert "Spark's executor on " in str(failure.value) and not failure.value.retryable
    assert f"does not see the store's folder {runner.store.root}" in str(failure.value)
    assert list((tmp_path / "store" / "_state").iterdir()) == []
    assert not runner.store.exists(runner.last_uri)

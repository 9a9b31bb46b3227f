"""A Spark cluster whose hosts share no folder with this one: stages there give the same artifacts as here."""

from __future__ import annotations

import contextlib
import json
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import flights_examples
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
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
SECRET = "s3cr3t-of-raw-files"


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


class RawFiles:
    """Folder with raw files beside a store, in its file system."""

    def __init__(self, run_step: StepRunner) -> None:
        self._fs = run_step.store.files.remote().fs
        self.root = f"{run_step.store.root.removesuffix('/hops')}/raw"
        self._fields = {"storage_conn_id": "raw_files"} if self.root.startswith("s3:") else {}

    def put(self, path: str, content: bytes) -> str:
        """Writes a file; returns its address."""
        address = f"{self.root}/{path}"
        self._fs.makedirs(address.rpartition("/")[0], exist_ok=True)
        self._fs.pipe_file(address, content)
        return address

    def read(self, path: str) -> bytes:
        content: bytes = self._fs.cat_file(f"{self.root}/{path}")
        return content

    def remove(self, address: str) -> None:
        self._fs.rm_file(address)

    def source(self, path: str, **fields: Any) -> dict[str, Any]:
        """Returns the fields of a source."""
        return {"uri": f"{self.root}/{path}", **self._fields, **fields}


@pytest.fixture(scope="module")
def raw(run_step: StepRunner) -> Iterator[RawFiles]:
    endpoint = run_step.store.storage_options.get("endpoint_url")
    connection = {"conn_type": "aws", "login": "raw", "password": SECRET, "extra": {"endpoint_url": endpoint}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW_CONN_RAW_FILES", json.dumps(connection))
        yield RawFiles(run_step)


@pytest.fixture(scope="module")
def sources(raw: RawFiles, flights_raw: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Sources of the flights in eight files, which are two parts, and of the weather in three row groups."""
    with zipfile.ZipFile(flights_raw / "flights.csv.zip") as archive:
        header, *rows = archive.read("flights.csv").decode().splitlines()
    for number in range(8):
        lines = [f"{header},remark", *(f"{row},on schedule" for row in rows[number::8])]
        raw.put(f"flights/{number}.csv", "\n".join([*lines, ""]).encode())
    weather = tmp_path_factory.mktemp("weather") / "weather.parquet"
    options = pa.csv.ConvertOptions(null_values=["", "NA"], strings_can_be_null=True)
    pq.write_table(pa.csv.read_csv(flights_raw / "weather.csv", convert_options=options), weather, row_group_size=9000)
    raw.put(weather.name, weather.read_bytes())
    for name in ("planes.csv", "airports.csv"):
        raw.put(name, (flights_raw / name).read_bytes())
    return {
        "flights": raw.source("flights/*.csv", time_column="time_hour"),
        "weather": raw.source("weather.parquet", time_column="time_hour"),
        "planes": raw.source("planes.csv"),
        "airports": raw.source("airports.csv"),
    }


def ingest(run_step: StepRunner, launcher: Any, sources: dict[str, Any]) -> Artifact:
    window = {"window_start": "2013-01-01T05:00:00Z", "window_end": "2013-01-20T05:00:00Z"}
    result: Artifact = run_step(
        "airflow_hops.ml.stages.ingest:run", params={"sources": sources, **window}, kind="snapshot", launcher=launcher
    )
    return result


@pytest.fixture(scope="module")
def snapshot(
    run_step: StepRunner, sources: dict[str, Any], cluster: SparkCluster, runtime: Path, tmp_path_factory: Any
) -> Artifact:
    """The snapshot of the cluster, where an executor is killed in the middle; no secret of the source is written."""
    events = tmp_path_factory.mktemp("events")
    conf = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": events.as_uri()}
    with killing_an_executor(run_step, after="8 files, 2 parts"):
        result = ingest(run_step, SparkLauncher(runtime, "spark_cluster", {**cluster.conf, **conf}), sources)
    (log,) = events.iterdir()
    assert "SparkListenerTaskEnd" in log.read_text() and SECRET not in log.read_text()
    assert not [line.text for line in run_step.lines if SECRET in line.text]
    return result


COLUMNS = {"label": "late", "key": "flight_id", "time": "scheduled_at"}


def checksums(run_step: StepRunner, artifact: Artifact, ending: str = "") -> dict[str, str]:
    """Returns the checksums of an artifact's files, after comparing the files with them."""
    manifest = run_step.store.verify(artifact)
    return {entry.path: entry.sha256 for entry in manifest.files if entry.path.endswith(ending)}


def test_ingest_on_a_cluster_writes_the_snapshot_that_it_writes_here(
    run_step: StepRunner, sources: dict[str, Any], snapshot: Artifact, launchers: dict[str, SparkLauncher]
) -> None:
    here = ingest(run_step, launchers["here"], sources)
    assert checksums(run_step, here) == checksums(run_step, snapshot)
    assert {"flights/part-00000.parquet", "flights/part-00001.parquet"} <= set(checksums(run_step, here))
    assert (here.fingerprint, here.rows, here.properties) == (snapshot.fingerprint, snapshot.rows, snapshot.properties)
    rows = snapshot.rows["flights"]
    assert rows.rows_in == 336_776 and rows.rejected == {"outside window": rows.rows_in - rows.rows_out}


def test_ingest_on_a_cluster_names_bad_files(
    run_step: StepRunner, raw: RawFiles, launchers: dict[str, SparkLauncher], tmp_path: Path
) -> None:
    """Compares the messages with those of this machine, but for a folder that only this machine sees."""

    def refused(launcher: Any, source: dict[str, Any]) -> str:
        with pytest.raises(StepFailed) as failure:
            ingest(run_step, launcher, {"t": source})
        assert not failure.value.retryable and not run_step.store.exists(run_step.last_uri)
        return str(failure.value)

    for number in range(3):
        raw.put(f"rows/{number}.csv", b"id,x\n1,2\n" if number < 2 else b"id,x\n1,2\n2,3,4\n")
        raw.put(f"columns/{number}.parquet", b"PAR1" + bytes(99) + b"PAR1")
    for path, words in {"rows": "/rows/2.csv, row 2: CSV parse", "columns": "/columns/0.parquet: cannot"}.items():
        messages = [refused(launcher, raw.source(path)) for launcher in launchers.values()]
        assert messages[0] == messages[1]
        assert words in messages[0]
    (tmp_path / "own.csv").write_text("x\n1\n")
    message = refused(launchers["cluster"], {"uri": str(tmp_path)})
    assert "Spark's executor on " in message and "spark_conn_id" in message
    assert f"cannot open {tmp_path}/own.csv (FileNotFoundError" in message


def test_file_that_disappears_during_ingest_on_a_cluster(
    run_step: StepRunner, raw: RawFiles, sources: dict[str, Any], launchers: dict[str, SparkLauncher]
) -> None:
    address = raw.put("flights/6-later.csv", raw.read("flights/6.csv"))
    with when_printed(run_step, "9 files", lambda: raw.remove(address)), pytest.raises(StepFailed) as failure:
        ingest(run_step, launchers["cluster"], {"flights": sources["flights"]})
    assert failure.value.retryable
    assert f"{address}: the file changed while it was read" in str(failure.value)
    assert not run_step.store.exists(run_step.last_uri)


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
    if not after:
        yield
        return
    with when_printed(run_step, after, lambda: run_step.cluster.executors()[0].kill()):
        yield


@contextlib.contextmanager
def when_printed(run_step: StepRunner, text: str, act: Callable[[], object]) -> Iterator[None]:
    """Calls a function once the step has printed a text."""
    ended, acted = threading.Event(), []
    run_step.lines = []

    def watch() -> None:
        while not ended.wait(0.02) and not acted:
            if any(text in line.text for line in run_step.lines):
                act()
                acted.append(text)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
    assert acted


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

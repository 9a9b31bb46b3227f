"""A Spark cluster whose hosts share no folder with this one: stages there give the same artifacts as here."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import flights_examples
import fsspec
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import spark_cluster
from conftest import StepRunner
from hdfs_cluster import HdfsCluster
from spark_cluster import SparkCluster
from uv import find_uv_bin

from airflow_hops.core.contract.artifacts import Artifact, BadInput
from airflow_hops.environments.packed import PackedRuntime
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


@contextlib.contextmanager
def started_cluster(runtime: Path, shared: Sequence[Path]) -> Iterator[SparkCluster]:
    """Starts a cluster, with the connection ``spark_cluster``."""
    with spark_cluster.spark_cluster(runtime, shared) as cluster, pytest.MonkeyPatch.context() as patch:
        host, _, port = cluster.master.removeprefix("spark://").partition(":")
        connection = {"conn_type": "spark", "host": f"spark://{host}", "port": int(port)}
        patch.setenv("AIRFLOW_CONN_SPARK_CLUSTER", json.dumps(connection))
        yield cluster


@pytest.fixture(scope="module")
def other_python(runtime: Path) -> Path | None:
    """A Python of another minor version than the runtime environment's, if this machine has one."""
    command = [find_uv_bin(), "python", "find", "--no-project", "--system", "--no-python-downloads"]
    for minor in range(14, 8, -1):
        result = subprocess.run([*command, f"3.{minor}"], capture_output=True, text=True)
        if result.returncode == 0 and not PackedRuntime.of(runtime).python.startswith(f"3.{minor}."):
            return Path(result.stdout.strip()).resolve()
    return None


@pytest.fixture(scope="module")
def cluster(runtime: Path, other_python: Path | None) -> Iterator[SparkCluster]:
    others = [other_python.parents[1]] if other_python else []
    with started_cluster(runtime, [*spark_cluster.python_of(runtime), *others]) as cluster:
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
    with s3_options(cluster.address) as options:
        runner = StepRunner("s3://cluster/hops", runtime, options)
        runner.cluster = cluster
        yield runner


@contextlib.contextmanager
def s3_options(address: str) -> Iterator[dict[str, Any]]:
    """Starts an S3 server with the bucket ``cluster`` at an address of this machine; yields fsspec's options for it."""
    import s3fs
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address=address, port=0)
    server.start()
    options = {
        "key": "testing",
        "secret": "testing",
        "endpoint_url": "http://{}:{}".format(*server.get_host_and_port()),
        "use_listings_cache": False,
    }
    with contextlib.suppress(FileExistsError):  # servers of a process have the same content
        s3fs.S3FileSystem(**options).mkdir("cluster")
    yield options
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


def refused(runner: StepRunner, launcher: SparkLauncher) -> str:
    """Returns the message with which a step on the cluster ends before any work; it is not to be retried."""
    examples = flights_examples.write_examples(runner.store, {"train": pa.table({"x": [1.0, 2.0]})})
    with pytest.raises(StepFailed) as failure:
        runner(
            "airflow_hops.ml.stages.transform.stage:run",
            params={"preprocess": "flights.features:preprocess"},
            inputs={"examples": examples},
            kind="transformed_examples",
            launcher=launcher,
            code_paths=DAGS,
        )
    assert not failure.value.retryable
    assert not runner.store.exists(runner.last_uri)
    return str(failure.value)


def test_a_store_that_executors_do_not_see_is_named(
    launchers: dict[str, SparkLauncher], tmp_path: Path, runtime: Path
) -> None:
    runner = StepRunner(str(tmp_path / "store"), runtime)
    message = refused(runner, launchers["cluster"])
    assert re.search(rf"Spark's executor on spark[01] does not see the store's folder {runner.store.root}", message)
    assert list((tmp_path / "store" / "_state").iterdir()) == []


def test_a_store_that_executors_do_not_reach_is_named(
    launchers: dict[str, SparkLauncher], tmp_path: Path, runtime: Path
) -> None:
    with s3_options("127.0.0.1") as options:
        message = refused(StepRunner("s3://cluster/hops", runtime, options), launchers["cluster"])
    assert re.search(r"Spark's executor on spark[01] cannot use the store s3://cluster/hops \(", message)
    assert options["endpoint_url"] in message
    with HdfsCluster(tmp_path) as hdfs:
        message = refused(StepRunner(f"{hdfs.url}/hops", runtime), launchers["cluster"])
    assert re.search(rf"Spark's executor on spark[01] cannot use the store {hdfs.url}/hops \(", message)
    assert "refuses connections" in message


def test_executors_with_another_library_or_python_are_named(
    cluster: SparkCluster, runtime: Path, other_python: Path | None
) -> None:
    def refused_with(**conf: str) -> str:
        properties = {f"spark.{name.replace('_', '.')}": value for name, value in conf.items()}
        with s3_options(cluster.address) as options:
            runner = StepRunner("s3://cluster/hops", runtime, options)
            return refused(runner, SparkLauncher(runtime, "spark_cluster", {**cluster.conf, **properties}))

    metadata = cluster.shared / "other" / "pandas-1.4.4.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Metadata-Version: 2.1\nName: pandas\nVersion: 1.4.4\n")
    own = PackedRuntime.of(runtime)
    message = refused_with(executorEnv_PYTHONPATH=str(metadata.parents[1]))
    pandas = re.escape(own.packages["pandas"])
    assert re.search(rf"executor on spark[01] has pandas 1\.4\.4, but this step {pandas}; give the", message)
    message = refused_with(pyspark_python="/none/bin/python")
    assert re.search(r"executor on \S+ cannot run this step's Python .*/none/bin/python.*No such file", message)
    if other_python:
        message = refused_with(pyspark_python=str(other_python))
        assert re.search(r"executor on \S+ cannot run this step's Python [\d.]+: .*different version", message)
    debian = Path(f"/usr/bin/python{own.python.rpartition('.')[0]}")
    if debian.exists() and spark_cluster.python_of(runtime)[1] != Path("/usr"):
        message = refused_with(pyspark_python=str(debian))
        assert re.search(r"executor on spark[01] has (Python 3\.\d+\.\d+|pyarrow missing), but this step", message)


@pytest.mark.faults
@pytest.mark.parametrize("kind", ["s3", "hdfs"])
def test_executors_unpack_an_archive_of_the_runtime_environment(
    kind: str,
    runtime: Path,
    flights_raw: Path,
    warm_launcher: Any,
    hops: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Describes examples, and trains two ranks, on hosts without the runtime environment and its Python."""
    if (free := shutil.disk_usage(tmp_path).free) < 14 << 30:
        pytest.skip(f"three copies of the runtime environment need 14 GB of disk, {free >> 30} GB are free")
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(started_cluster(runtime, []))
        root, options = "s3://cluster", {}
        if kind == "s3":
            options = stack.enter_context(s3_options(cluster.address))
        else:
            root = stack.enter_context(HdfsCluster(tmp_path, cluster.address)).url
        archive, store = f"{root}/runtime.tar.gz", {"store": f"{root}/hops", "storage_options": options}
        connection = json.loads(os.environ["AIRFLOW_CONN_SPARK_CLUSTER"])
        connection["extra"] = {"runtime_archive": archive}
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_CLUSTER", json.dumps(connection))
        monkeypatch.setenv("AIRFLOW_CONN_HOPS_DEFAULT", json.dumps({"conn_type": "hops", "extra": store}))
        run_step = StepRunner(f"{root}/hops", runtime, options)
        conf = {**cluster.conf, "spark.files.useFetchCache": "false"}
        local, there = SparkLauncher(runtime, "spark_local"), SparkLauncher(runtime, "spark_cluster", conf)
        with pytest.raises(BadInput, match=f"{archive}: there is no such file; run 'airflow hops runtime pack"):
            run_step("airflow_hops.ml.stages.statistics:run", launcher=there)
        code, output, errors = hops("runtime", "pack", archive)
        assert code == 0, output + errors
        assert f'"extra": {{"runtime_archive": "{archive}"}}' in output
        examples = flights_examples.write_examples(
            run_step.store, {"train": flights_examples.months(flights_raw, 1, 1)}
        )

        def run(stage: str, kind: str, launcher: Any, **of: Any) -> Artifact:
            result: Artifact = run_step(
                f"airflow_hops.ml.stages.{stage}:run", kind=kind, launcher=launcher, code_paths=DAGS, **of
            )
            return result

        def describe(launcher: Any) -> Artifact:
            return run("statistics", "statistics", launcher, params={"engine": "spark"}, inputs={"examples": examples})

        statistics, others = describe(local), describe(there)
        assert (statistics.rows, statistics.metrics) == (others.rows, others.metrics)
        if kind == "hdfs":
            return
        schema = run("schema", "schema", warm_launcher, inputs={"statistics": statistics})
        inputs = {"examples": examples, "statistics": statistics, "schema": schema}
        params = {"preprocess": "flights.features:preprocess"}
        here, transformed = (
            run("transform.stage", "transformed_examples", launcher, params=params, inputs=inputs)
            for launcher in (local, there)
        )
        assert checksums(run_step, here, ".parquet") == checksums(run_step, transformed, ".parquet")
        model = run(
            "train",
            "model",
            there,
            params={"train": "flights.model:train", "np": 2, "params": {"epochs": 1}},
            inputs={"examples": transformed},
            services={"ranks": json.dumps({"kind": "spark"})},
        )
        summary = json.loads((run_step.store.local(model) / "training.json").read_text())
        assert sorted(summary["hosts"]) == ["spark0", "spark1"]


def test_an_archive_of_another_environment_is_named(
    launchers: dict[str, SparkLauncher], runtime: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = json.loads(os.environ["AIRFLOW_CONN_SPARK_CLUSTER"])

    def message(archive: Path | str) -> str:
        connection["extra"] = {"runtime_archive": str(archive)}
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_CLUSTER", json.dumps(connection))
        runner = StepRunner(str(tmp_path / "store"), runtime)
        with pytest.raises(BadInput) as failure:
            runner("airflow_hops.ml.stages.statistics:run", launcher=launchers["cluster"])
        return str(failure.value)

    field = "connection 'spark_cluster', field 'runtime_archive': "
    again = f"run 'airflow hops runtime pack {tmp_path}/a.tar.gz'"
    assert message(tmp_path / "a.tar.gz") == f"{field}{tmp_path}/a.tar.gz: there is no such file; {again}"
    (tmp_path / "a.tar.gz").write_text("no archive")
    assert f"{field}{tmp_path}/a.tar.gz: expected an archive of 'airflow hops runtime pack' (" in message(
        tmp_path / "a.tar.gz"
    )
    own = PackedRuntime.of(runtime)
    for packed, difference in (
        (replace(own, packages={**own.packages, "numpy": "1.0"}), f"numpy 1.0 instead of {own.packages['numpy']}"),
        (replace(own, machine="mips"), "processor mips instead of"),
        (replace(own, python="3.9.9"), "Python 3.9.9 instead of"),
    ):
        with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as archive:
            content = json.dumps(asdict(packed)).encode()
            member = tarfile.TarInfo("hops-runtime.json")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        text = message(tmp_path / "a.tar.gz")
        assert f"{field}{tmp_path}/a.tar.gz has {difference}" in text and again in text
    fsspec.filesystem("memory").put_file(str(tmp_path / "a.tar.gz"), "/a.tar.gz")
    assert "memory://a.tar.gz: Spark cannot fetch an archive from there (" in message("memory://a.tar.gz")

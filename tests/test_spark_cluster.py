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
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import flights_examples
import fsspec
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import spark_cluster
from captured_flights import CaptureFolder
from spark_cluster import SparkCluster
from step_runner import StepRunner
from uv import find_uv_bin

from airflow_hops.core.contract.artifacts import Artifact, BadInput
from airflow_hops.environments.packed import PackedRuntime
from airflow_hops.hooks.runtime import StepFailed
from airflow_hops.launchers.spark import SparkLauncher

pytestmark = [
    pytest.mark.runtime,
    pytest.mark.spark,
    pytest.mark.timeout(1800),  # the first test waits for all stages, here and on the cluster
    pytest.mark.skipif(bool(spark_cluster.why_not()), reason=spark_cluster.why_not() or "there can be one"),
]
REPOSITORY = Path(__file__).resolve().parent.parent
DAGS = (str(REPOSITORY / "dags"),)
Condition = Callable[[], bool]
on_s3 = pytest.mark.parametrize("run_step", ["s3"], indirect=True)
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


@pytest.fixture(scope="module", params=["s3", pytest.param("hdfs", marks=pytest.mark.scheduled(part="clusters"))])
def run_step(
    request: pytest.FixtureRequest, cluster: SparkCluster, runtime: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StepRunner]:
    """Runs steps in a store on S3 or HDFS, which the cluster's hosts reach."""
    if request.param == "hdfs":
        from hdfs_cluster import HdfsCluster

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
def launchers(cluster: SparkCluster, runtime: Path, warm_launcher: Any) -> dict[str, SparkLauncher]:
    return {
        "here": SparkLauncher(runtime, "spark_local", {"spark.sql.shuffle.partitions": "2"}, warm=warm_launcher.warm),
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
    with killing_an_executor(run_step, printed(run_step, "8 files, 2 parts")):
        result = ingest(run_step, SparkLauncher(runtime, "spark_cluster", {**cluster.conf, **conf}), sources)
    (log,) = events.iterdir()
    assert "SparkListenerTaskEnd" in log.read_text() and SECRET not in log.read_text()
    assert not [line.text for line in run_step.lines if SECRET in line.text]
    return result


def checksums(run_step: StepRunner, artifact: Artifact, ending: str = "") -> dict[str, str]:
    """Returns the checksums of an artifact's files, after comparing the files with them."""
    manifest = run_step.store.verify(artifact)
    return {entry.path: entry.sha256 for entry in manifest.files if entry.path.endswith(ending)}


@dataclass
class Stages:
    """Runs stages here and on the cluster, on artifacts that were made here."""

    runner: StepRunner
    launchers: dict[str, Any]
    made: dict[str, Artifact] = field(default_factory=dict)

    def run(self, where: str, stage: str, kind: str, *roles: str, when: Condition | None = None, **of: Any) -> Artifact:
        """Runs a stage; ``when`` says when to kill an executor meanwhile."""
        inputs = {**{role: self.made[role] for role in roles}, **of.pop("inputs", {})}
        entry = stage if ":" in stage else f"airflow_hops.ml.stages.{stage}:run"
        launcher = self.launchers[where]
        with killing_an_executor(self.runner, when) if when else contextlib.nullcontext():
            result: Artifact = self.runner(entry, kind=kind, launcher=launcher, code_paths=DAGS, inputs=inputs, **of)
        assert not [uri for uri in self.stored() if ".staging-" in uri]
        return result

    def stored(self) -> list[str]:
        """Returns the paths of all files of the store."""
        store = self.runner.store
        files: list[str] = store.files.remote().fs.find(store.root)
        return files

    def figures(self, artifact: Artifact, name: str) -> Any:
        """Returns a JSON file of an artifact, its floats with six digits: sums depend on the order of the rows."""
        text = (self.runner.store.local(artifact) / name).read_text()
        return json.loads(text, parse_float=lambda digits: float(f"{float(digits):.6g}"))


def prepare(stages: Stages, where: str, when: Condition | None = None) -> Artifact:
    columns = {"label": "late", "key": "flight_id", "time": "scheduled_at"}
    params = {"prepare": "flights.prepare:prepare", **columns}
    return stages.run(where, "prepare.stage", "examples", "tables", params=params, when=when)


def describe(stages: Stages, where: str, when: Condition | None = None) -> Artifact:
    return stages.run(where, "statistics", "statistics", "examples", params={"engine": "auto"}, when=when)


def transform(stages: Stages, where: str, when: Condition | None = None) -> Artifact:
    params, roles = {"preprocess": "flights.features:preprocess"}, ("examples", "statistics", "schema")
    return stages.run(where, "transform.stage", "transformed_examples", *roles, params=params, when=when)


def train(stages: Stages, where: str, ranks: str, when: Condition | None = None) -> Artifact:
    """Trains for epochs that last a second."""
    params = {"train": "flights.model:train", "np": 2, "params": {"epochs": 6, "batch_size": 64}}
    return stages.run(
        where, "train", "model", params=params, inputs={"examples": stages.made["transformed"]},
        services={"ranks": json.dumps({"kind": ranks})}, task_id="train", run_id=ranks, when=when,
    )  # fmt: skip


@pytest.fixture(scope="module")
def stages(run_step: StepRunner, snapshot: Artifact, launchers: dict[str, SparkLauncher], warm_launcher: Any) -> Stages:
    """The artifacts of the flights pipeline, made here."""
    result = Stages(run_step, {**launchers, "process": warm_launcher}, {"tables": snapshot})
    made = result.made
    made["examples"] = prepare(result, "here")
    made["statistics"] = describe(result, "process")
    made["schema"] = result.run("process", "schema", "schema", "statistics")
    made["transformed"] = transform(result, "here")
    made["model"] = train(result, "process", "local")
    return result


def test_ingest_on_a_cluster_matches_the_local_snapshot(
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


def test_file_deleted_during_ingest_on_a_cluster_is_named(
    run_step: StepRunner, raw: RawFiles, sources: dict[str, Any], launchers: dict[str, SparkLauncher]
) -> None:
    address = raw.put("flights/6-later.csv", raw.read("flights/6.csv"))
    later = acting_when(printed(run_step, "9 files"), lambda: raw.remove(address))
    with later, pytest.raises(StepFailed) as failure:
        ingest(run_step, launchers["cluster"], {"flights": sources["flights"]})
    assert failure.value.retryable
    assert f"{address}: the file changed while it was read" in str(failure.value)
    assert not run_step.store.exists(run_step.last_uri)


def test_examples_do_not_depend_on_executor_loss(stages: Stages) -> None:
    there = prepare(stages, "cluster", printed(stages.runner, "prepare() is planned"))
    assert checksums(stages.runner, there) == checksums(stages.runner, stages.made["examples"])
    assert {path.partition("/")[0] for path in checksums(stages.runner, there)} == {"eval", "train"}


def test_statistics_do_not_depend_on_executor_loss(stages: Stages) -> None:
    here, there = stages.made["statistics"], describe(stages, "cluster", printed(stages.runner, "statistics of"))
    assert set(checksums(stages.runner, here)) == set(checksums(stages.runner, there))
    assert (here.rows, here.metrics) == (there.rows, there.metrics)
    for split in ("eval", "train"):
        name = f"{split}/statistics.json"
        assert stages.figures(here, name) == stages.figures(there, name)


def test_transformed_examples_do_not_depend_on_executor_loss(stages: Stages) -> None:
    here, there = (
        stages.made["transformed"],
        transform(stages, "cluster", printed(stages.runner, "traced flights.features")),
    )
    assert checksums(stages.runner, here, ".parquet") == checksums(stages.runner, there, ".parquet")
    assert set(checksums(stages.runner, here)) == set(checksums(stages.runner, there))


def test_training_resumes_from_checkpoint_after_executor_loss(stages: Stages) -> None:
    def has_checkpoint() -> bool:
        return any("/_state/checkpoints/" in uri and uri.endswith("checkpoint.json") for uri in stages.stored())

    with pytest.raises(StepFailed, match=r"rank \d of 2 on \S+ was ended by the loss of its host") as failure:
        train(stages, "cluster", "spark", has_checkpoint)
    assert "executor 0 is lost" in str(failure.value) or "executor 1 is lost" in str(failure.value)
    assert failure.value.retryable and has_checkpoint()
    there = train(stages, "cluster", "spark")
    assert any("from the checkpoint of an earlier try" in line.text for line in stages.runner.lines)
    alone, on_executors = (stages.figures(model, "training.json") for model in (stages.made["model"], there))
    assert on_executors["rows"] == alone["rows"]
    assert on_executors["checksum"] == alone["checksum"]
    assert len(on_executors["hosts"]) == 2
    assert not has_checkpoint()
    stages.made["model of executors"] = there


def test_model_of_executors_is_served(stages: Stages, starting_server: Any, tracking_uri: str) -> None:
    model = stages.made["model of executors"]
    inputs = {"model": model}
    blessing = stages.run("process", "infra_validate", "infra_blessing", "examples", inputs=inputs)
    starting_server.wait_until_ready()
    stages.run(
        "process", "deploy.stage", "deployment",
        params={"model_name": "executors", "canary_percent": 20, "available_timeout_s": 60.0},
        inputs={**inputs, "infra_blessing": blessing},
        services={**starting_server.services, "tracking_uri": tracking_uri},
    )  # fmt: skip
    predicted = stages.run("process", "batch_predict.stage", "predictions", "examples", inputs=inputs)
    split = stages.runner.store.local(stages.made["examples"]) / "eval"
    rows = [row for row in pq.read_table(split).to_pylist() if None not in row.values()][:20]
    expected = {
        row["flight_id"]: row["probability"]
        for row in pq.read_table(stages.runner.store.local(predicted) / "eval").to_pylist()
    }
    signatures = starting_server.get("/v1/models/executors/metadata")["metadata"]["signature_def"]["signature_def"]
    names = signatures["serving_default"]["inputs"]
    answer = starting_server.predict("executors", {"instances": [{name: row[name] for name in names} for row in rows]})
    assert answer["predictions"] == pytest.approx([expected[row["flight_id"]] for row in rows], abs=1e-6)


@on_s3
def test_predictions_on_a_cluster_match_local_ones(stages: Stages) -> None:
    here, there = (
        stages.run(where, "batch_predict.stage", "predictions", "examples", "model") for where in ("here", "cluster")
    )
    assert checksums(stages.runner, here) == checksums(stages.runner, there)
    assert here.rows == there.rows


@on_s3
def test_statistics_of_a_source_on_a_cluster_match_local_ones(stages: Stages, flights_raw: Path) -> None:
    stages.runner.store.files.remote().fs.put_file(str(flights_raw / "weather.csv"), "s3://cluster/raw/weather.csv")
    source = {"uri": "s3://cluster/raw/weather.csv", "storage_options": stages.runner.store.storage_options}
    params = {"engine": "auto", "source": {"source": source, "split": "data"}}
    here, there = (stages.run(where, "statistics", "statistics", params=params) for where in ("process", "cluster"))
    assert stages.figures(here, "data/statistics.json") == stages.figures(there, "data/statistics.json")


@on_s3
def test_skew_on_a_cluster_matches_the_local_one(stages: Stages, tmp_path: Path, flights_raw: Path) -> None:
    store, made = stages.runner.store, stages.made
    champion = {
        "version": 1, "model": made["model"].to_dict(), "statistics": made["statistics"].uri,
        "schema": made["schema"].uri, "fingerprint": made["model"].fingerprint, "serving_path": "/models/flights/1",
        "since": "2013-02-01T00:00:00+00:00",
    }  # fmt: skip
    record = {"champion": champion, "challenger": None, "history": []}
    store.write_text(store.uri("_models", "flights.json"), json.dumps(record))
    captured = CaptureFolder(tmp_path / "captured")
    july = flights_examples.months(flights_raw, 7, 7)
    for start in range(0, 3000, 1000):
        captured.add(july.iloc[start : start + 1000], version=1)
    store.files.remote().fs.put(str(captured.path), "s3://cluster/captured", recursive=True)
    here, there = (
        stages.run(
            where, "skew", "skew", params={"model_name": "flights"}, task_id=f"skew-{where}",
            services={"serving_capture_path": "s3://cluster/captured"},
        )
        for where in ("process", "cluster")
    )  # fmt: skip
    report = stages.figures(here, "report.json")
    assert report["verdict"] == "drift" and report["attribution"]["effects"]
    assert report == stages.figures(there, "report.json")


def printed(run_step: StepRunner, text: str) -> Condition:
    """Returns the condition that the next step has printed a text."""
    run_step.lines = []
    return lambda: any(text in line.text for line in run_step.lines)


@contextlib.contextmanager
def acting_when(condition: Condition, act: Callable[[], object]) -> Iterator[None]:
    """Calls a function once a condition holds, which it must."""
    ended, acted = threading.Event(), threading.Event()

    def watch() -> None:
        while not ended.wait(0.02) and not acted.is_set():
            if condition():
                act()
                acted.set()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
    assert acted.is_set()


def killing_an_executor(run_step: StepRunner, when: Condition) -> contextlib.AbstractContextManager[None]:
    return acting_when(when, lambda: run_step.cluster.executors()[0].kill())


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


def test_store_invisible_to_executors_is_named(
    launchers: dict[str, SparkLauncher], tmp_path: Path, runtime: Path
) -> None:
    runner = StepRunner(str(tmp_path / "store"), runtime)
    message = refused(runner, launchers["cluster"])
    assert re.search(rf"Spark's executor on spark[01] does not see the store's folder {runner.store.root}", message)
    assert list((tmp_path / "store" / "_state").iterdir()) == []


def test_store_unreachable_from_executors_is_named(
    launchers: dict[str, SparkLauncher], tmp_path: Path, runtime: Path
) -> None:
    with s3_options("127.0.0.1") as options:
        message = refused(StepRunner("s3://cluster/hops", runtime, options), launchers["cluster"])
    assert re.search(r"Spark's executor on spark[01] cannot use the store s3://cluster/hops \(", message)
    assert options["endpoint_url"] in message
    from hdfs_cluster import HdfsCluster

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


@pytest.mark.scheduled(part="clusters")
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
            from hdfs_cluster import HdfsCluster

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

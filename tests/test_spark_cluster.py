"""A Spark cluster whose hosts share no folder with this one: stages there give the same artifacts as here."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import threading
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import flights_examples
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import spark_cluster
from captured_flights import CaptureFolder
from spark_cluster import SparkCluster
from step_runner import StepRunner

from airflow_hops.cli import check as doctor
from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.errors import StepFailed
from airflow_hops.core.models.model_record import ModelRecord, ServedVersion, write_record
from airflow_hops.runner.launchers.spark import SparkLauncher
from airflow_hops.runner.runtime import RuntimeHook

pytestmark = [
    pytest.mark.runtime,
    pytest.mark.spark,
    pytest.mark.scheduled(part="clusters"),  # test_spark_executors.py has executors without hosts of their own
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
def cluster(runtime: Path) -> Iterator[SparkCluster]:
    with started_cluster(runtime, spark_cluster.python_of(runtime)) as cluster:
        yield cluster


@pytest.fixture(scope="module", params=["s3", "hdfs"])
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
        "config_kwargs": {"read_timeout": 120},  # the server sums up 1.2 GB before it answers
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
        "airflow_hops.ml.ingest:run", params={"sources": sources, **window}, kind="snapshot", launcher=launcher
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

    def run(
        self, where: str, entry: str, kind: str, *roles: str, when: Condition | None = None, **options: Any
    ) -> Artifact:
        """Runs a stage; ``when`` says when to kill an executor meanwhile."""
        inputs = {**{role: self.made[role] for role in roles}, **options.pop("inputs", {})}
        launcher = self.launchers[where]
        with killing_an_executor(self.runner, when) if when else contextlib.nullcontext():
            result: Artifact = self.runner(
                entry, kind=kind, launcher=launcher, code_paths=DAGS, inputs=inputs, **options
            )
        assert not [uri for uri in self.stored() if "!staging-" in uri]
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
    return stages.run(where, "airflow_hops.ml.prepare.stage:run", "examples", "tables", params=params, when=when)


def describe(stages: Stages, where: str, when: Condition | None = None) -> Artifact:
    return stages.run(
        where, "airflow_hops.ml.statistics.stage:run", "statistics", "examples", params={"engine": "auto"}, when=when
    )


def transform(stages: Stages, where: str, when: Condition | None = None) -> Artifact:
    params, roles = {"preprocess": "flights.features:preprocess"}, ("examples", "statistics", "schema")
    return stages.run(
        where, "airflow_hops.ml.transform.stage:run", "transformed_examples", *roles, params=params, when=when
    )


def train(stages: Stages, where: str = "process", ranks: str = "local") -> Artifact:
    params = {"train": "flights.model:train", "np": 2, "params": {"epochs": 2, "batch_size": 64}}
    inputs = {"examples": stages.made["transformed"]}
    services = {"ranks": json.dumps({"kind": ranks})}
    return stages.run(
        where, "airflow_hops.ml.training.stage:run", "model", params=params, inputs=inputs, services=services
    )


@pytest.fixture(scope="module")
def stages(run_step: StepRunner, snapshot: Artifact, launchers: dict[str, SparkLauncher], warm_launcher: Any) -> Stages:
    """The artifacts of the flights pipeline, made here."""
    result = Stages(run_step, {**launchers, "process": warm_launcher}, {"tables": snapshot})
    made = result.made
    made["examples"] = prepare(result, "here")
    made["statistics"] = describe(result, "process")
    made["schema"] = result.run("process", "airflow_hops.ml.schema.stage:run", "schema", "statistics")
    made["transformed"] = transform(result, "here")
    made["model"] = train(result)
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


def test_folder_that_only_this_machine_sees_is_named(
    run_step: StepRunner, launchers: dict[str, SparkLauncher], tmp_path: Path
) -> None:
    (tmp_path / "own.csv").write_text("x\n1\n")
    with pytest.raises(StepFailed, match=r"Spark's executor on .*spark_conn_id") as failure:
        ingest(run_step, launchers["cluster"], {"t": {"uri": str(tmp_path)}})
    assert f"cannot open {tmp_path}/own.csv (FileNotFoundError" in str(failure.value)
    assert not failure.value.retryable and not run_step.store.exists(run_step.last_uri)


def test_artifacts_do_not_depend_on_executor_loss(stages: Stages) -> None:
    runner, made = stages.runner, stages.made
    there = prepare(stages, "cluster", printed(runner, "prepare() is planned"))
    assert checksums(runner, there) == checksums(runner, made["examples"])
    assert {path.partition("/")[0] for path in checksums(runner, there)} == {"eval", "train"}
    here, there = made["statistics"], describe(stages, "cluster", printed(runner, "statistics of"))
    assert set(checksums(runner, here)) == set(checksums(runner, there))
    assert (here.rows, here.metrics) == (there.rows, there.metrics)
    for name in ("eval/statistics.json", "train/statistics.json"):
        assert stages.figures(here, name) == stages.figures(there, name)
    here, there = made["transformed"], transform(stages, "cluster", printed(runner, "traced flights.features"))
    assert checksums(runner, here, ".parquet") == checksums(runner, there, ".parquet")
    assert set(checksums(runner, here)) == set(checksums(runner, there))


@on_s3
def test_predictions_statistics_and_skew_match_local_ones(stages: Stages, tmp_path: Path, flights_raw: Path) -> None:
    store, made = stages.runner.store, stages.made
    fs = store.files.remote().fs
    predicted = [
        stages.run(where, "airflow_hops.extensions.scoring.ml.stage:run", "predictions", "examples", "model")
        for where in ("here", "cluster")
    ]
    assert checksums(stages.runner, predicted[0]) == checksums(stages.runner, predicted[1])
    assert predicted[0].rows == predicted[1].rows

    fs.put_file(str(flights_raw / "weather.csv"), "s3://cluster/raw/weather.csv")
    source = {"uri": "s3://cluster/raw/weather.csv", "storage_options": store.storage_options}
    params = {"engine": "auto", "source": {"source": source, "split": "data"}}
    here, there = (
        stages.run(where, "airflow_hops.ml.statistics.stage:run", "statistics", params=params)
        for where in ("process", "cluster")
    )
    assert stages.figures(here, "data/statistics.json") == stages.figures(there, "data/statistics.json")

    trained = {"statistics": made["statistics"].uri, "schema": made["schema"].uri}
    model = replace(made["model"], properties={**made["model"].properties, **trained})
    champion = ServedVersion.of(model, 1, "/models/flights/1", 100)
    write_record(store, "flights", ModelRecord(replace(champion, since="2013-02-01T00:00:00+00:00")))
    for where in ("here", "cluster"):
        stages.run(
            where, "airflow_hops.extensions.scoring.ml.stage:run", "predictions", "examples",
            params={"model_name": "flights"},
            services={"serving_kind": "batch", "serving_capture_path": f"s3://cluster/scored-{where}"},
        )  # fmt: skip
    here, there = (
        sorted(name.partition("-v1-")[2] for name in fs.ls(f"cluster/scored-{where}/flights", detail=False))
        for where in ("here", "cluster")
    )
    assert here == there and len(here) > 1, "names end in a digest of the rows"
    assert not [path for path in stages.stored() if "/_serving/scoring/" in path]

    captured = CaptureFolder(tmp_path / "captured")
    july = flights_examples.months(flights_raw, 7, 7)
    for start in range(0, 3000, 1000):
        captured.add(july.iloc[start : start + 1000], version=1)
    fs.put(str(captured.path), "s3://cluster/captured", recursive=True)
    here, there = (
        stages.run(
            where, "airflow_hops.ml.skew.stage:run", "skew", params={"model_name": "flights"}, task_id=f"skew-{where}",
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
def killing_an_executor(run_step: StepRunner, condition: Condition) -> Iterator[None]:
    """Kills an executor once a condition holds, which it must."""
    ended, acted = threading.Event(), threading.Event()

    def watch() -> None:
        while not ended.wait(0.02) and not acted.is_set():
            if condition():
                run_step.cluster.executors()[0].kill()
                acted.set()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
    assert acted.is_set()


def test_silent_master_and_store_out_of_reach_are_named(
    launchers: dict[str, SparkLauncher], runtime: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(runner: StepRunner, launcher: SparkLauncher) -> str:
        examples = flights_examples.write_examples(runner.store, {"train": pa.table({"x": [1.0, 2.0]})})
        with pytest.raises(StepFailed) as failure:
            runner(
                "airflow_hops.ml.transform.stage:run",
                params={"preprocess": "flights.features:preprocess"},
                inputs={"examples": examples},
                kind="transformed_examples",
                launcher=launcher,
                code_paths=DAGS,
            )
        assert not runner.store.exists(runner.last_uri)
        return str(failure.value)

    monkeypatch.setenv("AIRFLOW_CONN_SPARK_GONE", '{"conn_type": "spark", "host": "spark://127.0.0.1", "port": 9}')
    gone = SparkLauncher(runtime, "spark_gone", {"spark.driver.host": "127.0.0.1"})
    message = refused(StepRunner(str(tmp_path / "store"), runtime), gone)
    assert "Spark's master spark://127.0.0.1:9 ran nothing for this step: it does not answer" in message
    with s3_options("127.0.0.1") as options:
        message = refused(StepRunner("s3://cluster/hops", runtime, options), launchers["cluster"])
    assert re.search(r"Spark's executor on spark[01] cannot use the store s3://cluster/hops \(", message)
    assert options["endpoint_url"] in message


def test_doctor_finds_a_host_that_differs(cluster: SparkCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = cluster.folder / "tmp-1" / "other" / "pandas-1.4.4.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Metadata-Version: 2.1\nName: pandas\nVersion: 1.4.4\n")
    connection = json.loads(os.environ["AIRFLOW_CONN_SPARK_CLUSTER"])
    connection["extra"] = {"conf": {**cluster.conf, "spark.executorEnv.PYTHONPATH": "/tmp/other"}}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_CLUSTER", json.dumps(connection))
    with s3_options(cluster.address) as options:
        fields = {"store": "s3://cluster/hops", "storage_options": options, "spark_conn_id": "spark_cluster"}
        monkeypatch.setenv("AIRFLOW_CONN_HOPS_DEFAULT", json.dumps({"conn_type": "hops", "extra": fields}))
        (result,) = doctor.check_cluster(RuntimeHook())
    assert result.status == "fail" and "executor on spark1 has pandas 1.4.4, but this step " in result.found


def test_executors_unpack_an_archive_of_the_runtime_environment(
    runtime: Path, flights_raw: Path, warm_launcher: Any, hops: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Describes examples, and trains two ranks, on hosts without the runtime environment and its Python."""
    if (free := shutil.disk_usage(tmp_path).free) < 14 << 30:
        pytest.skip(f"three copies of the runtime environment need 14 GB of disk, {free >> 30} GB are free")
    with started_cluster(runtime, []) as cluster, s3_options(cluster.address) as options:
        archive, store = "s3://cluster/runtime.tar.gz", {"store": "s3://cluster/hops", "storage_options": options}
        connection = json.loads(os.environ["AIRFLOW_CONN_SPARK_CLUSTER"])
        connection["extra"] = {"runtime_archive": archive}
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_CLUSTER", json.dumps(connection))
        monkeypatch.setenv("AIRFLOW_CONN_HOPS_DEFAULT", json.dumps({"conn_type": "hops", "extra": store}))
        run_step = StepRunner("s3://cluster/hops", runtime, options)
        conf = {**cluster.conf, "spark.files.useFetchCache": "false"}
        local, there = SparkLauncher(runtime, "spark_local"), SparkLauncher(runtime, "spark_cluster", conf)
        code, output, errors = hops("runtime", "pack", archive)
        assert code == 0, output + errors
        assert f'"extra": {{"runtime_archive": "{archive}"}}' in output
        january = flights_examples.months(flights_raw, 1, 1)
        made = {"examples": flights_examples.write_examples(run_step.store, {"train": january})}
        stages = Stages(run_step, {"here": local, "cluster": there, "process": warm_launcher}, made)
        params = {"engine": "spark"}
        statistics, others = (
            stages.run(where, "airflow_hops.ml.statistics.stage:run", "statistics", "examples", params=params)
            for where in ("here", "cluster")
        )
        assert (statistics.rows, statistics.metrics) == (others.rows, others.metrics)
        made["statistics"] = statistics
        made["schema"] = stages.run("process", "airflow_hops.ml.schema.stage:run", "schema", "statistics")
        here, made["transformed"] = (transform(stages, where) for where in ("here", "cluster"))
        assert checksums(run_step, here, ".parquet") == checksums(run_step, made["transformed"], ".parquet")
        model = train(stages, "cluster", "spark")
        summary = json.loads((run_step.store.local(model) / "training.json").read_text())
        assert sorted(summary["hosts"]) == ["spark0", "spark1"]

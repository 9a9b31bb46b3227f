"""Steps on Spark's executors, here processes of this machine, and what the doctor says of executors."""

from __future__ import annotations

import contextlib
import io
import json
import shlex
import shutil
import tarfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import fsspec
import pytest
from step_runner import StepRunner
from world import World

from airflow_hops.cli import check as doctor
from airflow_hops.cli import doctor as whole_doctor
from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.sources.sources import Source
from airflow_hops.runner.environments.packed import PackedRuntime
from airflow_hops.runner.launchers.spark import JVM_OPTIONS, SparkLauncher
from airflow_hops.runner.runtime import RuntimeHook

pytestmark = pytest.mark.runtime


@pytest.fixture
def connect(world: World) -> Any:
    """Sets the connections: a cluster's, with fields of its extra, and the store's."""

    def connect(host: str = "spark://10.0.0.5", **extra: Any) -> None:
        world.connect("spark_cluster", "spark", host=host, **extra).connect(spark_conn_id="spark_cluster")

    return connect


@pytest.fixture
def executors(runtime: Path, tmp_path: Path, connect: Any) -> Iterator[dict[str, str]]:
    """Connects to a cluster of one executor, which the driver starts."""
    name = f"-Dof.test={tmp_path}"
    conf = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.executor.extraJavaOptions": shlex.join([*JVM_OPTIONS, name]),
        "spark.executor.instances": "1",
        "spark.executor.memory": "600m",
    }
    connect("local-cluster[1,1,1024]", conf=conf)
    yield conf
    (home,) = runtime.glob("lib/python3*/site-packages/pyspark")
    for log in home.glob("work/app-*/*/stderr"):
        with contextlib.suppress(FileNotFoundError):  # another test has removed its own
            if name in log.read_text(errors="replace"):
                shutil.rmtree(log.parents[1])


@pytest.mark.spark
def test_doctor_examines_the_executors(executors: dict[str, str]) -> None:
    (result,) = doctor.check_cluster(RuntimeHook())
    assert (result.name, result.status) == ("Spark cluster", "ok"), result
    assert "local-cluster[1,1,1024]: its executors have the libraries of this machine" in result.found


@pytest.mark.spark
def test_executors_ingest_the_same_snapshot(
    executors: dict[str, str], runtime: Path, tmp_path: Path, warm_launcher: Any
) -> None:
    runner = StepRunner(str(tmp_path / "store"), runtime)
    for number in range(3):
        (tmp_path / f"{number}.csv").write_text(f"id,x\n{number},{number}.5\n")
    params = {
        "sources": {"t": Source(str(tmp_path / "*.csv")).to_dict()},
        "window_start": None,
        "window_end": None,
    }
    here, there = (
        runner("airflow_hops.ml.ingest:run", params=params, kind="snapshot", launcher=launcher)
        for launcher in (warm_launcher, SparkLauncher(runtime, "spark_cluster", executors))
    )
    assert isinstance(there, Artifact) and there.rows["t"].rows_out == 3
    assert (here.fingerprint, here.rows) == (there.fingerprint, there.rows)


def test_silent_master_is_reported(connect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(hook: RuntimeHook, *_: Any, **__: Any) -> Any:
        raise HopsError("the master spark://m does not answer")

    connect()
    monkeypatch.setattr(RuntimeHook, "run", run)
    (silent,) = doctor.check_cluster(RuntimeHook())
    assert silent.status == "fail" and "does not answer" in silent.found
    assert "master of connection spark_cluster runs" in silent.advice


def test_cluster_is_one_of_the_doctors_checks(connect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    connect(conf="spark.a=1")
    monkeypatch.setattr(whole_doctor, "check_libraries", lambda runtime: iter(()))  # which starts a step
    assert "Spark cluster" in [each.name for each in whole_doctor.run_checks("hops_default")]


@pytest.mark.parametrize("conf", ["spark.a=1", ["spark.a"], {"spark.a": None}, {"spark.a": {"b": 1}}])
def test_connection_with_invalid_conf_is_refused(conf: Any, connect: Any) -> None:
    connect(conf=conf)
    (result,) = doctor.check_cluster(RuntimeHook())
    assert "connection 'spark_cluster', field 'conf': expected Spark properties as " in result.found
    assert (result.status, result.advice) == ("fail", "")


def test_an_archive_of_another_environment_is_named(runtime: Path, tmp_path: Path, connect: Any) -> None:
    def message(archive: Path | str) -> str:
        connect(runtime_archive=str(archive))
        runner = StepRunner(str(tmp_path / "store"), runtime)
        with pytest.raises(BadInput) as failure:
            runner("airflow_hops.ml.statistics.stage:run", launcher=SparkLauncher(runtime, "spark_cluster"))
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

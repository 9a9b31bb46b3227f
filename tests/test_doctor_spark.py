"""``airflow hops doctor`` on a Spark cluster whose hosts differ."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import spark_cluster
from spark_cluster import SparkCluster
from test_spark_cluster import s3_options

from airflow_hops.cli import spark_cluster as doctor
from airflow_hops.cli.check import Check

pytestmark = [
    pytest.mark.runtime,
    pytest.mark.spark,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(bool(spark_cluster.why_not()), reason=spark_cluster.why_not() or "there can be one"),
]


@pytest.fixture(scope="module")
def cluster(runtime: Path) -> Iterator[SparkCluster]:
    with spark_cluster.spark_cluster(runtime, spark_cluster.python_of(runtime)) as cluster:
        yield cluster


@pytest.fixture
def connect(cluster: SparkCluster, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets the connections: Spark properties of the cluster's, and the store."""

    def connect(store: str, options: Any = None, **conf: str) -> None:
        host, _, port = cluster.master.removeprefix("spark://").partition(":")
        conf = {f"spark.{name.replace('_', '.')}": value for name, value in conf.items()}
        extra = {"conf": {**cluster.conf, **conf}}
        spark = {"conn_type": "spark", "host": f"spark://{host}", "port": int(port), "extra": extra}
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_CLUSTER", json.dumps(spark))
        hops = {"conn_type": "hops", "extra": {"store": store, "storage_options": options or {}}}
        monkeypatch.setenv("AIRFLOW_CONN_HOPS_DEFAULT", json.dumps(hops))

    return connect


def checks() -> dict[str, Check]:
    """Returns the checks of the cluster, by name without the executor's number and address."""
    results = list(doctor.check_cluster("hops_default", "spark_cluster"))
    names = [re.sub(r"executor \d+ on (\S+).*", r"executor on \1", each.name) for each in results]
    assert len(set(names)) == len(names)
    return dict(zip(names, results, strict=True))


def test_doctor_describes_the_executors(cluster: SparkCluster, connect: Any, hops: Any) -> None:
    with s3_options(cluster.address) as options:
        connect("s3://cluster/hops", options)
        _, output, _ = hops("doctor", "--output", "json", "--spark-conn-id", "spark_cluster")
    results = [each for each in json.loads(output) if each["name"].startswith("Spark")]
    assert [(each["name"], each["status"]) for each in results] == [("Spark cluster", "ok")], results
    finding = results[0]["found"]
    assert f"{cluster.master}: 2 executors on spark" in finding and "1 cores and 0.6 GiB each, Java 1" in finding
    assert {"spark0", "spark1"} <= set(re.findall(r"spark\d", finding))


def test_host_with_another_environment_fails_the_doctor(cluster: SparkCluster, connect: Any, runtime: Path) -> None:
    """One host has another pandas; then one lacks the Python, and its tasks succeed on the other one."""
    metadata = cluster.folder / "tmp-1" / "other" / "pandas-1.4.4.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Metadata-Version: 2.1\nName: pandas\nVersion: 1.4.4\n")
    python = cluster.folder / "tmp-0" / "python"
    python.write_text(f'#!/bin/sh\nexec {runtime}/bin/python "$@"\n')
    python.chmod(0o755)
    with s3_options(cluster.address) as options:
        connect("s3://cluster/hops", options, executorEnv_PYTHONPATH="/tmp/other")
        results = checks()
        assert {name: each.status for name, each in results.items()} == {
            "Spark executor on spark1": "fail",
            "Spark cluster": "ok",
        }
        assert results["Spark executor on spark1"].found.startswith("pandas 1.4.4 instead of ")
        assert "1 executors on spark0" in results["Spark cluster"].found
        connect("s3://cluster/hops", options, pyspark_python="/tmp/python")
        results = checks()
    (bad,) = (each for name, each in results.items() if name != "Spark cluster")
    assert bad.status == "fail" and "/tmp/python" in bad.found and "No such file" in bad.found
    assert "runtime_archive" in bad.advice and "1 executors on spark0" in results["Spark cluster"].found


def test_store_that_one_host_cannot_write_fails_the_doctor(
    cluster: SparkCluster, connect: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = cluster.shared / "store" / "_state" / "doctor"
    folder.mkdir(parents=True)
    os.chown(folder, 60_001, 60_001)  # the user of the first host
    connect(str(cluster.shared / "store"), executor_instances="3")
    monkeypatch.setattr(doctor, "_EXECUTORS_TIMEOUT_S", 40.0)
    results = checks()
    assert results["Spark cluster"].found.count("spark0") == 1 and results["Spark cluster"].status == "warn"
    assert "not all 3 of spark.executor.instances started within 40 s" in results["Spark cluster"].advice
    bad = results["Spark executor on spark1"]
    assert bad.status == "fail" and "cannot use the store as this machine does: PermissionError" in bad.found
    assert list(folder.iterdir()) == []
    connect(str(tmp_path / "store"))
    results = checks()
    assert set(results) == {"Spark executor on spark0", "Spark executor on spark1"}
    assert all("FileNotFoundError" in each.found and "all hosts reach" in each.advice for each in results.values())


def test_doctor_gives_up_a_master_that_does_not_answer(
    connect: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the server of another protocol that never says a word, nor workers without room are waited for long."""
    connect(str(tmp_path / "store"), executor_memory="3g")
    monkeypatch.setattr(doctor, "_EXECUTORS_TIMEOUT_S", 15.0)
    results = checks()
    assert results["Spark cluster"].status == "fail"
    assert re.search(r"started no executor within 15 s: .* too little memory", results["Spark cluster"].found)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        spark = {"conn_type": "spark", "host": "spark://127.0.0.1", "port": silent.getsockname()[1]}
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_CLUSTER", json.dumps(spark))
        monkeypatch.setattr(doctor, "_TIMEOUT_S", 30.0)
        (result,) = checks().values()
    assert result.status == "fail" and "no answer within 30 s" in result.found
    assert "master of connection spark_cluster runs" in result.advice


@pytest.mark.parametrize(
    ("facts", "status", "found"),
    [
        ({}, None, ""),
        ({"java": "1.8.0_402"}, None, ""),
        ({"java": "21.0.7"}, "fail", "Java 21.0.7"),
        ({"slots": 3}, "warn", "3 tasks at a time on 2 cores"),
        ({"memory_bytes": 3 << 30}, "warn", "spark.executor.memory is 4.0 GiB of 3.0 GiB"),
        ({"differing": [["rich", "none", "13.9"]]}, "warn", "rich none instead of 13.9"),
    ],
)
def test_doctor_judges_an_executor(facts: dict[str, Any], status: str | None, found: str) -> None:
    good = {"java": "17.0.1", "slots": 2, "cores": 2, "memory_bytes": 8 << 30}
    executor = {**good, "differing": [], "refused": 0, "store_failure": "", **facts}
    problem = doctor.problem_of(executor, (8, 11, 17), 4 << 30)
    assert (problem and problem[:2]) == (status and (status, found))


@pytest.mark.parametrize("conf", ["spark.a=1", ["spark.a"], {"spark.a": None}, {"spark.a": {"b": 1}}])
def test_connection_with_invalid_conf_is_refused(
    conf: Any, connect: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(str(tmp_path))
    connection = json.loads(os.environ["AIRFLOW_CONN_SPARK_CLUSTER"])
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_CLUSTER", json.dumps({**connection, "extra": {"conf": conf}}))
    (result,) = checks().values()
    assert "connection 'spark_cluster', field 'conf': expected Spark properties as " in result.found
    assert (result.status, result.advice) == ("fail", "")

"""Spark steps on this machine whose driver is forked from the warm process."""

from __future__ import annotations

import sys
import threading
import uuid
import zipfile
from pathlib import Path
from typing import Any

import psutil
import pytest
from waiting import wait_for

from airflow_hops.core.steps.protocol import StepSpec
from airflow_hops.runner.launchers.spark import SparkLauncher
from airflow_hops.runner.runtime import RuntimeHook

pytestmark = [pytest.mark.runtime, pytest.mark.spark]
REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture
def spark_folder(tmp_path: Path) -> Path:
    """Returns the folder for Spark's shuffled and spilled data."""
    return tmp_path / "spark"


@pytest.fixture
def warm_spark(runtime: Path, warm_launcher: Any, spark_folder: Path) -> SparkLauncher:
    conf = {"spark.local.dir": str(spark_folder)}
    return SparkLauncher(runtime, "spark_local", conf, warm=warm_launcher.warm)


def test_connection_secrets_reach_the_spark_driver_without_files(warm_spark: SparkLauncher, run_step: Any) -> None:
    token = uuid.uuid4().hex
    asked = {"services": {"serving_token": token}, "code_paths": (str(REPOSITORY / "tests"),)}
    result = run_step("protocol_steps:look_around", launcher=warm_spark, **asked)
    assert result["services"]["serving_token"] == token
    for text in (*result["files"].values(), result["environment_of_a_child"]):
        assert token not in text


def test_local_master_needs_no_spark_provider(
    warm_spark: SparkLauncher, run_step: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its hook brings the clients of Kubernetes, which take longer to import than a step to start."""
    monkeypatch.setitem(sys.modules, "airflow.providers.apache.spark.hooks.spark_submit", None)
    assert run_step("protocol_steps:look_around", launcher=warm_spark, code_paths=(str(REPOSITORY / "tests"),))


def test_a_packaged_dag_runs_on_spark_with_its_modules_and_leaves_no_files(
    warm_spark: SparkLauncher, spark_folder: Path, run_step: Any, tmp_path: Path
) -> None:
    with zipfile.ZipFile(tmp_path / "dag.zip", "w") as archive:
        archive.writestr("shop/__init__.py", "")
        archive.writestr("shop/doubling.py", "def double(number):\n    return 2 * number\n")
        archive.writestr(
            "shop/steps.py",
            "def task(number):\n"
            "    from shop.doubling import double\n"
            "    return double(number)\n"
            "def run(context):\n"
            "    from pyspark import SparkContext\n"
            "    return SparkContext.getOrCreate().parallelize([1, 2], 2).map(task).collect()\n",
        )
    assert run_step("shop.steps:run", launcher=warm_spark, code_paths=(str(tmp_path / "dag.zip"),)) == [2, 4]
    assert list(spark_folder.iterdir()) == []


def test_a_killed_warm_spark_step_leaves_neither_jvm_nor_workers(warm_spark: SparkLauncher, tmp_path: Path) -> None:
    (tmp_path / "endless.py").write_text(
        "import time\n"
        "from pathlib import Path\n"
        "def task(path):\n"
        "    Path(path).touch()\n"
        "    time.sleep(600)\n"
        "def run(context, path):\n"
        "    from pyspark import SparkContext\n"
        "    SparkContext.getOrCreate().parallelize([path], 1).foreach(task)\n"
    )
    working = tmp_path / "working"
    hook = RuntimeHook()
    spec = StepSpec("endless", "endless:run", params={"path": str(working)}, code_paths=(str(tmp_path),))
    failures: list[BaseException] = []

    def run() -> None:
        try:
            hook.run(spec, launcher=warm_spark, cache=False, on_line=lambda line: None)
        except BaseException as error:
            failures.append(error)

    pids = {process.pid for process in psutil.process_iter()}
    thread = threading.Thread(target=run)
    thread.start()
    wait_for(lambda: working.exists() or not thread.is_alive(), "the endless task", 60)
    assert working.exists(), failures
    folder = str(psutil.Process(hook._process.pid).cwd())
    hook.kill()
    thread.join()
    assert not thread.is_alive() and failures
    left = []
    for process in psutil.process_iter():
        try:
            if process.pid not in pids and (folder in " ".join(process.cmdline()) or process.cwd() == folder):
                left.append(process)
        except psutil.Error:
            continue
    assert not left

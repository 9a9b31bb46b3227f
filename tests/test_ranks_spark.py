"""Ranks on Spark's executors: real Horovod ranks in a cluster and on a local Spark, and their accidents."""

from __future__ import annotations

import json
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_hops.contract.artifacts import Artifact
from airflow_hops.hooks.runtime import RuntimeHook, StepFailed
from airflow_hops.launchers.spark import SparkLauncher

pytestmark = [pytest.mark.runtime, pytest.mark.spark]
REPOSITORY = Path(__file__).resolve().parent.parent
CHECKS = (str(REPOSITORY / "tests" / "runtime_checks"),)


@pytest.fixture(scope="module")
def gangs(runtime: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What happened on executors with a GPU each, so they say, until the step was killed; one was to spare."""
    from conftest import StepRunner

    folder = tmp_path_factory.mktemp("cluster")
    discovery = folder / "discover"
    discovery.write_text(
        "#!/bin/sh\nnumber=20\nwhile ! mkdir $0.$number; do number=$((number + 1)); done 2> /dev/null\n"
        'echo "{\\"name\\": \\"gpu\\", \\"addresses\\": [\\"$number\\"]}"\n'
    )
    discovery.chmod(0o700)
    conf = {
        "spark.worker.resource.gpu.amount": "1",
        "spark.worker.resource.gpu.discoveryScript": str(discovery),
        "spark.executor.resource.gpu.amount": "1",
        "spark.task.resource.gpu.amount": "1",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
    }
    # Where Spark's own workers, of which local-cluster starts three, keep what executors log.
    (workers,) = (package / "work" for package in runtime.glob("lib/python*/site-packages/pyspark"))
    before = set(workers.glob("app-*"))
    run = StepRunner(str(folder / "store"), runtime)
    patch = pytest.MonkeyPatch()
    patch.setenv("AIRFLOW_CONN_SPARK_CLUSTER", '{"conn_type": "spark", "host": "local-cluster[3,1,1024]"}')
    patch.setenv("HOPS_GPU_LEASES", str(folder / "leases"))
    hooks: list[RuntimeHook] = []
    launch = RuntimeHook._launch
    patch.setattr(RuntimeHook, "_launch", lambda hook, *a: hooks.append(hook) or launch(hook, *a))
    failures: list[BaseException] = []

    def run_step() -> None:
        try:
            launcher = SparkLauncher(runtime, "spark_cluster", conf)
            run("spark_rank_checks:run_all", code_paths=CHECKS, launcher=launcher)
        except StepFailed as failure:
            failures.append(failure)

    thread = threading.Thread(target=run_step)
    thread.start()
    try:
        deadline = time.monotonic() + 900
        told: list[Any] = []
        while len([name for name, _ in told if name == "met"]) < 3 and thread.is_alive():
            assert time.monotonic() < deadline, told
            time.sleep(0.1)
            told = [json.loads(line.text[8:]) for line in list(run.lines) if line.text.startswith("outcome ")]
        assert thread.is_alive(), (failures, told)
        began = time.monotonic()
        ranks = [psutil.Process(rank["pid"]) for rank in told[-1][1]]
        hooks[0].kill()
        killed_s = time.monotonic() - began
        left = [process for process in ranks if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
    finally:
        if hooks:
            hooks[0].kill()
        thread.join(20)
        patch.undo()
        for logs in workers.glob("app-*"):
            if logs not in before:
                shutil.rmtree(logs)
    met = [ranks for name, ranks in told if name == "met"]
    return {**dict(told), "met": met, "step": {"left": left, "seconds": killed_s, "failures": failures}}


def test_ranks_on_two_executors_of_one_host_meet_and_know_that_they_are_neighbours(gangs: Any) -> None:
    for ranks in gangs["met"]:
        assert [rank["total"] for rank in ranks] == [3.0, 3.0]
        assert [rank["local"] for rank in ranks] == [[0, 2], [1, 2]]
        assert len({rank["executor"] for rank in ranks}) == 2


def test_a_rank_sees_the_gpus_that_spark_has_assigned_to_its_task(gangs: Any) -> None:
    devices = {rank["executor"]: rank["devices"] for ranks in gangs["met"] for rank in ranks}
    assert len(set(devices.values())) == len(devices)
    assert set(devices.values()) <= {"20", "21", "22"}


def test_too_few_slots_are_an_error_at_once_that_names_both(gangs: Any) -> None:
    assert gangs["too_many"]["type"] == gangs["no_number"]["type"] == "BadInput"
    assert "np is 5, but there are only 3 slots (local-cluster[3,1,1024]: 3)" in gangs["too_many"]["error"]
    assert gangs["no_number"]["error"] == "np is 0, expected a number of ranks, 1 or more"


def test_a_killed_rank_ends_the_gang_and_is_named(gangs: Any) -> None:
    outcome = gangs["rank"]
    assert outcome["type"] == "HopsError"
    assert "rank 1 of 2 on" in outcome["error"] and "was ended by SIGKILL" in outcome["error"]
    assert "after the first all-reduce; all ranks were ended" in outcome["error"]
    assert "  rank 1 is about to have an accident" in outcome["error"]
    assert (outcome["left"], outcome["jobs"]) == ([], [])
    assert outcome["seconds"] < 15


def test_a_killed_executor_ends_the_gang_and_is_named_with_its_rank(gangs: Any) -> None:
    outcome = gangs["executor"]
    assert outcome["type"] == "HopsError"
    assert outcome["error"].startswith("rank 1 of 2 on")
    assert "is lost: Command exited with code 137" in outcome["error"]
    assert (outcome["left"], outcome["jobs"]) == ([], [])
    assert outcome["seconds"] < 15


def test_killing_the_step_leaves_no_rank_on_any_executor(gangs: Any) -> None:
    assert gangs["step"]["left"] == []
    assert gangs["step"]["seconds"] < 6
    assert gangs["step"]["failures"]


def test_training_on_spark_gives_the_weights_of_local_ranks(
    shared_run_step: Any, warm_launcher: Any, run_dag: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__HOPS__STORE", shared_run_step.store.root)
    references = {kind: Artifact(f"file:///store/{kind}", kind, "0" * 64) for kind in ("statistics", "schema")}
    examples = shared_run_step(
        "transformed_examples:write",
        params={"rows": {"train": [300, 3], "eval": [201]}},
        kind="transformed_examples",
        inputs=references,
        code_paths=CHECKS,
        launcher=warm_launcher,
    )
    local = shared_run_step(
        "airflow_hops.runtime.train:run",
        params={"train": "train_ranks_model:train"},
        inputs={"examples": examples},
        kind="model",
        code_paths=(str(REPOSITORY / "tests" / "dags"),),
        launcher=warm_launcher,
    )
    run = run_dag("train_ranks", {"examples": examples.to_dict(), "ranks_conn_id": "spark_local"})
    assert run.state == "success"
    artifact = Artifact.from_dict(run.get_task_instance("train").xcom_pull(task_ids="train"))
    folders = [Path(found.uri.removeprefix("file://")) for found in (local, artifact)]
    expected, found = (json.loads((folder / "training.json").read_text()) for folder in folders)
    assert found["checksum"] == expected["checksum"]
    assert found["rows"] == expected["rows"] == {"train": 303, "eval": 201}
    files = [
        {path.relative_to(folder).as_posix() for path in folder.glob("[!t]*/**/*") if path.is_file()}
        for folder in folders
    ]
    assert files[0] == files[1]

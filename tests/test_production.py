"""Airflow as teams run it: PostgreSQL, Celery, two schedulers, two workers that share only the store, and more."""

from __future__ import annotations

import contextlib
import random
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from step_runner import REPOSITORY
from waiting import wait_for

import set_up
from demo.airflow_api import FINISHED, AirflowApi
from demo.production import WORKERS, Production, find_program
from demo.services import ServiceFailed

# test_reattach.py has workers that die and jobs on other machines, test_retraining.py two monitors of a model.
pytestmark = [
    pytest.mark.runtime, pytest.mark.airflow, pytest.mark.server, pytest.mark.scheduled(part="clusters"),
]  # fmt: skip

TRAINING, MONITORS = "visits_training", ("visits_monitoring_1", "visits_monitoring_2")
BEGIN, CHANGED, END = (datetime(2025, month, 1, tzinfo=UTC) for month in (1, 3, 7))
"""From March on visitors read more pages, and buy for another reason."""


def visit(generator: random.Random, time: datetime) -> dict[str, float]:
    pages = generator.gauss(9 if time >= CHANGED else 4, 1)
    return {"at": int(time.timestamp()), "pages": pages, "minutes": generator.gauss(10, 3)}


def write_visits(path: Path) -> None:
    """Writes the visits of half a year, one an hour."""
    generator, time = random.Random(1), BEGIN
    with path.open("w") as file:
        file.write("at,pages,minutes,bought\n")
        while time < END:
            row = visit(generator, time)
            score = row["minutes"] - 10 if time >= CHANGED else row["pages"] - 4
            bought = int(score + generator.gauss(0, 0.5) > 0)
            file.write(f"{time.isoformat()},{row['pages']},{row['minutes']},{bought}\n")
            time += timedelta(hours=1)


@pytest.fixture(scope="module")
def production(tmp_path_factory: pytest.TempPathFactory, runtime: Path) -> Iterator[Production]:
    """The services, with the DAGs of the visits."""
    try:
        find_program("postgres"), find_program("redis-server")
    except ServiceFailed as error:
        if not set_up.install_debian_packages(["postgresql", "redis-server"]):
            pytest.skip(str(error))
    home = tmp_path_factory.mktemp("production")
    dags = home / "dags"
    dags.mkdir()
    for name in ("visits.py", "visits_code.py"):
        shutil.copy(REPOSITORY / "tests" / "dags" / name, dags)
    write_visits(dags / "visits.csv")
    with Production(home, runtime, dags) as stack:
        yield stack


@pytest.fixture(scope="module")
def api(production: Production) -> AirflowApi:
    result = production.start()
    for dag_id in (TRAINING, *MONITORS):
        result.wait_for_dag(dag_id)
    return result


def predict(production: Production, rows: int) -> None:
    """Asks the model about visits after the change, a request each."""
    generator = random.Random(rows)
    url = f"http://127.0.0.1:{production.rest_port}/v1/models/visits:predict"
    with httpx.Client(trust_env=False) as client:
        for number in range(rows):
            asked = visit(generator, CHANGED + timedelta(hours=10 * number))
            client.post(url, json={"instances": [asked]}).raise_for_status()


def wait_for_runs(api: AirflowApi, *runs: tuple[str, str]) -> None:
    def are_over() -> bool:
        return all(api.run(*run)["state"] in FINISHED for run in runs)

    def logs() -> str:
        tasks = [(run, task) for run in runs for task in api.task_instances(*run)]
        return "\n".join(
            "\n".join([task["task_id"], task["state"], *api.log(*run, task["task_id"], task["try_number"])[-30:]])
            for run, task in tasks
            if task["state"] not in ("success", None)
        )

    wait_for(are_over, logs, 300, poll_s=0.5)
    assert {api.run(*run)["state"] for run in runs} == {"success"}, logs()


@pytest.fixture(scope="module")
def runs(production: Production, api: AirflowApi) -> list[tuple[str, str]]:
    """A training whose worker is killed, both monitors at once, and the retraining, for which a scheduler is killed."""
    first = (TRAINING, api.trigger(TRAINING, {"pause_s": 0.5}))
    kill_worker_of_training(production, api, first)
    wait_for_runs(api, first)
    predict(production, 300)
    url = f"http://127.0.0.1:{production.rest_port}/v1/capture:flush"
    httpx.post(url, timeout=30, trust_env=False).raise_for_status()
    monitors = [(dag_id, api.trigger(dag_id)) for dag_id in MONITORS]
    wait_for_runs(api, *monitors)
    wait_for(lambda: len(api.runs(TRAINING)) > 1, "the retraining", 60, poll_s=0.5)
    assert schedulers(api) == ["scheduler-1", "scheduler-2"]
    (first_scheduler,) = (service for service in production.services if service.name == "scheduler-1")
    for process in psutil.Process(first_scheduler.process.pid).children(recursive=True):
        process.kill()
    retrainings = [(TRAINING, run["dag_run_id"]) for run in api.runs(TRAINING) if run["run_type"] != "manual"]
    over = threading.Event()

    def ask() -> None:
        while not over.wait(0.2):
            predict(production, 5)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        wait_for_runs(api, *retrainings)
    finally:
        over.set()
        asking.join()
    return [first, *monitors, *retrainings]


def train_task(api: AirflowApi, run: tuple[str, str]) -> dict[str, Any]:
    (task,) = (task for task in api.task_instances(*run) if task["task_id"] == "train")
    return task


def kill_worker_of_training(production: Production, api: AirflowApi, run: tuple[str, str]) -> None:
    """Kills a Celery worker after a training's first checkpoints; the training, a process of its own, goes on."""
    store = production.artifact_store()
    checkpoints = store.internal("_state", "checkpoints", *run)
    wait_for(lambda: store.files.sizes(checkpoints), lambda: str(train_task(api, run)), 200, poll_s=0.5)
    (worker,) = (service for service in production.services if service.name == train_task(api, run)["hostname"])
    for process in psutil.Process(worker.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if "airflow_hops.ml" not in " ".join(process.cmdline()):
                process.kill()
    wait_for(lambda: train_task(api, run)["try_number"] > 1, lambda: str(train_task(api, run)), 120, poll_s=0.5)
    production.launch_part(worker.name)


def schedulers(api: AirflowApi) -> list[str]:
    """Host names of the schedulers that are alive."""
    jobs = api._request("GET", "/jobs", params={"job_type": "SchedulerJob", "is_alive": True})["jobs"]
    return sorted(job["hostname"] for job in jobs)


def tasks_of(api: AirflowApi, runs: list[tuple[str, str]]) -> list[dict[str, Any]]:
    return [task for run in runs for task in api.task_instances(*run)]


def test_both_workers_train_monitor_retrain_and_roll_out(
    production: Production, api: AirflowApi, runs: list[tuple[str, str]]
) -> None:
    assert {task["hostname"] for task in tasks_of(api, runs)} == {*WORKERS}
    assert api.xcom(*runs[-1], "rollout")["properties"]["decision"] == "promoted"
    stats = httpx.get(f"http://127.0.0.1:{production.rest_port}/v1/stats", trust_env=False).json()
    versions = stats["models"]["visits"]["versions"]
    assert {version: figures["traffic_percent"] for version, figures in versions.items()} == {"1": 0, "2": 100}


def test_nothing_runs_twice_with_two_schedulers_and_two_monitors(api: AirflowApi, runs: list[tuple[str, str]]) -> None:
    assert "scheduler-2" in schedulers(api)  # the other one is killed meanwhile
    requests = [task["state"] for task in tasks_of(api, runs) if task["task_id"] == "request_retraining"]
    assert sorted(requests) == ["skipped", "success"]
    assert len(api.runs(TRAINING)) == 2
    tries = {(run, task["task_id"]): task["try_number"] for run in runs for task in api.task_instances(*run)}
    assert {key: number for key, number in tries.items() if number != 1} == {(runs[0], "train"): 2}


def test_training_continues_on_the_other_worker(api: AirflowApi, runs: list[tuple[str, str]]) -> None:
    log = "\n".join(api.log(*runs[0], "train", 2))
    (killed,) = set(WORKERS) - {train_task(api, runs[0])["hostname"]}
    assert f"Try 1 left a job that works on {killed}: it is ended first" in log
    assert re.search(r"rows learnt on worker-\d after step [1-9]\d*", log)


def test_output_of_steps_is_in_the_remote_log_and_shown(
    production: Production, api: AirflowApi, runs: list[tuple[str, str]]
) -> None:
    line = rf"visits: \d+ rows learnt on {train_task(api, runs[0])['hostname']}"
    assert re.search(line, "\n".join(api.log(*runs[0], "train", 2)))
    logs = production.artifact_store().files.remote().fs
    texts = [logs.cat_file(path).decode() for path in logs.find("hops/logs") if "task_id=train/" in path]
    assert re.search(line, "\n".join(texts))


def test_secrets_stay_out_of_files_database_and_logs(
    production: Production, api: AirflowApi, runs: list[tuple[str, str]]
) -> None:
    page = httpx.get(f"{api.url}/hops/api/dags/{TRAINING}/models/visits", trust_env=False, timeout=60)
    assert page.raise_for_status().json()["champion"]["version"] == 2
    secret = production.key.encode()
    files = [path for path in production.home.rglob("*") if path.is_file() and path.name != "connections.json"]
    assert [path for path in files if secret in path.read_bytes()] == []
    objects = production.artifact_store().files.remote().fs
    assert [path for path in objects.find("hops") if secret in objects.cat_file(path)] == []
    database = production.part_environment("dump")["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"].replace("+psycopg2", "")
    dump = subprocess.run([find_program("pg_dump"), database], capture_output=True, check=True).stdout
    assert b"visits_training" in dump and secret not in dump

"""The flights pipeline goes from the profile ``base`` to ``current``, and back, as Operate describes it.

Needs a machine that runs both: ``HOPS_RUNTIME_BASE`` names an environment of ``base``, or there is a Python 3.11.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from step_runner import REPOSITORY

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.profiles import BASE, CURRENT, profile_of
from airflow_hops.runner.environments.runtime import machine_profile
from airflow_hops.runner.launchers.local import step_variables
from demo.__main__ import MONITORING, TRAINING, Demo
from demo.follow import follow
from demo.replay import Replay
from demo.services import Stack

pytestmark = [pytest.mark.runtime, pytest.mark.airflow, pytest.mark.server, pytest.mark.scheduled(part="campaigns")]
COMPUTED = ("ingest", "prepare", "statistics", "transform", "train", "evaluate", "infra_validate")
"""Tasks whose artifacts another profile does not take from the cache; the frozen schema stays."""

ASK = """
import json, sys
from pathlib import Path
from demo.client import Predictor, departures, scheduled_flights

data, *server = sys.argv[1:]
predictor, results = Predictor(*server, "flights"), []
for number, (hour, origin, columns) in enumerate(departures(scheduled_flights(Path(data), "2013-04-01", "2013-04-16"))):
    ask = predictor.over_rest if number % 2 else predictor.over_grpc
    results += ask(columns, f"{hour}/{origin}").tolist()
print(json.dumps(results))
"""


@pytest.fixture(scope="module")
def base_runtime(runtime: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns an environment of ``base`` beside that of ``current``."""
    if machine_profile() is not CURRENT or profile_of(runtime) is not CURRENT:
        pytest.skip("this machine, or its runtime environment, is not of the profile 'current'")
    if named := os.environ.get("HOPS_RUNTIME_BASE"):
        return Path(named)
    folder = tmp_path_factory.mktemp("base") / "runtime"
    command = [sys.executable, "-m", "airflow", "hops", "runtime", "create", "--profile", "base", str(folder)]
    made = subprocess.run(command, capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"no environment of the profile 'base' can be made here: {made.stdout[-500:]}{made.stderr[-500:]}")
    return folder


@contextmanager
def started(home: Path, runtime: Path, data: Path) -> Iterator[Demo]:
    """Runs Airflow and the model server of one home under a profile."""
    with pytest.MonkeyPatch.context() as patch, Stack(home, runtime, REPOSITORY / "dags") as stack:
        patch.setenv("FLIGHTS_DATA", str(data))
        api = stack.start()
        for dag_id in (TRAINING, MONITORING):
            api.wait_for_dag(dag_id)
        yield Demo(stack, api, data, Console())


def ask(demo: Demo) -> np.ndarray:
    """Returns what the model server answers about half a month's flights, over gRPC and REST."""
    stack = demo.stack
    server = (f"127.0.0.1:{stack.grpc_port}", f"http://127.0.0.1:{stack.rest_port}")
    command = [str(stack.runtime / "bin" / "python"), "-P", "-c", ASK, str(demo.data), *server]
    environment = step_variables(stack.runtime, (str(REPOSITORY),))
    asked = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert asked.returncode == 0, asked.stderr[-3000:]
    return np.array(json.loads(asked.stdout.splitlines()[-1]))


def train(demo: Demo, on_task: Any = lambda task_id, state: None, **params: str) -> dict[str, Any]:
    """Returns the tasks of a training run, by default on the demo's first window."""
    return demo.follow_training(demo.api.trigger(TRAINING, params), on_task)


def monitored(demo: Demo) -> dict[str, Any]:
    """Returns the report of the monitor about all requests that were captured since the last one."""
    demo.flush_capture()
    tasks = follow(demo.api, MONITORING, demo.api.trigger(MONITORING), demo.console)
    assert tasks["request_retraining"]["state"] == "skipped"
    return dict(next(each["value"] for each in tasks.values() if (each["value"] or {}).get("kind") == "skew"))


def test_flights_migrate_to_another_profile_and_back(
    base_runtime: Path, runtime: Path, some_flights: Path, tmp_path: Path
) -> None:
    with started(tmp_path, base_runtime, some_flights) as demo:
        store = demo.stack.artifact_store()
        first = train(demo)
        assert first["deploy"]["state"] == "success"
        predictions = ask(demo)
        demo.flush_capture()
    assert len(predictions) > 1000 and predictions.std() > 0.01

    with started(tmp_path, runtime, some_flights) as demo:
        after = ask(demo)
        print(
            f"{len(predictions)} predictions of the model of 'base' differ by {np.abs(after - predictions).max():.2e}"
        )
        assert np.abs(after - predictions).max() <= 1e-6
        report = monitored(demo)
        assert report["properties"]["verdict"] == "stable"
        assert report["rows"]["captured"]["rows_in"] == 2 * len(predictions), "rows of both profiles"
        assert store.manifest(report["uri"]).profile == CURRENT.name
        second = train(demo)
        for task_id in COMPUTED:
            old, new = (Artifact.from_dict(tasks[task_id]["value"]) for tasks in (first, second))
            assert not second[task_id]["value"].get("cached") and new.uri != old.uri
            assert [store.manifest(each.uri).profile for each in (old, new)] == [BASE.name, CURRENT.name]
        assert first["statistics"]["value"]["rows"] == second["statistics"]["value"]["rows"]
        again = train(demo)
        assert all(again[task_id]["value"].get("cached") for task_id in COMPUTED)
        assert any("the champion stays" in each for each in again["evaluate"]["value"]["properties"]["reasons"])

        with Replay(demo.stack, demo.data, "2013-06-01") as replay:

            def serve_canary(task_id: str, state: str) -> None:
                if (task_id, state) == ("deploy", "success"):
                    replay.go_on("2013-08-01")

            wider = train(demo, serve_canary, window_end="2013-06-01")
        assert wider["rollout"]["value"]["properties"]["decision"] == "promoted"
        expected = ask(demo)
        assert np.abs(expected - after).max() > 0.01

    with started(tmp_path, base_runtime, some_flights) as demo:
        back = ask(demo)
        print(f"{len(back)} predictions of the model of 'current' differ by {np.abs(back - expected).max():.2e}")
        assert np.abs(back - expected).max() <= 1e-6

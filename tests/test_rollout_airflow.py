"""Rollouts under a real Airflow whose scheduler, triggerer and workers are killed, and a person who is asked."""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from real_airflow import RealAirflow
from served_models import Pipeline
from waiting import wait_for

from airflow_hops.core.contract.artifacts import Artifact
from airflow_hops.operators.rollout import APPROVE

pytestmark = pytest.mark.runtime
_POLL_S = 1.0
"""Seconds between questions to Airflow's API: an answer costs it some hundredths of a second of work."""


def canary(pipeline: Pipeline, dag_id: str) -> Artifact:
    pipeline.deploy(pipeline.model("first"), dag_id=dag_id)
    deployment = pipeline.deploy(pipeline.model("second"), canary_percent=25, dag_id=dag_id)
    wait_for(lambda: pipeline.server.traffic(pipeline.name) == {1: 75, 2: 25}, "the canary's share")
    return deployment


@pytest.mark.last(1)
def test_rollouts_survive_component_kills_and_ask_before_promotion(
    real_airflow: RealAirflow, pipeline: Pipeline, tmp_path: Path
) -> None:
    deferred = replace(pipeline, runner=real_airflow.runner)
    waiting = replace(deferred, name=f"{pipeline.name}-2")
    pipelines = {"rollout_deferred": deferred, "rollout_waiting": waiting}
    deployments = {dag_id: canary(of, dag_id) for dag_id, of in pipelines.items()}
    api = real_airflow.api
    runs, pids = {}, {dag_id: tmp_path / dag_id for dag_id in deployments}
    for dag_id, deployment in deployments.items():
        api.wait_for_dag(dag_id)
        runs[dag_id] = api.trigger(dag_id, {"deployment": deployment.to_dict(), "pids": str(pids[dag_id])})

    def task(dag_id: str) -> dict[str, Any]:
        (result,) = api.task_instances(dag_id, runs[dag_id])
        return dict(result)

    def log(dag_id: str) -> str:
        return "\n".join(api.log(dag_id, runs[dag_id], "rollout", task(dag_id)["try_number"]))

    def begun(model: Pipeline) -> bool:
        return bool(model.record()["challenger"]["rollout"])

    wait_for(lambda: task("rollout_deferred")["state"] == "deferred", "it waits in the triggerer", 120, _POLL_S)
    wait_for(lambda: begun(waiting), "the other waits in its worker", 120)
    assert task("rollout_waiting")["state"] == "running"

    (worker,) = pids["rollout_waiting"].read_text().split()
    os.kill(int(worker), signal.SIGKILL)
    real_airflow.kill_and_start("triggerer")
    wait_for(lambda: len(pids["rollout_waiting"].read_text().split()) == 2, "the retry", 120)
    real_airflow.kill_and_start("scheduler")
    for model in (deferred, waiting):
        assert model.server.traffic(model.name) == {1: 75, 2: 25}, "nothing was decided"
        assert model.server.ask(model.name, 120) == 0

    wait_for(lambda: deferred.events()[-1] == ("step", 2), "50% after the triggerer's and the scheduler's death", 120)
    wait_for(lambda: deferred.server.traffic(deferred.name) == {1: 50, 2: 50}, "the decided share")
    assert deferred.server.ask(deferred.name, 60) == 0
    wait_for(lambda: task("rollout_deferred")["state"] == "awaiting_input", "the question", 120, _POLL_S)
    path = f"/dags/rollout_deferred/dagRuns/{runs['rollout_deferred']}/taskInstances/rollout/-1/hitlDetails"
    body = api._request("GET", path)["body"]
    assert f"Version 2 of {deferred.name} has passed 50% of the traffic, beside version 1" in body
    assert "30 requests, 0 failed" in body
    assert deferred.server.traffic(deferred.name) == {1: 50, 2: 50}

    seen = 0

    def answered() -> bool:
        # A scheduler that has just taken over may start the task anew between the answer and the look: it asks again.
        # An answer while the process that asked is still ending kills that process, and costs a try.
        nonlocal seen
        seen = seen + 1 if task("rollout_deferred")["state"] == "awaiting_input" else 0
        if seen * _POLL_S > 3:
            with contextlib.suppress(httpx.HTTPStatusError):
                api._request("PATCH", path, json={"chosen_options": [APPROVE], "params_input": {"note": "looks good"}})
        return task("rollout_deferred")["state"] in ("success", "failed")

    wait_for(answered, "the end", 120, _POLL_S)
    assert task("rollout_deferred")["state"] == "success", log("rollout_deferred")
    assert deferred.events() == [
        (name, 2 if n else 1) for n, name in enumerate(("deployed", "canary", "step", "approved", "step", "promoted"))
    ]
    approval = deferred.record()["history"][3]
    assert (approval["by"], approval["note"]) == ("Anonymous", "looks good")
    value = api.xcom("rollout_deferred", runs["rollout_deferred"], "rollout")
    assert value["properties"]["decision"] == "promoted"

    # The worker of the other died twice: once alone, once with the scheduler that started it.
    wait_for(lambda: waiting.events()[-1] == ("step", 2), "the other's step", 400)
    # What is decided is recorded first: the server hears of it a moment later.
    wait_for(lambda: waiting.server.traffic(waiting.name) == {1: 50, 2: 50}, "the other's decided share")
    assert waiting.server.ask(waiting.name, 60) == 0
    wait_for(lambda: task("rollout_waiting")["state"] in ("success", "failed"), "the other's end", 120, _POLL_S)
    assert task("rollout_waiting")["state"] == "success", log("rollout_waiting")
    assert task("rollout_waiting")["try_number"] >= 2
    assert waiting.events() == [("deployed", 1), ("canary", 2), ("step", 2), ("promoted", 2)]
    for model in (deferred, waiting):
        wait_for(lambda model=model: model.server.traffic(model.name) == {2: 100}, "all the traffic")
        assert model.aliases() == {"champion": 2}

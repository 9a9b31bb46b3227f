"""Rollouts on an endpoint of a cloud, judged by the windows of its log that were ingested."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.errors import BadInput
from airflow_hops.core.models.logged_windows import LoggedWindow, logged_windows
from airflow_hops.core.models.model_record import ModelRecord, ServedVersion, read_record, write_record
from airflow_hops.extensions.captured_logs import CapturedSource
from airflow_hops.extensions.captured_logs.ml.plan import plan_logs
from airflow_hops.ml import ingest
from airflow_hops.ml.captured.snapshot import requests_of_logs
from airflow_hops.ml.model_server import ModelServer
from airflow_hops.ml.rollout import poll
from airflow_hops.ml.step.context import made_current
from tests.ml.extensions.captured_logs.logs import append, commit
from tests.ml.extensions.cloud_endpoints.test_databricks import emptied, services_of, url, workspace  # noqa: F401
from tests.ml.world import World

pytestmark = [pytest.mark.runtime, pytest.mark.server]

MODEL = Artifact("file:///m", "model", "f", properties={"label": "churned", "problem": "binary"})
PLAN = {
    "steps": (20, 50, 100), "bake_time_s": 0.0, "min_requests": 60, "timeout_s": 600.0, "on_timeout": "leave",
    "approval": False, "keep_versions": 2, "longest_wait_s": 1.0,
}  # fmt: skip


class Endpoint:
    """An endpoint with a champion and a canary at 20%, and its log, of which every run ingests what is new."""

    def __init__(self, world: World, services: dict[str, str]) -> None:
        self.world, self.random, self.asked = world, np.random.default_rng(7), 0
        self.services = {**services, "tracking_uri": f"sqlite:///{world.folder}/mlflow.db"}
        self.server, client = (
            ModelServer.of(self.services, world.store),
            mlflow.MlflowClient(self.services["tracking_uri"]),
        )
        client.create_registered_model("churn")
        (world.folder / "model").mkdir()
        (world.folder / "model" / "saved_model.pb").write_bytes(b"model")
        for version in (1, 2):
            client.create_model_version("churn", "file:///m")
            self.server.publish(world.folder / "model", "churn", version, f"fingerprint {version}")
            self.server.serve("churn", [*range(1, version + 1)])
            self.server.wait_until_available("churn", version, 60)
        record = ModelRecord(ServedVersion.of(MODEL, 1, "", 80), ServedVersion.of(MODEL, 2, "", 20))
        write_record(world.store, "churn", record.after("deployed", 1, "").after("canary", 2, ""))
        self.server.set_traffic("churn", {1: 80, 2: 20})
        self.deployment = world.artifact("deployment", model_name="churn", version=2)

    def answer(self, requests: int, *, moved: float = 0.0, at: datetime | None = None) -> pd.DataFrame:
        """Logs answers, of which the canary's are moved; returns their ids and the chances of the labels."""
        rows, time = [], at or datetime.now(UTC)
        for _ in range(requests):
            self.asked += 1
            version, chance = 2 if self.asked % 3 == 0 else 1, self.random.uniform(0.05, 0.5)
            rows.append({"request_id": f"r-{self.asked}", "row": 0, "chance": chance})
            line = {"databricks_request_id": f"r-{self.asked}", "timestamp_ms": time.timestamp() * 1000}
            line |= {"status_code": 200, "served_entity_id": f"e-{version}", "request": '{"instances": [{"age": 30}]}'}
            answer = json.dumps({"predictions": [chance + moved * (version - 1)]})
            append(self.world.folder / "log" / "0.jsonl", [{**line, "response": answer}])
        return pd.DataFrame(rows)

    def ingest(self, run_id: str, task_id: str = "ingest") -> None:
        """Does what a run of IngestOperator does."""
        options: dict[str, Any] = {
            "layout": "databricks",
            "versions": {"e-1": 1, "e-2": 2},
            "outputs": ("probability",),
        }
        sources = {"log": CapturedSource(str(self.world.folder / "log"), model="churn", **options).to_dict()}
        context = self.world.context("snapshot", run_id=run_id, task_id=task_id)
        with made_current(context):
            plans = plan_logs(context, sources=sources, window=[None, None])
            snapshot = ingest.run(context, sources=sources, plans=plans)
        commit(context, plans["log"], LoggedWindow("churn", snapshot.uri, "log"))

    def poll(self, labels: Path | None = None) -> Any:
        """Returns the text of a poll that waits, or the artifact."""
        context = self.world.context("rollout", services=self.services, deployment=self.deployment)
        limits = {"wait_for_labels": labels is not None, "max_prediction_distance": None if labels else 0.4}
        options = {"model_name": "", "source": {"uri": str(labels)}} if labels else None
        result = poll(context, plan=PLAN, limits={**limits, "max_loss_increase": 0.3}, labels=options)
        return result if isinstance(result, Artifact) else result["waiting"]["text"]


@pytest.fixture
def endpoint(world: World, url: str) -> Endpoint:  # noqa: F811
    return Endpoint(world, services_of(url))


def test_canary_with_moved_predictions_is_rolled_back(endpoint: Endpoint) -> None:
    with pytest.raises(BadInput, match="ingest its log with CapturedSource first"):
        endpoint.poll()
    endpoint.answer(30)
    endpoint.ingest("a")
    endpoint.answer(180)
    assert endpoint.poll().startswith("canary 2 at 20%: 10 requests in ingested windows of its log"), "without the last"
    endpoint.ingest("b")
    assert endpoint.poll() == "canary 2 gets 50%"
    endpoint.answer(300, moved=0.4)
    endpoint.ingest("c")
    decided = endpoint.poll()
    assert decided.properties["decision"] == "rolled_back" and "predictions: " in decided.properties["reasons"][0]
    assert endpoint.server.configured("churn") == [1]
    (step, _) = (each.decision for each in read_record(endpoint.world.store, "churn").history if each.decision)
    assert "errors: not judged: rows of a log have no failed or refused requests by version" in step.reasons


@pytest.mark.parametrize(("moved", "decision", "champion"), [(0.0, "promoted", 2), (0.45, "rolled_back", 1)])
def test_labels_that_come_late_decide(endpoint: Endpoint, moved: float, decision: str, champion: int) -> None:
    path, unknown = (
        endpoint.world.folder / "labels.parquet",
        pd.DataFrame({"request_id": ["x"], "row": 0, "churned": 1.0}),
    )
    rows = endpoint.answer(300, moved=moved)
    endpoint.ingest("a")
    unknown.to_parquet(path)
    assert "in doubt: labels: " in endpoint.poll(path)
    rows["churned"] = (endpoint.random.random(len(rows)) < rows.pop("chance")).astype(float)
    pd.concat([unknown, rows]).to_parquet(path)
    if not moved:
        assert endpoint.poll(path) == "canary 2 gets 50%"
        endpoint.answer(200)
        endpoint.ingest("b")
    decided = endpoint.poll(path)
    assert decided.properties["decision"] == decision and "labels: log loss" in " ".join(decided.properties["reasons"])
    assert endpoint.server.shares.read("churn") == {champion: 100}


def test_row_counts_once_in_the_step_in_which_it_was_captured(endpoint: Endpoint) -> None:
    first, store = datetime.now(UTC), endpoint.world.store
    endpoint.answer(30)
    since = read_record(store, "churn").challenger.since  # type: ignore[union-attr]
    for run_id, task_id in (("a", "ingest"), ("a", "ingest"), ("a", "another")):
        endpoint.ingest(run_id, task_id)
        assert {v: each["requests"] for v, each in endpoint.server.counts("churn", since).items()} == {1: 20, 2: 10}
    endpoint.answer(180)
    endpoint.ingest("b")
    assert endpoint.poll() == "canary 2 gets 50%"
    endpoint.answer(9, at=first)
    endpoint.answer(6)
    for task_id in ("ingest", "another"):
        endpoint.ingest("c", task_id)
    assert endpoint.poll().startswith("canary 2 at 50%: 2 requests")
    requests = requests_of_logs(endpoint.world.context(), "churn", since)
    ids = [each for name in requests.names() for each in requests.table(name)["request_id"].to_pylist()]
    assert sorted(ids) == sorted(f"r-{number}" for number in range(1, 226))
    store.remove_folder(logged_windows(store, "churn")[0][-1].snapshot)
    assert "is not there now: " in endpoint.poll(), "until it is ingested again"

"""Rolling a canary out: real server, real requests, real MLflow."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from dataclasses import asdict
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import TaskAwaitingInput, TaskDeferred
from served_models import Pipeline
from world import World, context_of, refused

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.rollout.plan import Limits
from airflow_hops.core.steps.protocol import StepResult
from airflow_hops.operators.base import HopsOperator
from airflow_hops.operators.rollout import APPROVE, REJECT, RolloutOperator
from airflow_hops.runner.runtime import RuntimeHook
from airflow_hops.triggers.rollout import RolloutTrigger

pytestmark = pytest.mark.runtime


def canary(pipeline: Pipeline, kind: str, percent: int = 50) -> Artifact:
    """A canary beside the first model, taking its share already."""
    pipeline.deploy(pipeline.model("first"))
    deployment = pipeline.deploy(pipeline.model(kind), canary_percent=percent)
    pipeline.expect(traffic={1: 100 - percent, 2: percent})
    return deployment


def report(pipeline: Pipeline, rollout: Artifact) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((pipeline.store.local(rollout) / "rollout.json").read_text())
    return value


def test_good_canary_is_promoted_step_by_step_under_load(pipeline: Pipeline) -> None:
    deployment = canary(pipeline, "second", 20)
    failed: list[int] = []
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            failed.append(pipeline.server.ask(pipeline.name, 20))

    client = threading.Thread(target=ask)
    client.start()
    try:
        # 10% lies below the deployment's share, and is skipped.
        rollout = pipeline.rollout(
            deployment,
            steps=[10, 50, 100],
            bake_time_s=[0.2, 0.5, 1.0],
            min_requests=30,
            limits={"significance": 0.001},
        )
        pipeline.expect(traffic={2: 100})
    finally:
        stop.set()
        client.join()
    assert sum(failed) == 0
    assert rollout.properties["decision"] == "promoted"
    assert rollout.properties["champion"] == 2
    assert rollout.properties["traffic"] == {"2": 100}
    assert pipeline.aliases() == {"champion": 2}
    record = pipeline.record()
    assert record["champion"]["version"] == 2
    assert record["challenger"] is None
    assert pipeline.events() == [("deployed", 1), ("canary", 2), ("step", 2), ("step", 2), ("promoted", 2)]
    assert [event["traffic"] for event in record["history"][2:]] == [{"1": 50, "2": 50}, {"1": 0, "2": 100}, {"2": 100}]
    first, second, last = record["history"][2:]
    assert (first["percent"], second["percent"], last["percent"]) == (20, 50, 100)
    for event in (first, second):
        assert event["canary"]["requests"] >= 30
        assert f"{event['canary']['requests']} requests, 0 failed" in event["why"]
        assert event["stable"]["requests"] >= 25
        assert {finding["what"] for finding in event["findings"]} == {
            "errors",
            "refusals",
            "latency_p50",
            "latency_p99",
            "predictions",
        }
    # By then the stable version is asked no more: what it showed before is what the canary is compared with.
    assert last["stable"]["requests"] >= second["stable"]["requests"]
    assert report(pipeline, rollout)["history"] == [event for event in record["history"] if event["version"] == 2]
    *compared, alone = (
        next(f for f in event["findings"] if f["what"] == "predictions") for event in (first, second, last)
    )
    for finding, event in zip(compared, (first, second), strict=True):
        assert 30 <= finding["numbers"]["canary_rows"] <= event["canary"]["requests"] + 20, "those of its step"
        assert finding["numbers"].items() >= {"version": 2, "stable_version": 1}.items()
        assert 0 <= finding["numbers"]["ks_p_value"] <= 1
    assert (alone["verdict"], alone["text"]) == ("not_judged", "the stable version gets no requests at 100%")
    assert pipeline.server.available(pipeline.name) == [1, 2]  # the old one stays, for a quick way back

    again = pipeline.rollout(deployment)
    assert again.properties["decision"] == "promoted"
    assert again.metrics["canary_requests"] == rollout.metrics["canary_requests"]
    assert len(pipeline.events()) == 5


@pytest.mark.parametrize(
    ("kind", "requests", "far_every", "reason"),
    [
        ("failing", 120, 3, "refusals: "),  # a failed assertion of its graph is INVALID_ARGUMENT
        ("slow", 60, 0, "latency_p50: "),
    ],
)
def test_bad_canary_is_rolled_back_with_the_reason(
    pipeline: Pipeline, kind: str, requests: int, far_every: int, reason: str
) -> None:
    deployment = canary(pipeline, kind)
    pipeline.server.ask(pipeline.name, requests, far_every=far_every)
    rollout = pipeline.rollout(deployment, min_requests=25)
    assert rollout.properties["decision"] == "rolled_back"
    assert any(reason in text for text in rollout.properties["reasons"]), rollout.properties["reasons"]
    pipeline.expect(traffic={1: 100}, loaded=[1], aliases={"champion": 1})
    record = pipeline.record()
    assert (record["challenger"], record["champion"]["version"]) == (None, 1)
    assert pipeline.events()[-1] == ("rolled_back", 2) and reason in record["history"][-1]["why"]


def test_canary_that_looks_worse_at_100_percent_returns_and_is_compared_there(pipeline: Pipeline) -> None:
    deployment = canary(pipeline, "failing")
    plan: dict[str, Any] = {"steps": [50, 100], "bake_time_s": [0.0, 20.0]}
    pipeline.server.ask(pipeline.name, 80)
    assert "gets 100%" in pipeline.poll(deployment, **plan)["waiting"]["text"]
    pipeline.expect(traffic={2: 100})
    pipeline.server.ask(pipeline.name, 40, far_every=2)
    assert "gets 50%" in pipeline.poll(deployment, **plan)["waiting"]["text"]
    pipeline.expect(traffic={1: 50, 2: 50})
    why = pipeline.record()["history"][-1]["why"]
    assert why.startswith("looks worse at 100%, back to 50%: ") and "refusals: 20 of 40 " in why
    pipeline.server.ask(pipeline.name, 100, far_every=2)
    assert pipeline.rollout(deployment, **plan).properties["decision"] == "rolled_back"
    assert "at 50%: refusals: " in pipeline.record()["history"][-1]["why"]
    pipeline.expect(traffic={1: 100})


@pytest.mark.parametrize("approved", [True, False])
def test_person_is_asked_before_a_promotion(pipeline: Pipeline, approved: bool) -> None:
    deployment = canary(pipeline, "second")
    plan = {"approval": True, "steps": [50, 100]}
    pipeline.server.ask(pipeline.name, 80)
    question = pipeline.poll(deployment, **plan)["question"]
    assert f"Version 2 of {pipeline.name} has passed 50% of the traffic, beside version 1" in question
    assert " requests, 0 failed" in question
    assert pipeline.server.traffic(pipeline.name) == {1: 50, 2: 50}
    answer = {"approved": approved, "by": "Ada", "note": "looks good", "at": "2013-01-01T00:00:00+00:00"}
    pipeline.poll(deployment, answer=answer, **plan)
    event = next(each for each in pipeline.record()["history"] if each["event"] in ("approved", "rolled_back"))
    if approved:
        assert (event["by"], event["note"]) == ("Ada", "looks good")
        pipeline.server.ask(pipeline.name, 40)
        assert pipeline.rollout(deployment, **plan).properties["decision"] == "promoted"
        assert [name for name, _ in pipeline.events()[2:]] == ["approved", "promoted"]
    else:
        assert "rejected by Ada: looks good" in event["why"]
        assert pipeline.aliases() == {"champion": 1}


def test_operator_asks_waits_and_passes_the_answer_on(monkeypatch: pytest.MonkeyPatch) -> None:
    deployment = {"uri": "file:///d", "kind": "deployment", "fingerprint": "f"}
    approval: Any = {"timeout": timedelta(hours=1), "on_timeout": "promote"}
    approval |= {"assigned_users": [{"id": "1", "name": "Ada"}]}
    operator = RolloutOperator(
        task_id="rollout", deployment=deployment, approval=approval, deferrable=True, dag=DAG("asks", schedule=None)
    )
    asked: list[dict[str, Any]] = []
    polled: list[Any] = []
    waiting = {"url": "http://server/v1/stats", "model_name": "flights", "version": 2, "requests": 9, "until": 1.0}
    values = [{"waiting": {"text": "20 requests needed", **waiting}}, {"question": "Promote it?"}]

    def poll(self: RolloutOperator, hook: Any, context: Any) -> StepResult:
        polled.append(self.step_params(context)["answer"])
        return StepResult(value=values[min(len(polled), 2) - 1], is_artifact=False, seconds={})

    monkeypatch.setattr(HopsOperator, "run_step", poll)
    monkeypatch.setattr(RolloutOperator, "_already_champion", lambda *_: None)
    monkeypatch.setattr("airflow_hops.operators.people.upsert_hitl_detail", lambda **given: asked.append(given))
    context: Any = {"ti": SimpleNamespace(id="1")}
    hook: Any = None
    with pytest.raises(TaskDeferred) as deferred:
        operator.run_step(hook, context)
    assert deferred.value.method_name == "resume"
    assert {"version": 2, "requests": 9}.items() <= deferred.value.trigger.serialize()[1].items()
    with pytest.raises(TaskAwaitingInput):
        operator.run_step(hook, context)
    assert (asked[0]["body"], asked[0]["options"]) == ("Promote it?", [APPROVE, REJECT])
    assert (asked[0]["defaults"], asked[0]["assigned_users"]) == ([APPROVE], approval["assigned_users"])
    monkeypatch.setattr(RolloutOperator, "execute", lambda self, context: self.step_params(context)["answer"])
    event = {
        "chosen_options": [APPROVE],
        "params_input": {"note": "good"},
        "responded_by_user": {"id": "1", "name": "Ada"},
    }
    answer = operator.execute_complete(context, event)
    assert (answer["approved"], answer["by"], answer["note"]) == (True, "Ada", "good")


def test_canary_without_requests_times_out(pipeline: Pipeline) -> None:
    deployment = canary(pipeline, "second", 10)
    left = pipeline.rollout(deployment, timeout_s=0.5, on_timeout="leave")
    assert (left.properties["decision"], left.properties["traffic"]) == ("left", {"1": 90, "2": 10})
    assert pipeline.server.traffic(pipeline.name) == {1: 90, 2: 10}
    pipeline.expect(aliases={"champion": 1, "challenger": 2})

    rollout = pipeline.rollout(deployment, timeout_s=0.5)
    assert rollout.properties["decision"] == "rolled_back"
    assert "not judged within 0.5 s: the canary was asked 0 times, 20 needed" in rollout.properties["reasons"][0]
    pipeline.expect(traffic={1: 100}, aliases={"champion": 1})


def test_superseded_canary_ends_its_rollout_without_touching_its_successor(pipeline: Pipeline) -> None:
    deployment = canary(pipeline, "second")
    pipeline.deploy(pipeline.model("third"))
    rollout = pipeline.rollout(deployment)
    assert rollout.properties["decision"] == "rolled_back"
    assert "superseded by version 3" in rollout.properties["reasons"][0]
    pipeline.expect(traffic={1: 80, 3: 20}, aliases={"champion": 1, "challenger": 3})


def test_missing_port_is_named_and_changes_nothing(pipeline: Pipeline) -> None:
    pipeline.deploy(pipeline.model("first"))
    deployment = pipeline.deploy(pipeline.model("second"))
    with refused("set its field 'serving_rest_port'"):
        pipeline.rollout(deployment, services={"serving_rest_port": ""})
    assert not pipeline.store.exists(pipeline.runner.last_uri)
    pipeline.expect(events=[("deployed", 1), ("canary", 2)])


def test_deployment_of_another_store_is_refused(pipeline: Pipeline) -> None:
    pipeline.deploy(pipeline.model("first"))
    named = {"model_name": pipeline.name, "version": 7, "mode": "canary"}
    for properties, words in ((named, "version 7 is neither challenger nor"), ({}, "expected model_name and version")):
        with refused(words):
            pipeline.rollout(Artifact(f"{pipeline.store.root}/x", "deployment", "f", properties=properties))


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\n\r\n[]",
        b'HTTP/1.1 200 OK\r\n\r\n{"models": {"flights": {"versions": {"2": {"requests": null}}}}}',
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"",
    ],
    ids=["half", "list", "null", "other", "none"],
)
def test_trigger_tolerates_partial_and_missing_servers(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    with server.accept()[0] as client:
                        client.recv(1000)
                        client.sendall(answer)

        answering = threading.Thread(target=serve)
        answering.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/v1/stats"
        trigger = RolloutTrigger(
            until=time.time() + 0.3, url=url, model_name="flights", version=2, requests=10, poll_s=0.05
        )
        assert asyncio.run(trigger.wait()) == "time"
        server.shutdown(socket.SHUT_RDWR)
        answering.join()


def test_champion_needs_no_rollout_and_no_process(world: World) -> None:
    store = world.connect(runtime="/nowhere").store
    properties = {"model_name": "flights", "version": 1, "mode": "champion", "traffic": {"1": 100}}
    deployment = Artifact(f"{store.root}/d/r/deploy/deployment", "deployment", "f", properties=properties)
    with DAG("d", schedule=None):
        operator = RolloutOperator(
            task_id="rollout", deployment=deployment.to_dict(), min_requests=10, limits={"min_labels": 7},
            bake_time=timedelta(minutes=5), polling={"longest": timedelta(seconds=5)},
        )  # fmt: skip
    artifact = Artifact.from_dict(operator.run_step(RuntimeHook(), context_of("rollout")).value)
    assert (artifact.properties["decision"], artifact.properties["traffic"]) == ("champion", {"1": 100})
    assert store.verify(artifact).kind == "rollout"
    params = operator.step_params({})
    assert (params["plan"]["bake_time_s"], params["plan"]["longest_wait_s"]) == ((300.0,) * 4, 5.0)
    assert params["limits"] == {**asdict(Limits()), "min_labels": 7}

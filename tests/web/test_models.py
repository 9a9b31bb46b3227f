"""Models of the web API over a real model server: versions, how they serve, decisions of people."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from served_models import Pipeline, Processes
from step_runner import StepRunner
from waiting import wait_for
from world import World

from airflow_hops.core.models.model_record import ModelRecord, record_uri
from airflow_hops.web.models.records import decisions_of
from web.conftest import Api

pytestmark = pytest.mark.runtime

MODEL = "pages_model"
PATH = f"/api/dags/pages_training/models/{MODEL}"
NOBODY = dict.fromkeys(("user", "dag_id", "run_id", "task_id", "map_index", "iteration"))


def refuse(api: Api, action: str, status: int, says: str = "", user: str = "admin", **body: Any) -> None:
    """Expects that a decision is refused, and changes nothing."""
    record = api.store.read_text(record_uri(api.store, MODEL))
    answer = decide(api, action, user, **body)
    assert (answer.status_code, says in answer.text) == (status, True), answer.text
    assert api.store.read_text(record_uri(api.store, MODEL)) == record


@pytest.fixture(scope="module")
def deployed(api: Api, airflow_settings: pytest.MonkeyPatch, processes: Processes, runtime: Path) -> Iterator[Pipeline]:
    """The model of the DAG ``pages_training``: version 1 is the champion, version 2 its challenger with 20%."""
    server = processes.server
    extra = {"store": api.store.root, "tracking_uri": f"sqlite:///{Path(api.store.root[7:]).parent}/mlflow.db"}
    connection = {"conn_type": "hops", "host": "127.0.0.1", "port": int(server.ports["port"])}
    services = {name: value for name, value in server.services.items() if name not in ("serving_host", "serving_port")}
    pipeline = Pipeline(
        StepRunner(api.store.root, runtime),
        server,
        processes.launcher,
        processes.saved_models,
        extra["tracking_uri"],
        MODEL,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW_CONN_HOPS_DEFAULT", json.dumps({**connection, "extra": {**extra, **services}}))
        for kind in ("first", "second"):
            pipeline.deploy(pipeline.model(kind))
        pipeline.decide("set_owners", owners=["tests", "pages_training"])
        yield pipeline
    api.store.remove_text(record_uri(api.store, MODEL))


@pytest.fixture
def canary(deployed: Pipeline) -> Iterator[Pipeline]:
    """The deployed model; its record is put back after the test."""
    store = deployed.store
    text_then = store.read_text(uri := record_uri(store, MODEL))
    yield deployed
    store.write_text(uri, text_then)


def decide(api: Api, action: str, user: str = "admin", **body: Any) -> Any:
    values = {"reason": "a test", "request_id": uuid.uuid4().hex, **body}
    return api.request("POST", f"{PATH}/{action}", user, json=values)


def test_page_decisions_record_user_and_reason(api: Api, canary: Pipeline) -> None:
    server = canary.server
    page = api.get(PATH).json()
    assert (page["traffic"], page["deployed"], page["may_change"]) == ({"1": 80, "2": 20}, [2, 1], True)
    assert api.get(PATH, "viewer").json()["may_change"] is False
    answer = decide(api, "traffic", percents={"1": 30, "2": 70}, reason="  it looks well ")
    assert (answer.status_code, answer.json()["traffic"]) == (200, {"1": 30, "2": 70}), answer.text
    canary.expect(traffic={1: 30, 2: 70})
    decision = api.get(PATH).json()["decisions"][0]
    assert (decision["event"], decision["why"], decision["traffic"]) == ("traffic", "it looks well", {"1": 30, "2": 70})
    assert decision["by"] == NOBODY | {"user": "admin", "dag_id": "pages_training"}

    promotion = {"version": 2, "request_id": "one-and-the-same"}
    assert decide(api, "promote", **promotion).json()["changed"] is True
    again = decide(api, "promote", **promotion).json()
    assert (again["champion"], again["changed"], again["traffic"]) == (2, False, {"2": 100})
    canary.expect(traffic={2: 100})
    available = server.available(MODEL)
    assert server.ask(MODEL, 10) == 0
    live = api.get(f"{PATH}/live").json()
    assert (live["problem"], live["kind"]) == (None, "bundled")
    shares = {version["version"]: version["traffic_percent"] for version in live["versions"]}
    assert {1: 0, 2: 100}.items() <= shares.items() and {1, 2} <= {*available}
    assert next(each["requests"] for each in live["versions"] if each["version"] == 2) >= 10

    assert decide(api, "roll_back", to_version=1).json()["champion"] == 1
    canary.expect(aliases={"champion": 1})
    assert canary.events()[-2:] == [("rolled_back", 2), ("promoted", 1)]
    assert decide(api, "promote", version=2).json()["champion"] == 2
    assert "allowed although it was rolled back" in api.get(PATH).json()["decisions"][0]["why"]
    assert decide(api, "roll_back", to_version=1).json()["champion"] == 1


def test_owners_are_changed_by_those_who_may_trigger_all(api: Api, canary: Pipeline) -> None:
    assert api.get(PATH).json()["owners"] == ["tests", "pages_training"]
    assert api.get(PATH, "only:pages_training").json()["owners"] == ["pages_training"]
    for user, owners, status in (
        ("viewer", ["pages_training"], 403),
        ("only:pages_training", ["pages_training"], 403),  # may not trigger the other owner
        ("admin", [], 422),
        ("admin", ["pages_traning"], 404),
    ):
        refuse(api, "owners", status, user=user, owners=owners)
    assert decide(api, "owners", owners=["pages_search"]).status_code == 200
    assert api.get(PATH).json()["may_change"] is False
    refuse(api, "traffic", 403, "does not own model", percents={"1": 100, "2": 0})
    canary.decide("set_owners", owners=["tests", "pages_training"], by={"user": "root", "request_id": "back"})
    (decision, *_) = api.get(PATH).json()["decisions"]
    assert (decision["event"], decision["by"]["user"], api.get(PATH).json()["may_change"]) == ("owners", "root", True)


def test_versions_merge_records_of_model_and_trainings(api: Api, canary: Pipeline) -> None:
    result = api.get(f"{PATH}/versions").json()
    assert (result["total_entries"], result["problems"]) == (2, [])
    first = result["entries"][-1]
    assert (first["version"], len(first["fingerprint"]), first["metrics"]["model.auc"]) == (1, 64, 0.7)
    assert first["made_by"]["dag_id"] == "tests"
    assert api.get(f"{PATH}/versions", "only:pages_training").json()["entries"][-1]["made_by"] is None
    decisions = api.get(PATH, "only:pages_training").json()["decisions"]
    assert decisions[-1]["by"] == NOBODY
    nothing = api.get(f"{PATH}/versions/1/evaluation").json()
    assert (nothing["evaluation"], "evaluated no version 1" in nothing["missing"]) == (None, True)


@pytest.mark.parametrize(
    ("action", "body", "says"),
    [
        ("promote", {"version": 99}, "has no version 99 that was deployed; versions: 1, 2"),
        ("promote", {"version": 0}, "greater than or equal to 1"),
        ("promote", {"version": 1, "reason": "  "}, "at least 1 character"),
        ("promote", {"version": 1, "request_id": "../../x"}, "should match pattern"),
        ("traffic", {"percents": {"1": 50, "2": 49}}, "99"),
        ("traffic", {"percents": {"1": 50, "77": 50}}, "percents name version 77"),
        ("traffic", {"percents": {"one": 100}}, "percents"),
        ("roll_back", {"to_version": 99}, "has no version 99"),
    ],
)
def test_impossible_decision_is_reported_and_changes_nothing(
    api: Api, canary: Pipeline, action: str, body: Any, says: str
) -> None:
    refuse(api, action, 422, says, **body)


def test_concurrent_decisions_leave_one(api: Api, canary: Pipeline) -> None:
    canary.deploy(canary.model("third"))
    version = canary.record()["challenger"]["version"]
    asked = [
        ("promote", {"version": version}),
        ("traffic", {"percents": {"1": 60, str(version): 40}}),
        ("roll_back", {"to_version": 1}),
    ]
    with ThreadPoolExecutor(3) as threads:
        answers = list(threads.map(lambda each: decide(api, each[0], **each[1]), asked))
    assert {answer.status_code for answer in answers} <= {200, 422}
    assert 200 in {answer.status_code for answer in answers}
    result = api.get(PATH).json()
    assert sum(result["traffic"].values()) == 100
    decided = {int(version): share for version, share in result["traffic"].items() if share}
    assert result["decisions"][0]["traffic"] == {str(version): share for version, share in decided.items()}
    wait_for(lambda: canary.server.traffic(MODEL) == decided, "what the record says")


def test_log_covers_only_this_model(api: Api, canary: Pipeline) -> None:
    lines = api.get(f"{PATH}/logs").json()
    assert any("loaded in" in line["message"] and line["version"] == 2 for line in lines)
    assert all(MODEL in line["message"] for line in lines)
    assert api.get(f"{PATH}/logs?level=ERROR").json() == []
    assert {line["version"] for line in api.get(f"{PATH}/logs?version=2").json()} == {2}
    api.refused(f"{PATH}/logs?level=LOUD", 422)


def test_unreachable_server_is_reported_in_the_answer(api: Api, canary: Pipeline, world: World) -> None:
    world.connect(port=9, store=api.store.root, serving_rest_port=9)
    live = api.get(f"{PATH}/live").json()
    assert "does not answer" in live["problem"]
    assert live["versions"] == []
    api.refused(f"{PATH}/logs", 502, "does not answer")
    assert decide(api, "promote", version=2).status_code in (422, 502)
    (listed,) = api.get("/api/dags/pages_training/models").json()["entries"]
    assert (listed["name"], listed["problem"]) == (MODEL, None)
    world.connect(port=9, store=api.store.root, serving_base_path="/srv/models")
    assert "serving_rest_port" in api.get(f"{PATH}/live").json()["problem"]


def test_champion_is_replaced_by_a_candidate_that_was_refused(api: Api, canary: Pipeline, brief_run: Any) -> None:
    from airflow.models.xcom import XCOM_RETURN_KEY, XComModel

    former = canary.record()["champion"]["version"]
    evaluations = {}
    for kind, blessed in (("slow", False), ("constant", True)):
        run = brief_run("pages_search", {})  # whose evaluation fails: it is given what it would have returned
        candidate = canary.model(kind)
        evaluation = canary.verdict("evaluation", candidate, blessed=blessed).to_dict()
        evaluation["properties"]["candidate"] = {"uri": candidate.uri, "fingerprint": candidate.fingerprint}
        of_the_task = {"task_id": "evaluate", "dag_id": "pages_search", "run_id": run.run_id}
        XComModel.set(key=XCOM_RETURN_KEY, value=evaluation, **of_the_task)
        evaluations[candidate.fingerprint] = run.run_id
    result = api.get(PATH).json()["candidates"]
    assert {each["fingerprint"]: each["judged"]["run_id"] for each in result} == evaluations
    assert [each["why"] for each in result] == ["", "auc 0.5 is below 0.6"]
    record, chosen = canary.record(), result[1]["fingerprint"]
    for user, fingerprint, status in (
        ("viewer", chosen, 403),
        ("admin", "0" * 64, 404),
        ("admin", "../manifest", 422),
        ("only:pages_training", chosen, 404),  # may read no evaluation of it
    ):
        answer = decide(api, "replace", user, fingerprint=fingerprint)
        assert answer.status_code == status, answer.text
    assert api.get(f"{PATH}/replace").status_code == 405
    assert canary.record() == record
    champion = decide(api, "replace", fingerprint=chosen, reason="the champion leaks").json()["champion"]
    assert canary.record()["champion"]["fingerprint"] == chosen
    (decision, *_) = api.get(PATH).json()["decisions"]
    assert (decision["event"], decision["version"], decision["by"]["user"]) == ("promoted", champion, "admin")
    assert decision["why"].endswith("on purpose, without a comparison: the champion leaks")
    assert chosen not in {each["fingerprint"] for each in api.get(PATH).json()["candidates"]}
    figures = api.get(f"{PATH}/versions/{champion}/evaluation").json()["evaluation"]
    assert figures["artifact"]["run_id"] == evaluations[chosen]
    (listed, *_) = api.get("/api/dags/pages_training/models").json()["entries"]
    assert (listed["champion"]["version"], listed["metric"]["value"]) == (champion, 0.71)
    hidden = api.get(f"{PATH}/versions/{champion}/evaluation", user="only:pages_training").json()
    assert (hidden["evaluation"], "No recent run" in hidden["missing"]) == (None, True)
    assert decide(api, "roll_back", to_version=former).json()["champion"] == former


def test_unknown_fields_of_a_decision_are_ignored() -> None:
    event = {"at": "2026-01-01T00:00:00+00:00", "event": "canary", "version": 2, "percent": "20 %", "canary": 3}
    (decision,) = decisions_of(ModelRecord.from_dict({"history": [event]}), ())
    assert (decision.version, decision.percent, decision.canary) == (2, None, None)

"""Schemas, validations and questions through the API, of a pipeline whose data changes and that asks what to do."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pytest
from waiting import LOOKS
from world import World

from airflow_hops.core.schema.history import publish_schema, schema_history, schema_text
from airflow_hops.operators.validation import APPROVE, CONTINUE, REJECT
from airflow_hops.web.schema.validations import anomalous_features
from web.conftest import Api, bearer

pytestmark = pytest.mark.runtime

DAG = "/api/dags/pages_schema"
HOSTILE = "<img src=x onerror=alert(1)>"
ANYBODY = "only:pages_schema"
NEW_VALUES = {"<script>alert(2)</script>", "new: yes, a comma"}


class Asking:
    """Runs of the DAG ``pages_schema``: the first froze a schema, the second's data has changed, and it asked.

    ``before`` holds what the API said while it waited, by user; ``run`` is the second run, approved and over.
    """

    def __init__(self, api: Api, run_dag: Callable[..., Any]) -> None:
        self.api = api
        self.first = run_dag("pages_schema", {})
        self.before: dict[str, Any] = {}
        self.refusals: dict[str, int] = {}
        over = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            person = pool.submit(self._answer, over)
            try:
                self.run = run_dag("pages_schema", {"changed": "yes"})
            finally:
                over.set()
            person.result()

    def _answer(self, over: threading.Event) -> None:
        looks = 0
        while not over.wait(0.2):
            waiting = self.newest("admin")
            if waiting is None or waiting["question"] is None or waiting["question"]["state"] != "waiting":
                continue
            looks += 1
            if looks < LOOKS:
                continue
            self.before = {user: self.newest(user) for user in ("admin", "viewer", "only:pages_schema")}
            self.refusals = {user: self.respond(waiting, APPROVE, user) for user in ("viewer", "only:pages")}
            assert self.respond(waiting, APPROVE, "admin") == 200
            self.refusals["too late"] = self.respond(waiting, CONTINUE, "admin")
            return

    def newest(self, user: str) -> Any:
        """The newest validation, as the API tells it."""
        result = self.api.get(f"{DAG}/validations", user).json()["entries"]
        return next((each for each in result if each["address"]["task_id"] == "validate"), None)

    def respond(self, validation: Any, choice: str, user: str) -> int:
        """Answers as the page does, through Airflow's own route; the status."""
        run, task = quote(validation["address"]["run_id"], safe=""), validation["address"]["task_id"]
        path = f"/api/v2/dags/pages_schema/dagRuns/{run}/taskInstances/{task}/-1/hitlDetails"
        answer = {"chosen_options": [choice], "params_input": {"note": "seen <b>and</b> fine"}}
        status: int = self.api.client.patch(path, json=answer, headers=bearer(user)).status_code
        return status

    def path(self, task_id: str = "validate", run: Any = None) -> str:
        """The path of the anomalies of a run, the second's by default."""
        return self.api.artifact_path(task_id, "anomalies", run or self.run)


@pytest.fixture(scope="module")
def asking(api: Api, run_dag: Callable[..., Any]) -> Asking:
    asking = Asking(api, run_dag)
    assert [str(run.state) for run in (asking.first, asking.run)] == ["success", "success"]
    return asking


def test_question_names_permitted_users_and_airflow_enforces_it(asking: Asking) -> None:
    question = asking.before["admin"]["question"]
    assert question["options"] == [APPROVE, CONTINUE, REJECT]
    assert (question["state"], question["may_answer"], question["schema_changed"]) == ("waiting", True, False)
    assert asking.before["only:pages_schema"]["question"]["may_answer"] is True
    assert asking.before["viewer"]["question"]["may_answer"] is False
    assert asking.refusals == {"viewer": 403, "only:pages": 403, "too late": 409}


def test_answer_records_user_and_reason_and_the_run_continues(asking: Asking) -> None:
    question = asking.newest("viewer")["question"]
    assert (question["state"], question["choice"], question["may_answer"]) == ("answered", APPROVE, False)
    assert (question["answered_by"], question["note"]) == ("admin", "seen <b>and</b> fine")
    (schema,) = asking.api.get(f"{DAG}/schemas").json()["schemas"]
    assert (schema["name"], schema["label"], schema["key"]) == ("rows", "label", "id")
    first, second = schema["versions"]
    assert (first["in_force"], first["approved_by"], first["run_id"]) == (False, "", asking.first.run_id)
    assert (second["in_force"], second["approved_by"], second["run_id"]) == (True, "admin", asking.run.run_id)
    assert second["note"] == "seen <b>and</b> fine"
    result = asking.api.get(f"{DAG}/validations").json()
    assert result["total_entries"] == 4
    after = next(each for each in result["entries"] if each["address"]["task_id"] == "after")
    assert (after["errors"], after["warnings"], after["features"], after["question"]) == (0, 0, [], None)
    assert after["schema_version"] in (1, 2)


def test_drift_without_anomalies_is_listed(world: World) -> None:
    moved = {"feature": "temp", "severity": "warning", "split": "newest", "summary": "Drift since training"}
    drifted = world.artifact(
        "anomalies",
        {"anomalies.json": json.dumps({"anomalies": [moved]})},
        metrics={"errors": 0, "warnings": 0},
        properties={"drift": ["temp: it has moved"]},
    )
    (feature,) = anomalous_features(world.store, drifted)
    assert (feature.feature, feature.severity, feature.splits) == ("temp", "warning", ["newest"])
    assert feature.drifted
    assert anomalous_features(world.store, replace(drifted, properties={})) == []


def test_a_validation_names_rows_and_values_of_each_anomaly(asking: Asking) -> None:
    report = asking.api.get(f"{asking.path()}/anomalies").json()
    by_feature = {(each["split"], each["feature"]): each for each in report["anomalies"]}
    strings = by_feature["train", HOSTILE]
    (reason,) = strings["reasons"]
    assert (strings["severity"], reason["type"]) == ("error", "ENUM_TYPE_UNEXPECTED_STRING_VALUES")
    assert (reason["rows"], reason["is_exact"], reason["quarantined"]) == (300, True, 300)
    assert {value["value"].strip("'") for value in reason["values"]} == NEW_VALUES
    assert sum(value["rows"] for value in reason["values"]) == 300
    (missing,) = by_feature["train", "maybe"]["reasons"]
    assert missing["type"] == "FEATURE_TYPE_LOW_FRACTION_PRESENT"
    assert 300 < missing["rows"] < 400
    (column,) = by_feature["eval", "ünseen"]["reasons"]
    assert column["values"] == [{"value": "€", "rows": 200}]
    assert report["rows"] == {"train": 600, "eval": 200}
    assert report["quarantined"] == {"train": 300, "eval": 100}
    assert (report["schema_name"], report["schema_version"]) == ("rows", 1)
    assert (report["statistics"]["task_id"], report["has_proposal"]) == ("statistics", True)


def test_quarantined_rows_have_reasons(asking: Asking) -> None:
    path = f"{asking.path()}/quarantine"
    result = asking.api.get(path, params={"split": "train"}).json()
    assert (result["total"], result["listed"], len(result["rows"])) == (300, 300, 300)
    row, (reason,) = result["rows"][-1], result["reasons"][-1]
    assert reason["feature"] == HOSTILE
    assert row[result["columns"].index("id")] == "row-599"
    assert row[result["columns"].index("maybe")] is None
    value = row[result["columns"].index(HOSTILE)]
    assert (value in NEW_VALUES, repr(value) in reason["text"]) == (True, True)
    asking.api.refused(path, 422, "'../train'", params={"split": "../train"})


def test_proposal_equals_the_difference_of_versions(asking: Asking) -> None:
    proposal = asking.api.get(f"{asking.path()}/proposal").json()
    changes = {each["name"]: each for each in proposal["features"]}
    kinds = {name: each["change"] for name, each in changes.items()}
    assert kinds == {"maybe": "changed", HOSTILE: "changed", "ünseen": "added"}
    (domain,) = [each for each in changes[HOSTILE]["aspects"] if each["changed"]]
    assert (set(domain["gained"]), domain["lost"], domain["kept"]) == (NEW_VALUES, [], 3)
    assert all(each["before"] is None for each in changes["ünseen"]["aspects"])
    versions = asking.api.get(f"{DAG}/schemas/rows/changes", params={"before": 1, "after": 2}).json()
    assert versions == proposal
    back = asking.api.get(f"{DAG}/schemas/rows/changes", params={"before": 2, "after": 1}).json()
    assert {each["name"]: each["change"] for each in back["features"]}["ünseen"] == "removed"
    asking.api.refused(f"{asking.path('after')}/proposal", 404)  # nothing to propose


def test_schema_is_shown_by_feature_and_as_text(asking: Asking) -> None:
    api, path = asking.api, f"{DAG}/schemas/rows"
    features = {each["name"]: each for each in api.get(path, params={"version": 1}).json()["features"]}
    assert features["label"]["environments"] == ["TRAINING"]
    assert (features["label"]["domain"]["low"], features["label"]["domain"]["high"]) == (0, 1)
    assert features["maybe"]["required"] is False
    assert features[HOSTILE]["domain"]["size"] == 3
    assert features[HOSTILE]["drift"] == {"distance": 0.05}
    assert {each["name"] for each in api.get(path).json()["features"]} - set(features) == {"ünseen"}
    detail = api.get(f"{path}/feature", params={"feature": HOSTILE}).json()
    assert len(detail["values"]) == 5 and detail["text"].startswith("feature {")
    text = api.get(f"{path}/text", params={"version": 2})
    assert text.headers["content-type"].startswith("text/plain") and "ünseen" in text.text
    api.refused(f"{path}/feature", 422, "'x'", params={"feature": "x"})
    assert "there are 1 to 2" in api.get(path, params={"version": 9}).json()["detail"]
    api.refused(f"{DAG}/schemas/none", 404)


def test_hand_edit_is_reported_until_a_run_accepts_it(asking: Asking) -> None:
    api, store = asking.api, asking.api.store
    uri = store.frozen_schema("pages_schema", "rows")
    good = schema_text(store, uri)
    store.write_text(f"{uri}/schema.pbtxt", f"{good}feature {{ name: 7 }}\n")
    try:
        (schema,) = api.get(f"{DAG}/schemas").json()["schemas"]
        assert (schema["is_edited"], [version["in_force"] for version in schema["versions"]]) == (True, [False, False])
        api.refused(f"{DAG}/schemas/rows", 409, "schema.pbtxt, edited by hand")
        assert api.get(f"{DAG}/schemas/rows", params={"version": 2}).status_code == 200
    finally:
        store.write_text(f"{uri}/schema.pbtxt", good)
    assert api.get(f"{DAG}/schemas").json()["schemas"][0]["is_edited"] is False


def test_unreadable_schema_is_named_beside_the_others(asking: Asking, whole_store: None) -> None:
    store = asking.api.store
    store.write_text(f"{store.frozen_schema('pages_schema', 'broken')}/manifest.json", "[]")
    listed = asking.api.get(f"{DAG}/schemas").json()
    assert [each["name"] for each in listed["schemas"]] == ["rows"]
    assert [each.partition(": ")[0] for each in listed["problems"]] == ["broken"]


def test_expired_question_is_reported(asking: Asking) -> None:
    """The question depends on its task: seen through the rows of the database."""
    from airflow.models.hitl import HITLDetail
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import select, update

    with create_session() as session:
        task = session.scalar(select(TaskInstance).filter_by(run_id=asking.run.run_id, task_id="validate"))
        asked = session.get(HITLDetail, task.id)
        retained = {"responded_by": asked.responded_by, "responded_at": asked.responded_at}

    def change(state: str, **values: Any) -> Any:
        with create_session() as session:
            if values:
                session.execute(update(HITLDetail).where(HITLDetail.ti_id == task.id).values(**values))
            session.execute(update(TaskInstance).where(TaskInstance.id == task.id).values(state=state))
        return asking.newest("admin")["question"]

    try:
        assert change("success", responded_by=None)["state"] == "timed_out"
        closed = change("failed", responded_at=None)
        assert (closed["state"], closed["may_answer"]) == ("closed", False)
        # The schema is another one by now than that which the proposal was made for.
        stale = change("awaiting_input")
        (waiting,) = asking.api.get("/api/dags/pages_schema/overview", "viewer").json()["waiting"]
        assert (waiting["task"]["task_id"], waiting["stage"]) == ("validate", "validation")
        assert (waiting["subject"], waiting["may_answer"]) == (stale["subject"], False)
        assert (stale["state"], stale["schema_changed"]) == ("waiting", True)
    finally:
        change("success", **retained)


def test_deleted_artifacts_are_reported(asking: Asking) -> None:
    api, first = asking.api, (asking.first.run_id, "validate")
    with api.without(api.folder("validate", "anomalies", asking.first)):
        listed = api.get(f"{DAG}/validations").json()["entries"]
        (gone,) = [each for each in listed if (each["address"]["run_id"], each["address"]["task_id"]) == first]
        assert (gone["artifact"], gone["errors"], "was deleted" in gone["detail"]) == ("deleted", 0, True)
        api.refused(f"{asking.path(run=asking.first)}/anomalies", 410)
    api.refused(f"{asking.path('schema')}/anomalies", 404)


@pytest.fixture
def open_proposal(asking: Asking, whole_store: None) -> str:
    """The path of the second run's proposal, as if nobody had approved it."""
    store, uri = asking.api.store, asking.api.store.frozen_schema("pages_schema", "rows")
    publish_schema(store, uri, schema_text(store, uri, 1), approved_by="admin", note="back")
    return f"{asking.path()}/proposal"


@pytest.fixture
def unasked(asking: Asking) -> Iterator[None]:
    """The second run's validation has asked nobody."""
    from airflow.models.hitl import HITLDetail
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session

    with create_session() as session:
        task = session.query(TaskInstance).filter_by(run_id=asking.run.run_id, task_id="validate").one()
        asked = session.get(HITLDetail, task.id)
        retained = {column.key: getattr(asked, column.key) for column in HITLDetail.__table__.columns}
        session.delete(asked)
    yield
    with create_session() as session:
        session.add(HITLDetail(**retained))


def _body(review: Any, choice: str, decisions: int = 0) -> dict[str, Any]:
    seen = {"fingerprint": review["fingerprint"], "decisions": decisions}
    return {"choice": choice, "reason": " seen <i>it</i> ", **seen}


def test_proposal_without_question_is_rejected_and_approved(
    asking: Asking, open_proposal: str, unasked: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, uri = asking.api, asking.api.store.frozen_schema("pages_schema", "rows")

    def refuse(status: int, why: str, choice: str, decisions: int = 0, user: str = "admin", **other: Any) -> None:
        body = {**_body(seen, choice, decisions), **other}
        api.refused(open_proposal, status, why, user, method="POST", json=body)

    seen = api.get(f"{open_proposal}/review", "only:pages_schema").json()
    assert (seen["decisions"], seen["may_decide"], seen["closed"]) == ([], True, None)
    assert api.get(f"{open_proposal}/review", "viewer").json()["may_decide"] is False
    (proposed,) = api.get("/api/dags/pages_schema/overview").json()["proposed"]
    assert (proposed["validation"]["run_id"], proposed["features"][:2]) == (asking.run.run_id, [HOSTILE, "maybe"])
    assert proposed["features_total"] == len(proposed["features"])
    with monkeypatch.context() as patch:
        patch.setenv("AIRFLOW_CONN_HOPS_DEFAULT", '{"conn_type": "hops", "extra": {"store": 3}}')
        assert api.get("/api/dags/pages_schema/models").status_code == 200
        overview = api.get("/api/dags/pages_schema/overview").json()
        unknown = "because the proposal of validate cannot be read"
        assert (overview["proposed"], overview["pipeline"]["health"][0]["text"]) == ([], unknown)
        listed = api.get("/api/pipelines?name=pages_schema").json()["entries"]
        assert [each["health"][0]["text"] for each in listed] == [unknown]
    for user in ("viewer", "only:pages"):
        refuse(403, "", "approve", user=user)
    refuse(409, "has run again", "reject", fingerprint="0" * 64)
    refuse(409, "were deleted", "reject", decisions=1)

    rejected = api.request("POST", open_proposal, json=_body(seen, "reject")).json()
    (first,) = rejected["decisions"]
    assert (first["choice"], first["by"], first["version"]) == ("rejected", "admin", None)
    assert first["note"] == "seen <i>it</i>"
    assert api.get("/api/dags/pages_schema/overview").json()["proposed"] == []
    refuse(409, "admin has rejected it in the meantime", "approve", user="only:pages_schema")
    refuse(403, "", "approve", 1, "answering")

    done = api.request("POST", open_proposal, "only:pages_schema", json=_body(seen, "approve", 1)).json()
    assert [each["choice"] for each in done["decisions"]] == ["rejected", "approved"]
    assert (done["may_decide"], "has changed since" in done["closed"]) == (False, True)
    newest = schema_history(api.store, uri)[-1]
    assert (newest.version, newest.in_force, newest.approved_by) == (done["decisions"][1]["version"], True, ANYBODY)
    assert (newest.note, newest.run_id) == ("seen <i>it</i>", asking.run.run_id)
    (schema,) = api.get(f"{DAG}/schemas").json()["schemas"]
    assert (schema["features"], schema["is_edited"]) == (len(api.get(f"{DAG}/schemas/rows").json()["features"]), False)
    refuse(409, "has changed since", "approve", 2)


def test_later_hand_edit_is_not_overwritten(asking: Asking, open_proposal: str) -> None:
    store, uri = asking.api.store, asking.api.store.frozen_schema("pages_schema", "rows")
    edited = f"{schema_text(store, uri)}# mine\n"
    store.write_text(f"{uri}/schema.pbtxt", edited)
    seen = asking.api.get(f"{open_proposal}/review").json()
    body = _body(seen, "approve", len(seen["decisions"]))
    asking.api.refused(open_proposal, 409, "nothing was overwritten", method="POST", json=body)
    assert schema_text(store, uri) == edited

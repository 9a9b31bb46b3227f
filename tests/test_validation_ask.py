"""Asking a person: what is asked, what each answer does, and what the next run validates against."""

from __future__ import annotations

import json
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import flights_examples
import pytest
from waiting import LOOKS

from airflow_hops.core.schema.history import publish_schema, schema_history, schema_text
from airflow_hops.operators.validation import APPROVE, CONTINUE, REJECT

pytestmark = pytest.mark.runtime

Answer = Callable[[Any, dict[str, Any]], None]


@pytest.fixture(scope="module")
def core_api() -> Iterator[Any]:
    """Airflow's own API, on the database of the tests."""
    from fastapi.testclient import TestClient

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS", "True")
        from airflow.api_fastapi.app import create_app

        app = create_app(apps="core")
        with TestClient(app, base_url="http://testserver/api/v2", raise_server_exceptions=False) as client:
            yield client


@pytest.fixture(scope="module")
def new_destination(shared_run_step: Any, warm_launcher: Any, flights_raw: Path) -> Any:
    """Statistics of January's flights, half of which go where none went."""
    january = flights_examples.months(flights_raw, 1, 1).iloc[::8].reset_index(drop=True)
    changed = january.assign(dest=january["dest"].where(january.index % 2 == 0, "Z*Z"))
    return flights_examples.statistics_of(shared_run_step, warm_launcher, {"train": january, "eval": changed})


class Runs:
    """Runs a DAG of ``tests/dags`` while somebody answers its questions."""

    def __init__(self, run_dag: Any, api: Any, store: Any, conf: dict[str, Any]) -> None:
        self.run_dag, self.api, self.store, self.conf = run_dag, api, store, conf
        self.questions: list[dict[str, Any]] = []
        self.schema_uri = ""

    def __call__(self, dag_id: str, answer: Answer | None = None) -> dict[str, Any]:
        """Runs the DAG; returns the task instances. Each question is handed to ``answer``, with the client."""
        self.schema_uri = self.store.frozen_schema(dag_id, "flights")
        over = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            person = pool.submit(self._sit_by, dag_id, answer, over)
            try:
                run = self.run_dag(dag_id, self.conf)
            finally:
                over.set()
            person.result()
        return {ti.task_id: ti for ti in run.get_task_instances()}

    def answered(self, choice: str, note: str = "", **params: str) -> Answer:
        """An answer of one choice."""

        def answer(api: Any, question: dict[str, Any]) -> None:
            response = self.respond(question, choice, note, **params)
            assert response.status_code == 200, response.text

        return answer

    def respond(self, question: dict[str, Any], choice: str, note: str = "", **params: str) -> Any:
        """Answers through the API."""
        answer = {"chosen_options": [choice], "params_input": {"note": note, **params}}
        return self.api.patch(f"{question['path']}/hitlDetails", json=answer)

    def _sit_by(self, dag_id: str, answer: Answer | None, over: threading.Event) -> None:
        seen: Counter[str] = Counter()
        while not over.wait(0.2):
            for ti in self.waiting(dag_id):
                seen[ti["id"]] += 1
                if seen[ti["id"]] != LOOKS:
                    continue
                run = f"/dags/{dag_id}/dagRuns/{ti['dag_run_id']}"
                try:
                    path = f"{run}/taskInstances/{ti['task_id']}/-1"
                    question = {"path": path, **self.get(f"{path}/hitlDetails")}
                    self.questions.append(question)
                    assert answer is not None, question
                    answer(self.api, question)
                except BaseException:
                    # Nobody else would end the run, which waits.
                    self.api.patch(run, json={"state": "failed"})
                    raise

    def waiting(self, dag_id: str) -> list[dict[str, Any]]:
        """The DAG's task instances that wait for an answer."""
        result = self.get("/dags/~/dagRuns/~/taskInstances", state="awaiting_input")["task_instances"]
        return [ti for ti in result if ti["dag_id"] == dag_id]

    def get(self, path: str, **params: Any) -> Any:
        """Asks the API."""
        response = self.api.get(path, params=params)
        assert response.status_code == 200, response.text
        return response.json()


@pytest.fixture
def runs(
    run_dag: Any,
    core_api: Any,
    shared_run_step: Any,
    flights_statistics: Any,
    new_destination: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> Runs:
    connection = {"conn_type": "hops", "extra": {"store": shared_run_step.store.root}}
    monkeypatch.setenv("AIRFLOW_CONN_HOPS_DEFAULT", json.dumps(connection))
    conf = {"reference": flights_statistics.to_dict(), "statistics": new_destination.to_dict()}
    for frozen in Path(shared_run_step.store.root.removeprefix("file://")).glob("validation_ask*/_frozen"):
        shutil.rmtree(frozen)  # each test begins with the inferred schema
    return Runs(run_dag, core_api, shared_run_step.store, conf)


def states(tasks: dict[str, Any]) -> dict[str, str]:
    return {name: str(ti.state) for name, ti in tasks.items()}


def test_approved_schema_is_used_by_later_tasks_and_runs(runs: Runs) -> None:
    tasks = runs("validation_ask", runs.answered(APPROVE, "new airport"))
    assert states(tasks) == {"schema": "success", "validation": "success", "after": "success"}
    (question,) = runs.questions
    assert question["options"] == [APPROVE, CONTINUE, REJECT]
    assert "feature 'dest'" in question["body"]
    assert "Z\\*Z" in question["body"]
    assert "### Proposed change to the schema" in question["body"]
    history = schema_history(runs.store, runs.schema_uri)
    assert [version.in_force for version in history] == [False, True]
    assert (history[1].approved_by, history[1].note) == ("Anonymous", "new airport")
    assert "Z*Z" in schema_text(runs.store, runs.schema_uri)
    value = tasks["validation"].xcom_pull(task_ids="validation")
    assert value["answer"]["choice"] == APPROVE
    assert set(tasks["after"].xcom_pull(task_ids="after")["metrics"].values()) == {0}

    tasks = runs("validation_ask")
    assert states(tasks) == {"schema": "success", "validation": "success", "after": "success"}
    assert len(runs.questions) == 1  # nobody was asked again
    assert tasks["schema"].xcom_pull(task_ids="schema")["fingerprint"] == history[1].fingerprint


def test_rejection_fails_the_task_with_person_and_reason(runs: Runs, capfd: pytest.CaptureFixture[str]) -> None:
    tasks = runs("validation_ask_alice", runs.answered(REJECT, "that airport is closed"))
    assert states(tasks) == {"schema": "success", "validation": "failed", "after": "upstream_failed"}
    assert tasks["validation"].try_number == 1  # of three
    report = "".join(capfd.readouterr())
    assert "'Reject' by Anonymous: that airport is closed; the data does not fit" in report
    assert tasks["validation"].xcom_pull(task_ids="validation")["kind"] == "anomalies"
    assert "Z*Z" not in schema_text(runs.store, runs.schema_uri)


def test_continuing_once_changes_no_schema(runs: Runs) -> None:
    def answer(api: Any, question: dict[str, Any]) -> None:
        assert question["assigned_users"] == [{"id": "alice", "name": "Alice"}]
        assert runs.respond(question, CONTINUE).status_code == 200
        assert runs.respond(question, APPROVE).status_code == 409  # one answer is enough

    tasks = runs("validation_ask_alice", answer)
    assert set(states(tasks).values()) == {"success"}
    assert tasks["after"].xcom_pull(task_ids="after")["metrics"]["errors"] == 1
    assert tasks["after"].xcom_pull(task_ids="validation", key="schema")["uri"] == runs.schema_uri
    assert "Z*Z" not in schema_text(runs.store, runs.schema_uri)

    # That of another DAG cannot be approved at all.
    uri = runs.schema_uri
    reference = runs.store.manifest(uri).reference(uri)
    runs.conf["schema"] = reference.to_dict()

    def answer_of_another(api: Any, question: dict[str, Any]) -> None:
        assert question["options"] == [CONTINUE, REJECT]
        assert "belongs to DAG 'validation_ask_alice'" in question["body"]
        assert f"airflow hops schema approve validation_ask_alice flights {runs.store.root}/" in question["body"]
        assert runs.respond(question, APPROVE).status_code == 400
        assert runs.respond(question, CONTINUE).status_code == 200

    assert states(runs("validation_ask_of_another", answer_of_another)) == {"validation": "success"}
    assert runs.store.manifest(uri).reference(uri) == reference


def test_a_schema_that_changed_while_the_task_waited_is_not_overwritten(
    runs: Runs, capfd: pytest.CaptureFixture[str]
) -> None:
    def answer(api: Any, question: dict[str, Any]) -> None:
        text = schema_text(runs.store, runs.schema_uri)
        publish_schema(runs.store, runs.schema_uri, f"{text}# looked at\n", approved_by="Bob")
        assert runs.respond(question, APPROVE).status_code == 200

    tasks = runs("validation_ask_alice", answer)
    assert states(tasks)["validation"] == "failed"
    assert tasks["validation"].try_number == 1
    assert "and it has changed since" in "".join(capfd.readouterr())
    assert schema_text(runs.store, runs.schema_uri).endswith("# looked at\n")
    assert schema_history(runs.store, runs.schema_uri)[-1].approved_by == "Bob"


def test_an_approval_with_changes_freezes_the_edited_schema_if_it_parses(
    runs: Runs, capfd: pytest.CaptureFixture[str]
) -> None:
    faulty = runs("validation_ask_alice", runs.answered(APPROVE, schema='feature { name: "dest" '))
    versions = schema_history(runs.store, runs.schema_uri)
    assert states(faulty)["validation"] == "failed"
    report = "".join(capfd.readouterr())
    assert "Anonymous's edit:1:17: not a schema in protobuf text" in report, report[-6000:]
    proposed = runs.store.read_text(f"{faulty['validation'].xcom_pull(task_ids='validation')['uri']}/proposed.pbtxt")
    edited = proposed.replace('value: "Z*Z"', 'value: "Z*Z"\n  value: "Q*Q"')
    tasks = runs("validation_ask_alice", runs.answered(APPROVE, "Q*Q opens in May", schema=edited))
    assert set(states(tasks).values()) == {"success"}
    assert schema_text(runs.store, runs.schema_uri) == edited != proposed
    newest = schema_history(runs.store, runs.schema_uri)[-1]
    assert (newest.version, newest.note) == (len(versions) + 1, "Q*Q opens in May")
    assert tasks["after"].xcom_pull(task_ids="validation", key="schema")["fingerprint"] == newest.fingerprint


def test_timeout_applies_the_default_answer(runs: Runs, capfd: pytest.CaptureFixture[str]) -> None:
    from airflow.jobs.job import Job
    from airflow.jobs.scheduler_job_runner import SchedulerJobRunner

    def answer(api: Any, question: dict[str, Any]) -> None:
        assert question["defaults"] == [CONTINUE]
        scheduler = SchedulerJobRunner(Job())
        while runs.waiting("validation_ask_briefly"):
            scheduler.check_awaiting_input_timeouts()

    tasks = runs("validation_ask_briefly", answer)
    assert set(states(tasks).values()) == {"success"}
    values = tasks["validation"].xcom_pull(task_ids="validation")["answer"]
    assert (values["choice"], values["by"]) == (CONTINUE, "no answer within 0:00:01")

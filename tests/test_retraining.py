"""The retraining request: an asset event, once per reference."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, Asset
from airflow.sdk.exceptions import TaskAwaitingInput
from world import World, states, write_artifact

from airflow_hops.core.artifacts.artifact import Artifact, Producer
from airflow_hops.core.models.model_record import ModelRecord, ServedVersion, write_record
from airflow_hops.core.retraining.conditions import AnyOf, Drift, Finding, Memory
from airflow_hops.core.retraining.decision import RetrainingDecision, decide
from airflow_hops.core.retraining.decisions import DecisionLog, claim_request, newest_request
from airflow_hops.core.retraining.performance import Performance
from airflow_hops.core.retraining.policy import Budget, RetrainingPolicy
from airflow_hops.core.retraining.situation import Situation
from airflow_hops.core.sources.source_files import fingerprint_of_sources
from airflow_hops.core.sources.sources import Source
from airflow_hops.core.steps.run_record import INGEST_ENTRY, RunRecord, record_key
from airflow_hops.core.steps.run_record import write_record as write_run_record
from airflow_hops.core.store import ArtifactStore
from airflow_hops.operators import RolloutOperator, retraining_loop
from airflow_hops.operators.base import HopsOperator
from airflow_hops.operators.retraining import NOT_NOW, RETRAIN, RequestRetrainingOperator
from airflow_hops.runner.retraining import Monitor


def skew(
    verdict: str = "drift", fingerprint: str = "training-data-of-version-1", day: str = "2013-07-01"
) -> dict[str, Any]:
    return {
        "uri": "file:///store/monitoring/run/skew/skew",
        "kind": "skew",
        "fingerprint": f"{verdict} {fingerprint} {day}",
        "properties": {
            "verdict": verdict,
            "drifted": ["temp", "dewp"] if verdict == "drift" else [],
            "window_end": f"{day}T00:00:00+00:00",
            "reference": {
                "model": "flights",
                "version": 1,
                "statistics": "file:///store/training/run/statistics/statistics",
                "schema": "file:///store/training/_frozen/flights/schema",
                "fingerprint": fingerprint,
            },
        },
    }


class Requests:
    """Runs the DAG ``retraining``, and reads what its runs made and said."""

    def __init__(self, run_dag: Any, world: World, capture: pytest.CaptureFixture[str]) -> None:
        self._run_dag, self.world, self.store, self._capture = run_dag, world, world.store, capture

    def claim_request(self) -> None:
        """Lets a run that is over claim the last request."""
        claim_request(self.store, self.causes()[-1], Producer("training", "ended", "ingest"))

    def causes(self) -> list[str]:
        """Returns the causes requested so far, as the newest decision counts them."""
        log = DecisionLog(self.store, Producer("retraining", "", "request"))
        return [request.cause for request in log.newest(log.names())[0].decision.requests]

    def output(self) -> str:
        """Returns what was logged since the last call."""
        return "".join(self._capture.readouterr())

    def __call__(self, report: Any, **conf: str) -> tuple[str, list[dict[str, Any]]]:
        """Returns the task's state and its asset events."""
        from airflow.models.asset import AssetEvent
        from airflow.utils.session import create_session
        from sqlalchemy import select

        run = self._run_dag("retraining", {"skew": report, **conf})
        with create_session() as session:
            events = session.scalars(select(AssetEvent).where(AssetEvent.source_run_id == run.run_id)).all()
            extras = [event.extra for event in events if event.asset.name == "tests.retraining"]
        return states(run)["request"], extras

    def claimed(self, *arguments: Any, **options: str) -> str:
        """Returns the task's state; what it requests is claimed by a run that is over."""
        state, _ = self(*arguments, **options)
        if state == "success":
            self.claim_request()
        return state


@pytest.fixture
def request_retraining(run_dag: Any, world: World, capfd: pytest.CaptureFixture[str]) -> Requests:
    return Requests(run_dag, world.connect(), capfd)


@pytest.mark.slow
def test_drift_makes_an_event_with_the_window_and_the_reason(request_retraining: Requests) -> None:
    state, events = request_retraining(skew())
    assert state == "success"
    (event,) = events
    decision = json.loads(request_retraining.store.read_text(event.pop("decision")))
    assert decision["outcome"] == "requested"
    assert decision["cause"] == event.pop("cause")
    assert [each["condition"] for each in decision["findings"]] == ["drift", "any_of"]
    assert event == {
        "window_end": "2013-07-01T00:00:00+00:00",
        "model_name": "flights",
        "drifted": ["temp", "dewp"],
        "skew": "file:///store/monitoring/run/skew/skew",
        "reason": "temp, dewp drifted from the training data of version 1",
    }


def test_cooldown_prevents_a_second_request_for_a_reference(request_retraining: Requests) -> None:
    assert request_retraining.claimed(skew()) == "success"
    assert request_retraining(skew()) == ("skipped", [])
    assert "cooldown until 2013-07-01 01:00 (requested at 2013-07-01)" in request_retraining.output()
    assert request_retraining.claimed(skew(day="2013-07-02")) == "success"  # by the data's time
    # After a retraining the reference is another one.
    assert request_retraining(skew(day="2013-07-02", fingerprint="training-data-of-version-2"))[0] == "success"


def monitor_of(
    store: ArtifactStore,
    by: Producer,
    report: Artifact,
    policy: RetrainingPolicy | None = None,
    asset: str = "tests.retraining",
    states: dict[str, Any] | None = None,
) -> Monitor:
    """Returns the monitor of a task whose Airflow has no active runs, and these states of tasks by run."""
    ti = SimpleNamespace(get_dr_count=lambda *_, **__: 0, get_task_states=lambda *_, **__: states or {})
    context: Any = {"ti": ti, "dag_run": SimpleNamespace(logical_date=datetime.now(UTC))}
    return Monitor(context, by, store, policy or RetrainingPolicy(), asset, report, None, False)


def unasked(decision: RetrainingDecision, drift_began: bool) -> RetrainingDecision:
    return decision


def test_two_monitors_of_a_model_make_one_request_at_a_time(request_retraining: Requests) -> None:
    assert request_retraining(skew())[0] == "success"

    def situation(report: dict[str, Any]) -> Situation:
        store, by = request_retraining.store, Producer("hourly", "r", "request")
        newest = newest_request(store, "tests.retraining", report["properties"]["reference"]["model"])[1]
        return monitor_of(store, by, Artifact.from_dict(report)).situation(None, newest)

    assert "no run has claimed it yet" in (situation(skew()).in_flight or "")
    other = skew()
    other["properties"]["reference"]["model"] = "trains"
    assert situation(other).in_flight is None
    request_retraining.claim_request()
    assert situation(skew()).in_flight is None


def test_concurrent_monitors_make_one_request(request_retraining: Requests, monkeypatch: pytest.MonkeyPatch) -> None:
    both, check = threading.Barrier(2), Drift.check
    waited: set[int] = set()

    def check_at_once(drift: Drift, situation: Situation, memory: Memory) -> Finding:
        if threading.get_ident() not in waited:  # a second decision does not wait for the other monitor
            waited.add(threading.get_ident())
            both.wait(600)
        return check(drift, situation, memory)

    def decide_in(dag_id: str) -> RetrainingDecision:
        by, states = Producer(dag_id, "run", "request"), {"run": {"request": "running"}}
        monitor = monitor_of(request_retraining.store, by, Artifact.from_dict(skew()), asset="at_once", states=states)
        return monitor.decide(unasked).recorded.decision

    monkeypatch.setattr(Drift, "check", check_at_once)
    with ThreadPoolExecutor(2) as threads:
        decisions = list(threads.map(decide_in, ("hourly", "daily")))
    assert sorted(decision.why for decision in decisions) == ["", "in_flight"]


def test_request_cost_is_that_of_its_runs_artifacts(request_retraining: Requests) -> None:
    assert request_retraining.claimed(skew()) == "success"
    store, log = request_retraining.store, DecisionLog(request_retraining.store, Producer("retraining", "", "request"))
    for run, task, core_s in (("ended", "prepare", 1800.0), ("ended", "train", 5400.0), ("another", "train", 7.0)):
        write_artifact(store, by=Producer("training", run, task), cost={"core_s": core_s, "gpu_s": 0.0})
    policy = RetrainingPolicy(cooldown=timedelta(0), budget=Budget(per=timedelta(90), core_hours=2))
    previous = log.newest(log.names())[0].decision
    report = Artifact.from_dict(skew(day="2013-07-09"))
    situation = monitor_of(store, Producer("d", "r", "t"), report, policy).situation(previous, None)
    decision = decide(policy, situation, previous)
    assert (decision.why, decision.limits) == ("budget", ("budget 2 of 2 core hours spent in 90 days",))


@pytest.mark.slow
def test_no_retraining_is_requested_for_unchanged_files(request_retraining: Requests, tmp_path: Path) -> None:
    world, file = request_retraining.world, tmp_path / "flights.csv"
    file.write_text("a\n1\n")

    def train(window_end: str | None, **source: str) -> None:
        sources = {"flights": Source(str(file), **source)}
        parts = {"sources": fingerprint_of_sources(sources), "params": f"{window_end} {source}"}
        params = {"sources": {"flights": sources["flights"].to_dict()}, "window_end": window_end}
        record = RunRecord("training", "ingest", INGEST_ENTRY, params, {}, parts, "", "", {}, "")
        write_run_record(world.store, record_key(parts, {}), record, None)
        inputs: dict[str, Artifact] = {}
        for kind in ("snapshot", "examples", "model"):
            by = Producer("training", f"until-{window_end}", kind)
            inputs = {"from": world.artifact(kind, str(window_end), by, inputs=inputs, cache_key_parts=parts)}
        world.deployed("flights", inputs["from"])

    train(None, time_column="time")
    assert request_retraining(skew()) == ("skipped", [])
    assert "no file of the sources has changed since version 1 was trained" in request_retraining.output()
    file.write_text("a\n1\n2\n")
    assert request_retraining.claimed(skew(day="2013-08-01")) == "success"
    train("2013-07-01", time_column="time")  # the files may have later rows
    assert request_retraining.claimed(skew(day="2013-08-02")) == "success"
    train("2013-07-01")
    assert request_retraining(skew(day="2013-08-03")) == ("skipped", [])


def test_running_rollout_takes_precedence(request_retraining: Requests) -> None:
    champion, challenger = (ServedVersion.of(Artifact("file:///m", "model", "f"), n, "", 50) for n in (1, 2))
    write_record(request_retraining.store, "flights", ModelRecord(champion, challenger))
    assert request_retraining(skew()) == ("skipped", [])
    assert "version 2 of model 'flights' is being rolled out" in request_retraining.output()
    write_record(request_retraining.store, "flights", ModelRecord(champion))
    assert request_retraining(skew())[0] == "success"


@pytest.mark.slow
def test_request_killed_before_its_event_is_repeated_once(request_retraining: Requests) -> None:
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from airflow.utils.state import TaskInstanceState
    from sqlalchemy import update

    conf = json.dumps({"skew": skew(), "dies_when": "request"})
    program = (
        "import gc, json, sys; gc.disable(); from airflow.dag_processing.dagbag import DagBag\n"
        "DagBag(sys.argv[1]).dags['retraining'].test(run_conf=json.loads(sys.argv[2]))"
    )
    folder = str(Path(__file__).parent / "dags" / "stages.py")
    ended = subprocess.run([sys.executable, "-c", program, folder, conf], capture_output=True, text=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr[-2000:]
    (cause,) = request_retraining.causes()
    # As long as a retry may come, the request is its.
    assert request_retraining(skew(day="2013-07-02")) == ("skipped", [])
    assert "is about to request it" in request_retraining.output()

    with create_session() as session:  # as the scheduler does of a task without a heartbeat
        killed = TaskInstance.dag_id == "retraining", TaskInstance.state == TaskInstanceState.RUNNING
        session.execute(update(TaskInstance).where(*killed).values(state=TaskInstanceState.FAILED))
    state, (event,) = request_retraining(skew(day="2013-07-03"))
    assert (state, event["cause"], event["window_end"]) == ("success", cause, "2013-07-03T00:00:00+00:00")
    assert request_retraining.causes() == [cause]
    assert request_retraining(skew(day="2013-07-04")) == ("skipped", [])  # it is under way now


def test_retry_reuses_the_recorded_decision(request_retraining: Requests) -> None:
    report, states = Artifact.from_dict(skew()), {"first": {"request": "running"}}

    def decided(run_id: str, report: Artifact) -> tuple[str, RetrainingDecision]:
        by = Producer("d", run_id, "request")
        recorded = monitor_of(request_retraining.store, by, report, states=states).decide(unasked).recorded
        return recorded.uri, recorded.decision

    uri, first = decided("first", report)
    assert first.requested
    again, retried = decided("first", report)
    assert (again, retried.to_dict()) == (uri, first.to_dict())
    assert decided("second", report)[1].why == "in_flight"
    # Its comparison was made anew, before the event: the request is the same, of what is found now.
    anew = decided("first", replace(report, fingerprint="anew"))[1]
    assert (anew.requested, anew.cause, len(anew.requests)) == (True, first.cause, 1)


@pytest.mark.slow
def test_callbacks_report_drift_requests_and_stops(request_retraining: Requests, tmp_path: Path) -> None:
    report = tmp_path / "told"
    for day in range(1, 7):
        request_retraining(skew(day=f"2013-07-0{day}"), told=str(report))
        request_retraining.claim_request()
    assert report.read_text().splitlines() == ["drift: requested", *["request: requested"] * 3, "stop: rejected"]


@pytest.mark.parametrize(
    ("event", "outcome", "words"),
    [
        ({"chosen_options": [RETRAIN]}, "requested", "; Ada agreed: holidays"),
        ({"chosen_options": [NOT_NOW]}, "refused", "; Ada refused: holidays"),
        ({"chosen_options": [NOT_NOW], "timedout": True, "responded_by_user": None}, "refused",
         "; nobody refused: no answer within 2 days, 0:00:00"),
    ],
)  # fmt: skip
def test_policy_may_require_approval(
    monkeypatch: pytest.MonkeyPatch, event: dict[str, Any], outcome: str, words: str
) -> None:
    policy = RetrainingPolicy(ask=True)
    report, asked = list[str](), list[dict[str, Any]]()

    def tell(kind: str) -> Any:
        return lambda context: report.append(f"{kind}: {context['decision'].reason}")

    operator = RequestRetrainingOperator(
        task_id="request", skew={}, asset=Asset("asked"), policy=policy, answer_within=timedelta(days=2),
        on_drift=tell("drift"), on_request=tell("request"), dag=DAG("asks", schedule=None),
    )  # fmt: skip
    situation = Situation.of(Artifact.from_dict(skew()), datetime.now(UTC))
    monkeypatch.setattr("airflow_hops.operators.people.upsert_hitl_detail", lambda **given: asked.append(given))
    context: Any = {"ti": SimpleNamespace(id="1")}
    with pytest.raises(TaskAwaitingInput) as waits:
        operator._answered(context, decide(policy, situation), True)
    assert waits.value.timeout == timedelta(days=2)
    assert asked[0]["defaults"] == [NOT_NOW]
    reason = "temp, dewp drifted from the training data of version 1; a person is asked"
    assert report == [f"drift: {reason}", f"request: {reason}"]
    monkeypatch.setattr(operator, "execute", lambda context: {})
    user = {"name": "Ada", "id": "1"}
    operator.execute_complete(context, {"params_input": {"note": "holidays"}, "responded_by_user": user, **event})
    decision = operator._answered(context, decide(policy, situation), True)
    assert (decision.outcome, len(report)) == (outcome, 2)
    assert decision.reason.endswith(words)


def test_loop_is_a_dag_of_the_calling_file() -> None:
    measured = Performance("auc", drop=0.1, window=timedelta(days=28))
    policy, arguments = RetrainingPolicy(when=AnyOf(Drift(), measured)), {"min_rows": 7}
    options: dict[str, Any] = {"schedule": "@daily", "on_request": int, "tags": ["own"]}
    dag = retraining_loop(
        "flights", policy=policy, asset=Asset("a"), skew=arguments, performance={"min_rows": 50}, **options
    )
    assert (dag.dag_id, dag.fileloc, dag.max_active_runs, dag.tags) == ("flights_monitoring", __file__, 1, {"own"})
    skew_task, request = dag.get_task("skew"), dag.get_task("request_retraining")
    assert (skew_task.model_name, skew_task.min_rows) == ("flights", 7)
    assert (request.policy, request.on_request) == (policy, int)
    assert request.upstream_task_ids == {"skew", "performance"}
    performance = dag.get_task("performance")
    assert (performance.window, performance.min_rows) == (measured.window, 50)


@pytest.mark.parametrize(("decision", "told"), [("promoted", ["up 2"]), ("rolled_back", ["down 2"]), ("left", [])])
def test_callbacks_report_promotion_and_rollback(
    monkeypatch: pytest.MonkeyPatch, decision: str, told: list[str]
) -> None:
    heard: list[str] = []
    operator = RolloutOperator(
        task_id="rollout", deployment={},
        on_promoted=lambda context: heard.append(f"up {context['rollout'].version}"),
        on_rolled_back=[lambda context: heard.append(f"down {context['rollout'].version}")],
    )  # fmt: skip
    rollout = Artifact("file:///r", "rollout", "f", properties={"decision": decision, "version": 2}).to_dict()
    monkeypatch.setattr(HopsOperator, "execute", lambda self, context: rollout)  # the step
    assert operator.execute({}) == rollout  # type: ignore[typeddict-item]
    assert heard == told


def test_failed_comparison_names_its_task(run_dag: Any, capfd: pytest.CaptureFixture[str]) -> None:
    assert states(run_dag("retraining_blind", {}))["request"] == "failed"
    problem = "nothing is decided without a comparison: task 'compared' is failed; see why in its log"
    assert problem in "".join(capfd.readouterr())


def test_invalid_skew_report_fails(request_retraining: Requests) -> None:
    assert request_retraining({"verdict": "drift"}) == ("failed", [])

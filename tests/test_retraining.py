"""The retraining request: an asset event, once per reference."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_hops.contract.artifacts import Artifact
from airflow_hops.contract.model_record import ModelRecord, ServedVersion
from airflow_hops.store import ArtifactStore
from airflow_hops.store.model_records import write_record


def skew(verdict: str = "drift", fingerprint: str = "training-data-of-version-1") -> dict[str, Any]:
    return {
        "uri": "file:///store/monitoring/run/skew/skew",
        "kind": "skew",
        "fingerprint": "s",
        "properties": {
            "verdict": verdict,
            "drifted": ["temp", "dewp"] if verdict == "drift" else [],
            "window_end": "2013-07-01T00:00:00+00:00",
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
    """Runs the DAG ``retraining``, and reads the asset events that its runs made."""

    def __init__(self, run_dag: Any, store: ArtifactStore) -> None:
        self._run_dag, self.store = run_dag, store

    def __call__(self, report: Any) -> tuple[str, list[dict[str, Any]]]:
        from airflow.models.asset import AssetEvent
        from airflow.utils.session import create_session
        from sqlalchemy import select

        run = self._run_dag("retraining", {"skew": report})
        (task,) = run.get_task_instances()
        with create_session() as session:
            events = session.scalars(select(AssetEvent).where(AssetEvent.source_run_id == run.run_id)).all()
            return str(task.state), [event.extra for event in events if event.asset.name == "tests.retraining"]


@pytest.fixture
def request_retraining(run_dag: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Requests:
    connection = {"conn_type": "hops", "extra": {"store": str(tmp_path / "store")}}
    monkeypatch.setenv("AIRFLOW_CONN_HOPS_DEFAULT", json.dumps(connection))
    return Requests(run_dag, ArtifactStore(str(tmp_path / "store")))


def test_drift_makes_an_event_with_the_window_and_the_reason(request_retraining: Requests) -> None:
    state, events = request_retraining(skew())
    assert state == "success"
    assert events == [
        {
            "window_end": "2013-07-01T00:00:00+00:00",
            "drifted": ["temp", "dewp"],
            "skew": "file:///store/monitoring/run/skew/skew",
            "reason": "temp, dewp drifted from the training data of version 1",
        }
    ]


@pytest.mark.parametrize("verdict", ["stable", "insufficient", "pipeline_fault"])
def test_any_other_verdict_is_skipped_and_makes_no_event(
    request_retraining: Requests, verdict: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert request_retraining(skew(verdict)) == ("skipped", [])
    output = capfd.readouterr()
    assert f"the verdict is '{verdict}'" in output.out + output.err


def test_a_broken_pipeline_is_not_learnt_from_and_is_named(
    request_retraining: Requests, capfd: pytest.CaptureFixture[str]
) -> None:
    report = skew("pipeline_fault")
    report["properties"] |= {
        "drifted": ["temp", "carrier"],
        "causes": {"temp": "unit_change", "carrier": "new_category"},
    }
    assert request_retraining(report) == ("skipped", [])
    output = capfd.readouterr()
    assert "'pipeline_fault': temp (unit_change), carrier (new_category); correct the source" in output.out + output.err


def test_drift_between_spans_asks_too(request_retraining: Requests) -> None:
    report = skew()
    report["properties"]["reference"] = {"statistics": "file:///store/spans/march", "schema": None, "fingerprint": "f"}
    state, (event,) = request_retraining(report)
    assert state == "success"
    assert event["reason"] == "temp, dewp drifted from file:///store/spans/march"
    assert request_retraining(report) == ("skipped", [])  # the cooldown


def test_the_same_reference_is_not_asked_for_again_within_the_cooldown(
    request_retraining: Requests, capfd: pytest.CaptureFixture[str]
) -> None:
    assert request_retraining(skew())[0] == "success"
    assert request_retraining(skew()) == ("skipped", [])
    output = capfd.readouterr()
    assert "already requested by run" in output.out + output.err
    # After a retraining the reference is another one.
    assert request_retraining(skew(fingerprint="training-data-of-version-2"))[0] == "success"


def test_the_cooldown_ends(request_retraining: Requests) -> None:
    assert request_retraining(skew())[0] == "success"
    store = request_retraining.store
    uri = store.uri("_state", "retraining", "request", "requested.json")
    asked = json.loads(store.read_text(uri))
    asked["training-data-of-version-1"]["at"] = "2020-01-01T00:00:00+00:00"
    store.write_text(uri, json.dumps(asked))
    assert request_retraining(skew())[0] == "success"


def test_a_rollout_under_way_comes_first(request_retraining: Requests, capfd: pytest.CaptureFixture[str]) -> None:
    store = request_retraining.store
    champion, challenger = (ServedVersion.of(Artifact("file:///m", "model", "f"), n, "", 50) for n in (1, 2))
    write_record(store, "flights", ModelRecord(champion, challenger))
    assert request_retraining(skew()) == ("skipped", [])
    output = capfd.readouterr()
    assert "version 2 of model 'flights' is being rolled out" in output.out + output.err
    write_record(store, "flights", ModelRecord(champion))
    assert request_retraining(skew())[0] == "success"


def test_something_that_is_no_skew_report_fails(request_retraining: Requests) -> None:
    assert request_retraining({"verdict": "drift"}) == ("failed", [])


def test_a_connection_that_does_not_parse_fails_without_a_retry(
    request_retraining: Requests, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_HOPS_DEFAULT", json.dumps({"conn_type": "hops", "extra": {"store": "here"}}))
    assert request_retraining(skew()) == ("failed", [])
    output = capfd.readouterr()
    assert "field 'store' is 'here', expected a URI or an absolute path" in output.out + output.err

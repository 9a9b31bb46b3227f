"""The infra-validate stage: a model serves in a server of its own, or the task says why not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import psutil
import pytest
from flights_models import FLIGHTS_CODE

from airflow_hops.contract.artifacts import Artifact, Producer
from airflow_hops.hooks.runtime import StepFailed

pytestmark = [pytest.mark.runtime, pytest.mark.spark]
ENTRY = "airflow_hops.runtime.infra_validate:run"


@pytest.fixture
def validate(shared_run_step: Any, warm_launcher: Any, flights_prepared: Any) -> Any:
    """Runs the stage; a failure leaves no artifact, and whatever happens, no server of it is left."""

    def run(model: Artifact, **params: Any) -> Any:
        try:
            return shared_run_step(
                ENTRY,
                params=params,
                inputs={"model": model, "examples": flights_prepared},
                kind="infra_blessing",
                code_paths=FLIGHTS_CODE,
                launcher=warm_launcher,
            )
        except StepFailed:
            assert not shared_run_step.store.exists(shared_run_step.last_uri)
            raise
        finally:
            assert not [p for p in psutil.process_iter(["cmdline"]) if _is_throwaway_server(p)]

    return run


def _is_throwaway_server(process: psutil.Process) -> bool:
    command = process.info["cmdline"] or []
    return "airflow_hops.serving" in command and "--model_name=candidate" in command


def _found(run: Any) -> Any:
    path = Path(run.last_uri.removeprefix("file://")) / "infra_validation.json"
    return json.loads(path.read_text())


def test_a_model_that_serves_is_blessed_with_its_latencies(
    validate: Any, shared_run_step: Any, flights_model: Any
) -> None:
    artifact = validate(flights_model, requests=12)
    assert artifact.properties == {"blessed": True}
    found = _found(shared_run_step)
    assert 8 <= found["rows"] <= 12 and found["requests"] == 2 * (found["rows"] + 1)
    assert found["largest_difference"] < 1e-5
    assert 0 < found["grpc"]["median_ms"] <= found["grpc"]["max_ms"]
    assert 0 < found["rest"]["median_ms"] <= found["rest"]["max_ms"]
    assert artifact.metrics["load_seconds"] > 0


def test_a_damaged_saved_model_fails_with_the_servers_own_words(
    validate: Any, shared_run_step: Any, flights_model: Any
) -> None:
    store = shared_run_step.store
    with store.create(store.uri("tests", "damaged", "train", "model"), "model", Producer()) as writer:
        target = writer.path / "saved_model"
        shutil.copytree(store.local(flights_model) / "saved_model", target)
        graph = target / "saved_model.pb"
        graph.write_bytes(graph.read_bytes()[: graph.stat().st_size // 2])
        damaged = writer.commit()
    with pytest.raises(
        StepFailed, match=r"the model server does not load the model: .*/damaged/train/model/"
    ) as failed:
        validate(damaged)
    assert "saved_model.pb" in str(failed.value)
    assert not failed.value.retryable


@pytest.mark.parametrize(
    ("flaw", "words"),
    [("nan", "probabilities are not in \\[0, 1\\], the first is nan"), ("range", "the first is 2\\.")],
)
def test_answers_that_are_no_probabilities_are_refused(
    validate: Any, make_flights_model: Any, flaw: str, words: str
) -> None:
    with pytest.raises(StepFailed, match=words):
        validate(make_flights_model(steps=1, flaw=flaw))


def test_arguments_at_fault_are_named(validate: Any, flights_model: Any) -> None:
    with pytest.raises(StepFailed, match="requests is 0, expected at least 1"):
        validate(flights_model, requests=0)
    with pytest.raises(StepFailed, match="no Parquet files of split 'test'; there are the splits eval, newest, train"):
        validate(flights_model, split="test")

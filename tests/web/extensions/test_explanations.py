"""Explanations of a model through the API."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_hops.core.evaluation import ModelReference
from airflow_hops.extensions.explain.core.explanation import (
    Dependence,
    DependencePoint,
    ExplainedRow,
    Explanation,
    FeatureImportance,
    Reason,
)
from web.conftest import Api

pytestmark = pytest.mark.runtime

DAG, DAGS = "pages_explanations", "tests/extensions/explain/dags"
PATH = f"/api/dags/{DAG}/models/explained/explanations"
REPORT = Explanation(
    candidate=ModelReference("file:///store/model", "f" * 64),
    champion=ModelReference("file:///store/old", "e" * 64, 3),
    model_name="explained",
    problem="binary",
    label="late",
    split="eval",
    rows=500,
    repeats=5,
    background_rows=100,
    seed=0,
    loss="Brier score",
    candidate_loss=0.1,
    champion_loss=0.12,
    constant_loss=0.25,
    features=2,
    predictions=12_345,
    warnings=("'hour' carries the model",),
    dependence_classes=None,
    importance=(
        FeatureImportance("hour", (0.2, 0.1, 0.3), None, True),
        FeatureImportance("<img src=x onerror=alert(1)>", None, (0.01, -0.01, 0.03), False),
    ),
    dependence=(
        Dependence("hour", True, (DependencePoint(7, 0.9, (0.4,)), DependencePoint(None, 0.1, (0.2,), (0.3,)))),
    ),
    explained=(ExplainedRow("row-1", None, 0.6, 0.2, (Reason("hour", "7", 0.4, 0.01),), 0.0),),
)


@pytest.fixture(scope="module")
def run(api: Api, run_dag: Any) -> Any:
    return run_dag(DAG, {"content": REPORT.to_dict(), "properties": REPORT.properties.to_dict()}, DAGS)


def test_explanation_matches_its_file(api: Api, run: Any) -> None:
    (entry,) = api.get(PATH, "viewer").json()["entries"]
    assert (entry["run_id"], entry["fingerprint"], entry["champion_version"]) == (run.run_id, "f" * 64, 3)
    assert entry["warnings"] == ["'hour' carries the model"]
    path = f"{api.artifact_path('explanation', 'explanation', run)}/explanation"
    assert replace(Explanation.from_dict(api.get(path, "viewer").json()["report"]), more={}) == REPORT


def test_explanation_of_another_model_is_not_listed_and_a_damaged_one_is_named(
    api: Api, run: Any, run_dag: Any
) -> None:
    other = replace(REPORT.properties, model_name="other").to_dict()
    damaged = run_dag(DAG, {"content": {**REPORT.to_dict(), "importance": 3}, "properties": other}, DAGS)
    assert [each["run_id"] for each in api.get(PATH).json()["entries"]] == [run.run_id]
    answer = api.get(f"{api.artifact_path('explanation', 'explanation', damaged)}/explanation")
    assert answer.status_code == 502
    assert "explanation.json: " in answer.json()["detail"] and "importance" in answer.json()["detail"]

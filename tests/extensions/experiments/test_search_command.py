"""The command ``airflow hops search``."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.experiments.core.studies import StudyFolder
from tests.extensions.experiments.written_studies import write_study


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ArtifactStore:
    connection = {"conn_type": "hops", "extra": {"store": str(tmp_path)}}
    monkeypatch.setenv("AIRFLOW_CONN_HOPS_DEFAULT", json.dumps(connection))
    return ArtifactStore(str(tmp_path))


@pytest.fixture
def running(store: ArtifactStore) -> StudyFolder:
    """The newer one of two studies of ``churn``."""
    write_study(store, "churn", "weekly", 20, metrics=["auc", "latency"])
    return write_study(store, "churn", "now", 30, state="running", started="2026-11-21T10:00:00+00:00")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("churn", "monthly"), "DAG 'churn' has no study 'monthly'"),
        (("churn", "now", "--task", "other"), "DAG 'churn' has no study 'now' of task 'other'"),
        (("other", "now"), "it has none"),
    ],
)
def test_missing_study_is_reported(hops: Any, running: StudyFolder, arguments: tuple[str, ...], says: str) -> None:
    code, _, errors = hops("search", *arguments, "--optuna", "sqlite://")
    assert (code, says in errors) == (1, True), errors


def test_study_name_of_two_tasks_needs_task_id(hops: Any, store: ArtifactStore, running: StudyFolder) -> None:
    write_study(store, "churn", "now", 3, task_id="other")
    code, _, errors = hops("search", "churn", "now", "--optuna", "sqlite://")
    assert (code, "name one of them by --task" in errors) == (1, True)


@pytest.mark.runtime
def test_study_is_exported_for_optuna(
    hops: Any, running: StudyFolder, runtime: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = {"store": str(tmp_path), "runtime": str(runtime)}
    monkeypatch.setenv("AIRFLOW_CONN_HOPS_DEFAULT", json.dumps({"conn_type": "hops", "extra": extra}))
    database = tmp_path / "study.db"
    code, out, errors = hops("search", "churn", "weekly", "--optuna", f"sqlite:///{database}")
    assert (code, out.startswith("Exported 20 trials as study churn/search/weekly")) == (0, True), (out, errors)
    with sqlite3.connect(database) as connection:
        assert connection.execute("SELECT count(*) FROM trials").fetchone() == (20,)

"""The command ``airflow hops search``."""

from __future__ import annotations

import json
import sqlite3
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.experiments.cli import search
from airflow_hops.extensions.experiments.core.studies import StudyFolder
from tests.extensions.experiments.written_studies import write_study

FAILURE = "ValueError: loss is nan at step 12; expected a finite number"


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


def test_studies_are_listed_the_newest_first(hops: Any, running: StudyFolder) -> None:
    code, out, _ = hops("search", "churn", "--output", "json")
    now, weekly = json.loads(out)
    assert (code, now["study"], now["state"], now["trials"], now["failed"]) == (0, "now", "running", "28/50", "2")
    assert (weekly["study"], weekly["trials"], weekly["best"].startswith("auc 0.7")) == ("weekly", "20/20", True)


def test_study_is_printed_as_text_or_json(hops: Any, running: StudyFolder) -> None:
    _, out, _ = hops("search", "churn", "now")
    best = running.read().best
    assert out.startswith(
        "now, task search: running\n28 of 50 trials: 22 complete, 4 pruned, 2 failed, 2 running; best"
    )
    assert f"\nBest: trial {best}, eval_auc 0.7" in out
    assert "\nImportance: lr 71%, units 20%" in out
    assert "\nRunning: trial 28 for" in out and "eval_auc" in out.partition("Running")[2]
    assert "\nFailed: trial 12: ValueError: loss is nan" in out
    assert out.endswith(f"The last lines of trial 25:\nTraceback (most recent call last):\n  …\n{FAILURE}\n")
    report = json.loads(hops("search", "churn", "weekly", "--output", "json")[1])
    assert (report["pareto"], len(report["all_trials"])) == (_front(report), 20)


def _front(report: dict[str, Any]) -> list[int]:
    values = {each["number"]: each["values"] for each in report["all_trials"] if each["values"]}
    return [
        number
        for number, (auc, latency) in values.items()
        if not any(a >= auc and b <= latency and (a, b) != (auc, latency) for a, b in values.values())
    ]


def test_a_search_is_followed_until_it_ends(hops: Any, running: StudyFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "_POLL_S", 0.02)
    record = running.read()
    counts = {"complete": 40, "failed": 10}
    ended = replace(record, state="complete", counts=counts, done=50)
    timer = threading.Timer(0.3, running.write, [ended])
    timer.start()
    code, out, _ = hops("search", "churn", "--follow")
    timer.join()
    first, last = out.splitlines()
    assert (code, first.startswith("28 of 50 trials"), last.startswith("50 of 50 trials")) == (0, True, True)
    running.write(replace(record, state="failed", error="11 trials failed"))
    code, _, errors = hops("search", "churn", "--follow")
    assert (code, errors.splitlines()[1:]) == (1, ["study 'now': 11 trials failed"])


def test_a_search_and_its_trials_are_stopped(hops: Any, running: StudyFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search.getpass, "getuser", lambda: "ann")
    assert hops("search", "churn", "now", "--stop", "28", "29")[0] == 0
    assert running.stop_requests() == {28: "ann", 29: "ann"}
    code, _, errors = hops("search", "churn", "--stop")
    assert (code, "Asked to stop the search of study now" in errors) == (0, True)
    assert running.stop_requests()[None] == "ann"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("churn", "weekly", "--stop"), "study 'weekly' is complete; only a running one"),
        (("churn", "--stop", "3"), "trial 3 of study 'now' is complete"),
        (("churn", "--stop", "4000"), "trial 4000 of study 'now' is not there"),
        (("churn", "monthly"), "DAG 'churn' has no study 'monthly'"),
        (("churn", "--task", "other", "--follow"), "DAG 'churn' has no study of task 'other'"),
        (("other", "--follow"), "it has none"),
    ],
)
def test_missing_study_is_reported(hops: Any, running: StudyFolder, arguments: tuple[str, ...], says: str) -> None:
    code, _, errors = hops("search", *arguments)
    assert (code, says in errors) == (1, True), errors
    assert running.stop_requests() == {}


def test_study_name_of_two_tasks_needs_task_id(hops: Any, store: ArtifactStore, running: StudyFolder) -> None:
    write_study(store, "churn", "now", 3, task_id="other")
    code, _, errors = hops("search", "churn", "now")
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

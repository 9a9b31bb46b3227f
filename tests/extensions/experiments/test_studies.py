"""Searches as both sides speak of them: spaces, options, and the record of a study in the store."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_hops.core.errors import BadInput
from airflow_hops.core.processes.files import LockHeld
from airflow_hops.core.store import ArtifactStore, leases
from airflow_hops.core.store.leases import LeaseLost
from airflow_hops.extensions.experiments.core.search import (
    Choice,
    IntUniform,
    LogUniform,
    SearchOptions,
    StudyRecord,
    TrialRecord,
    Uniform,
)
from airflow_hops.extensions.experiments.core.search.space import space_of_dict, space_to_dict
from airflow_hops.extensions.experiments.core.studies import (
    recorded_studies,
    searching_tasks,
    study_folder,
    study_names,
)
from tests.extensions.experiments.written_studies import write_study

OPTIONS = {"training": {}, "space": {"lr": LogUniform(1e-4, 1e-2)}, "metrics": ["auc"], "directions": ["maximize"]}


def test_space_round_trips_through_json() -> None:
    space = {"lr": LogUniform(1e-4, 1e-2), "rate": Uniform(0, 1, step=0.5), "units": IntUniform(16, 64, step=16)}
    report = space_to_dict({**space, "optimizer": ["sgd", "adam"], "epochs": 3})
    assert space_of_dict(report) == {**space, "optimizer": Choice(["sgd", "adam"]), "epochs": Choice([3])}
    assert space_to_dict(report) == report


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Uniform(1, 1), "low below high"),
        (lambda: Uniform(0, float("inf")), "finite numbers"),
        (lambda: LogUniform(0, 1), "above 0"),
        (lambda: IntUniform(0, 8, log=True), "above 0"),
        (lambda: IntUniform(1, 2.5), "integers"),  # type: ignore[arg-type]
        (lambda: IntUniform(1, 8, step=0), "step is 0"),
        (lambda: Choice([]), "at least one value"),
        (lambda: Choice([1, 1]), "1 twice"),
        (lambda: space_to_dict({}), "space is {}"),
        (lambda: space_to_dict({"l r": [1]}), "'l r'"),
        (lambda: space_to_dict({"lr": []}), r"space\['lr'\]"),
        (lambda: space_to_dict({"lr": {"type": "uniform", "low": 2, "high": 1}}), r"space\['lr'\].*low below high"),
    ],
)
def test_invalid_range_is_refused(make: Any, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        make()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"metrics": []}, "metrics"),
        ({"metrics": ["auc", "loss"]}, "a direction for each"),
        ({"sampler": "grid"}, "cannot enumerate"),
        ({"sampler": "grid", "space": "model:space"}, "the function 'model:space'"),
        ({"choose": "loss"}, "choose is 'loss'"),
        ({"seed": -1}, "seed is -1"),
        ({"trials": None}, "trials is None"),
        ({"study": " "}, "study is ' ', expected a name"),
        ({"metrics": ["auc", "loss"], "directions": ["maximize", "minimize"], "pruner": "median"}, "cannot be pruned"),
    ],
)
def test_invalid_option_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        SearchOptions(**{**OPTIONS, **given})


def test_options_round_trip_through_json_and_grid_counts_points() -> None:
    options = SearchOptions(**{**OPTIONS, "sampler": "grid", "space": {"a": [1, 2, 3], "b": IntUniform(0, 2)}})
    assert SearchOptions(**options.to_dict()) == options
    assert (options.wanted, replace(options, trials=None).wanted, replace(options, trials=4).wanted) == (9, 9, 4)


def test_study_record_round_trips(tmp_path: Path) -> None:
    store = ArtifactStore(str(tmp_path))
    folder = study_folder(store, "flights", "search@1", "manual__2026-11-22T10:00:00+00:00")
    assert folder.read() is None
    study = StudyRecord(
        name="manual__2026-11-22T10:00:00+00:00",
        dag_id="flights",
        task_id="search@1",
        run_id="manual__2026-11-22T10:00:00+00:00",
        state="running",
        program="model:train",
        space={"lr": {"type": "uniform", "low": 0.0, "high": 1.0, "step": None}},
        metrics=["auc"],
        directions=["maximize"],
        sampler="tpe",
        pruner="none",
        trials=600,
        parallel=2,
        seed=0,
        started="2026-11-22T10:00:00.000+00:00",
        base="0" * 16,
    )
    folder.write(study)
    trials = [
        TrialRecord(number=n, state="complete", params={"lr": n / 600}, started="", key=str(n), run_id="r", values=[n])
        for n in range(600)
    ]
    folder.write_trials(trials, range(600))
    assert (read := folder.read()) is not None and read.to_dict() == study.to_dict()
    assert [trial.to_dict() for trial in folder.trials()] == [trial.to_dict() for trial in trials]
    assert study_names(store, "flights", "search@1") == ["manual__2026-11-22T10:00:00+00:00"]
    assert searching_tasks(store, "flights") == ["search@1"]
    folder.write_trials([trials[0], trials[1], trials[1], *trials[3:]], [2])
    with pytest.raises(BadInput, match=r"trials-000\.jsonl: line 3 is trial 1, expected 2"):
        folder.trials()
    folder.write_trials(trials, [2])
    store.write_text(f"{folder.uri}/trials-001.jsonl", "broken")
    with pytest.raises(BadInput, match=r"trials-001\.jsonl"):
        folder.trials()


DAMAGES = [
    ("study.json", {"counts": None}, "counts is null, expected an object (of each name an integer)"),
    ("study.json", {"started": None}, "started is null, expected text"),
    ("study.json", {"task_id": None}, "task_id is null"),
    ("study.json", {"trials": "many"}, 'trials is "many", expected an integer'),
    ("study.json", {"best": 10**30}, "expected an integer or null"),
    ("trials-000.jsonl", {"params": None}, "line 2: params is null"),
    ("trials-000.jsonl", {"values": None}, "line 2: values is null, expected a list (each a number)"),
    ("trials-000.jsonl", {"values": [10**400]}, "line 2: values is [1000"),
    ("trials-000.jsonl", {"seconds": "x"}, 'line 2: seconds is "x", expected a number or null'),
]


@pytest.mark.parametrize(("file", "damage", "says"), DAMAGES)
def test_a_field_of_another_type_is_named(tmp_path: Path, file: str, damage: dict[str, Any], says: str) -> None:
    store = ArtifactStore(str(tmp_path))
    folder = write_study(store, "flights", "one", 3)
    write_study(store, "flights", "other", 3)
    uri = f"{folder.uri}/{file}"
    lines = store.read_text(uri).splitlines() if file != "study.json" else ["", store.read_text(uri)]
    lines[1] = json.dumps({**json.loads(lines[1]), **damage})
    store.write_text(uri, "\n".join(lines))
    with pytest.raises(BadInput) as refused:
        folder.read(), folder.trials()
    assert f"{file}: not the record of" in str(refused.value) and says in str(refused.value)
    result, damaged = recorded_studies(store, "flights")
    expected = (["other"], [str(refused.value)]) if file == "study.json" else (["one", "other"], [])
    assert (sorted(record.name for _, record in result), [str(each) for each in damaged]) == expected


def test_stop_is_requested_and_acknowledged(tmp_path: Path) -> None:
    folder = study_folder(ArtifactStore(str(tmp_path)), "flights", "search", "one")
    folder.request_stop(3, "ann")
    folder.request_stop(None, "bob")
    assert folder.stop_requests() == {3: "ann", None: "bob"}
    folder.clear_stop(None)
    assert folder.stop_requests() == {3: "ann"} and folder.stop_requests("another run") == {}
    folder.clear_stops()
    assert folder.stop_requests() == {}


def test_study_belongs_to_one_search_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = study_folder(ArtifactStore(str(tmp_path)), "flights", "search", "shared")
    monkeypatch.setattr(leases, "BEAT_S", 0.05)
    one, two, again = (folder.lease(run_id) for run_id in ("one", "two", "one"))
    with one.held():
        with pytest.raises(LockHeld, match=r"/shared: run 'one' holds .*; runs that share a study work on it one"):
            two.take()
        again.take()
        with pytest.raises(LeaseLost, match="another task has taken"):
            one.check()

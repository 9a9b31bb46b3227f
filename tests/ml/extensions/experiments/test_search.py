"""The search stage: real trials in processes of their own, of functions that take milliseconds."""

from __future__ import annotations

import json
import re
import threading
from concurrent.futures.process import BrokenProcessPool
from datetime import datetime
from pathlib import Path
from typing import Any

import ask_mlflow
import pytest
from searches import Searches
from waiting import wait_for

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.training.record import read_training
from airflow_hops.extensions.experiments.core.search import IntUniform, Uniform
from airflow_hops.extensions.experiments.core.studies import StudyFolder


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """Returns the notes of trials at their start."""
    return tmp_path / "notes"


def noted(notes: Path) -> list[float]:
    """The value of ``x`` of each trial that has begun, sorted."""
    return sorted(float(x) for x in re.findall(r"'x': ([\d.]+)", notes.read_text()))


@pytest.mark.slow
def test_the_best_trial_is_found_and_recorded(searches: Searches) -> None:
    value = searches("parabola", {"x": Uniform(-5, 5), "y": [0.0, 1.0]}, trials=4, parallel=2, params={"steps": 120})
    study, trials = searches.record(), searches.trials()
    best = min(trials, key=lambda trial: trial.values[0])
    assert (study.state, study.counts, study.best, study.error) == ("complete", {"complete": 4}, best.number, None)
    assert value["params"] == best.params and value["metrics"]["loss"] == best.values[0]
    assert study.ended
    for trial in trials:
        assert trial.values == [(trial.params["x"] - 1) ** 2 + trial.params["y"] ** 2]
    assert any(
        line.startswith(f"4 of 4 trials, best loss {best.values[0]:.5g} (#{best.number})") for line in searches.lines
    )


@pytest.mark.slow
def test_a_free_slot_takes_the_next_trial_at_once(searches: Searches, notes: Path) -> None:
    space, values = {"x": [3.0, 0.1, 0.2, 0.3]}, {"notes": str(notes)}
    searches("patient", space, sampler="grid", trials=None, parallel=2, params=values)
    long, *short = searches.trials()
    assert long.ended is not None and all(trial.started < long.ended for trial in short)


@pytest.mark.slow
def test_pruned_trials_end_and_are_no_failures(searches: Searches, notes: Path) -> None:
    values: dict[str, Any] = {"sampler": "grid", "trials": None, "pruner": "median", "params": {"notes": str(notes)}}
    searches("heeding", {"x": [1.0, 2.0, 3.0, 4.0, 5.0, 8.0, 9.0, 9.5]}, **values)
    *complete, pruned, heeding, deaf = searches.trials()
    assert [trial.state for trial in complete] == ["complete"] * 5
    assert (pruned.state, pruned.reason) == ("pruned", "median pruned it at step 1")
    assert searches.optuna().trials[pruned.number].intermediate_values == {1: 8.0}
    assert (heeding.state, heeding.values, deaf.state) == ("pruned", [], "pruned")
    assert noted(notes) == [1.0, 2.0, 3.0, 4.0, 5.0, 9.0]
    assert deaf.seconds is not None and deaf.seconds > 5, "a trial that checks has time to end itself"


def stop_when_running(study: StudyFolder, number: int, what: int | None, by: str) -> threading.Thread:
    """Asks to stop a trial, or the search, as soon as a trial runs."""

    def ask() -> None:
        wait_for(lambda: study.read() and [t for t in study.trials() if t.number == number], f"trial {number}", 240)
        study.request_stop(what, by)

    thread = threading.Thread(target=ask)
    thread.start()
    return thread


@pytest.mark.slow
def test_a_person_stops_a_trial_and_the_search(searches: Searches) -> None:
    searches.study().request_stop(None, "somebody before the search began")
    stopping = stop_when_running(searches.study(), 0, 0, "ann")
    searches("stuck", {"x": [9.0, 1.0]}, sampler="grid", trials=None)
    stopping.join()
    stopped, complete = searches.trials()
    assert (stopped.state, stopped.reason, complete.state) == ("stopped", "ann stopped it", "complete")
    assert searches.record().state == "complete" and searches.study().stop_requests() == {}
    stopping = stop_when_running(searches.study("two"), 0, None, "bob")
    with pytest.raises(BadInput, match="bob stopped the search before a trial was complete"):
        searches("stuck", {"x": [9.0, 8.0]}, sampler="grid", trials=None, run_id="two")
    stopping.join()
    assert (searches.record("two").state, [trial.state for trial in searches.trials("two")]) == ("stopped", ["stopped"])
    stopping = stop_when_running(searches.study("three"), 1, None, "eve")
    value = searches("stuck", {"x": [1.0, 9.0, 2.0]}, sampler="grid", trials=None, run_id="three")
    stopping.join()
    assert (value["trial"], value["cut_short"]) == (0, "eve stopped the search")
    record = searches.record("three")
    assert (record.counts, record.stopped_by, record.published) == ({"complete": 1, "stopped": 1}, "eve", True)


@pytest.mark.slow
def test_failed_trial_has_its_reason(searches: Searches) -> None:
    searches("failing", {"x": [0, 1, 2, 3]}, sampler="grid", trials=None)
    assert [trial.state for trial in searches.trials()] == ["complete", "failed", "failed", "failed"]
    assert searches.trials()[0].metrics.keys().isdisjoint({"ratio", "count"})
    reasons = [trial.reason for trial in searches.trials()]
    assert "ValueError: x is 1" in reasons[1] and "SIGKILL" in reasons[2] and "Traceback" not in reasons[1]
    logs = [searches.study().log(number) for number in range(4)]
    assert logs[0] is None and logs[1] is not None and 'raise ValueError("x is 1")\nValueError: x is 1' in logs[1]
    assert reasons[3] == "metric 'loss' is nan, expected a finite number"
    with pytest.raises(HopsError, match="2 trials failed, more than max_failures=1 allows; the last of them, trial 2"):
        searches("failing", {"x": [6, 1, 2]}, sampler="grid", trials=None, parallel=2, run_id="two", max_failures=1)
    record = searches.record("two")
    assert record.state == "failed" and record.error is not None and "max_failures=1" in record.error
    slept = searches.trials("two")[0]
    assert slept.state == "stopped" and slept.reason.startswith("the search ended: 2 trials failed") and slept.ended
    with pytest.raises(HopsError, match=r"no trial is complete \(2 failed\); trial 1: OSError: something else"):
        searches("failing", {"x": [4, 5]}, sampler="grid", trials=None, run_id="three")


@pytest.mark.slow
def test_killed_search_resumes(searches: Searches, notes: Path) -> None:
    values: dict[str, Any] = {"sampler": "grid", "trials": None, "params": {"notes": str(notes)}}
    with pytest.raises(BrokenProcessPool):
        searches("deadly", {"x": IntUniform(0, 6)}, **values)
    assert searches.record().state == "running"
    value = searches("deadly", {"x": IntUniform(0, 6)}, **values)
    assert noted(notes) == [0, 1, 2, 3, 3, 4, 5, 6]
    trials = searches.trials()
    assert [(trial.number, trial.params["x"], trial.state) for trial in trials] == [
        (n, n, "complete") for n in range(7)
    ]
    assert [trial.tries for trial in trials] == [1, 1, 1, 2, 1, 1, 1]
    assert value["trial"] == 0 and searches.record().counts == {"complete": 7}


@pytest.mark.slow
def test_earlier_trial_is_reused(searches: Searches, notes: Path) -> None:
    values: dict[str, Any] = {"sampler": "grid", "trials": None, "params": {"notes": str(notes)}}
    values["inputs"] = {"rows": Artifact("file:///rows", "snapshot", "a fingerprint")}
    searches("parabola", {"x": [1.5, 2.0]}, **values)
    searches.study("damaged").store.write_text(f"{searches.study('damaged').uri}/study.json", "{")
    searches("parabola", {"x": [1.5, 2.0, 2.5]}, run_id="two", **values)
    assert any("study are not reused" in line for line in searches.lines)
    assert noted(notes) == [1.5, 2.0, 2.5]
    trials = searches.trials("two")
    assert [trial.taken_from for trial in trials] == ["one#0", "one#1", None]
    assert [trial.values for trial in trials] == [[0.25], [1.0], [2.25]] and searches.record("two").best == 0
    searches("parabola", {"x": [1.5, 2.0]}, run_id="far", metrics=["distance"], directions=["maximize"], **values)
    assert [(t.taken_from, t.values) for t in searches.trials("far")] == [("one#0", [1.5]), ("one#1", [2.0])]
    assert searches.record("far").best == 1
    searches("parabola", {"x": [1.5]}, run_id="three", **{**values, "params": {"notes": str(notes), "steps": 1}})
    for _ in range(2):
        searches("parabola", {"x": [1.5]}, run_id="four", reuse=False, **values)
    assert noted(notes) == [1.5, 1.5, 1.5, 1.5, 2.0, 2.5]
    searches("parabola", {"x": [1.5]}, run_id="no key knows the data", **{**values, "inputs": {}})
    assert noted(notes) == [1.5, 1.5, 1.5, 1.5, 1.5, 2.0, 2.5]


@pytest.mark.slow
def test_runs_with_equal_space_share_a_study(searches: Searches) -> None:
    for run in ("one", "two"):
        searches("by_context", {"x": Uniform(-5, 5)}, trials=3, sampler="random", study="shared", run_id=run)
    trials, record = searches.trials("shared"), searches.record("shared")
    assert [trial.run_id for trial in trials] == ["one"] * 3 + ["two"] * 3 and record.first_trial == 3
    assert len({trial.params["x"] for trial in trials}) == 6
    assert record.best == min(range(6), key=lambda number: trials[number].values[0])
    with pytest.raises(BadInput, match=r"study 'shared' .* has a different space"):
        searches("by_context", {"x": Uniform(-5, 6)}, trials=3, study="shared", run_id="three")


@pytest.mark.slow
def test_study_of_another_dag_is_another_study(searches: Searches) -> None:
    for dag_id, x in (("tests", [1.0, 2.0]), ("others", [3.0])):
        searches("by_context", {"x": x}, dag_id=dag_id, sampler="grid", trials=None, study="shared")
    assert [trial.params["x"] for trial in searches.trials("shared")] == [1.0, 2.0]
    other = searches.study("shared", "others")
    assert [trial.params["x"] for trial in other.trials()] == [3.0]
    searches.study("shared").clear()
    assert len(other.trials()) == 1


@pytest.mark.slow
def test_optuna_has_the_front_of_several_metrics(searches: Searches) -> None:
    searches(
        "parabola",
        {"x": [-0.5, 0.0, 0.5, 1.0, 2.0]},
        metrics=["loss", "distance"],
        directions=["minimize", "minimize"],
        choose="distance",
        sampler="grid",
        trials=None,
    )
    front = sorted(trial.number for trial in searches.optuna().best_trials)
    assert (front, searches.record().best) == ([1, 2, 3], 1)


@pytest.mark.slow
def test_unusable_search_is_refused_first(searches: Searches, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="takes x, but not the parameter 'z' of the space"):
        searches("parabola", {"x": [1.0], "z": [1]})
    with pytest.raises(
        BadInput, match=r"cannot be called as train\(context\) with .* missing a required argument: 'x'"
    ):
        searches("parabola", {"y": [1.0]})
    with pytest.raises(BadInput, match="no function 'nothing'"):
        searches("nothing", {"x": [1.0]})
    with pytest.raises(BadInput, match="refit_np is 8: np is 8, but there are only"):
        searches("parabola", {"x": [1.0]}, refit=True, refit_np=8, training={"strategy": "horovod", "np": 1})
    with pytest.raises(BadInput, match="parallel is 3 and np 2, so that 6 ranks run at once"):
        searches("parabola", {"x": [1.0]}, parallel=3, training={"strategy": "horovod", "np": 2})
    assert not (tmp_path / "store").exists()


def test_unreported_metric_ends_the_search(searches: Searches) -> None:
    with pytest.raises(BadInput, match=r"metric 'auc' was not reported; reported were: distance, .*loss"):
        searches("parabola", {"x": Uniform(-5, 5)}, metrics=["auc"], directions=["maximize"])
    assert searches.record().counts == {"failed": 1}


@pytest.fixture
def model_searches(shared_store: ArtifactStore, tmp_path: Path, own_process: Any) -> Searches:
    """As ``searches``, in the store of the examples."""
    return Searches(shared_store, tmp_path, own_process)


@pytest.mark.slow
def test_trials_are_nested_runs(model_searches: Searches, write_examples: Any, tmp_path: Path) -> None:
    examples, services = write_examples(train=[301], eval=[101]), {"tracking_uri": f"sqlite:///{tmp_path}/mlflow.db"}
    values: dict[str, Any] = {
        "metrics": ["eval_accuracy"],
        "directions": ["maximize"],
        "sampler": "grid",
        "trials": None,
        "inputs": {"examples": examples},
        "services": services,
    }
    model = model_searches("tree", {"leaf": [200, 3], "depth": [4]}, run_id="kept", **values)
    assert isinstance(model, Artifact) and model.kind == "model"
    record, trials = model_searches.record("kept"), model_searches.trials("kept")
    best = trials[record.best or 0]
    assert model.properties["params"] == best.params and model.properties["study"] == "kept"
    assert model.properties["format"] == "onnx" and model.properties["ranks"] == 1
    folder = model_searches.store.local(model)
    assert (folder / "onnx").is_dir() and json.loads((folder / "training.json").read_text())["params"] == best.params
    runs = ask_mlflow.runs(None, services["tracking_uri"], "tests")
    nested = {run["tags"]["hops.training"]: run for run in runs}
    parent = nested.pop(record.training)
    assert parent["status"] == "FINISHED" and nested.keys() == {trial.training for trial in trials}
    stored = read_training(model_searches.store, "tests", trials[1].training or "")
    assert stored is not None and stored.parent == record.training and stored.status == "FINISHED"
    assert stored.figures["eval_accuracy"].last.value == trials[1].values[0]
    whole = read_training(model_searches.store, "tests", record.training or "")
    assert whole is not None and whole.status == "FINISHED" and whole.tags["hops.model"] == model.uri
    for trial in trials:
        run = nested[trial.training]
        assert run["tags"]["mlflow.parentRunId"] == parent["id"] and run["tags"]["hops.trial"] == str(trial.number)
        assert run["params"] == {name: str(value) for name, value in trial.params.items()}
        assert run["metrics"]["eval_accuracy"] == [(1, trial.values[0])]
    assert (stored.tags["hops.study"], stored.tags["hops.trial"], stored.dag_run_id) == ("kept", "1", "kept")
    refitted = model_searches("tree", {"leaf": [200, 3], "depth": [4]}, run_id="refitted", refit=True, **values)
    assert [trial.taken_from for trial in model_searches.trials("refitted")] == [f"kept#{n}" for n in range(2)]
    assert refitted.properties["params"] == best.params and refitted.uri != model.uri
    assert datetime.fromisoformat(record.started) < datetime.fromisoformat(record.ended or "")


@pytest.mark.slow
def test_runs_that_share_a_study_cost_their_own_trials(
    model_searches: Searches, write_examples: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    options: dict[str, Any] = {"sampler": "random", "trials": 1, "study": "costs", "reuse": False}
    options |= {"metrics": ["eval_accuracy"], "directions": ["maximize"]}
    options |= {"inputs": {"examples": write_examples(train=[301], eval=[101])}}
    space = {"leaf": IntUniform(3, 200), "depth": [3]}
    runs = [model_searches("tree", space, run_id=run, **options) for run in "ab"]
    costs = [model_searches.store.manifest(model.uri).cost["gpu_s"] for model in runs]
    assert costs == pytest.approx([trial.seconds for trial in model_searches.trials("costs")], abs=0.02)

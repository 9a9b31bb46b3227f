"""The record of a search: Optuna's study with its journal in the store, and the summary for readers without Optuna."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from airflow_hops.core.artifacts.artifact import Producer
from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.profiles import PROFILES
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.store.files import LocalFiles
from airflow_hops.extensions.experiments.core.search import SearchOptions, TrialRecord, Uniform
from airflow_hops.extensions.experiments.core.studies import StudyFolder, journal_files, study_folder
from airflow_hops.extensions.experiments.ml.search import journal as journals
from airflow_hops.extensions.experiments.ml.search import optuna_study
from airflow_hops.extensions.experiments.ml.search.attributes import new_study
from airflow_hops.extensions.experiments.ml.search.optuna_study import OptunaStudy


def begin(
    store: ArtifactStore, *, base: str = "base", run: str = "one", shared: bool = False, **options: Any
) -> OptunaStudy:
    """A study, anew or as a retry continues it."""
    values = {"training": {}, "space": {"x": Uniform(0, 1)}, "metrics": ["loss"], "directions": ["minimize"]}
    result = SearchOptions(**{**values, "study": "shared" if shared else None, **options})
    record = new_study(result, "model:train", base, Producer("d", run, "t"))
    return OptunaStudy(study_folder(store, "d", "t", record.name), record, result, shared=shared)


def add(study: OptunaStudy, *ends: str | list[float], **fields: Any) -> list[bool]:
    """Adds a trial for each end: its values, or its state; returns for each whether it was the best."""
    best = []
    for end in ends:
        trial = study.ask()
        assert trial is not None
        trial = replace(trial, **fields)
        study.put(trial)
        state: Any = end if isinstance(end, str) else "complete"
        values = [] if isinstance(end, str) else end
        best.append(state != "running" and study.put(replace(trial, state=state, values=values)))
    return best


def local_journal(study: OptunaStudy) -> Path:
    folder = study._folder
    assert isinstance(folder.store.files, LocalFiles)
    return folder.store.files.path(f"{folder.uri}/journal.log")


def opened(path: Path) -> optuna.Study:
    return optuna.load_study(study_name=None, storage=JournalStorage(JournalFileBackend(str(path))))


def test_first_of_ties_is_best(store: ArtifactStore) -> None:
    study = begin(store, directions=["maximize"])
    assert add(study, [0.5], [0.7], "failed", [0.7], [0.1]) == [True, True, False, False, False]
    assert study.best is not None and study.best.number == 1


def test_chosen_metric_determines_the_winner(store: ArtifactStore) -> None:
    study = begin(store, metrics=["loss", "auc"], directions=["minimize", "maximize"], choose="auc")
    add(study, [0.5, 0.5], [0.6, 0.4], [0.4, 0.4], [0.4, 0.6], [0.9, 0.9])
    study.save()
    assert study.record.best == 4
    front = opened(local_journal(study)).best_trials
    assert sorted(trial.number for trial in front) == [3, 4]


def test_optuna_opens_the_study(store: ArtifactStore) -> None:
    study = begin(store, space={"x": Uniform(0, 1), "kind": ["a", "b"], "layers": [[1], [2, 3]], "same": 7})
    add(study, [0.5], "pruned", "failed", "running", reason="it is so", training="t")
    study.save()
    result = opened(local_journal(study))
    assert (result.study_name, result.metric_names, result.user_attrs["run_id"]) == ("one", ["loss"], "one")
    complete, pruned, failed, running = result.trials
    states = [TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL, TrialState.RUNNING]
    assert [trial.state for trial in result.trials] == states
    assert complete.params["kind"] in ("a", "b") and complete.params["layers"] in ("[1]", "[2, 3]")
    assert complete.user_attrs["params"] == study.trials[0].params and complete.user_attrs["params"]["same"] == 7
    assert (failed.user_attrs["reason"], failed.user_attrs["training"]) == ("it is so", "t")
    assert result.best_trial.number == 0 and running.number == 3 and pruned.number == 1


def test_failed_trials_count_after_a_kill(store: ArtifactStore) -> None:
    study = begin(store)
    add(study, [0.5], "failed", "running")
    study.save()
    killed = begin(store)
    assert [each.number for each in killed.own] == [0, 1, 2]
    assert [each.number for each in killed.interrupted()] == [2] and killed.record.best == 0
    killed.put(replace(killed.trials[2], state="failed", tries=3))
    assert killed.done == [trial.params for trial in killed.trials]
    killed.update(state="failed")
    killed.save()
    again = begin(store)
    assert [each.number for each in again.own] == [0] and again.done == [again.trials[0].params]
    again.save()
    summary = again._folder.read()
    assert summary is not None and (summary.done, summary.counts) == (1, {"complete": 1, "failed": 2})
    assert (summary.best_values, summary.best_params) == ([0.5], again.trials[0].params)


def test_trial_interrupted_three_times_has_failed(store: ArtifactStore) -> None:
    study = begin(store)
    add(study, "running", tries=3)
    study.save()
    again = begin(store)
    assert again.interrupted() == [] and "ended 3 times" in again.trials[0].reason
    again.save()
    assert opened(local_journal(again)).trials[0].state == TrialState.FAIL


def test_time_counts_from_the_first_try(store: ArtifactStore) -> None:
    study = begin(store)
    study.update(started="2026-01-01T00:00:00.000+00:00")
    study.save()
    assert study.begun_s == 0 and begin(store).begun_s > 3600
    study.update(published=True)
    study.save()
    assert begin(store).begun_s == 0


def test_grid_repeats_the_trial_of_a_run_that_died(store: ArtifactStore) -> None:
    options: dict[str, Any] = {"space": {"x": [1, 2]}, "sampler": "grid", "trials": None, "shared": True}
    study = begin(store, **options)
    add(study, [0.5], "running")
    study.save()
    after = begin(store, run="two", **options)
    assert after.done == [{"x": 1}] and after.interrupted() == []
    assert after.trials[1].state == "failed"
    proposed = after.ask()
    assert proposed is not None and (proposed.number, proposed.params) == (2, {"x": 2}) and after.ask() is None


def test_shared_study_keeps_trials_of_other_code(store: ArtifactStore) -> None:
    for shared in (False, True):
        study = begin(store, shared=shared)
        add(study, [0.1])
        study.save()
    assert begin(store, base="other").trials == []
    other = begin(store, base="other", shared=True, run="two")
    assert len(other.trials) == 1 and other.best is None and other.own == []
    add(other, [0.9])
    assert other.best is not None and other.best.number == 1


def test_cleared_task_resumes_stopped_study(store: ArtifactStore) -> None:
    study = begin(store)
    add(study, [0.1], "stopped")
    study.update(state="stopped", stopped_by="ann")
    study.save()
    again = begin(store)
    assert (again.was_stopped_by, again.was_killed, again.trials[1].state) == ("ann", False, "stopped")
    study.update(published=True)
    study.save()
    assert begin(store).was_stopped_by is None and len(begin(store).own) == 1


@pytest.mark.parametrize("part", ["journal", "summary"])
def test_unreachable_store_is_retried(
    store: ArtifactStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, part: str
) -> None:
    study = begin(store)
    study.save()
    add(study, [0.5])

    def fail(*_: Any) -> None:
        raise OSError("the store is away")

    with monkeypatch.context() as patch:
        patch.setattr(*((journals.os, "fsync") if part == "journal" else (StudyFolder, "write_trials")), fail)
        study.save()
        assert "trying again: the store is away" in caplog.text
        patch.setattr(optuna_study, "_ANSWER_S", -1.0)
        with pytest.raises(HopsError, match="cannot be written: the store is away"):
            study.save()
    study.save()
    assert [each.values for each in begin(store).trials] == [[0.5]]
    assert len(opened(local_journal(study)).trials) == 1


def test_half_a_line_of_a_killed_search_is_left_out(store: ArtifactStore) -> None:
    study = begin(store)
    add(study, [0.5])
    study.save()
    add(study, [0.4])
    path = local_journal(study)
    earlier = {each: each.read_bytes() for each in path.parent.iterdir() if each.is_file()}
    study.save()
    longer = path.read_bytes()
    for end in range(len(earlier[path]) + 1, len(longer) - 1, 7):
        for file, content in {**earlier, path: longer[:end]}.items():
            file.write_bytes(content)
        again = begin(store)
        again.interrupted()
        states = [trial.state for trial in again.trials]
        assert states[0] == "complete" and states[1:] in ([], ["running"], ["failed"], ["complete"]), end
        add(again, [0.3])
        again.save()
        assert len(opened(path).trials) == len(states) + 1
        assert all(trial.key for trial in again.own)


def test_notes_of_others_are_kept(store: ArtifactStore) -> None:
    study = begin(store)
    add(study, [0.5])
    study.save()
    opened(local_journal(study)).set_user_attr("note", "the best so far")
    add(study, [0.4])
    study.save()
    result = opened(local_journal(study))
    assert result.user_attrs["note"] == "the best so far" and [trial.value for trial in result.trials] == [0.5, 0.4]


def test_trials_of_others_end_a_running_search(store: ArtifactStore, monkeypatch: pytest.MonkeyPatch) -> None:
    study = begin(store)
    add(study, [0.5])
    study.save()
    opened(local_journal(study)).add_trial(optuna.trial.create_trial(value=0.1))
    add(study, [0.4])
    monkeypatch.setattr(optuna_study, "_ANSWER_S", -1.0)
    with pytest.raises(HopsError, match="another program has changed trials"):
        study.save()
    again = begin(store)
    assert [trial.values for trial in again.trials] == [[0.5], [0.1]] and again.record.best == 0
    assert [trial.number for trial in again.own] == [0]


def test_queued_trial_is_next(store: ArtifactStore) -> None:
    study = begin(store, shared=True)
    add(study, [0.5])
    study.save()
    opened(local_journal(study)).enqueue_trial({"x": 0.25})
    again = begin(store, shared=True, run="two")
    assert [trial.state for trial in again.trials] == ["complete", "waiting"] and again.own == []
    proposed = again.ask()
    assert proposed is not None and (proposed.number, proposed.params) == (1, {"x": 0.25})
    again.put(replace(proposed, state="complete", values=[0.1]))
    assert again.record.best == 1 and len(again.trials) == 2


@pytest.mark.parametrize("damage", ["{", '{"op_code":4,"worker_id":"w"}'])
def test_damaged_journal_is_named(store: ArtifactStore, damage: str) -> None:
    study = begin(store)
    add(study, [0.5])
    study.save()
    with local_journal(study).open("a") as file:
        file.write(damage + "\n")
    with pytest.raises(BadInput, match=r"journal\.log: .*restore"):
        begin(store)


def test_remote_journal_is_segments_that_make_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "SEGMENT_BYTES", 5_000)
    store = ArtifactStore(f"memory://{uuid.uuid4().hex}")
    for run in range(3):
        study = begin(store)
        assert len(study.trials) == 8 * run
        for _ in range(8):
            add(study, [0.5])
            study.save()
    names = journal_files(store, study._folder.uri)
    assert names[:2] == ["journal.log", "journal.log.0001"] and len(names) > 3
    whole = tmp_path / "whole"
    whole.write_bytes(b"".join(store.files.read(f"{study._folder.uri}/{name}") for name in names))
    assert len(opened(whole).trials) == len(study._folder.trials()) == 24
    study._folder.clear()
    assert journal_files(store, study._folder.uri) == []


@pytest.mark.parametrize("profile", [each.name for each in PROFILES])
def test_study_of_a_version_without_journals_is_continued(store: ArtifactStore, profile: str) -> None:
    """``written_studies.write_study(store, "portable", "study", trials=8)`` of that version wrote them."""
    earlier = study_folder(
        ArtifactStore(str(Path(__file__).parent / "portable" / profile)), "portable", "search", "study"
    )
    record, trials = earlier.read(), earlier.trials()
    assert record is not None and record.trials == len(trials) == 8
    folder = study_folder(store, "d", "t", "shared")
    folder.write(replace(record, name="shared"))
    lines = [trial.to_dict() for trial in trials]
    lines[0] |= {"pruner_state": {"completed_rung_0": 0.5}}
    lines[1] |= {"state": "running", "values": [], "ended": None}
    folder.write_trials([TrialRecord.from_dict(line) for line in lines], range(8))
    options = {"space": record.space, "metrics": record.metrics, "directions": record.directions, "pruner": "asha"}
    for _ in range(2):  # is converted once
        study = begin(store, shared=True, base=record.base, **options)
        assert [trial.params for trial in study.trials] == [trial.params for trial in trials]
        study.save()
    first, running = opened(local_journal(study)).trials[:2]
    assert (first.system_attrs["completed_rung_0"], first.value) == (0.5, trials[0].values[0])
    assert [[step, value] for step, value in first.intermediate_values.items()] == lines[0]["intermediate"]
    assert (running.state, study.trials[1].state) == (TrialState.RUNNING, "running")
    assert first.params == trials[0].params and first.user_attrs["key"] == trials[0].key
    assert first.datetime_start is not None and first.datetime_start.year == 2026
    assert study.ask() is not None


def test_conditional_space_of_a_version_without_journals(store: ArtifactStore) -> None:
    floats = json.dumps(
        {"name": "FloatDistribution", "attributes": {"low": 0.0, "high": 1.0, "step": None, "log": False}}
    )
    study = begin(store, space="search_functions:conditional", shared=True)
    line = {"number": 0, "state": "complete", "params": {"x": 0.5, "made": [1]}, "started": "2026-11-22T10:00:00+00:00",
            "key": "", "run_id": "one", "values": [0.25], "distributions": {"x": floats}}  # fmt: skip
    study._folder.write(study.record)
    study._folder.write_trials([TrialRecord.from_dict(line)], [0])
    again = begin(store, space="search_functions:conditional", shared=True)
    again.save()
    (trial,) = opened(local_journal(again)).trials
    assert (trial.params, trial.user_attrs["params"]) == ({"x": 0.5}, {"x": 0.5, "made": [1]})

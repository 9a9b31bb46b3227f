"""The record of a search while it is made."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_hops.core.artifacts.artifact import Producer
from airflow_hops.core.errors import HopsError
from airflow_hops.core.profiles import PROFILES
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.experiments.core.search import SearchOptions, TrialRecord, Uniform
from airflow_hops.extensions.experiments.core.studies import StudyFolder, study_folder
from airflow_hops.extensions.experiments.ml.search import ledger as ledgers
from airflow_hops.extensions.experiments.ml.search.ledger import Ledger, new_study, thinned, trial_key


def begin(
    store: ArtifactStore, *, base: str = "base", run: str = "one", shared: bool = False, **options: Any
) -> Ledger:
    """A ledger, anew or of a study that is there."""
    values = {"training": {}, "space": {"x": Uniform(0, 1)}, "metrics": ["loss"], "directions": ["minimize"]}
    result = SearchOptions(**{**values, "study": "shared" if shared else None, **options})
    study = new_study(result, "model:train", base, Producer("d", run, "t"))
    return Ledger(study_folder(store, "d", "t", study.name), study, shared=shared)


def trial(number: int, values: list[float] | None, *, base: str = "base", **fields: Any) -> TrialRecord:
    """A trial, complete where it has values."""
    params = {"x": number / 100}
    arguments = {"state": "failed" if values is None else "complete", "values": values or [], **fields}
    return TrialRecord(number=number, params=params, started="", key=trial_key(base, params), run_id="one", **arguments)


def test_first_of_ties_is_best(store: ArtifactStore) -> None:
    ledger = begin(store, directions=["maximize"])
    assert [ledger.put(trial(n, values)) for n, values in enumerate([[0.5], [0.7], None, [0.7], [0.1]])] == [
        True, True, False, False, False,
    ]  # fmt: skip
    assert ledger.best is not None and ledger.best.number == 1


def test_front_has_undominated_trials(store: ArtifactStore) -> None:
    ledger = begin(store, metrics=["loss", "auc"], directions=["minimize", "maximize"], choose="auc")
    for number, values in enumerate([[0.5, 0.5], [0.6, 0.4], [0.4, 0.4], [0.4, 0.6], [0.9, 0.9]]):
        ledger.put(trial(number, values))
    assert (sorted(ledger.study.pareto), ledger.study.best) == ([3, 4], 4)


def test_failed_trials_count_after_a_kill(store: ArtifactStore) -> None:
    ledger = begin(store)
    for each in (trial(0, [0.5]), trial(1, None), trial(2, None, state="running")):
        ledger.put(each)
    ledger.save()
    killed = begin(store)
    assert [each.number for each in killed.own] == [0, 1, 2]
    assert [each.number for each in killed.interrupted()] == [2] and killed.study.best == 0
    killed.put(replace(killed.trials[2], state="failed", tries=3))
    assert [params["x"] for params in killed.done] == [0.0, 0.01, 0.02]
    killed.update(state="failed")
    killed.save()
    again = begin(store)
    assert [each.number for each in again.own] == [0] and [params["x"] for params in again.done] == [0.0]
    again.save()
    assert (again.study.done, again.study.counts) == (1, {"complete": 1, "failed": 2})
    assert (again.study.best_values, again.study.best_params) == ([0.5], {"x": 0.0})
    killed.put(replace(killed.trials[2], state="running", tries=3))
    assert killed.interrupted() == [] and "ended 3 times" in killed.trials[2].reason


def test_time_counts_from_the_first_try(store: ArtifactStore) -> None:
    ledger = begin(store)
    ledger.update(started="2026-01-01T00:00:00.000+00:00")
    ledger.save()
    assert ledger.begun_s == 0 and begin(store).begun_s > 3600
    ledger.update(published=True)
    ledger.save()
    assert begin(store).begun_s == 0


def test_grid_repeats_the_trial_of_a_run_that_died(store: ArtifactStore) -> None:
    ledger = begin(store, shared=True, study="shared")
    for each in (trial(0, [0.5]), trial(1, None, state="running")):
        ledger.put(each)
    ledger.save()
    after = begin(store, shared=True, study="shared", run="two")
    assert [params["x"] for params in after.done] == [0.0] and after.interrupted() == []
    assert after.trials[1].state == "failed"


def test_shared_study_keeps_trials_of_other_code(store: ArtifactStore) -> None:
    for shared in (False, True):
        ledger = begin(store, shared=shared)
        ledger.put(trial(0, [0.1]))
        ledger.save()
    assert begin(store, base="other").trials == []
    shared_one = begin(store, base="other", shared=True, run="two")
    assert len(shared_one.trials) == 1 and shared_one.best is None and shared_one.own == []
    shared_one.put(trial(1, [0.9], base="other"))
    assert shared_one.best is not None and shared_one.best.number == 1


def test_cleared_task_resumes_stopped_study(store: ArtifactStore) -> None:
    ledger = begin(store)
    ledger.put(trial(0, [0.1]))
    ledger.update(state="stopped", stopped_by="ann")
    ledger.save()
    assert (begin(store).was_stopped_by, begin(store).was_killed) == ("ann", False)
    ledger.update(published=True)
    ledger.save()
    assert begin(store).was_stopped_by is None and len(begin(store).own) == 1


def test_unreachable_store_is_retried(
    store: ArtifactStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = begin(store)
    ledger.put(trial(0, [0.5]))

    def away(*given: Any) -> None:
        raise OSError("the store is away")

    with monkeypatch.context() as patch:
        patch.setattr(StudyFolder, "write_trials", away)
        ledger.save()
        assert "trying again: the store is away" in caplog.text
        patch.setattr(ledgers, "_ANSWER_S", -1.0)
        with pytest.raises(HopsError, match="cannot be written: the store is away"):
            ledger.save()
    ledger.save()
    assert [each.values for each in begin(store).trials] == [[0.5]]


def test_a_long_series_keeps_its_first_and_its_last_value() -> None:
    result = thinned([(step, 1.0) for step in range(12345)])
    assert len(result) <= 100 and result[0][0] == 0 and result[-1][0] == 12344
    assert thinned([]) == [] and thinned([(3, 1.0)]) == [[3, 1.0]]


@pytest.mark.parametrize("profile", [each.name for each in PROFILES])
def test_a_study_is_read_under_any_profile(profile: str) -> None:
    """``written_studies.write_study(store, "portable", "study", trials=8)`` wrote them."""
    store = ArtifactStore(str(Path(__file__).parent / "portable" / profile))
    folder = study_folder(store, "portable", "search", "study")
    record = folder.read()
    assert record is not None and record.trials == len(folder.trials()) == 8

"""Proposals and pruning of a search's study: samplers, pruners, spaces, and going on from its journal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from airflow_hops.core.artifacts.artifact import Producer
from airflow_hops.core.errors import BadInput
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.experiments.core.search import (
    IntUniform,
    LogUniform,
    SearchOptions,
    TrialRecord,
    Uniform,
)
from airflow_hops.extensions.experiments.core.studies import study_folder
from airflow_hops.extensions.experiments.ml.search.attributes import new_study
from airflow_hops.extensions.experiments.ml.search.optuna_study import OptunaStudy

SPACE = {
    "x": Uniform(-5, 5),
    "y": LogUniform(1e-4, 1e2),
    "k": IntUniform(1, 9, step=3),
    "kind": ["a", "b"],
    "layers": [[1, 2], [3]],
    "constant": 7,
}


def options(**given: Any) -> SearchOptions:
    return SearchOptions(**{"training": {}, "space": SPACE, "metrics": ["loss"], "directions": ["minimize"], **given})


def loss(params: dict[str, Any]) -> float:
    return (params["x"] - 1) ** 2 + abs(params["k"] - 4) + (params["kind"] == "b") + len(params["layers"])


Open = Callable[..., OptunaStudy]


@pytest.fixture
def begin(store: ArtifactStore) -> Open:
    """Opens a study by its name, anew or as a retry continues it."""

    def open_study(given: SearchOptions, name: str = "one", **others: Any) -> OptunaStudy:
        record = new_study(given, "model:train", "base", Producer("d", name, "t"))
        return OptunaStudy(study_folder(store, "d", "t", name), record, given, **others)

    return open_study


def tell(study: OptunaStudy, trial: TrialRecord, values: list[float]) -> None:
    study.put(trial)
    study.put(replace(trial, state="complete", values=values))


def search(study: OptunaStudy, trials: int) -> list[TrialRecord]:
    """The trials that a study makes."""
    first = len(study.trials)
    while len(study.trials) < first + trials and (proposal := study.ask()) is not None:
        tell(study, proposal, [loss(proposal.params)])
    study.save()
    return study.trials[first:]


@pytest.mark.parametrize("sampler", ["random", "tpe", "cmaes", "differential_evolution"])
def test_samplers_are_reproducible(begin: Open, sampler: str) -> None:
    values = options(sampler=sampler, trials=60)
    trials = search(begin(values), 40)
    assert [trial.params for trial in search(begin(values, "two"), 40)] == [trial.params for trial in trials]
    assert all(set(trial.params) == set(SPACE) and trial.params["constant"] == 7 for trial in trials)
    assert {type(trial.params["layers"]) for trial in trials} == {list}
    assert {trial.params["k"] for trial in trials} <= {1, 4, 7}
    more = search(begin(values), 20)
    assert [trial.number for trial in more] == list(range(40, 60))
    assert not [trial for trial in more if trial.params in [each.params for each in trials]]


@pytest.mark.parametrize(("sampler", "best"), [("tpe", "int"), ("differential_evolution", "float")])
def test_choices_equal_in_python_stay_distinct(begin: Open, sampler: str, best: str) -> None:
    losses = {"int": 1.0, "float": 1.0, "str": 2.0, best: 0.0}
    study, kinds = begin(options(space={"x": [1, 1.0, "sqrt"]}, sampler=sampler, trials=60)), []
    while len(kinds) < 60 and (proposal := study.ask()) is not None:
        kinds.append(type(proposal.params["x"]).__name__)
        tell(study, proposal, [losses[kinds[-1]]])
    assert max(losses, key=kinds.count) == best


def test_grid_tries_choices_equal_in_python(begin: Open) -> None:
    study = begin(options(space={"x": [1, 1.0, True]}, sampler="grid", trials=None))
    assert [type(trial.params["x"]) for trial in search_any(study)] == [int, float, bool]


def search_any(study: OptunaStudy) -> list[TrialRecord]:
    """Makes trials until there are no more, at most 30."""
    while len(study.trials) < 30 and (proposal := study.ask()) is not None:
        tell(study, proposal, [0.0])
    study.save()
    return study.trials


def test_tuple_in_a_space_is_a_choice(begin: Open) -> None:
    study = begin(options(space={"lr": (0.1, 0.2), "layers": ((1, 2), [3])}, sampler="random"))
    params = [trial.params for trial in search_any(study)]
    assert {each["lr"] for each in params} == {0.1, 0.2}
    assert {tuple(each["layers"]) for each in params} == {(1, 2), (3,)}


@pytest.mark.parametrize("choices", [[[1, 2], (1, 2)], [1, 1], [{"a": 1, "b": 2}, {"b": 2, "a": 1}]])
def test_choices_equal_as_json_are_refused(choices: list[Any]) -> None:
    with pytest.raises(BadInput, match=r"space\['x'\]: Choice has .* twice"):
        options(space={"x": choices})


def test_differential_evolution_is_better_than_chance(begin: Open) -> None:
    space = {name: Uniform(-5, 5) for name in "abcdef"}

    def best(sampler: str) -> float:
        study = begin(options(space=space, sampler=sampler, trials=400, seed=1), sampler)
        values = []
        for _ in range(400):
            proposal = study.ask()
            assert proposal is not None
            values.append(sum((value - 1) ** 2 for value in proposal.params.values()))
            tell(study, proposal, values[-1:])
        return min(values)

    assert best("differential_evolution") < best("random") / 4


def test_grid_has_every_remaining_point_once(begin: Open) -> None:
    values = options(sampler="grid", space={"a": [1, 2, 3], "b": [[4], [5]], "c": True}, trials=None)
    study = begin(values)
    for proposal in [study.ask(), study.ask()]:
        assert proposal is not None
        tell(study, proposal, [0.0])
    study.save()
    points = [(trial.params["a"], trial.params["b"]) for trial in search_any(begin(values))]
    assert points == [(1, [4]), (1, [5]), (2, [4]), (2, [5]), (3, [4]), (3, [5])]


@pytest.mark.parametrize(("low", "high", "step", "last"), [(0, 0.9, 0.3, 0.9), (0.1, 0.3, 0.1, 0.3), (0, 1, 0.4, 0.8)])
def test_steps_reach_the_upper_bound(begin: Open, low: float, high: float, step: float, last: float) -> None:
    space = {"x": Uniform(low, high, step)}
    for sampler, number in (("grid", None), ("random", 30), ("tpe", 30)):
        values = options(space=space, sampler=sampler, trials=number)
        trials = search_any(begin(values, sampler))
        assert max(trial.params["x"] for trial in trials) == pytest.approx(last)
        assert begin(values, sampler).trials == trials


@pytest.mark.parametrize("pruner", ["median", "asha", "hyperband"])
def test_pruner_ends_worse_trials(begin: Open, pruner: str) -> None:
    study = begin(options(pruner=pruner, sampler="random", trials=40))
    pruned = []
    for number in range(40):
        trial = study.ask()
        assert trial is not None
        study.put(trial)
        is_good = number % 4 == 0
        end = next((step for step in range(1, 30) if study.report(number, step, 0.0 if is_good else 10 + number)), None)
        values = [] if end else [0.0 if is_good else 1.0]
        study.put(replace(trial, state="pruned" if end else "complete", values=values))
        if end:
            pruned.append(number)
    assert pruned and not [number for number in pruned if number % 4 == 0]


def test_pruner_state_is_restored(begin: Open) -> None:
    values = options(pruner="asha", sampler="random")
    study = begin(values)
    for number in range(8):
        trial = study.ask()
        assert trial is not None
        study.put(trial)
        for step in range(1, 9):
            study.report(number, step, 0.0)
        study.put(replace(trial, state="complete", values=[0.0]))
    study.save()
    again = begin(values)
    proposal = again.ask()
    assert proposal is not None
    again.put(proposal)
    assert again.report(8, 1, 99.0)


def test_space_comes_from_a_function(begin: Open) -> None:
    values = options(space="search_functions:conditional", sampler="random", trials=20)
    trials = search_any(begin(values))
    assert {tuple(sorted(trial.params)) for trial in trials} == {("x",), ("x", "y")}
    assert begin(values).trials == trials and begin(values).ask() is not None
    with pytest.raises(BadInput, match="returned 3; expected parameters by name"):
        begin(options(space="search_functions:no_space"), "none").ask()
    study = begin(options(space="search_functions:equal"), "equal")
    with pytest.raises(BadInput, match=r"suggests 'x' of \[1, 1.0\], some of which are equal in Python"):
        study.ask()
    study.save()
    again = begin(options(space="search_functions:equal"), "equal")
    assert [trial.state for trial in again.trials] == ["failed"] and again.own == []

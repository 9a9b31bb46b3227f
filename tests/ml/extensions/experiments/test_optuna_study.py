"""Optuna's part of a search: samplers, pruners, spaces, and going on from a record."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_hops.core.errors import BadInput
from airflow_hops.extensions.experiments.core.search import (
    IntUniform,
    LogUniform,
    SearchOptions,
    TrialRecord,
    Uniform,
)
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


def search(given: SearchOptions, trials: int, earlier: list[TrialRecord] | None = None) -> list[TrialRecord]:
    """The trials of a search that goes on from others."""
    study, result = OptunaStudy(given, earlier or []), []
    while len(result) < trials and (proposal := study.ask()) is not None:
        values = [loss(proposal.params)]
        study.tell(proposal.number, values)
        number, params = proposal.number, proposal.params
        result.append(
            TrialRecord(number=number, state="complete", params=params, values=values, started="", key="", run_id="")
        )
    return result


@pytest.mark.parametrize("sampler", ["random", "tpe", "cmaes", "differential_evolution"])
def test_samplers_are_reproducible(sampler: str) -> None:
    values = options(sampler=sampler, trials=60)
    trials = search(values, 40)
    assert [trial.params for trial in search(values, 40)] == [trial.params for trial in trials]
    assert all(set(trial.params) == set(SPACE) and trial.params["constant"] == 7 for trial in trials)
    assert {type(trial.params["layers"]) for trial in trials} == {list}
    assert {trial.params["k"] for trial in trials} <= {1, 4, 7}
    more = search(values, 20, trials)
    assert [trial.number for trial in more] == list(range(40, 60))
    assert not [trial for trial in more if trial.params in [each.params for each in trials]]


@pytest.mark.parametrize(("sampler", "best"), [("tpe", "int"), ("differential_evolution", "float")])
def test_choices_equal_in_python_stay_distinct(sampler: str, best: str) -> None:
    losses = {"int": 1.0, "float": 1.0, "str": 2.0, best: 0.0}
    study, kinds = OptunaStudy(options(space={"x": [1, 1.0, "sqrt"]}, sampler=sampler, trials=60), []), []
    while len(kinds) < 60 and (proposal := study.ask()) is not None:
        kinds.append(type(proposal.params["x"]).__name__)
        study.tell(proposal.number, [losses[kinds[-1]]])
    assert max(losses, key=kinds.count) == best


def test_grid_tries_choices_equal_in_python() -> None:
    study = OptunaStudy(options(space={"x": [1, 1.0, True]}, sampler="grid", trials=None), [])
    assert [type(proposal.params["x"]) for _ in range(3) if (proposal := study.ask())] == [int, float, bool]


def test_tuple_in_a_space_is_a_choice() -> None:
    study = OptunaStudy(options(space={"lr": (0.1, 0.2), "layers": ((1, 2), [3])}, sampler="random"), [])
    params = [proposal.params for _ in range(20) if (proposal := study.ask()) is not None]
    assert {each["lr"] for each in params} == {0.1, 0.2}
    assert {tuple(each["layers"]) for each in params} == {(1, 2), (3,)}


@pytest.mark.parametrize("choices", [[[1, 2], (1, 2)], [1, 1], [{"a": 1, "b": 2}, {"b": 2, "a": 1}]])
def test_choices_equal_as_json_are_refused(choices: list[Any]) -> None:
    with pytest.raises(BadInput, match=r"space\['x'\]: Choice has .* twice"):
        options(space={"x": choices})


def test_differential_evolution_is_better_than_chance() -> None:
    space = {name: Uniform(-5, 5) for name in "abcdef"}

    def best(sampler: str) -> float:
        study = OptunaStudy(options(space=space, sampler=sampler, trials=400, seed=1), [])
        values = []
        for _ in range(400):
            proposal = study.ask()
            assert proposal is not None
            values.append(sum((value - 1) ** 2 for value in proposal.params.values()))
            study.tell(proposal.number, values[-1:])
        return min(values)

    assert best("differential_evolution") < best("random") / 4


def test_grid_has_every_remaining_point_once() -> None:
    values = options(sampler="grid", space={"a": [1, 2, 3], "b": [[4], [5]], "c": True}, trials=None)
    study = OptunaStudy(values, [], [{"a": 2, "b": [4], "c": True}])
    points = []
    while (proposal := study.ask()) is not None:
        points.append((proposal.params["a"], proposal.params["b"]))
        study.tell(proposal.number, [0.0])
    assert points == [(1, [4]), (1, [5]), (2, [5]), (3, [4]), (3, [5])]


@pytest.mark.parametrize(("low", "high", "step", "last"), [(0, 0.9, 0.3, 0.9), (0.1, 0.3, 0.1, 0.3), (0, 1, 0.4, 0.8)])
def test_steps_reach_the_upper_bound(low: float, high: float, step: float, last: float) -> None:
    space = {"x": Uniform(low, high, step)}

    def search(values: SearchOptions) -> list[TrialRecord]:
        study, trials = OptunaStudy(values, []), list[TrialRecord]()
        while len(trials) < 30 and (proposal := study.ask()) is not None:
            study.tell(proposal.number, [0.0])
            facts: dict[str, Any] = {"number": proposal.number, "params": proposal.params, "values": [0.0]}
            trials.append(TrialRecord(state="complete", started="", key="", run_id="", **facts))
        return trials

    for sampler, number in (("grid", None), ("random", 30), ("tpe", 30)):
        values = options(space=space, sampler=sampler, trials=number)
        trials = search(values)
        assert max(trial.params["x"] for trial in trials) == pytest.approx(last)
        OptunaStudy(values, trials)  # as a retry does


@pytest.mark.parametrize("pruner", ["median", "asha", "hyperband"])
def test_pruner_ends_worse_trials(pruner: str) -> None:
    study = OptunaStudy(options(pruner=pruner, sampler="random", trials=40), [])
    pruned = []
    for number in range(40):
        assert study.ask() is not None
        is_good = number % 4 == 0
        end = next((step for step in range(1, 30) if study.report(number, step, 0.0 if is_good else 10 + number)), None)
        study.tell(number, None if end else [0.0 if is_good else 1.0], pruned=end is not None)
        if end:
            pruned.append(number)
    assert pruned and not [number for number in pruned if number % 4 == 0]


def test_pruner_state_is_restored() -> None:
    values = options(pruner="asha", sampler="random")
    study, result = OptunaStudy(values, []), []
    for number in range(8):
        proposal = study.ask()
        assert proposal is not None
        for step in range(1, 9):
            study.report(number, step, 0.0)
        state = study.tell(number, [0.0])
        result.append(
            TrialRecord(number=number, state="complete", params=proposal.params, values=[0.0], started="", key="",
                        run_id="", pruner_state=state, intermediate=[[s, 0.0] for s in range(1, 9)])
        )  # fmt: skip
    assert result[-1].pruner_state
    again = OptunaStudy(values, result)
    assert again.ask() is not None
    assert again.report(8, 1, 99.0)


def test_importance_ranks_relevant_parameters() -> None:
    values = options(sampler="random", trials=60)
    study = OptunaStudy(values, search(values, 60))
    result = study.importance()
    assert result["x"] > 0.8 and "constant" not in result
    assert OptunaStudy(values, []).importance() == {}


def test_space_comes_from_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    values = options(space="search_functions:conditional", sampler="random", trials=20)
    study, result = OptunaStudy(values, []), []
    for number in range(20):
        proposal = study.ask()
        assert proposal is not None
        study.tell(number, [0.0])
        result.append(
            TrialRecord(number=number, state="complete", params=proposal.params, values=[0.0], started="", key="",
                        run_id="", distributions=proposal.distributions)
        )  # fmt: skip
    assert {tuple(sorted(trial.params)) for trial in result} == {("x",), ("x", "y")}
    assert OptunaStudy(values, result).ask() is not None
    study = OptunaStudy(options(space="search_functions:dependent", sampler="random"), [])
    for number in range(8):
        proposal = study.ask()
        assert proposal is not None
        study.tell(number, [float(proposal.params["a"])])
    assert study.importance() == {"a": 1.0}
    with pytest.raises(BadInput, match="returned 3; expected parameters by name"):
        OptunaStudy(options(space="search_functions:no_space"), []).ask()
    with pytest.raises(BadInput, match=r"suggests 'x' of \[1, 1.0\], some of which are equal in Python"):
        OptunaStudy(options(space="search_functions:equal"), []).ask()

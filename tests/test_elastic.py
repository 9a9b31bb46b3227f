"""Elastic training: real ranks, some of them killed or hanging, and the others that go on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.runtime
CHECKS = (str(Path(__file__).parent / "runtime_checks"),)
STEPS = 11
"""Of an epoch: 1001 rows in batches of 100."""


@pytest.fixture(scope="module")
def run(shared_run_step: Any, warm_launcher: Any) -> Any:
    def run_step(entry: str, **kwargs: Any) -> Any:
        return shared_run_step(entry, code_paths=CHECKS, launcher=warm_launcher, **kwargs)

    return run_step


@pytest.fixture(scope="module")
def examples(run: Any) -> Any:
    rows = {"train": [700, 3, 298], "eval": [201]}
    return run("transformed_examples:write", params={"rows": rows}, kind="transformed_examples")


@pytest.fixture(scope="module")
def trainings(run: Any, examples: Any) -> Any:
    return run("elastic_checks:run_all", inputs={"examples": examples})


def test_others_go_on_when_one_is_killed_and_another_hangs_and_every_row_counts_once(trainings: Any) -> None:
    found = trainings["shrinks"]
    assert (found["ranks"], found["ranks_at_end"]) == (3, 1)
    first, second = found["resizes"]
    assert first["lost"][0]["rank"] == 1
    assert first["lost"][0]["how"].startswith("SIGKILL")
    assert (first["ranks_before"], first["ranks_after"], first["joined"]) == (3, 2, [])
    assert (first["epoch"], first["batch"], first["step"]) == (1, 0, STEPS)
    assert first["logs"] == ["rank-0.log", "rank-2.log"]
    (lost,) = second["lost"]
    assert (lost["rank"], lost["log"], lost["how"]) == (1, "rank-2.log", "no progress for 25 s (stall_timeout_s)")
    assert (second["ranks_before"], second["ranks_after"]) == (2, 1)
    assert (second["epoch"], second["step"]) == (2, 2 * STEPS)
    assert first["time"] < second["time"]
    assert len(found["epochs"]) == 4
    assert found["epochs"][-1]["val_auc"] > 0.85
    assert found["synchronized"] is True
    assert found["guard"]["rows"] == [1001] * 4
    assert found["rows_by_rank"] == [{"train": 1001, "eval": 201}]


def test_a_rank_takes_the_place_of_rank_0_and_gets_the_state_from_the_other(trainings: Any) -> None:
    found = trainings["joins"]
    shrunk, grown = found["resizes"]
    assert (shrunk["lost"][0]["rank"], shrunk["ranks_after"], shrunk["epoch"]) == (0, 1, 1)
    assert (grown["ranks_before"], grown["ranks_after"], grown["lost"]) == (1, 2, [])
    assert grown["joined"] == [{"rank": 1, "host": shrunk["lost"][0]["host"]}]
    assert grown["logs"] == ["rank-1.log", "rank-2.log"]
    assert (found["ranks_at_end"], found["synchronized"]) == (2, True)
    assert found["guard"]["rows"] == [1001] * 4, "three epochs, and one of the second call of fit"
    assert [rows["train"] for rows in found["rows_by_rank"]] == [500, 501]
    assert len(found["epochs"]) == 4
    assert found["epochs"][-1]["val_auc"] > 0.85
    assert found["logs"] == ["rank-0.log", "rank-1.log", "rank-2.log"], "who never left the reserve leaves no log"


def test_a_rank_that_is_replaced_at_once_leaves_no_trace_in_the_weights(trainings: Any) -> None:
    found = trainings["replaced"]
    (resize,) = found["resizes"]
    assert (resize["lost"][0]["rank"], resize["joined"][0]["rank"]) == (1, 1)
    assert (resize["epoch"], resize["batch"]) == (1, 4), "5 steps of the epoch were done, 4 committed"
    assert found["checksum"] == trainings["undisturbed"]["checksum"]
    assert trainings["undisturbed"]["resizes"] == []


def test_fewer_than_min_np_end_the_gang_with_the_error_of_the_last_and_what_was_lost_before(trainings: Any) -> None:
    found = trainings["too_few"]
    assert found["type"] == "HopsError"
    assert "was ended by SIGKILL" in found["error"]
    assert "all ranks were ended" in found["error"]
    assert "  an accident is about to happen" in found["error"]
    assert "Ranks left: 1; min_np is 2. Lost before: rank-" in found["error"]


def test_bad_input_of_one_rank_ends_all(trainings: Any) -> None:
    found = trainings["bad_input"]
    assert found["type"] == "BadInput"
    assert found["error"].startswith("column 'x' is missing (rank 1 of 2 on")


def test_no_process_is_left_of_any_training(trainings: Any) -> None:
    assert {name: found["left"] for name, found in trainings.items()} == {name: [] for name in trainings}


def test_ranks_that_all_die_at_once_are_no_result(run: Any) -> None:
    found = run("elastic_checks:all_at_once")
    assert found["type"] == "HopsError"
    assert "was ended by SIGKILL" in found["error"]
    assert "Ranks left: 0; min_np is 1. Lost before: rank-" in found["error"]


def test_bounds_and_launchers_that_do_not_fit_are_refused(run: Any) -> None:
    refused = run("elastic_checks:refuse")
    assert refused["min_np"] == "min_np is 3, more than the 2 ranks that the gang begins with (np)"
    assert refused["max_np"] == "max_np is 1, fewer than the 2 ranks that the gang begins with (np)"
    assert refused["no_number"] == "min_np is 0, expected a number of ranks, 1 or more"
    assert refused["slots"].startswith("max_np: np is 4, but there are only 3 slots")
    assert refused["launcher"].startswith("min_np, max_np: ranks that are started like these cannot go on")


def test_the_step_publishes_the_model_of_those_that_are_left(run: Any, examples: Any, shared_run_step: Any) -> None:
    accidents = {"1": {"epoch": 0, "batch": 2, "how": "kill"}}
    artifact = run(
        "airflow_hops.runtime.train:run",
        params={
            "train": "elastic_checks:train",
            "params": {"epochs": 1, "accidents": accidents},
            "np": 2,
            "min_np": 1,
        },
        inputs={"examples": examples},
        kind="model",
    )
    assert artifact.properties["synchronized"] is True
    summary = json.loads((shared_run_step.store.local(artifact) / "training.json").read_text())
    assert (summary["ranks"], summary["ranks_at_end"], len(summary["resizes"])) == (2, 1, 1)
    assert any("rank 1 of 2" in line.text and "ranks left: 1 of 2" in line.text for line in shared_run_step.lines)

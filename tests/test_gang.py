"""The gang of ranks: real Horovod ranks over Gloo, and what happens when one of them fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.runtime
CHECKS = (str(Path(__file__).parent / "runtime_checks"),)


@pytest.fixture(scope="module")
def gangs(shared_run_step: Any, warm_launcher: Any) -> Any:
    outcomes = shared_run_step("gang_checks:run_all", code_paths=CHECKS, launcher=warm_launcher)
    return outcomes, [line.text for line in shared_run_step.lines]


def test_all_ranks_meet_and_their_results_come_back_by_rank(gangs: Any) -> None:
    fine = gangs[0]["fine"]
    assert [rank["total"] for rank in fine["result"]] == [3.0, 3.0]
    assert [rank["local_rank"] for rank in fine["result"]] == [0, 1]
    assert sorted(rank for rank, message in fine["messages"]) == [0, 1]


def test_each_rank_has_a_log_and_only_warnings_of_others_reach_the_task_log(gangs: Any) -> None:
    outcomes, lines = gangs
    assert set(outcomes["fine"]["logs"]) == {"rank-0.log", "rank-1.log"}
    assert "rank 1 says hello" in outcomes["fine"]["logs"]["rank-1.log"]
    assert "rank 0 says hello" in lines
    assert "rank 1 says hello" not in lines
    assert "[rank 1] rank 1 warns: Warning: a small thing" in lines


@pytest.mark.parametrize(
    ("scenario", "expected"),
    [
        ("killed", "was ended by SIGKILL"),
        ("raises", "ValueError: the user's own mistake (rank 1 of 2 on"),
        ("exits", "was ended by exit code 0 before it was done"),
    ],
)
def test_a_failing_rank_ends_the_gang_within_seconds_and_is_named(gangs: Any, scenario: str, expected: str) -> None:
    outcome = gangs[0][scenario]
    assert outcome["type"] == "HopsError"
    assert expected in outcome["error"]
    assert "rank 1 of 2 on" in outcome["error"]
    assert "after the first all-reduce; all ranks were ended" in outcome["error"]
    assert "  rank 1 is about to have an accident" in outcome["error"]
    assert outcome["seconds"] < 15


def test_bad_input_found_by_a_rank_is_not_retried(gangs: Any) -> None:
    outcome = gangs[0]["bad_input"]
    assert outcome["type"] == "BadInput"
    assert outcome["error"].startswith("examples.parquet: column 'x' is missing (rank 1 of 2 on")


def test_a_hanging_rank_is_named_with_the_line_where_it_hangs(gangs: Any) -> None:
    outcome = gangs[0]["hangs"]
    assert outcome["type"] == "HopsError"
    assert "rank 1 of 2 on" in outcome["error"]
    assert "made no progress for 3 s (stall_timeout_s) after the first all-reduce" in outcome["error"]
    assert "(rank 0 was last seen after the first all-reduce, and waits for the others)" in outcome["error"]
    assert "in _never_come_back" in outcome["error"]
    assert outcome["seconds"] < 15


def test_a_gang_that_never_begins_stalls_too(gangs: Any) -> None:
    outcome = gangs[0]["all_hang"]
    assert "made no progress for 3 s (stall_timeout_s) after its start" in outcome["error"]


def test_no_process_is_left_of_any_gang(gangs: Any) -> None:
    assert {name: outcome["left"] for name, outcome in gangs[0].items()} == {name: [] for name in gangs[0]}


def test_no_descriptor_is_left_of_any_gang(gangs: Any) -> None:
    assert {name: outcome["descriptors_left"] for name, outcome in gangs[0].items()} == dict.fromkeys(gangs[0], 0)


def test_a_line_that_never_ends_is_logged_in_pieces_and_quoted_in_part(gangs: Any) -> None:
    outcome = gangs[0]["raises"]
    assert outcome["logs"]["rank-1.log"].count("y" * 1000) >= 290
    assert len(outcome["error"]) < 10_000
    assert "yyy … yyy" in outcome["error"]


def test_what_is_no_number_or_cannot_be_forked_or_logged_is_refused(
    run_step: Any, warm_launcher: Any, small_folder: Path
) -> None:
    refused = run_step(
        "gang_checks:refuse",
        params={"small_folder": str(small_folder)},
        code_paths=CHECKS,
        launcher=warm_launcher,
    )
    assert refused["0"]["error"] == "np is 0, expected a number of ranks, 1 or more"
    assert refused["2"]["error"].startswith("np is '2'")
    assert refused["True"]["type"] == "BadInput"
    assert "TensorFlow runs already in this process" in refused["running"]["error"]
    for value in ("0", "-1.5", "'300'", "inf", "nan"):
        outcome = refused[f"stall_timeout_s {value}"]
        assert (outcome["type"], outcome["error"].split(", ")[0]) == ("BadInput", f"stall_timeout_s is {value}")
    assert refused["full"]["type"] == "HopsError"
    assert "the rank's log cannot be written: [Errno 28] No space left on device" in refused["full"]["error"]
    assert refused["full"]["left"] == []

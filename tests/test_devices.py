"""GPUs: whose they are, which rank gets which, and that two tasks never share one.

No GPU is needed: a scheduler's assignment names them, and leases are locks on files.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from airflow_hops.hooks.runtime import StepFailed

pytestmark = pytest.mark.runtime
CHECKS = (str(Path(__file__).parent / "runtime_checks"),)


@pytest.fixture
def gang(run_step: Any, warm_launcher: Any, tmp_path: Path) -> Any:
    """Runs ranks that say what they see."""

    def gang(**params: Any) -> Any:
        given = {"folder": str(tmp_path), **params}
        return run_step("device_checks:gang", params=given, code_paths=CHECKS, launcher=warm_launcher)

    return gang


def test_a_schedulers_assignment_says_which_gpus_there_are(run_step: Any, warm_launcher: Any) -> None:
    assignments = ["", "-1", "GPU-aa,GPU-bb", "900,901,-1,902", "MIG-1234"]
    found = run_step(
        "device_checks:count", params={"assignments": assignments}, code_paths=CHECKS, launcher=warm_launcher
    )
    assert [found[assigned]["number"] for assigned in assignments] == [0, 0, 2, 2, 1]
    assert found["GPU-aa,GPU-bb"]["ids"] == ["GPU-aa", "GPU-bb"]
    assert found["900,901,-1,902"]["ids"] == ["900", "901"]


def test_each_rank_sees_a_gpu_of_its_own(gang: Any) -> None:
    found = gang(assigned="GPU-a,GPU-b,GPU-c", ranks=2)
    assert found == {"slots": 3, "ranks": [{"sees": "GPU-a", "number": 1}, {"sees": "GPU-b", "number": 1}]}


def test_without_gpus_ranks_are_left_alone_and_slots_are_cores(gang: Any) -> None:
    found = gang(assigned="", ranks=2)
    assert found["slots"] == len(os.sched_getaffinity(0))
    assert found["ranks"] == [{"sees": "", "number": 0}] * 2


def test_env_keeps_ranks_off_the_gpus(gang: Any, tmp_path: Path) -> None:
    found = gang(assigned="GPU-a,GPU-b", ranks=2, env={"CUDA_VISIBLE_DEVICES": ""})
    assert found["ranks"] == [{"sees": "", "number": 0}] * 2
    assert not list(tmp_path.glob("*.lock"))
    found = gang(assigned="GPU-a,GPU-b", ranks=1, env={"CUDA_VISIBLE_DEVICES": "GPU-b"})
    assert found["ranks"] == [{"sees": "GPU-b", "number": 1}]


def test_more_ranks_than_gpus_is_bad_input(gang: Any) -> None:
    with pytest.raises(StepFailed, match="3 ranks want a GPU each, and this host has 2") as failure:
        gang(assigned="GPU-a,GPU-b", ranks=3)
    assert not failure.value.retryable


def test_who_joins_an_elastic_gang_gets_the_gpu_of_the_slot_and_the_reserve_leases_none(
    run_step: Any, warm_launcher: Any, tmp_path: Path
) -> None:
    found = run_step(
        "device_checks:elastic_gang",
        params={"folder": str(tmp_path), "assigned": "GPU-a,GPU-b"},
        code_paths=CHECKS,
        launcher=warm_launcher,
    )
    assert found["leased"] == ["GPU-a", "GPU-b"]
    assert [(rank["slot"], rank["sees"]) for rank in found["ranks"]] == [(0, "GPU-a"), (1, "GPU-b")]
    assert found["ranks"][1]["member"] > 1


def test_a_lock_that_cannot_be_had_is_named_and_a_link_is_not_followed(
    run_step: Any, warm_launcher: Any, tmp_path: Path
) -> None:
    found = run_step(
        "device_checks:leases", params={"folder": str(tmp_path)}, code_paths=CHECKS, launcher=warm_launcher
    )
    lock = tmp_path / "GPU-a.lock"
    assert found["link"].startswith(f"BadInput: {lock}: the GPU cannot be leased: ")
    assert found["folder"].startswith(f"BadInput: {lock}: the GPU cannot be leased: ")
    assert found["precious"] == "do not touch"


def test_two_trainings_never_share_a_gpu_and_a_crash_gives_it_back(gang: Any, tmp_path: Path) -> None:
    failures: list[BaseException] = []

    def hold() -> None:
        try:
            gang(assigned="GPU-a,GPU-b", ranks=1, hold_s=60)
        except StepFailed as failure:
            failures.append(failure)

    thread = threading.Thread(target=hold)
    thread.start()
    note = tmp_path / "held-0"
    deadline = time.monotonic() + 60
    while not (note.exists() and note.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert gang(assigned="GPU-a,GPU-b", ranks=1)["ranks"][0]["sees"] == "GPU-b"
    with pytest.raises(
        StepFailed, match=r"2 of this host's 2 GPUs are wanted, and 1 are leased \(GPU-a: .*process"
    ) as busy:
        gang(assigned="GPU-a,GPU-b", ranks=2)
    assert busy.value.retryable
    os.kill(int(note.read_text()), signal.SIGKILL)
    thread.join(60)
    assert "SIGKILL" in str(failures[0])
    assert [rank["sees"] for rank in gang(assigned="GPU-a,GPU-b", ranks=2)["ranks"]] == ["GPU-a", "GPU-b"]

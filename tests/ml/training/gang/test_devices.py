"""GPUs: whose they are, which rank gets which, and that two tasks never share one.

No GPU is needed: a scheduler's assignment names them, and leases are locks on files.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_for

from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.ml.training.devices import Gpu, get_gpus, get_num_gpus
from airflow_hops.ml.training.gang import Channel, LocalRanks, Placement, run_gang
from airflow_hops.ml.training.gang.leases import FOLDER_VARIABLE, GpuLeases


def _look(folder: Path, hold_s: float, placement: Placement, channel: Channel) -> list[Any]:
    """Returns the GPUs that a rank sees; it may hold its own for a while, and reports so by a file."""
    if hold_s:
        (folder / "held").write_text(str(os.getpid()))
        time.sleep(hold_s)
    return [os.environ["CUDA_VISIBLE_DEVICES"], get_num_gpus()]


def _run_ranks(
    folder: Path, assigned: str, ranks: int, hold_s: float = 0.0, env: dict[str, str] | None = None
) -> tuple[int, Any]:
    """Slots that there are for GPUs leased in a folder, and what each rank sees."""
    os.environ |= {"CUDA_VISIBLE_DEVICES": assigned, FOLDER_VARIABLE: str(folder)}
    slots, work = LocalRanks().slots, partial(_look, folder, hold_s)
    return slots, run_gang(work, ranks, logs=folder / "logs", launcher=LocalRanks(ranks), env=env)


@pytest.fixture
def gang(own_process: Any, tmp_path: Path) -> Callable[..., Any]:
    return partial(own_process, _run_ranks, tmp_path)


@pytest.mark.parametrize(
    ("assigned", "ids"),
    [
        ("", []),
        ("-1", []),
        ("GPU-aa,GPU-bb", ["GPU-aa", "GPU-bb"]),
        ("900,901,-1,902", ["900", "901"]),
        ("MIG-1234", ["MIG-1234"]),
    ],
)
def test_scheduler_assignment_limits_gpus(assigned: str, ids: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", assigned)
    assert [gpu.id for gpu in get_gpus()] == ids
    assert get_num_gpus() == len(ids)


def test_each_rank_sees_its_own_gpu(gang: Any) -> None:
    assert gang("GPU-a,GPU-b,GPU-c", 2) == (3, [["GPU-a", 1], ["GPU-b", 1]])


def test_slots_equal_cores_without_gpus(gang: Any) -> None:
    assert gang("", 2) == (len(os.sched_getaffinity(0)), [["", 0]] * 2)


def test_env_keeps_ranks_off_the_gpus(gang: Any, tmp_path: Path) -> None:
    assert gang("GPU-a,GPU-b", 2, env={"CUDA_VISIBLE_DEVICES": ""})[1] == [["", 0]] * 2
    assert not list(tmp_path.glob("*.lock"))
    assert gang("GPU-a,GPU-b", 1, env={"CUDA_VISIBLE_DEVICES": "GPU-b"})[1] == [["GPU-b", 1]]


def test_more_ranks_than_gpus_is_bad_input(gang: Any) -> None:
    with pytest.raises(BadInput, match="3 ranks need a GPU each, but this host has 2"):
        gang("GPU-a,GPU-b", 3)


def test_unusable_gpu_lock_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, precious = tmp_path / "GPU-a.lock", tmp_path / "precious"
    precious.write_text("do not touch")
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    for prepare, remove in (
        (lambda: lock.symlink_to(precious), lock.unlink),
        (lambda: lock.hardlink_to(precious), lock.unlink),
        (lock.mkdir, lock.rmdir),
    ):
        prepare()
        with pytest.raises(BadInput, match=re.escape(f"{lock}: the GPU cannot be leased: ")):
            GpuLeases([Gpu("GPU-a")], 1, "me")
        remove()
    assert precious.read_text() == "do not touch"
    private, link = tmp_path / "private", tmp_path / "linked"
    private.mkdir(mode=0o700)
    link.symlink_to(private)
    monkeypatch.setenv(FOLDER_VARIABLE, str(link))
    with pytest.raises(BadInput, match=re.escape(f"{link}/GPU-a.lock: the GPU cannot be leased: ")):
        GpuLeases([Gpu("GPU-a")], 1, "me")
    assert private.stat().st_mode & 0o7777 == 0o700 and not list(private.iterdir())
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "new"))
    leases = GpuLeases([Gpu("GPU-a")], 1, "me")
    assert leases.ids == ["GPU-a"]
    assert (tmp_path / "new").stat().st_mode & 0o7777 == 0o1777
    leases.release()


@pytest.mark.slow
def test_crash_frees_leased_gpu(gang: Any, tmp_path: Path) -> None:
    note = tmp_path / "held"
    with ThreadPoolExecutor(1) as threads:
        held = threads.submit(gang, "GPU-a,GPU-b", 1, hold_s=60)
        wait_for(lambda: note.exists() and note.read_text(), "the GPU is held", 240)
        assert gang("GPU-a,GPU-b", 1)[1] == [["GPU-b", 1]]
        busy = r"2 of this host's 2 GPUs are wanted, and 1 are leased \(GPU-a: .*process"
        with pytest.raises(HopsError, match=busy) as failure:
            gang("GPU-a,GPU-b", 2)
        assert failure.value.retryable
        os.kill(int(note.read_text()), signal.SIGKILL)
        with pytest.raises(HopsError, match="SIGKILL"):
            held.result(60)
    assert gang("GPU-a,GPU-b", 2)[1] == [["GPU-a", 1], ["GPU-b", 1]]

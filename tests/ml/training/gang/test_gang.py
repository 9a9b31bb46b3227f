"""The gang of ranks: real Horovod ranks over Gloo, and what happens when one of them fails."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import psutil
import pytest
import tensorflow as tf

from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.processes.cpu_time import while_busy
from airflow_hops.core.steps.protocol import parse_line
from airflow_hops.core.training.rank_places import place_of
from airflow_hops.ml.training.gang import Channel, Placement, run_gang
from airflow_hops.ml.training.gang.rendezvous import SharedValues, patience_s, stall_variables
from airflow_hops.testing.rank_places import RankPlaceContract

NAN, INF = float("nan"), float("inf")


def _fine(placement: Placement, channel: Channel) -> dict[str, Any]:
    """Meets the other twice."""
    print(f"rank {placement.rank} says hello")
    print(f"rank {placement.rank} warns: Warning: a small thing", file=sys.stderr)
    channel.send("note", value=placement.rank)
    totals = []
    for number in range(2):
        hvd.init()
        totals.append(float(hvd.allreduce(tf.constant(placement.rank + 1.0 + number), op=hvd.Sum)))
        local_rank = hvd.local_rank()
        hvd.shutdown()
    return {"totals": totals, "local_rank": local_rank}


def _after_start(accident: Callable[[], Any], reduces: bool, placement: Placement, channel: Channel) -> None:
    """Rank 1 has an accident after an all-reduce, while rank 0 waits in the next; or both only wait."""
    if reduces:
        hvd.init()
        hvd.allreduce(tf.constant(1.0), name="first")
    channel.send("alive", where="the first all-reduce")
    if placement.rank == 1:
        print("rank 1 is about to have an accident", flush=True)
        accident()
    if reduces:
        hvd.allreduce(tf.constant(1.0), name="second")
    time.sleep(120)


def _kill_oneself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _raise() -> None:
    sys.stdout.write("y" * 300_000)
    sys.stdout.flush()
    raise ValueError("the user's own mistake")


def _import_missing(*_: Any) -> None:
    import lightgbmm  # noqa: F401


def _exit() -> None:
    os._exit(0)


def _never_come_back(*_: Any) -> None:
    time.sleep(120)


def _print_much(placement: Placement, channel: Channel) -> None:
    for _ in range(100):
        print("y" * 50_000)


def _watched(
    work: Callable[[Placement, Channel], Any],
    folder: Path,
    size: Any = 2,
    stall_timeout_s: Any = 60,  # a machine that is busy may give a rank nothing for seconds
    logs: Path | None = None,
) -> tuple[Any, list[Any]]:
    """Runs a gang, whose output, and logs where no other place is given, lie in a folder; nothing is left of it."""
    with (folder / "output").open("w") as output:
        os.dup2(output.fileno(), 1)
    opened = len(list(Path("/proc/self/fd").iterdir()))
    messages: list[Any] = []
    try:
        result = run_gang(
            work,
            size,
            logs=logs or folder / "logs",
            stall_timeout_s=stall_timeout_s,
            on_message=lambda *message: messages.append(message),
        )
    finally:
        assert psutil.Process().children(recursive=True) == []
        assert len(list(Path("/proc/self/fd").iterdir())) == opened
    return result, messages


def test_training_without_tensorflow_runs() -> None:
    program = "import sys; sys.modules |= dict.fromkeys(('tensorflow', 'horovod', 'keras')); "
    program += "import airflow_hops.ml.training.stage.training, airflow_hops.ml.training.reader"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_ranks_meet_and_task_log_has_rank_0_and_warnings(own_process: Any, tmp_path: Path) -> None:
    ranks, messages = own_process(_watched, _fine, tmp_path)
    assert [rank["totals"] for rank in ranks] == [[3.0, 5.0]] * 2
    assert [rank["local_rank"] for rank in ranks] == [0, 1]
    assert sorted(rank for rank, message in messages) == [0, 1]
    assert {path.name for path in (tmp_path / "logs").iterdir()} == {"rank-0.log", "rank-1.log"}
    assert "rank 1 says hello" in (tmp_path / "logs" / "rank-1.log").read_text()
    lines = [parse_line(line).text for line in (tmp_path / "output").read_text().split("\n")]
    assert "rank 0 says hello" in lines
    assert "rank 1 says hello" not in lines
    assert "[rank 1] rank 1 warns: Warning: a small thing" in lines


@pytest.mark.parametrize(
    ("accident", "expected"),
    [
        (_kill_oneself, "was ended by SIGKILL"),
        (_raise, "ValueError: the user's own mistake (rank 1 of 2 on"),
        (_exit, "was ended by exit code 0 before it was done"),
    ],
)
def test_failing_rank_ends_the_gang(own_process: Any, tmp_path: Path, accident: Any, expected: str) -> None:
    with pytest.raises(HopsError) as failure:
        own_process(_watched, partial(_after_start, accident, accident is not _exit), tmp_path)
    assert failure.value.retryable
    assert expected in str(failure.value)
    assert "rank 1 of 2 on" in str(failure.value)
    assert "after the first all-reduce; all ranks were ended" in str(failure.value)
    assert "  rank 1 is about to have an accident" in str(failure.value)
    if accident is _raise:  # after a line that never ends: it is logged in pieces, and quoted in part
        assert (tmp_path / "logs" / "rank-1.log").read_text().count("y" * 1000) >= 290
        assert len(str(failure.value)) < 10_000
        assert "yyy … yyy" in str(failure.value)


@pytest.mark.parametrize("size", [1, 2])
def test_missing_module_is_explained_and_not_retried(own_process: Any, tmp_path: Path, size: int) -> None:
    with pytest.raises(BadInput, match="there is no module 'lightgbmm': add its package with 'airflow hops") as failure:
        own_process(_watched, _import_missing, tmp_path, size)
    assert str(failure.value).startswith("ModuleNotFoundError: No module named 'lightgbmm'. Steps run in")
    assert (" ranks were ended" in str(failure.value)) == (size > 1)


def test_hanging_rank_is_named_with_its_line(own_process: Any, tmp_path: Path) -> None:
    with pytest.raises(HopsError, match="rank 1 of 2 on") as failure:
        own_process(_watched, partial(_after_start, _never_come_back, True), tmp_path, stall_timeout_s=5)
    assert "made no progress for 5 s (stall_timeout_s) after the first all-reduce" in str(failure.value)
    assert "(rank 0 was last seen after the first all-reduce, and waits for the others)" in str(failure.value)
    assert "in _never_come_back" in str(failure.value)


def _work_without_messages(does_compute: bool, placement: Placement, channel: Channel) -> str:
    with while_busy(partial(channel.send, "alive", where="its export"), every_s=0.2):
        if not does_compute:
            time.sleep(120)
        while time.process_time() < 4:
            pass
    return "done"


def test_rank_that_computes_is_not_stalled(own_process: Any, tmp_path: Path) -> None:
    work = partial(_work_without_messages, True)
    assert own_process(_watched, work, tmp_path, 1, stall_timeout_s=2)[0] == ["done"]
    with pytest.raises(HopsError, match=r"made no progress for 2 s \(stall_timeout_s\)"):
        own_process(_watched, partial(_work_without_messages, False), tmp_path, 1, stall_timeout_s=2)


def _compute_silently(placement: Placement, channel: Channel) -> str:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    while time.process_time() < 0.7:
        pass
    return "done"


def test_rank_is_not_stalled_while_others_use_its_core(own_process: Any, tmp_path: Path) -> None:
    core = {min(os.sched_getaffinity(0))}
    with contextlib.ExitStack() as ending:
        for _ in range(6):
            busy = ending.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            ending.callback(busy.kill)
            os.sched_setaffinity(busy.pid, core)
        assert own_process(_watched, _compute_silently, tmp_path, 1, stall_timeout_s=2.5)[0] == ["done"]
        with pytest.raises(HopsError, match=r"made no progress for 1 s \(stall_timeout_s\)"):
            own_process(_watched, _never_come_back, tmp_path, 1, stall_timeout_s=1)


def test_gang_that_never_starts_is_reported_as_stalled(own_process: Any, tmp_path: Path) -> None:
    with pytest.raises(HopsError, match=r"made no progress for 1 s \(stall_timeout_s\) after its start"):
        own_process(_watched, _never_come_back, tmp_path, stall_timeout_s=1)


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        *(({"size": each}, f"np is {each!r}, expected a number of ranks, 1 or more") for each in (0, True, "2")),
        *(({"stall_timeout_s": each}, f"stall_timeout_s is {each!r}, ") for each in (0, -1.5, "300", INF, NAN)),
    ],
)
def test_invalid_number_is_refused(argument: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=re.escape(words)):
        run_gang(_fine, **{"size": 2, "logs": tmp_path, **argument})


def test_ranks_are_not_forked_after_tensorflow_started(tmp_path: Path) -> None:
    tf.constant(1)
    with pytest.raises(HopsError, match="TensorFlow is already in use in this process"):
        run_gang(_fine, 2, logs=tmp_path)


def test_a_full_disk_ends_the_gang(own_process: Any, tmp_path: Path, small_folder: Path) -> None:
    with pytest.raises(HopsError, match=r"the rank's log cannot be written: \[Errno 28\] No space left on device"):
        own_process(_watched, _print_much, tmp_path, logs=small_folder / "logs")


class TestLocalPlace(RankPlaceContract):
    name = "local"

    @pytest.fixture
    def where(self) -> dict[str, Any]:
        return {"kind": "local", "slots": 2}


def test_unregistered_place_is_refused() -> None:
    with pytest.raises(BadInput, match=r"kind of the ranks' place is 'moon', expected one of"):
        place_of({"kind": "moon"})


def test_unreachable_server_is_tried_again_before_it_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    address = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1", "HOROVOD_GLOO_RENDEZVOUS_PORT": "1"}
    for name, value in {**address, **stall_variables(10.5)}.items():
        monkeypatch.setenv(name, value)
    assert patience_s(os.environ) == 25.5
    values = SharedValues("values", Placement(0, 2, 0, 1, "north"), Channel())
    with pytest.raises(HopsError, match=r"^rank 0 of 2 on north has not reached .* at 127\.0\.0\.1:1 for [1-9]\d* s: "):
        values.put("name", "value")

"""The keeper of what the demo starts: real processes, which end whatever becomes of the one who asked for them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from waiting import is_gone, wait_for

KEEPER = Path(__file__).resolve().parent.parent / "demo" / "keeper.py"
STUBBORN = "trap '' TERM INT; sleep 1000 & echo $! > below; echo $$ > leader; wait; sleep 1000"


def keep(folder: Path, grace_s: float, *command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-I", str(KEEPER), str(grace_s), *command],
        cwd=folder,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def number_in(path: Path) -> int:
    wait_for(lambda: path.exists() and path.read_text().endswith("\n"))
    return int(path.read_text())


@pytest.mark.parametrize("end", ["close", "terminate"])
def test_group_ignoring_signals_is_killed_after_the_grace_period(tmp_path: Path, end: str) -> None:
    keeper = keep(tmp_path, 0.5, "bash", "-c", STUBBORN)
    group = [number_in(tmp_path / name) for name in ("below", "leader")]
    if end == "close":
        keeper.stdin.close()
    else:
        keeper.terminate()
    assert keeper.wait() == 128 + 9
    wait_for(lambda: all(map(is_gone, group)))


def test_kept_processes_end_with_a_killed_program(tmp_path: Path) -> None:
    asker = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import subprocess, sys, time\n"
            "subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, start_new_session=True)\n"
            "time.sleep(1000)",
            *(sys.executable, "-I", str(KEEPER), "0.5", "bash", "-c", STUBBORN),
        ],
        cwd=tmp_path,
    )
    group = [number_in(tmp_path / name) for name in ("below", "leader")]
    asker.kill()
    asker.wait()
    wait_for(lambda: all(map(is_gone, group)))


def test_group_ends_with_its_leaders_exit_code(tmp_path: Path) -> None:
    keeper = keep(tmp_path, 60, "bash", "-c", "sleep 1000 & echo $! > below; exit 7")
    below = number_in(tmp_path / "below")
    assert keeper.wait() == 7
    wait_for(lambda: is_gone(below))


def test_a_gentle_command_ends_at_the_first_signal(tmp_path: Path) -> None:
    keeper = keep(tmp_path, 60, "bash", "-c", "trap 'exit 3' TERM; echo $$ > leader; while :; do sleep 0.05; done")
    number_in(tmp_path / "leader")
    keeper.stdin.close()
    assert keeper.wait() == 3


def test_missing_command_is_named(tmp_path: Path) -> None:
    keeper = keep(tmp_path, 1, "no-such-command")
    _, errors = keeper.communicate()
    assert keeper.returncode == 127
    assert "no-such-command cannot be started" in errors

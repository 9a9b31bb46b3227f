"""A step's process: its output as it comes, its end, and a kill that leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from waiting import wait_for

from airflow_hops.core.processes.ending import descendants
from airflow_hops.core.steps.protocol import STEP_ID_VARIABLE
from airflow_hops.runner.launchers.local import runtime_variables
from airflow_hops.runner.launchers.process import StepProcess, describe_exit

Start = Callable[..., StepProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts Python programs as a step's process, in the test's folder; they end with the test."""
    started: list[StepProcess] = []

    def run(program: str) -> StepProcess:
        command = [sys.executable, "-S", "-u", "-c", textwrap.dedent(program)]
        started.append(StepProcess.start(command, env={"PATH": os.environ["PATH"]}, cwd=tmp_path))
        return started[-1]

    yield run
    for process in started:
        process.kill(grace_s=0.0)


def processes_of(process: StepProcess) -> list[psutil.Process]:
    """Every process that carries the step's id, found in another way than the kill finds them."""
    results = []
    for candidate in psutil.process_iter():
        try:
            if candidate.environ().get(STEP_ID_VARIABLE) == process.step_id:
                results.append(candidate)
        except psutil.Error:
            continue
    return [p for p in results if p.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize(
    ("program", "lines"),
    [
        ("pass", []),
        ("import sys; sys.stdout.write('no newline at the end')", ["no newline at the end"]),
        ("import os; os.write(1, b'caf\\xe9 \\xff\\nnext\\n')", ["caf\ufffd \ufffd", "next"]),
        ("import os; os.write(1, b'caf'); os.write(1, b'\\xc3'); os.write(1, b'\\xa9\\n')", ["café"]),
        ("print('\\n\\nblank lines\\n')", ["", "", "blank lines", ""]),
        ("print('a\\x00b'); print('c\\rd')", ["a\x00b", "c\rd"]),
    ],
)
def test_output_of_any_form_is_read(program: str, lines: list[str], start: Start) -> None:
    assert list(start(program).lines()) == lines


def test_a_flood_of_lines_and_a_giant_line_are_read_whole(start: Start) -> None:
    process = start("""
        import sys
        sys.stdout = open(1, "w", buffering=1 << 16, closefd=False)
        for number in range(200_000):
            print("line", number)
        print("x" * 10_000_000)
        print("end")
        """)
    lines = list(process.lines())
    assert lines[:200_000] == [f"line {number}" for number in range(200_000)]
    assert [len(line) for line in lines[200_000:]] == [10_000_000, 3]


def test_unfinished_line_is_read_once(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    process = StepProcess("step", None, log, lambda: None)
    log.write_text("first\n10% 20%")
    assert list(process.read_lines(is_over=False)) == ["first"]
    with log.open("r+") as stream:
        stream.write("-----\n---")
        stream.seek(0, os.SEEK_END)
        stream.write(" 100%\nnext")
    assert list(process.read_lines(is_over=True)) == ["10% 20% 100%", "next"]


def test_descendant_holding_the_output_open_delays_nothing(start: Start) -> None:
    process = start("import subprocess; subprocess.Popen(['sleep', '60'], start_new_session=True); print('done')")
    assert list(process.lines()) == ["done"]
    assert process.wait() == 0
    assert [p.name() for p in processes_of(process)] == ["sleep"]  # for a minute
    process.kill()
    assert processes_of(process) == []


def test_step_inside_a_step_has_its_own_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STEP_ID_VARIABLE, "outer")
    env = runtime_variables(tmp_path)
    inner = StepProcess.start(["sh", "-c", f"echo ${STEP_ID_VARIABLE}"], env=env, cwd=tmp_path)
    named = StepProcess.start(["true"], env={**env, STEP_ID_VARIABLE: "job"}, cwd=tmp_path)
    assert list(inner.lines()) == [inner.step_id] != ["outer"]
    assert named.step_id == "job"
    for process in (inner, named):
        process.kill(grace_s=0.0)


FAMILY = """
import os, signal, subprocess, sys, time

def stay(name, ignore):
    if ignore:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    open(name, "w").write(str(os.getpid()))
    while True:
        time.sleep(60)

def fork(name, ignore=False, session=False, twice=False):
    if os.fork() == 0:
        if session:
            os.setsid()
        if twice and os.fork() != 0:
            os._exit(0)
        if session:
            nothing = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(nothing, descriptor)
        stay(name, ignore)

fork("plain")
fork("ignores", ignore=True)
fork("session", session=True)
fork("daemon", ignore=True, session=True, twice=True)
subprocess.Popen(["sh", "-c", "trap '' TERM; echo $$ > shell; while true; do sleep 1; done"], start_new_session=True)
print("ready")
stay("leader", ignore=True)
"""
MEMBERS = ("plain", "ignores", "session", "daemon", "shell", "leader")


def test_kill_ends_every_descendant(tmp_path: Path, start: Start) -> None:
    process = start(FAMILY)
    bystander = start("print('here'); import time; time.sleep(60)")
    next(iter(bystander.lines()))
    files = [tmp_path / name for name in MEMBERS]
    pids = [int(wait_for(lambda file=file: file.exists() and file.read_text())) for file in files]
    assert all(psutil.pid_exists(pid) for pid in pids)
    process.kill()
    assert not [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"]
    assert processes_of(process) == []
    assert process.wait() == -signal.SIGKILL
    assert len(processes_of(bystander)) == 1
    process.kill()  # what has ended can be killed again


@pytest.mark.slow
def test_processes_ending_during_listing_are_ignored() -> None:
    """Without the mend, some tens of the listings were enough."""
    with subprocess.Popen(["bash", "-c", "while :; do /bin/true & done"]) as restless:
        for _ in range(100):
            list(descendants(os.getpid()))
        restless.kill()


def test_kill_ends_a_waiting_reader(start: Start) -> None:
    process = start("print('ready'); import time; time.sleep(60)")
    lines = process.lines()
    assert next(lines) == "ready"
    threading.Timer(0.3, process.kill).start()
    assert list(lines) == []
    assert process.wait() == -signal.SIGTERM


def test_process_may_clean_up_on_sigterm(tmp_path: Path, start: Start) -> None:
    process = start("""
        import pathlib, signal, sys, time
        def end(*_):
            pathlib.Path("tidied").touch()
            sys.exit(0)
        signal.signal(signal.SIGTERM, end)
        print("ready")
        time.sleep(60)
        """)
    next(iter(process.lines()))
    process.kill()
    assert process.wait() == 0  # it was not killed for taking too long
    assert (tmp_path / "tidied").exists()


def test_exit_codes_are_described(start: Start) -> None:
    process = start("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert list(process.lines()) == []
    assert describe_exit(process.wait()) == "SIGSEGV (a crash in native code)"
    assert describe_exit(0) == "exit code 0"
    assert describe_exit(-signal.SIGABRT).startswith("SIGABRT")
    assert "for lack of memory" in describe_exit(-signal.SIGKILL)
    assert describe_exit(137).startswith("exit code 137, that is SIGKILL")
    assert describe_exit(-64) in ("SIGRTMAX", "signal 64")
    assert describe_exit(255) == "exit code 255"

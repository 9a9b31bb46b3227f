"""The warm process: who may use it, and that no step is run twice."""

from __future__ import annotations

import array
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from waiting import is_gone, wait_for

from airflow_hops.core.extensions import STAGES, extensions
from airflow_hops.core.steps.protocol import StepSpec
from airflow_hops.core.store import ArtifactStore
from airflow_hops.operators.base import HopsOperator
from airflow_hops.runner.launchers.local import step_variables
from airflow_hops.runner.launchers.warm import WarmStart, warm_command, warm_variables
from airflow_hops.runner.runtime import warm_socket

REPOSITORY = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.runtime


def spec_in(folder: Path, marker: Path) -> Path:
    path = folder / "spec.json"
    (folder / "touching.py").write_text(
        f"import pathlib\n\ndef run(context):\n    pathlib.Path({str(marker)!r}).touch()\n"
    )
    ArtifactStore((folder / "store").as_uri()).make()
    path.write_text(
        StepSpec("touch", "touching:run", store=(folder / "store").as_uri(), code_paths=(str(folder),)).to_json()
    )
    return path


def test_folder_writable_by_others_is_not_used(tmp_path, warm_launcher):
    socket_folder = tmp_path / "shared"
    socket_folder.mkdir()
    socket_folder.chmod(0o777)
    (socket_folder / "socket").symlink_to(warm_launcher.warm.path)
    assert WarmStart(socket_folder / "socket").start(tmp_path / "spec.json", {}) is None


def test_step_waits_for_its_clients_start_signal(tmp_path, runtime, warm_launcher):
    marker = tmp_path / "ran"
    spec_path = spec_in(tmp_path, marker)
    request = {"spec": str(spec_path), "cwd": str(tmp_path), "env": step_variables(runtime)}
    # One that has waited long for a step has ended.
    process = warm_launcher.warm.start(spec_path, step_variables(runtime))
    list(process.lines())
    assert process.wait(400) == 0
    marker.unlink()
    read_end, write_end = os.pipe()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(str(warm_launcher.warm.path))
        message = json.dumps(request).encode() + b"\n"
        descriptors = array.array("i", [write_end])
        connection.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
        pid = json.loads(connection.recv(100))["pid"]
    os.close(write_end)
    wait_for(lambda: not psutil.pid_exists(pid), "it has ended")
    os.close(read_end)
    assert not marker.exists()

    process = warm_launcher.warm.start(spec_path, step_variables(runtime))
    list(process.lines())
    assert process.wait(400) == 0
    assert marker.exists()


def test_first_step_starts_one_warm_process(tmp_path, runtime):
    spec_path, python = spec_in(tmp_path, tmp_path / "ran"), tmp_path / "python"
    python.write_text('#!/bin/sh\necho $$ "$@" >> "$0.started"\nexec sleep 600\n')
    python.chmod(0o755)
    warm = WarmStart(tmp_path / "warm" / "socket", python)
    for _ in range(3):  # while it is starting, a second one is not started beside it
        assert warm.start(spec_path, step_variables(runtime)) is None
    started = tmp_path / "python.started"
    (line,) = wait_for(lambda: started.exists() and started.read_text().splitlines())
    pid, *command = line.split()
    try:
        assert [str(python), *command] == warm_command(python, warm.path)
        assert warm.start(spec_path, step_variables(runtime)) is None
    finally:
        os.kill(int(pid), signal.SIGKILL)
    wait_for(lambda: is_gone(int(pid)), "its end")
    wait_for(lambda: warm.start(spec_path, {}) or len(started.read_text().splitlines()) > 1, "another one is started")
    os.kill(int(started.read_text().splitlines()[-1].split()[0]), signal.SIGKILL)


def test_forked_steps_have_different_seeds_and_own_clocks(run_step, warm_launcher, tmp_path, monkeypatch):
    (tmp_path / "drawing.py").write_text(
        "import random, time, uuid\n"
        "import keras, numpy, tensorflow\n\n"
        "def run(context):\n"
        "    drawn = [random.random(), numpy.random.rand(), numpy.random.default_rng().random(), str(uuid.uuid4()),\n"
        "             float(tensorflow.random.uniform(())), float(keras.random.uniform(()))]\n"
        "    return [drawn, time.strftime('%z')]\n"
    )
    monkeypatch.setenv("TZ", "XYZ-9")
    runs = [run_step("drawing:run", code_paths=(str(tmp_path),), launcher=warm_launcher) for _ in range(2)]
    for number, (first, second) in enumerate(zip(runs[0][0], runs[1][0], strict=True)):
        assert first != second, number
    assert [zone for _, zone in runs] == ["+0900"] * 2


def test_step_finds_the_modules_of_its_stage_imported(run_step, warm_launcher, tmp_path):
    (tmp_path / "looking.py").write_text(
        "import sys\n\nimported = list(sys.modules)\n\ndef run(context):\n    return imported\n"
    )
    imported = run_step("looking:run", code_paths=(str(tmp_path),), launcher=warm_launcher)
    missing = {stage.value.partition(":")[0] for stage in extensions(STAGES).values()} - set(imported)
    assert all(".feature_store." in module for module in missing)  # Feast is in another environment


def test_stages_of_all_operators_are_registered():
    def entries(kind):
        yield getattr(kind, "entry", None)
        for below in kind.__subclasses__():
            yield from entries(below)

    # What other tests declare is no stage.
    named = {entry for entry in entries(HopsOperator) if entry and entry.startswith("airflow_hops.ml.")}
    assert len(named) > 15
    assert named <= {stage.value for stage in extensions(STAGES).values()}


def test_import_time_settings_have_separate_warm_processes(runtime, monkeypatch):
    plain = warm_socket(runtime)
    assert warm_socket(runtime) == plain
    monkeypatch.setenv("PATH", "/elsewhere/bin", prepend=os.pathsep)  # a task's path is not the demo's
    assert warm_socket(runtime) == plain
    for name in ("KERAS_BACKEND", "OMP_NUM_THREADS", "TF_ENABLE_ONEDNN_OPTS"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "1")
            assert warm_variables()[name] == step_variables(runtime)[name] == "1"
            assert warm_socket(runtime) != plain


def test_steps_survive_a_failed_fork(tmp_path):
    program = (
        "import os, socket, sys\n"
        "from pathlib import Path\n"
        "from airflow_hops.ml.step.warm import WarmProcess\n"
        "warm = WarmProcess(Path(sys.argv[1]), 1.0)\n"
        "def no_fork():\n"
        "    raise BlockingIOError('Resource temporarily unavailable')\n"
        "os.fork = no_fork\n"
        "ours, theirs = socket.socketpair()\n"
        "read_end, write_end = os.pipe()\n"
        "socket.send_fds(ours, [b'{}\\n'], [write_end])\n"
        "os.close(write_end)\n"
        "warm._start(theirs)\n"
        "print(ours.recv(1), os.read(read_end, 1))\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "socket")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY)
    assert done.stdout == "b'' b''\n", done.stderr

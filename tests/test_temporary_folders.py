"""Temporary folders: whose they are, and what becomes of those that a killed process has left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from airflow_hops.core.processes.temporary_folders import make_temporary_folder, remove_left_behind, temporary_folder

MAKING = """
import sys, time
from airflow_hops.core.processes.temporary_folders import temporary_folder
with temporary_folder("step", "train") as folder:
    (folder / "spec.json").write_text("{}")
    print(folder, flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary folder."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def age(folder: Path, seconds: float = 7200) -> Path:
    then = time.time() - seconds
    os.utime(folder, (then, then))
    return folder


def test_temporary_folder_is_private_and_removed_with_its_block(temporary: Path) -> None:
    with temporary_folder("step", "train" * 20) as folder:
        assert folder.parent == temporary
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "file").touch()
    assert list(temporary.iterdir()) == []


def test_folder_lives_as_long_as_its_process(temporary: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", MAKING], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).resolve().parent.parent
    )
    assert process.stdout is not None
    try:
        folder = age(Path(process.stdout.readline().strip()))
        with temporary_folder("code"):
            assert (folder / "spec.json").exists()
    finally:
        process.kill()
        process.communicate()
    age(folder, 0)  # what a killed process has left is removed at once
    (temporary / ".hops-code-12345678").mkdir(mode=0o700)  # killed before it was locked: it may still be about to be
    age(temporary / ".hops-code-12345678")
    (temporary / ".hops-code-abcdefgh").mkdir(mode=0o700)
    with temporary_folder("code") as other:
        assert {path.name for path in temporary.iterdir()} == {other.name, ".hops-code-abcdefgh"}


def test_only_old_folders_of_this_user_and_package_are_removed(temporary: Path) -> None:
    names = [
        "hops-step-train-abcd1234",
        "hops-artifact-abcd1234",
        "hops-mine",
        "hops-code-of-mine",
        "hops-job-abcd1234",
    ]
    for name in names:
        (temporary / name).mkdir(mode=0o700)
        age(temporary / name)
    (temporary / "hops-code-readable").mkdir(mode=0o755)
    age(temporary / "hops-code-readable")
    (temporary / "hops-export-new_1234").mkdir(mode=0o700)
    (temporary / "hops-uv-12345678").symlink_to(temporary / "hops-mine")
    if os.getuid() == 0:
        (temporary / "hops-step-others12").mkdir(mode=0o700)
        os.chown(age(temporary / "hops-step-others12"), 12345, 12345)
    names_there = {path.name for path in temporary.iterdir()}
    remove_left_behind(temporary)
    assert names_there - {path.name for path in temporary.iterdir()} == set(names[:2])
    remove_left_behind(temporary, "export", age_s=0)
    assert not (temporary / "hops-export-new_1234").exists()


def test_a_fork_keeps_the_folder_of_its_parent(temporary: Path) -> None:
    folder, lock = make_temporary_folder("export")
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    os.close(lock)
    try:
        remove_left_behind(temporary, age_s=0)
        assert folder.exists()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    remove_left_behind(temporary, age_s=0)
    assert not folder.exists()

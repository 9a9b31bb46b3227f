"""Tests that fail beside others, and are run once more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TESTS = """
import pathlib, pytest

@pytest.mark.xdist_group("a group/x.py")
@pytest.mark.parametrize("name", ["a@b c", "d"])
def test_first(name):
    path = pathlib.Path(name)
    was = path.exists()
    path.touch()
    assert was or name == "d"

@pytest.mark.xdist_group("other")
def test_second():
    path = pathlib.Path("second")
    was = path.exists()
    path.touch()
    assert was

@pytest.mark.parametrize("number", range(MANY))
def test_many(number):
    assert False
"""


def run(folder: Path, many: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs pytest on tests of which two fail the first time, and others each time."""
    (folder / "test_it.py").write_text(TESTS.replace("MANY", str(many)))
    command = [sys.executable, "-m", "pytest", "-p", "time_limit", "-p", "no:cacheprovider", "-q", *arguments]
    environment = {"PYTHONPATH": str(Path(__file__).parent), "PATH": ""}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


def test_few_failed_tests_are_run_again_by_their_ids(tmp_path: Path) -> None:
    failed = tmp_path / "cache" / "failed"
    first = run(tmp_path, 0, "--numprocesses", "2", "--dist", "loadgroup", "--failed", str(failed), "test_it.py")
    assert first.returncode == 1, first.stdout
    assert set(failed.read_text().splitlines()) == {"test_it.py::test_first[a@b c]", "test_it.py::test_second"}
    again = run(tmp_path, 3, "--again", str(failed), "test_it.py")
    assert (again.returncode, "2 passed" in again.stdout) == (0, True), again.stdout


def test_many_failed_tests_are_not(tmp_path: Path) -> None:
    failed = tmp_path / "failed"
    failed.write_text("of the last run\n")
    assert run(tmp_path, 4, "--failed", str(failed), "test_it.py").returncode == 1
    assert not failed.exists()

"""The demo, shown once for all tests that look at what it leaves behind."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
TIMEOUT_S = 1500


@dataclass(frozen=True)
class ShownDemo:
    """A demo that has ended.

    Attributes:
        home: Its folder.
        answer: Its exit code and what it printed.
        left: Command lines of the processes that it left behind.
    """

    home: Path
    answer: subprocess.CompletedProcess[str]
    left: list[str]


def demo_environment(**changes: str) -> dict[str, str]:
    """The environment to start a demo in."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    return {**kept, **changes}


def processes_below(home: Path) -> list[str]:
    """Command lines of the processes that work in a demo's folder, and of its warm process, which works in none."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        try:
            words = " ".join(process.info["cmdline"] or [])
            if str(home) in words or process.cwd().startswith(str(home)) or str(home) in str(process.environ()):
                found.append(" ".join(process.info["cmdline"] or []))
        except psutil.Error:
            continue
    return found


@pytest.fixture(scope="session")
def shown_demo(tmp_path_factory: pytest.TempPathFactory, runtime: Path) -> ShownDemo:
    """The whole demo."""
    home = tmp_path_factory.mktemp("demo")
    answer = subprocess.run(
        [sys.executable, "-m", "demo", "--home", str(home), "--runtime", str(runtime)],
        cwd=REPOSITORY,
        env=demo_environment(HOPS_DEMO_EXIT="1"),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    print(answer.stdout[-20000:], answer.stderr[-5000:])
    return ShownDemo(home, answer, processes_below(home))

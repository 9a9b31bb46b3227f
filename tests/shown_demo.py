"""The demo, shown once for all tests that look at what it leaves behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
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
        code: Its exit code.
        printed: What it printed.
        left: Command lines of the processes that it left behind.
    """

    home: Path
    code: int
    printed: str
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
def some_flights(flights_raw: Path, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Path:
    """The raw tables with every n-th flight (``--flights-every``): less to learn from, on the same way."""
    folder = tmp_path_factory.mktemp("flights") / "data"
    shutil.copytree(flights_raw, folder)
    name = "flights.csv"
    with zipfile.ZipFile(folder / f"{name}.zip") as archive:
        heading, *rows = archive.read(name).splitlines(keepends=True)
    with zipfile.ZipFile(folder / f"{name}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, b"".join([heading, *rows[:: pytestconfig.getoption("flights_every")]]))
    return folder


@pytest.fixture(scope="session")
def shown_demo(tmp_path_factory: pytest.TempPathFactory, runtime: Path, some_flights: Path) -> ShownDemo:
    """The demo, start to end: until the web UI is up, and then Ctrl-C is pressed."""
    home = tmp_path_factory.mktemp("demo")
    process = subprocess.Popen(
        [sys.executable, "-m", "demo", "--home", str(home), "--runtime", str(runtime)],
        cwd=REPOSITORY,
        env=demo_environment(HOPS_DEMO_EXIT="0", FLIGHTS_DATA=str(some_flights)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    killed = threading.Timer(TIMEOUT_S, process.kill)
    killed.start()
    printed = ""
    for line in process.stdout:
        printed += line
        if "until you press Ctrl-C" in line:
            break
    # Once, and not while that line is being printed.
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    printed += process.stdout.read()
    code = process.wait()
    killed.cancel()
    print(printed[-20000:])
    return ShownDemo(home, code, printed, processes_below(home))

"""The demo, shown once for all tests that look at what it leaves behind."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil
import pytest
from prometheus_process import Prometheus
from statsd_exporter import StatsdExporter
from waiting import wait_for

from airflow_hops.core.processes.lifetime import end_with_parent

REPOSITORY = Path(__file__).resolve().parent.parent
LIVE_UNTIL = ("2013-04-16", "2013-05-16", "2013-06-16")
"""Ends of the periods after which the monitor looks; the last of them has drifted."""
IDLE = ("scheduler", "dag-processor", "triggerer")
"""The components of Airflow that take a sixth of a core while nothing runs, and that no page needs."""


@dataclass
class ShownDemo:
    """A demo that has shown everything, and serves its web UI until :meth:`stop`; no DAG runs before :meth:`go_on`.

    Attributes:
        home: Its folder.
        process: The program.
        printed: What it has printed.
        openlineage: Folder of its OpenLineage events, a file for each.
        code: Its exit code, once it has ended.
    """

    home: Path
    process: subprocess.Popen[str]
    openlineage: Path
    printed: str = ""
    code: int | None = None

    def airflow_settings(self) -> dict[str, str]:
        """The environment of its Airflow.

        Raises:
            AssertionError: it has ended.
        """
        for process in self._airflow("standalone"):
            return dict(process.environ())
        raise AssertionError(f"the demo has no Airflow (any more); it printed:\n{self.printed[-5000:]}")

    def pause(self) -> None:
        """Leaves the cores to others than Airflow's components that wait for work, none of them in a transaction."""
        wait_for(self._is_paused, "a moment in which none of them uses Airflow's database", poll_s=0.2)

    def _is_paused(self) -> bool:
        for process in self._airflow(*IDLE):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()
        with contextlib.closing(sqlite3.connect(self.home / "airflow" / "airflow.db", timeout=0)) as database:
            try:
                database.execute("BEGIN EXCLUSIVE")
            except sqlite3.OperationalError:
                self.go_on()
                return False
        return True

    def go_on(self) -> None:
        """Undoes :meth:`pause`."""
        for process in self._airflow(*IDLE):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()

    def _airflow(self, *commands: str) -> Iterator[psutil.Process]:
        """Airflow's processes whose command has one of these words."""
        for process in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if not {*commands}.isdisjoint(process.cmdline()):
                    yield process

    def stop(self) -> None:
        """Presses Ctrl-C, and waits for the end."""
        if self.code is None:
            self.go_on()
            self.process.send_signal(signal.SIGINT)
            assert self.process.stdout is not None
            self.printed += self.process.stdout.read()
            self.code = self.process.wait()


def demo_environment(**changes: str) -> dict[str, str]:
    """The environment to start a demo in."""
    retained = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    return {**retained, **changes}


def processes_below(home: Path) -> list[str]:
    """Command lines of the processes that work in a demo's folder, and of its warm process, which works in none."""
    results = []
    for process in psutil.process_iter(["cmdline"]):
        try:
            words = " ".join(process.info["cmdline"] or [])
            if str(home) in words or process.cwd().startswith(str(home)) or str(home) in str(process.environ()):
                results.append(" ".join(process.info["cmdline"] or []))
        except psutil.Error:
            continue
    return results


def every_nth_flight(rows: list[bytes], nth: int) -> list[bytes]:
    """The flights of every n-th hour, as many an hour as there are; of those that the canary meets every n-th flight.

    A feature counts an hour's departures, and a rollout takes requests: one for each hour and airport. Rare
    destinations keep all of their flights, so that those of the first window are in its train split.
    """
    trained, canary, rare = b"2013-04-01", LIVE_UNTIL[-1].encode(), 60
    results = [(row.rstrip().rpartition(b",")[2], row.split(b",")[13]) for row in rows]
    retained = {*sorted({hour for hour, _ in results})[::nth]}
    counts = Counter(destination for hour, destination in results if hour < trained)
    return [
        row
        for number, (row, (hour, destination)) in enumerate(zip(rows, results, strict=True))
        if (hour in retained or 0 < counts[destination] < rare if hour < canary else number % nth == 0)
    ]


@pytest.fixture(scope="session")
def some_flights(flights_raw: Path, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Path:
    """The raw tables with every n-th flight (``--flights-every``): less to learn from, on the same way."""
    folder = tmp_path_factory.mktemp("flights") / "data"
    shutil.copytree(flights_raw, folder)
    name = "flights.csv"
    with zipfile.ZipFile(folder / f"{name}.zip") as archive:
        heading, *rows = archive.read(name).splitlines(keepends=True)
    retained = every_nth_flight(rows, pytestconfig.getoption("flights_every"))
    with zipfile.ZipFile(folder / f"{name}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, b"".join([heading, *retained]))
    return folder


def minimum_accuracy(config: pytest.Config) -> float:
    """The accuracy that is expected of so many pictures of clothes (``--pictures-every``)."""
    return 0.88 if config.getoption("pictures_every") == 1 else 0.75


@pytest.fixture(scope="session")
def demo_metrics() -> Iterator[StatsdExporter]:
    """The metrics of the demo's Airflow."""
    exporter = StatsdExporter()
    yield exporter
    exporter.stop()


@pytest.fixture(scope="session")
def demo_prometheus(
    demo_metrics: StatsdExporter, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus | None]:
    """Prometheus since the demo has begun; None if it is not installed."""
    if shutil.which("prometheus") is None:
        yield None
        return
    prometheus = Prometheus(tmp_path_factory.mktemp("prometheus") / "of-demo", demo_metrics.target, interval="2s")
    yield prometheus
    prometheus.stop()


@pytest.fixture(scope="session")
def shown_demo(
    tmp_path_factory: pytest.TempPathFactory,
    runtime: Path,
    some_flights: Path,
    demo_metrics: StatsdExporter,
    demo_prometheus: Prometheus | None,
    pytestconfig: pytest.Config,
) -> Iterator[ShownDemo]:
    """The demo, from its start until it waits for Ctrl-C with the web UI up; it stays so for the tests of the pages."""
    home, events = tmp_path_factory.mktemp("demo"), tmp_path_factory.mktemp("openlineage")
    transport = {"type": "file", "log_file_path": str(events / "event")}
    (events.parent / "openlineage.yml").write_text(json.dumps({"transport": transport}))  # JSON is YAML
    process = subprocess.Popen(
        [sys.executable, "-m", "demo", "--home", str(home), "--runtime", str(runtime), "--until", *LIVE_UNTIL],
        cwd=REPOSITORY,
        env=demo_environment(
            HOPS_DEMO_EXIT="0",
            OPENLINEAGE_CONFIG=str(events.parent / "openlineage.yml"),
            HOPS_DEMO_SCHEDULER_SLEEP_S="0.5",  # the cores are others' meanwhile
            FLIGHTS_DATA=str(some_flights),
            AIRFLOW__METRICS__STATSD_ON="True",
            AIRFLOW__METRICS__STATSD_PORT=str(demo_metrics.port),
            AIRFLOW__METRICS__STATSD_INFLUXDB_ENABLED="True",
            AIRFLOW__METRICS__LEGACY_NAMES_ON="False",
            # For the pipeline of pictures; not in the home, by which the processes of the demo are known.
            HOPS_FASHION_MNIST=str(tmp_path_factory.mktemp("pictures")),
            HOPS_FASHION_MINIMUM=str(minimum_accuracy(pytestconfig)),
        ),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=partial(end_with_parent, os.getpid()),
    )
    assert process.stdout is not None
    shown = ShownDemo(home, process, events)
    try:
        for line in process.stdout:
            shown.printed += line
            if "until you press Ctrl-C" in line:
                shown.pause()
                break
        else:
            shown.code = process.wait()
        print(shown.printed[-20000:])
        yield shown
    finally:
        shown.stop()

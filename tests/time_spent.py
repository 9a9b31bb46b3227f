"""Slowest tests and shared fixtures of a run, its time by folder and its CPU time, printed at its end.

A test that takes more CPU seconds than ``LIMIT_CPU_S`` is named at the end, and one that takes ``TOLERANCE`` times as
many fails the run, unless it is scheduled or ``COSTLY`` lists it. Its CPU seconds are those of its process and of all
processes below it, divided by how slowly the machine computes right after the test; fixtures that tests share, and what
ends after a test, are counted apart.

The CPU time of a run is that of all of its processes, in times of a fixed loop of Python, which each process of pytest
computes again and again during the run: so it is the same on a slow or busy machine. Of a whole side (``--side``), it
is limited. A test that hangs ends after ``timeout`` seconds, without those in which the run waits for a core.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import re
import signal
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_timeout
from waiting import Patience

LIMIT_CPU_S = 20.0
TOLERANCE = 2.0
"""The same work takes up to twice the CPU seconds on a core whose neighbour shares its caches and its clock."""
REFERENCE_S = 0.17
"""CPU seconds of the loop on the machine for which the limit is meant."""
COSTLY: dict[str, str] = {
    "tests/extensions/gateway/test_rollout_gateway.py::"
    "test_rollout_through_a_gateway_drops_no_request_and_outlives_gateway_and_upstream": "servers, gateway, requests",
    "tests/extensions/experiments/test_search.py::test_searches_of_a_dag": "a DAG of searches, each trial a process",
    "tests/extensions/feature_store/test_feature_store.py::test_registry_code_does_not_run": "Feast in new processes",
    "tests/extensions/feature_store/test_feature_store.py::test_unusable_input_is_named": "Feast in new processes",
    "tests/extensions/cloud_endpoints/test_deploy_sagemaker.py::"
    "test_canary_is_deployed_promoted_and_rolled_back": "the steps of a deployment, a promotion and a rollback",
    "tests/ml/statistics/test_statistics_equal_everywhere.py::test_spark_does_not_change_statistics[slices]": "Spark",
    "tests/ml/statistics/test_statistics_spark.py::test_a_dataframe_has_the_statistics_of_its_rows": "Spark's workers",
    "tests/ml/training/test_resumed_callbacks.py::test_resumed_training_is_bit_identical": "eight trainings",
    "tests/test_prepare.py::test_flights_become_examples_in_a_dag_run_and_come_from_the_cache_in_the_next": "two runs",
    "tests/test_tables.py::test_table_without_key_and_time_is_deployed_and_monitored": "a whole pipeline, with Spark",
    "tests/test_spark_executors.py::test_doctor_describes_the_executors": "a Spark master, a worker and executors",
    "tests/test_training_durable.py::test_retry_continues_the_training_of_a_killed_worker": "two trainings",
}
"""Test to the reason why it may take longer."""
SHOWN = 10
SIDES = {"airflow": 10_000, "ml": 12_000}
"""How many times the loop's CPU time all tests of a side may take."""
LOOP_EVERY = 100
"""Tests of a process after which it computes the loop again."""
LOOK_S, LAST_S = 5.0, 60.0


def _ticks(pid: int) -> int:
    """Returns the CPU time of a process, its threads, and all processes below it, ended ones included."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:  # it has ended
        return 0
    children: list[str] = []
    for task in tasks:
        with contextlib.suppress(OSError):  # a thread has ended
            children += (task / "children").read_text().split()
    return sum(map(int, fields[11:15])) + sum(_ticks(int(child)) for child in children)


def _clock() -> tuple[float, float]:
    """Returns the wall clock and the CPU seconds of this process and those below it."""
    return time.monotonic(), _ticks(os.getpid()) / os.sysconf("SC_CLK_TCK")


def _loop_s() -> float:
    """Returns the CPU seconds of a fixed loop."""
    began = time.thread_time()
    sum(number * number for number in range(4_000_000))
    return time.thread_time() - began


@dataclass
class _Spent:
    wall_s: float = 0.0
    cpu_s: float = 0.0
    own_cpu_s: float = 0.0
    """Without what ended after the test."""

    def add(self, wall_s: float, cpu_s: float) -> None:
        self.wall_s += wall_s
        self.cpu_s += cpu_s


@dataclass
class _Test:
    fixtures: list[tuple[str, float, float]] = field(default_factory=list)
    """Shared fixtures that were made for it: name, wall and CPU seconds."""
    last: tuple[float, float] = (0.0, 0.0)


_KEY = pytest.StashKey[_Test]()


class Measure:
    """Attaches to each report of a test's phase what it took, and counts the CPU time of this process of pytest."""

    def __init__(self) -> None:
        self._tests, self._loops_s = 0, [_loop_s()]

    def used(self) -> tuple[float, list[float]]:
        """Returns CPU seconds of this process and those below it, and those of the loops."""
        return _ticks(os.getpid()) / os.sysconf("SC_CLK_TCK"), [*self._loops_s, _loop_s()]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Hands the figures of a worker of pytest-xdist over."""
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["used"] = self.used()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Begins to count."""
        self._tests += 1
        if self._tests % LOOP_EVERY == 0:
            self._loops_s.append(_loop_s())
        item.stash[_KEY] = _Test(last=_clock())
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Generator[None, Any, Any]:
        """Counts a fixture that several tests share."""
        test = request._pyfuncitem.stash.get(_KEY, None)
        if fixturedef.scope == "function" or test is None:
            return (yield)
        began = _clock()
        try:
            return (yield)
        finally:
            wall, cpu = _clock()
            test.fixtures.append((f"{fixturedef.baseid}::{fixturedef.argname}", wall - began[0], cpu - began[1]))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Attaches the phase's figures, and those of the fixtures made in it."""
        report = yield
        test, now = item.stash[_KEY], _clock()
        shared = test.fixtures
        report.spent = {
            "wall_s": now[0] - test.last[0] - sum(each[1] for each in shared),
            "cpu_s": now[1] - test.last[1] - sum(each[2] for each in shared),
            "fixtures": [list(each) for each in shared],
        }
        if report.spent["cpu_s"] > LIMIT_CPU_S:
            report.spent["slowness"] = max(1.0, _loop_s() / REFERENCE_S)
        test.fixtures, test.last = [], _clock()
        return report


class Summary:
    """Prints at the end of a run what took longest, and fails the run for a test that costs too much."""

    def __init__(self, file: Path | None, side: str | None, measure: Measure) -> None:
        self._file, self._side, self._measure = file, side, measure
        self._workers: list[tuple[float, list[float]]] = []
        self._tests: dict[str, _Spent] = defaultdict(_Spent)
        self._fixtures: dict[str, _Spent] = defaultdict(_Spent)

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Adds up a test's phases."""
        spent = getattr(report, "spent", None)
        if spent is None:
            return
        test = re.sub(r"@[^\[\]]*$", "", report.nodeid)  # the group that pytest-xdist appends
        self._tests[test].add(spent["wall_s"], spent["cpu_s"])
        if report.when != "teardown" and "scheduled" not in report.keywords:
            # A long-lived process that one look missed is not counted as this test's.
            cpu_s = min(spent["cpu_s"], spent["wall_s"] * (os.cpu_count() or 1))
            self._tests[test].own_cpu_s += cpu_s / spent.get("slowness", 1.0)
        for name, wall_s, cpu_s in spent["fixtures"]:
            self._fixtures[name].add(wall_s, cpu_s)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Takes a worker's figures."""
        if used := getattr(node, "workeroutput", {}).get("used"):
            self._workers.append(used)

    def _used(self) -> tuple[float, float, float]:
        """Returns the run's CPU seconds, those of the loop, and how many times as long the run takes."""
        parts = [(time.process_time(), [_loop_s()]), *self._workers] if self._workers else [self._measure.used()]
        cpu_s, loop_s = sum(part[0] for part in parts), statistics.fmean(s for part in parts for s in part[1])
        return cpu_s, loop_s, cpu_s / loop_s

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fails the run for costly tests that are not listed, and writes all figures."""
        if self._file is not None:
            tables = {"tests": self._tests, "fixtures": self._fixtures}
            figures = {kind: {name: vars(each) for name, each in table.items()} for kind, table in tables.items()}
            self._file.write_text(json.dumps(figures, indent=1))
        self._total = self._used()
        is_over = self._side is not None and self._total[-1] > SIDES[self._side]
        if (is_over or self._costly(LIMIT_CPU_S * TOLERANCE)) and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _costly(self, limit_s: float) -> list[str]:
        return [test for test, spent in self._tests.items() if spent.own_cpu_s > limit_s and test not in COSTLY]

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Prints the tables."""
        if not self._tests:
            return
        folders: dict[str, _Spent] = defaultdict(_Spent)
        for name, spent in (*self._tests.items(), *self._fixtures.items()):
            folders[str(Path(name.partition("::")[0]).parent)].add(spent.wall_s, spent.cpu_s)
        for title, table, shown in (
            ("slowest tests", self._tests, SHOWN),
            ("slowest shared fixtures", self._fixtures, SHOWN),
            ("time by folder", folders, len(folders)),
        ):
            terminalreporter.section(f"{title}: wall and CPU seconds")
            for name, spent in sorted(table.items(), key=lambda each: -each[1].wall_s)[:shown]:
                terminalreporter.line(f"{spent.wall_s:8.1f} {spent.cpu_s:8.1f}  {name}")
        cpu_s, loop_s, loops = self._total
        text = f"{cpu_s:.0f} s of CPU, {loops:.0f} times the {loop_s:.3f} s of a fixed loop of Python"
        if self._side is not None:
            limit = SIDES[self._side]
            text += f"; at most {limit} times for side {self._side}, by tests/time_spent.py"
            text = text if loops <= limit else f"FAILED {text}: make tests cheaper, or say in a commit why it rises"
        terminalreporter.section("CPU time")
        terminalreporter.line(text)
        for test in self._costly(LIMIT_CPU_S):
            cpu_s = self._tests[test].own_cpu_s
            terminalreporter.line(
                f"{'FAILED' if cpu_s > LIMIT_CPU_S * TOLERANCE else 'COSTLY'} {test} took {cpu_s:.0f} s of CPU, at most"
                f" {LIMIT_CPU_S:.0f} are meant: make it cheaper, or list it with its reason in tests/time_spent.py"
            )


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option."""
    group = parser.getgroup("airflow-hops")
    group.addoption("--spent", type=Path, metavar="FILE", help="write what each test and shared fixture took (JSON)")
    group.addoption("--side", choices=SIDES, help="all tests of a side run, so that their CPU time is limited")


def pytest_configure(config: pytest.Config) -> None:
    """Measures where tests run, and prints where reports are collected."""
    config.pluginmanager.register(measure := Measure())
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Summary(config.getoption("spent"), config.getoption("side"), measure))


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: Any, settings: Any) -> bool:
    """Fails a test that hangs, and ends this process if that does not help, since the test does not run Python."""
    patience, over = Patience(settings.timeout, LOOK_S), threading.Event()
    signal.signal(signal.SIGALRM, lambda *_: pytest_timeout.timeout_sigalrm(item, settings))

    def watch() -> None:
        while not over.wait(LOOK_S):
            if patience.is_over():
                os.kill(os.getpid(), signal.SIGALRM)
                if not over.wait(LAST_S):
                    pytest_timeout.timeout_timer(item, settings)

    thread = threading.Thread(target=watch, name="timeout", daemon=True)
    thread.start()

    def cancel() -> None:
        over.set()
        thread.join()

    item.cancel_timeout = cancel
    return True


def pytest_collection_finish() -> None:
    """Spares each later garbage collection what was imported: a fifth of the CPU time of the quick tests."""
    gc.collect()
    gc.freeze()

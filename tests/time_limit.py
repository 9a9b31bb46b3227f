"""Tests on slow machines: Hypothesis takes its time, and none begins after ``--until``; extensions come last.

With ``--failed``, a few tests that failed beside others can be run once more, alone.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")
MOST_FAILED = 5
"""More failed tests than these are not the machine's fault."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option."""
    group = parser.getgroup("airflow-hops")
    group.addoption("--until", type=float, metavar="SECONDS", help="skip tests that would begin later (Unix time)")
    group.addoption("--failed", type=Path, metavar="FILE", help="write the ids of failed tests, unless they are many")
    group.addoption("--again", type=Path, metavar="FILE", help="run the tests whose ids --failed has written")


def pytest_configure(config: pytest.Config) -> None:
    """Collects failed tests where those of all workers are reported."""
    file = config.getoption("failed")
    if file is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(FailedTests(file))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Selects tests for ``--again``; as arguments, files of several folders would not find their fixtures."""
    file = config.getoption("again")
    if file is not None:
        ids = set(file.read_text().splitlines())
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in ids])
        items[:] = [item for item in items if item.nodeid in ids]


class FailedTests:
    """Writes the ids of failed tests, one a line, without the groups that pytest-xdist appends; none if they are many.

    Args:
        file: File for the ids.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._ids: dict[str, None] = {}
        file.unlink(missing_ok=True)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Notes a failed test."""
        if report.failed:
            self._ids[re.sub(r"(?<=[\]\w])@[^\[\]]*$", "", report.nodeid)] = None

    def pytest_sessionfinish(self) -> None:
        """Writes the ids."""
        if 0 < len(self._ids) <= MOST_FAILED:
            self._file.parent.mkdir(exist_ok=True)
            self._file.write_text("".join(f"{each}\n" for each in self._ids))


def begins_late(item: pytest.Item) -> bool:
    """Returns whether a test belongs to a group of an extension, which shares no fixtures with the trunk."""
    group = item.get_closest_marker("xdist_group")
    return group is not None and "/extensions/" in group.args[0]


@pytest.hookimpl(tryfirst=True)  # before fixtures that start something
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips a test that is late."""
    until = item.config.getoption("until")
    if until is not None and time.time() > until:
        pytest.skip("no time is left for it on this machine (--until)")

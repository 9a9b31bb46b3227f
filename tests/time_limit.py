"""Tests on slow machines: Hypothesis takes its time, and none begins after ``--until``; extensions come last."""

from __future__ import annotations

import time

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option."""
    parser.getgroup("airflow-hops").addoption(
        "--until", type=float, metavar="SECONDS", help="skip tests that would begin later (Unix time)"
    )


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

"""How long campaigns are, of tests in both environments: ``make test-faults FAULTS="--kills 50 --requests 10000"``."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("faults", "campaigns of tests that are marked 'faults'")
    group.addoption("--kills", type=int, default=50, help="how often a process is killed (default 50)")
    group.addoption("--requests", type=int, default=10_000, help="requests while all is changed (default 10000)")

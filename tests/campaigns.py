"""How long tests try: Hypothesis' examples, and campaigns (``make test-all CAMPAIGNS="--kills 50"``)."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

SLOW = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("tests", derandomize=True, **SLOW)
settings.register_profile("campaign", max_examples=1000, print_blob=True, **SLOW)
settings.load_profile("tests")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options."""
    group = parser.getgroup("airflow-hops")
    group.addoption("--kills", type=int, default=50, help="how often a process is killed (default 50)")
    group.addoption("--requests", type=int, default=10_000, help="requests while all is changed (default 10000)")


def campaign(names: str, quick: object, *long: object) -> pytest.MarkDecorator:
    """Parametrizes a test: with values for every run, and with those that take longer."""
    scheduled = pytest.mark.scheduled(part="campaigns")
    values = [each if isinstance(each, tuple) else (each,) for each in long]
    return pytest.mark.parametrize(names, [quick, *(pytest.param(*each, marks=scheduled) for each in values)])

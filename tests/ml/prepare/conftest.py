"""Settings of the shared Spark session, which prepare changes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

PARTITIONS = "spark.sql.shuffle.partitions"


@pytest.fixture(autouse=True)
def _partitions(request: pytest.FixtureRequest) -> Iterator[None]:
    """Restores the number of partitions after a test that uses the session."""
    if "spark" not in request.fixturenames:
        yield
        return
    spark = request.getfixturevalue("spark")
    number = spark.conf.get(PARTITIONS)
    yield
    spark.conf.set(PARTITIONS, number)

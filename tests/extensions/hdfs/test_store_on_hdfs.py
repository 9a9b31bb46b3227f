"""The tests of every store, on HDFS."""

from __future__ import annotations

import inspect

import pytest

from airflow_hops.core.store import ArtifactStore
from tests import test_store

pytestmark = pytest.mark.scheduled(part="hdfs")


@pytest.fixture
def any_store(hdfs_store: ArtifactStore) -> ArtifactStore:
    return hdfs_store


globals().update(
    (name, test)
    for name, test in vars(test_store).items()
    if name.startswith("test_") and "any_store" in inspect.signature(test).parameters
)

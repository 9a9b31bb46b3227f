"""Fixtures of HDFS."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hdfs_cluster import HdfsCluster

from airflow_hops.core.store import ArtifactStore


@pytest.fixture(scope="session")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """An HDFS that tests leave in order."""
    with HdfsCluster(tmp_path_factory.mktemp("hdfs")) as cluster:
        yield cluster


@pytest.fixture
def hdfs_store(hdfs: Any, tmp_path: Path) -> Any:
    """An artifact store of the test's own in HDFS."""
    return ArtifactStore(f"{hdfs.url}/{tmp_path.name}/hops", local_cache=str(tmp_path / "cache"))

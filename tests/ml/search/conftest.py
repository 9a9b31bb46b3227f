"""Fixtures of searches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from searches import Searches

from airflow_hops.core.store import ArtifactStore


@pytest.fixture
def searches(store: ArtifactStore, tmp_path: Path, own_process: Any) -> Searches:
    """Runs the search stage in a process of its own, in the test's own store."""
    return Searches(store, tmp_path, own_process)

"""Fixtures of trainings: examples, and what trains on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_hops.core.contract.artifacts import Artifact
from airflow_hops.core.store import ArtifactStore
from tests.ml.train.trainings import Trainings


@pytest.fixture(scope="session")
def examples(write_examples: Callable[..., Artifact]) -> Artifact:
    """1001 rows in three files to train on, and 201 to measure."""
    return write_examples(train=[700, 3, 298], eval=[201])


@pytest.fixture(scope="session")
def trainings(shared_store: ArtifactStore, tmp_path_factory: pytest.TempPathFactory, own_process: Any) -> Trainings:
    """Runs the train stage in a process of its own."""
    return Trainings(shared_store, tmp_path_factory.mktemp("trainings"), own_process)

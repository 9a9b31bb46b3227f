"""Fixtures of trainings: examples, and what trains on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.store import ArtifactStore
from tests.ml.training.trainings import Trainings


@pytest.fixture(scope="session")
def examples(write_examples: Any) -> Artifact:
    """1001 rows in three files to train on, and 201 to measure."""
    return write_examples(train=[700, 3, 298], eval=[201])


@pytest.fixture(scope="session")
def two_files(write_examples: Any) -> Artifact:
    """391 rows in two files to train on."""
    return write_examples(train=[301, 90], eval=[80])


@pytest.fixture(scope="session")
def trainings(shared_store: ArtifactStore, tmp_path_factory: pytest.TempPathFactory, own_process: Any) -> Trainings:
    """Runs the train stage in a process of its own."""
    return Trainings(shared_store, tmp_path_factory.mktemp("trainings"), own_process)


@pytest.fixture(scope="session")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1,000 numbered rows in files and row groups of different sizes."""
    folder = tmp_path_factory.mktemp("numbers")
    for index, (low, high) in enumerate([(0, 411), (411, 420), (420, 1000)]):
        rows = pa.table({"number": np.arange(low, high)})
        pq.write_table(rows, folder / f"part-{index}.parquet", row_group_size=70)
    return folder

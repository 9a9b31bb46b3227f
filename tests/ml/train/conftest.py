"""Fixtures of trainings: examples, and what trains on them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from trainings import Trainings

from airflow_hops.contract.artifacts import Artifact
from airflow_hops.store import ArtifactStore

sys.path.append(str(Path(__file__).parents[2] / "runtime_checks"))  # training functions, and small examples


def reference(kind: str) -> Artifact:
    """An artifact that nobody opens."""
    return Artifact(f"file:///store/{kind}", kind, "0" * 64)


@pytest.fixture(scope="session")
def write_examples(run_shared_stage: Callable[..., Any]) -> Callable[..., Artifact]:
    """Writes transformed examples, with so many rows in each file: ``write_examples(train=[301, 90], eval=[80])``."""
    import transformed_examples

    def write(**rows: list[int]) -> Artifact:
        inputs = {kind: reference(kind) for kind in ("statistics", "schema")}
        return run_shared_stage(transformed_examples.write, kind="transformed_examples", inputs=inputs, rows=rows)

    return write


@pytest.fixture(scope="session")
def examples(write_examples: Callable[..., Artifact]) -> Artifact:
    """1001 rows in three files to train on, and 201 to measure."""
    return write_examples(train=[700, 3, 298], eval=[201])


@pytest.fixture(scope="session")
def trainings(shared_store: ArtifactStore, tmp_path_factory: pytest.TempPathFactory, own_process: Any) -> Trainings:
    """Runs the train stage in a process of its own."""
    return Trainings(shared_store, tmp_path_factory.mktemp("trainings"), own_process)

"""Fixtures of the tests of fleets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.models.model_record import ModelRecord, ServedVersion
from airflow_hops.core.models.model_records import read_record, write_record
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.fleet.ml import stage
from airflow_hops.extensions.fleet.ml.fleet_files import OpenFleet


@pytest.fixture
def train(run_stage: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Artifact]:
    """Trains a fleet of shops: ``train(examples, model="trees")``; ``before`` is the fleet before."""
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--master local[2] pyspark-shell")

    def run(
        examples: Artifact, *, before: Artifact | None = None, run_id: str | None = None, **options: Any
    ) -> Artifact:
        inputs = {"examples": examples, **({"champion": before} if before else {})}
        options = {"segment": "shop", **options}
        return run_stage(stage.run, kind="model", inputs=inputs, run_id=run_id, task_id="train", **options)

    return run


@pytest.fixture
def opened(store: ArtifactStore) -> Callable[[Artifact], OpenFleet]:
    return lambda artifact: OpenFleet.read(store, artifact)


@pytest.fixture
def serve(store: ArtifactStore) -> Callable[[Artifact, int], None]:
    """Records a fleet as the champion of ``shops``."""

    def run(artifact: Artifact, version: int) -> None:
        record = read_record(store, "shops")
        facts = {"fingerprint": artifact.fingerprint, "model": artifact.uri}
        served = ServedVersion.of(artifact, version, "", 100)
        history = ModelRecord(champion=served, challenger=None, history=record.history)
        write_record(store, "shops", history.after("deployed", version, "test", **facts))

    return run

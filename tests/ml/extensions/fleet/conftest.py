"""Fixtures of the tests of fleets."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import shops

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.models.model_record import ModelRecord, ServedVersion
from airflow_hops.core.models.model_records import read_record, write_record
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.fleet.ml.fleet_files import OpenFleet


@pytest.fixture
def train(store: ArtifactStore, tmp_path: Path, own_process: Callable[..., Any]) -> Callable[..., Artifact]:
    """Trains a fleet of shops: ``train(examples, model="trees")``; ``before`` is the fleet before."""

    def run(
        examples: Artifact | None, *, before: Artifact | None = None, run_id: str | None = None, **options: Any
    ) -> Artifact:
        named = {"examples": examples, "champion": before}
        named |= {role: options.pop(role) for role in ("skew", "schema") if role in options}
        inputs = {role: artifact for role, artifact in named.items() if artifact}
        options = {"segment": "shop", "inputs": inputs, "run_id": run_id, **options}
        # Processes that are forked where TensorFlow has begun, as by other tests, hang in Keras.
        is_keras = options.get("model") == "segment_models:dense"
        trained = partial(own_process, shops.train_here) if is_keras else shops.train_here
        result: Artifact = trained(store.root, tmp_path, **options)
        return result

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

"""Fixtures of the tests of fleets."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import shops

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.models.model_record import ModelRecord, ServedVersion, read_record, write_record
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.fleet.ml.fleet_files import OpenFleet


@pytest.fixture
def train(store: ArtifactStore, tmp_path: Path, own_process: Callable[..., Any]) -> Callable[..., Artifact]:
    """Trains a fleet of shops on examples, or on splits that it writes first: ``train(splits, model="trees")``.

    ``before`` is the fleet before; ``problem`` and ``weight`` are properties of the examples.
    """
    runs = itertools.count(1)

    def run(
        examples: Artifact | dict[str, pa.Table] | None, *, before: Artifact | None = None, **options: Any
    ) -> Artifact:
        properties = {name: options.pop(name) for name in ("problem", "weight") if name in options}
        if isinstance(examples, dict):
            examples = shops.write(store, examples, run_id=f"written-{next(runs)}", **properties)
        named = {"examples": examples, "champion": before}
        named |= {role: options.pop(role) for role in ("skew", "schema") if role in options}
        options = {"segment": "shop", "inputs": {role: each for role, each in named.items() if each}, **options}
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

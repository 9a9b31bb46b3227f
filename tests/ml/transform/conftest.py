"""Fixtures of the transform's tests: the columns of the flights, and figures of them."""

from __future__ import annotations

import pytest

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.store import ArtifactStore
from airflow_hops.ml.features.constants import Constants
from airflow_hops.ml.features.feature_specs import FeatureSpecs, read_raw_features


@pytest.fixture(scope="session")
def specs(shared_store: ArtifactStore, flights_schema: Artifact) -> FeatureSpecs:
    path = shared_store.local(flights_schema) / "schema.pbtxt"
    raw = read_raw_features(path, label="late", key="flight_id", time="scheduled_at")
    return FeatureSpecs(raw, "late", "flight_id", "scheduled_at", {})


@pytest.fixture
def constants(shared_store: ArtifactStore, flights_statistics: Artifact) -> Constants:
    """Figures of the train split, of which none is used yet."""
    return Constants.read(shared_store.local(flights_statistics) / "train" / "FeatureStats.pb")

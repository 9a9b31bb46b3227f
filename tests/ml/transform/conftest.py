"""Fixtures of the transform's tests: the columns of the flights, and figures of them."""

from __future__ import annotations

import pytest

from airflow_hops.ml.features.constants import Constants
from airflow_hops.ml.features.feature_specs import FeatureSpecs, read_raw_features
from tests.ml.world import Flights


@pytest.fixture(scope="session")
def specs(flights: Flights) -> FeatureSpecs:
    path = flights.store.local(flights.schema) / "schema.pbtxt"
    raw = read_raw_features(path, label="late", key="flight_id", time="scheduled_at")
    return FeatureSpecs(raw, "late", "flight_id", "scheduled_at", {})


@pytest.fixture
def constants(flights: Flights) -> Constants:
    """Figures of the train split, of which none is used yet."""
    return Constants.read(flights.store.local(flights.statistics) / "train" / "FeatureStats.pb")

"""Stores, models and captured rows written under one profile and read under the other.

``write_portable.py`` writes the fixtures.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from write_portable import ROWS, assert_same_outputs

from airflow_hops.core.profiles import PROFILES
from airflow_hops.core.store import ArtifactStore
from airflow_hops.ml.captured.requests import CapturedRequests
from airflow_hops.ml.features.constants import Constants
from airflow_hops.ml.features.raw_features import read_rows
from airflow_hops.ml.readers.artifact_files import example_files
from airflow_hops.ml.schema.anomalies import find_anomalies
from airflow_hops.ml.statistics import generate_statistics

HERE = Path(os.environ.get("HOPS_TEST_PORTABLE", Path(__file__).parent))
"""Folder that the upgrade test has another version write."""
MODELS = ("flights", "keras", "onnx")


@pytest.fixture(params=[profile.name for profile in PROFILES])
def written(request: pytest.FixtureRequest) -> Path:
    return HERE / request.param


@pytest.fixture
def places(written: Path) -> dict[str, str]:
    """Returns the addresses of artifacts by kind."""
    uris = json.loads((written / "artifacts.json").read_text())
    return {kind: (written / "store").as_uri() + uri for kind, uri in uris.items()}


def test_manifests_name_the_profile(written: Path, places: dict[str, str]) -> None:
    store = ArtifactStore(str(written / "store"))
    for kind, uri in places.items():
        manifest = store.manifest(uri)
        assert (manifest.kind, manifest.profile) == (kind, written.name)
        assert not list(store.damages(uri, manifest))


def test_statistics_of_examples_equal_those_that_were_written(written: Path, places: dict[str, str]) -> None:
    import tensorflow_data_validation as tfdv

    store = ArtifactStore(str(written / "store"))
    examples, statistics, schema = (
        store.local(store.manifest(places[kind]).reference(places[kind]))
        for kind in ("examples", "statistics", "schema")
    )
    stored = tfdv.load_stats_binary(str(statistics / "train" / "FeatureStats.pb"))
    frozen = tfdv.load_schema_text(str(schema / "schema.pbtxt"))
    after = generate_statistics(examples / "train", options=tfdv.StatsOptions(schema=frozen))
    assert not find_anomalies(stored, frozen).anomaly_info
    again = {tuple(each.path.step): each for each in after.datasets[0].features}
    assert len(stored.datasets[0].features) > 20
    for feature in stored.datasets[0].features:
        other = again[tuple(feature.path.step)]
        assert other.num_stats.mean == pytest.approx(feature.num_stats.mean, rel=1e-9, nan_ok=True)
        assert other.string_stats.unique == feature.string_stats.unique
        assert other.num_stats.common_stats == feature.num_stats.common_stats
    assert Constants.read(statistics / "train" / "FeatureStats.pb").mean("distance") > 100
    files = example_files(examples, "eval")
    ((arrays, batch),) = read_rows(files, {"carrier": "string", "distance": "float32"}, others=["late"])
    assert len(arrays["carrier"]) == batch.num_rows >= ROWS


@pytest.mark.parametrize("name", MODELS)
def test_a_model_predicts_the_same(written: Path, name: str) -> None:
    answers = json.loads((written / "answers.json").read_text())[name]
    assert_same_outputs(written / "models" / name, answers)


def test_captured_rows_are_read(written: Path, tmp_path: Path) -> None:
    captured = CapturedRequests(str(written / "captured"), "flights")
    (file,) = captured.fetch(captured.names(), tmp_path)
    table: Any = pd.read_parquet(file.path)
    assert len(table) == ROWS
    assert table["request_id"].eq("request-0").all() and table["input.distance"].gt(100).all()

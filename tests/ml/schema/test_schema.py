"""Inference of schemas; the step returns a frozen one untouched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tensorflow_metadata.proto.v0 import schema_pb2

from airflow_hops.core.errors import BadInput
from airflow_hops.ml.schema import SCHEMA_FILE, load_schema
from airflow_hops.ml.schema import stage as schema
from airflow_hops.ml.schema.comparators import compared_features
from airflow_hops.ml.statistics import generate_statistics
from airflow_hops.ml.statistics import stage as feature_statistics
from tests import flights_examples
from tests.ml.world import Flights, World


class Inferred:
    def __init__(self, found: Any) -> None:
        self.schema = found
        self.features = {feature.name: feature for feature in found.feature}
        self._domains = {domain.name: list(domain.value) for domain in found.string_domain}

    def type(self, name: str) -> str:
        return str(schema_pb2.FeatureType.Name(self.features[name].type))

    def domain(self, name: str) -> list[str] | None:
        return self._domains.get(self.features[name].domain)

    def thresholds(self, name: str) -> list[tuple[str, float]]:
        """Measure and threshold of the skew comparator and of the drift comparator."""
        return [
            (measure.name, value.threshold)
            for comparator in (self.features[name].skew_comparator, self.features[name].drift_comparator)
            for measure, value in comparator.ListFields()
        ]


@pytest.fixture(scope="module")
def inferred(flights: Flights) -> Inferred:
    return Inferred(load_schema(flights.store.local(flights.schema) / SCHEMA_FILE))


def test_schema_has_types_domains_presence_and_comparators(inferred: Inferred) -> None:
    assert set(inferred.features) == {"late", "scheduled_at", *flights_examples.FEATURES}
    assert [inferred.type(name) for name in ("carrier", "weekday", "late", "temp")] == ["BYTES", "INT", "INT", "FLOAT"]
    absent = {name: list(f.not_in_environment) for name, f in inferred.features.items() if f.not_in_environment}
    assert absent == {"late": ["SERVING"]}
    domain = inferred.features["late"].int_domain
    assert (domain.min, domain.max) == (0, 1)
    assert inferred.domain("origin") == ["EWR", "JFK", "LGA"]
    assert len(inferred.domain("dest") or []) > 80
    least = {name: feature.presence.min_fraction for name, feature in inferred.features.items()}
    assert least["carrier"] == least["distance"] == 1.0
    assert 0.7 < least["plane_manufacturer"] < 0.8
    assert 0.85 < least["temp"] < 0.9
    compared = compared_features(inferred.schema, "skew")
    assert compared == compared_features(inferred.schema, "drift") == dict.fromkeys(flights_examples.FEATURES)


@pytest.mark.parametrize(("problem", "bounds"), [("binary", (0.0, 1.0)), ("regression", None), (None, (0.0, 1.0))])
def test_regression_label_stays_numeric_with_only_0_and_1(
    problem: str | None, bounds: tuple[float, float] | None
) -> None:
    result = generate_statistics(pa.table({"share": [0.0, 1.0, 1.0]}))
    (label,) = schema.infer_schema(result, label="share", problem=problem).feature
    domain = label.float_domain
    assert ((domain.min, domain.max) if label.HasField("float_domain") else None) == bounds


def test_thresholds_come_from_the_arguments(flights: Flights) -> None:
    comparators = {"carrier": {"infinity_norm": 0.01}, "temp": {"jensen_shannon": 0.3}, "dest": {"distance": 0.2}}
    result = flights.run(schema, statistics=flights.statistics, distance=0.1, comparators=comparators)
    inferred = Inferred(load_schema(flights.store.local(result) / SCHEMA_FILE))
    assert inferred.thresholds("carrier")[0] == ("infinity_norm", 0.01)
    assert inferred.thresholds("temp")[1] == ("jensen_shannon_divergence", 0.3)
    thresholds = compared_features(inferred.schema, "skew")
    assert (thresholds["origin"], thresholds["dest"], thresholds["temp"]) == (0.1, 0.2, None)
    assert inferred.domain("origin")


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"distance": 1.5}, "distance is 1.5, expected 0 to 1"),
        ({"comparators": {"temp": {"jensen_shannon": 2}}}, r"comparators\['temp'\]\['jensen_shannon'\] is 2, expected"),
        ({"comparators": {"tmp": {}}}, "comparators: feature 'tmp' is not in the statistics; there are carrier, dest"),
        ({"comparators": {"temp": {"psi": 0.1}}}, "measure is 'psi', expected one of distance, infinity_norm, j"),
        ({"comparators": {"temp": {"infinity_norm": 0.1}}}, r"\['temp'\]: TFDV has infinity_norm only for strings"),
        ({"comparators": {"temp": 0.1}}, r"comparators\['temp'\] is 0.1, expected thresholds by measure"),
        ({"environments": ["SERVING"]}, r"environments is \['SERVING'\], expected a mapping"),
        ({"environments": {"SERVING": "late"}}, r"environments\['SERVING'\] is 'late', expected a name with the list"),
        ({"environments": {"SERVING": ["lat"]}}, r"environments\['SERVING'\]: feature 'lat' is not in the statistics"),
    ],
)
def test_bad_thresholds_are_named(flights: Flights, params: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        flights.run(schema, statistics=flights.statistics, **params)


@pytest.mark.parametrize(
    ("split", "words"), [("eval", "no statistics of the split 'train'"), ("train", "label 'late' is not in")]
)
def test_statistics_without_a_train_split_or_the_label_are_refused(world: World, split: str, words: str) -> None:
    statistics = world.run(feature_statistics, examples=world.examples({split: {"x": [1, 2]}}, label="late"))
    with pytest.raises(BadInput, match=words):
        world.run(schema, statistics=statistics)


def test_schema_is_inferred_from_a_source(world: World, tmp_path: Path) -> None:
    (tmp_path / "flights.csv").write_text("carrier,delay\nUA,1.5\nAA,2\n")
    source = {"source": {"uri": str(tmp_path / "flights.csv")}, "split": "data"}
    result = world.run(schema, statistics=world.run(feature_statistics, source=source))
    assert result.properties["features"] == ["carrier", "delay"]


def test_the_step_returns_a_frozen_schema_untouched(flights: Flights) -> None:
    first, again = (
        flights.run(schema, statistics=flights.statistics, run_id="frozen", distance=value) for value in (0.05, 0.9)
    )
    assert (again.uri, again.fingerprint) == (first.uri, first.fingerprint)

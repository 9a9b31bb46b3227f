"""New examples against what the champion was trained on: faults of the pipeline are errors, drift is reported."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.ml import validation
from airflow_hops.ml.schema import stage as schema_stage
from airflow_hops.ml.statistics import stage as feature_statistics
from tests.ml.world import Flights, World

Columns = dict[str, Any]
CHAMPION = "version 3 of 'weather'"


def columns(seed: int, rows: int = 3000) -> Columns:
    """Weather in Celsius, and what goes with it."""
    random = np.random.default_rng(seed)
    celsius = random.normal(12, 8, rows)
    return {
        "temp": celsius,
        "dewp": celsius - random.gamma(2.0, 3.0, rows) - 8,
        "pressure": random.normal(1017, 7, rows),
        "wind": random.gamma(3.0, 3.0, rows),
        "rain": np.where(random.random(rows) < 0.9, 0.0, random.lognormal(0, 1, rows)),
        "stars": random.choice([1, 2, 3, 4, 5], rows, p=[0.1, 0.1, 0.2, 0.3, 0.3]),
        "city": random.choice(["Oslo", "Rome", "Bern"], rows, p=[0.5, 0.3, 0.2]),
        "wet": (random.random(rows) < 0.3).astype(int),
    }


def statistics_of(world: World, train: Columns, evaluation: Columns | None = None) -> Artifact:
    examples = world.examples({"train": train, "eval": evaluation or columns(90, 1000)}, label="wet")
    artifact: Artifact = world.run(feature_statistics, examples=examples)
    return artifact


def frozen(world: World, statistics: Artifact) -> dict[str, Artifact]:
    """Returns statistics of a champion, and the schema that was frozen with them."""
    return {"champion": statistics, "schema": world.run(schema_stage, statistics=statistics)}


class Validate:
    """Validates statistics with a schema and a champion."""

    def __init__(self, world: World) -> None:
        self.world, self.champion = world, frozen(world, statistics_of(world, columns(1)))

    def __call__(
        self,
        train: Columns,
        evaluation: Columns | None = None,
        inputs: dict[str, Artifact] | None = None,
        champion: str | None = CHAMPION,
        **params: Any,
    ) -> tuple[Artifact, Any]:
        inputs = {**(inputs or self.champion), "statistics": statistics_of(self.world, train, evaluation)}
        artifact = self.world.run(validation, inputs=inputs, champion=champion, **params)
        return artifact, self.world.read(artifact, "anomalies.json")


@pytest.fixture(scope="module")
def validate(flights: Flights) -> Validate:
    return Validate(flights)


def partly(values: Any, changed: Any, share: float) -> Any:
    return np.where(np.random.default_rng(5).random(len(values)) < share, changed, values)


def swap(given: Columns, one: str, other: str) -> Columns:
    return {**given, one: given[other], other: given[one]}


FAULTS: dict[str, tuple[Callable[[Columns], Columns], str, str]] = {
    "half of the rows in Fahrenheit": (
        lambda c: {**c, "temp": partly(c["temp"], c["temp"] * 1.8 + 32, 0.5)},
        "temp",
        r"unit change \(Celsius to Fahrenheit, in about (49|50|51)% of the rows\)",
    ),
    "a fifth of the rows in Fahrenheit": (
        lambda c: {**c, "temp": partly(c["temp"], c["temp"] * 1.8 + 32, 0.2)},
        "temp",
        r"unit change \(Celsius to Fahrenheit, in about (19|20|21|22)% of the rows\)",
    ),
    "a third of the rows in pascal": (
        lambda c: {**c, "pressure": partly(c["pressure"], c["pressure"] * 100, 0.33)},
        "pressure",
        r"unit change \(hPa to pascal, in about 3\d% of the rows\)",
    ),
    "in other units": (lambda c: {**c, "wind": c["wind"] * 1e3}, "wind", r"unit change \(thousand\)"),
    "swapped numbers": (lambda c: swap(c, "dewp", "temp"), "dewp", r"swapped \(values of 'temp'\)"),
    "swapped in half of the rows": (
        lambda c: {
            **c,
            "pressure": partly(c["pressure"], c["wind"], 0.5),
            "wind": partly(c["wind"], c["pressure"], 0.5),
        },
        "wind",
        r"swapped \(values of 'pressure', in about (49|50|51)% of the rows\)",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_pipeline_faults_are_errors(validate: Validate, fault: str) -> None:
    change, feature, words = FAULTS[fault]
    artifact, report = validate(change(columns(2)))
    (anomaly,) = [one for one in report["anomalies"] if one["feature"] == feature and one["severity"] == "error"]
    assert anomaly["split"] == "train"
    assert f"training data of {CHAMPION}" in anomaly["description"]
    assert "Correct the source and run again" in anomaly["description"]
    assert re.search(words, anomaly["description"]), anomaly["description"]
    assert artifact.metrics["errors"] >= 1
    assert report["champion"]["verdicts"] == {"train": "pipeline_fault", "eval": "stable"}


def test_a_fault_of_the_evaluation_split_is_an_error(validate: Validate) -> None:
    broken = columns(4, 1000)
    broken["temp"] = broken["temp"] * 1.8 + 32
    _, report = validate(columns(3), broken)
    assert [(one["split"], one["feature"], one["severity"]) for one in report["anomalies"]] == [
        ("eval", "temp", "error")
    ]


DRIFT: dict[str, Callable[[Columns], Columns]] = {
    "warmer and better": lambda c: {
        **c,
        "temp": c["temp"] + 14,
        "stars": np.minimum(c["stars"] + 1, 5),
        "wind": c["wind"] * 7.3,
    },
    "other cities, wetter": lambda c: {
        **c,
        "city": np.where(c["temp"] > 12, "Rome", c["city"]),
        "wet": np.where(c["temp"] > 12, 1, c["wet"]),
    },
}


@pytest.mark.parametrize("drift", DRIFT)
def test_drift_is_reported_without_consequences(validate: Validate, drift: str) -> None:
    artifact, report = validate(DRIFT[drift](columns(2)))
    assert {one["severity"] for one in report["anomalies"]} == {"warning"}
    assert len(report["anomalies"]) >= 2
    assert report["champion"]["verdicts"] == {"train": "drift", "eval": "stable"}
    assert (artifact.metrics["errors"], artifact.metrics["warnings"]) == (0, 0)  # on which on_anomaly acts
    assert f"training data of {CHAMPION}" in artifact.properties["drift"][0]


def test_unchanged_data_has_no_anomaly(validate: Validate) -> None:
    artifact, report = validate(columns(10))
    assert report["anomalies"] == []
    assert artifact.metrics["warnings"] == 0


def test_short_splits_of_two_seasons_are_not_a_unit_change(flights: Flights, validate: Validate) -> None:
    """The temperatures of the two short splits differ by the factor from miles to kilometres."""
    cold, warm = np.random.default_rng(11).normal(45, 8, (2, 1500))
    year = columns(9) | {"temp": np.random.default_rng(12).normal(52, 20, 3000)}
    champion = frozen(flights, statistics_of(flights, year, columns(90, 1500) | {"temp": cold}))
    _, report = validate(year, columns(91, 1500) | {"temp": warm * 1.609344}, champion)
    assert report["champion"]["verdicts"] == {"train": "stable", "eval": "drift"}


def test_other_columns_and_few_rows_are_not_faults(validate: Validate) -> None:
    without = {name: values for name, values in columns(6).items() if name != "wind"} | {"new": columns(6)["wind"]}
    _, report = validate(without, columns(7, 50))
    assert {(one["feature"], one["types"][0]) for one in report["anomalies"] if one["split"] == "train"} == {
        ("wind", "SCHEMA_MISSING_COLUMN"),
        ("new", "SCHEMA_NEW_COLUMN"),
    }
    assert report["champion"]["verdicts"] == {"train": "stable", "eval": None}


def test_incomparable_champion_is_reported(validate: Validate) -> None:
    artifact, _ = validate(columns(8), champion=None, not_compared=f"{CHAMPION}: its statistics are gone.")
    (warning,) = artifact.properties["drift"]
    assert "Not compared with the champion's training data" in warning and "its statistics are gone" in warning

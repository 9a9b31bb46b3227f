"""Fixtures of the stages after the schema: flights prepared, transformed, and small models of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import flights_examples
import pytest

TESTS = Path(__file__).parent
FLIGHTS_CODE = (str(TESTS.parent / "dags"), str(TESTS / "runtime_checks"))


@pytest.fixture(scope="session")
def flights_prepared(shared_run_step: Any, flights_raw: Path) -> Any:
    """Examples of a part of the flights of January to March: splits train, eval and newest (the last days)."""
    winter = flights_examples.months(flights_raw, 1, 3)
    newest = winter["scheduled_at"] > winter["scheduled_at"].max() - 3 * 86_400
    before = winter[~newest]
    splits = {
        "train": before[before.index % 8 == 0],
        "eval": before[before.index % 16 == 1],
        "newest": winter[newest].iloc[::2],
    }
    return flights_examples.write_examples(shared_run_step.store, splits, run_id="models")


@pytest.fixture(scope="session")
def flights_transformed(
    shared_run_step: Any, runtime: Path, flights_prepared: Any, flights_statistics: Any, flights_schema: Any
) -> Any:
    """Those examples, transformed by the flights pipeline's own features on Spark."""
    from airflow_hops.launchers.spark import SparkLauncher

    return shared_run_step(
        "airflow_hops.runtime.transform.stage:run",
        params={"preprocess": "flights.features:preprocess"},
        inputs={"examples": flights_prepared, "statistics": flights_statistics, "schema": flights_schema},
        kind="transformed_examples",
        code_paths=FLIGHTS_CODE,
        launcher=SparkLauncher(runtime, "spark_local"),
    )


@pytest.fixture(scope="session")
def make_flights_model(shared_run_step: Any, warm_launcher: Any, flights_transformed: Any) -> Any:
    """Makes a model artifact: ``make_flights_model(steps=200)`` has learnt, ``steps=0`` guesses."""

    def make(**params: Any) -> Any:
        return shared_run_step(
            "transform_checks:write_model",
            params=params,
            inputs={"transformed": flights_transformed},
            kind="model",
            code_paths=FLIGHTS_CODE,
            launcher=warm_launcher,
        )

    return make


@pytest.fixture(scope="session")
def flights_model(make_flights_model: Any) -> Any:
    """A model that has learnt something."""
    return make_flights_model(steps=200)

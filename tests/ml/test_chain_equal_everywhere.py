"""From a raw file to transformed examples: equal bytes on one core and on several, on DuckDB and on Spark."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest

from airflow_hops.core.contract.sources import Source
from airflow_hops.core.store import ArtifactStore
from airflow_hops.ml.features.preprocessing import bucketize, columns, one_hot, vocabulary_ids
from airflow_hops.ml.stages import schema, statistics
from airflow_hops.ml.stages.ingest import stage as ingest
from airflow_hops.ml.stages.prepare import stage as prepare
from airflow_hops.ml.stages.transform import stage as transform
from tests.ml.conftest import stage_runner

pytestmark = [pytest.mark.runtime, pytest.mark.spark]

ROWS = 120_000  # statistics of fewer bytes are computed in one process


def on_duckdb(connection: Any, tables: Any) -> Any:
    return connection.sql("SELECT *, amount / 7 AS share FROM orders")


def on_spark(spark: Any, tables: Any) -> Any:
    return tables["orders"].selectExpr("*", "amount / 7 AS share")


def preprocess(features: Any, constants: Any) -> Any:
    """Puts rows into buckets whose bounds are the figures that sketches would get wrong."""
    quarters = bucketize(features["amount"], constants.quantiles("amount", 4))
    above = bucketize(features["share"], [constants.median("share")])
    city = vocabulary_ids(features["city"], constants.vocabulary("city", top_k=50))
    return {"numbers": columns([one_hot(quarters, 4), one_hot(above, 2)]), "city": city}


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Orders of floats that are all different, and of cities of which many are equally frequent."""
    random = np.random.default_rng(54)
    table = pa.table(
        {
            "id": [f"order-{number}" for number in random.permutation(ROWS)],
            "amount": random.lognormal(3, 2, ROWS) - 10,
            "city": [f"city {number}" for number in random.integers(0, 300, ROWS)],
            "note": [f"{number:040x}" for number in random.integers(0, 2**62, ROWS)],
            "late": random.integers(0, 2, ROWS),
        }
    )
    path = tmp_path_factory.mktemp("raw") / "orders.csv"
    pa.csv.write_csv(table, path)
    return path


def until_schema(
    run_stage: Callable[..., Any], raw: Path, engine: str, of_statistics: dict[str, Any]
) -> dict[str, Any]:
    """Runs the stages before the transform; returns their artifacts by name."""
    sys.modules["orders"] = SimpleNamespace(duckdb=on_duckdb, spark=on_spark)  # type: ignore[assignment]
    sources = {"orders": Source.from_value("orders", str(raw)).to_dict()}
    columns = {"label": "late", "key": "id"}
    snapshot = run_stage(ingest.run, kind="snapshot", sources=sources)
    inputs = {"tables": snapshot}
    examples = run_stage(
        prepare.run, kind="examples", inputs=inputs, prepare=f"orders:{engine}", engine=engine, **columns
    )
    figures = run_stage(statistics.run, kind="statistics", inputs={"examples": examples}, **of_statistics)
    frozen = run_stage(schema.run, kind="schema", inputs={"statistics": figures})
    return {"snapshot": snapshot, "examples": examples, "statistics": figures, "schema": frozen}


def transformed(run_stage: Callable[..., Any], artifacts: dict[str, Any]) -> dict[str, Any]:
    sys.modules["orders"] = SimpleNamespace(preprocess=preprocess)  # type: ignore[assignment]
    os.environ["PYSPARK_SUBMIT_ARGS"] = "--master local[*] pyspark-shell"
    inputs = {role: artifacts[role] for role in ("examples", "statistics", "schema")}
    kind = "transformed_examples"
    return {**artifacts, kind: run_stage(transform.run, kind=kind, inputs=inputs, preprocess="orders:preprocess")}


def transform_in(folder: Path, artifacts: dict[str, Any]) -> dict[str, Any]:
    return transformed(stage_runner(ArtifactStore(f"{folder}/store"), folder), artifacts)


def chain(folder: Path, raw: Path, cores: int, **of_statistics: Any) -> dict[str, Any]:
    """Runs all stages on so many cores; returns the files of each artifact with their checksums."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    store = ArtifactStore(f"{folder}/store")
    run_stage = stage_runner(store, folder)
    return files(store, transformed(run_stage, until_schema(run_stage, raw, "duckdb", of_statistics)))


def files(store: ArtifactStore, artifacts: dict[str, Any]) -> dict[str, Any]:
    return {name: store.manifest(artifact.uri).files for name, artifact in artifacts.items()}


def test_cores_and_engines_do_not_change_transformed_examples(
    spark: Any,
    run_stage: Callable[..., Any],
    own_process: Callable[..., Any],
    store: ArtifactStore,
    raw: Path,
    tmp_path: Path,
) -> None:
    # Each in a process of its own, as steps are: TensorFlow numbers the functions of a process.
    several = own_process(chain, tmp_path, raw, 5, processes=5)
    assert own_process(chain, tmp_path, raw, 1) == several
    on_executors = until_schema(run_stage, raw, "spark", {"engine": "spark"})
    assert files(store, own_process(transform_in, tmp_path, on_executors)) == several

"""Embeddings as features: from raw files to a served model, and to their drift in captured requests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from airflow_hops.core.artifacts.artifact import Artifact, RowCounts
from airflow_hops.core.artifacts.properties import ModelProperties
from airflow_hops.core.errors import BadInput
from airflow_hops.core.sources.sources import Source
from airflow_hops.ml import infra_validate, ingest, prepare, validation
from airflow_hops.ml.evaluate import stage as evaluate
from airflow_hops.ml.features.feature_specs import FeatureSpecs, read_raw_features
from airflow_hops.ml.schema import load_schema
from airflow_hops.ml.statistics import stage as feature_statistics
from tests.ml.training.trainings import Trainings, transform_examples
from tests.ml.world import Flights, World

pytestmark = pytest.mark.server

WIDTH = 16
ROWS = 2500


def embeddings(rows: int, seed: int, correlation: float = 0.0) -> Any:
    """Normal vectors; with a correlation, each number is distributed as without."""
    covariance = np.full((WIDTH, WIDTH), correlation)
    np.fill_diagonal(covariance, 1.0)
    random = np.random.default_rng(seed)
    return (random.normal(size=(rows, WIDTH)) @ np.linalg.cholesky(covariance).T).astype(np.float32)


def items() -> pa.Table:
    """Items that sell where the first two numbers of their embedding are great; some vectors are none."""
    vectors: list[Any] = embeddings(ROWS, 0).tolist()
    sold = [int(vector[0] + vector[1] > 0) for vector in vectors]
    vectors[5], vectors[6], vectors[7] = vectors[5][:15], [*vectors[6], 1.0], []
    vectors[8][3], vectors[9][3], vectors[10][3] = None, float("nan"), float("inf")
    for row in range(0, ROWS, 50):
        vectors[row] = None
    return pa.table(
        {
            "item": [f"item-{row}" for row in range(ROWS)],
            "embedding": pa.array(vectors, pa.list_(pa.float32())),
            "price": np.random.default_rng(1).uniform(1, 9, ROWS),
            "sold": sold,
        }
    )


@pytest.fixture(scope="module")
def made(spark: Any, flights: Flights, trainings: Trainings) -> dict[str, Artifact]:
    """All stages' artifacts, from a raw file to a model."""
    raw = flights.folder / "items.parquet"
    pq.write_table(items(), raw)
    tables = flights.run(ingest, sources={"items": {"uri": str(raw)}})
    how = {"prepare": "vector_functions:prepare", "label": "sold", "key": "item"}
    results = flights.described(flights.run(prepare, tables=tables, **how))
    results["anomalies"] = flights.run(validation, **results)
    results["transformed"] = transform_examples(trainings, "vector_functions:preprocess", results)
    results["model"] = trainings("vector_functions:train", results["transformed"], np=1)
    return results


def test_missing_vectors_are_rejected(made: dict[str, Artifact], flights: Flights) -> None:
    assert made["examples"].rows["items"] == RowCounts(
        ROWS,
        ROWS - 6,
        {"embedding has not 16 numbers": 3, "embedding has an entry that is missing, NaN or infinite": 3},
    )
    tables = [flights.rows(made["examples"], split) for split in ("train", "eval")]
    results = {row["item"]: row["embedding"] for table in tables for row in table.to_pylist()}
    expected = dict(zip(*(items()[name].to_pylist() for name in ("item", "embedding")), strict=True))
    assert results["item-50"] is None and len(results) == ROWS - 6
    assert all(results[item] == expected[item] for item in results)


def test_schema_and_transform_know_the_length(made: dict[str, Artifact], flights: Flights) -> None:
    path = flights.store.local(made["schema"]) / "schema.pbtxt"
    (feature,) = [feature for feature in load_schema(path).feature if feature.name == "embedding"]
    assert (feature.value_count.min, feature.value_count.max) == (WIDTH, WIDTH)
    assert feature.HasField("skew_comparator") and feature.HasField("drift_comparator")
    assert read_raw_features(path, label="sold", key="item", time=None)["embedding"] == "float32[16]"
    specs = FeatureSpecs.read(flights.store.local(made["transformed"]) / "features.json")
    assert specs.features == {"embedding": "float32[16]", "price": "float32"}
    assert {name: output.width for name, output in specs.outputs.items()} == {
        "embedding": WIDTH, "direction": 2, "missing": None, "price": None,
    }  # fmt: skip
    assert made["anomalies"].properties["errors"] == []


def test_vector_of_another_length_is_quarantined(
    made: dict[str, Artifact], flights: Flights, trainings: Trainings
) -> None:
    table = flights.rows(made["examples"], "train").slice(0, 300)
    vectors = table["embedding"].to_pylist()
    vectors[7] = [0.0] * 15
    place = table.schema.get_field_index("embedding")
    wrong = table.set_column(place, "embedding", pa.array(vectors, pa.list_(pa.float32())))
    examples = flights.examples({"train": wrong}, label="sold", key="item", time=None)
    statistics = flights.run(feature_statistics, examples=examples)
    inputs = {"examples": examples, "statistics": statistics, "schema": made["schema"]}
    result = flights.run(validation, **inputs)
    (error,) = result.properties["errors"]
    assert "'embedding'" in error and "fewer values than expected" in error
    with pytest.raises(BadInput, match=r"'embedding' has 15 numbers in 1 of 300 rows, row 8 the first; expected .* 16"):
        transform_examples(trainings, "vector_functions:preprocess", {**inputs, "statistics": made["statistics"]})
    retained = flights.run(validation, split_anomalous=True, **inputs)
    (row,) = flights.rows(retained, "quarantine/train").to_pylist()
    assert "INVALID" in row["anomaly_reasons"][0] or "LOW_NUMBER_VALUES: 15 values" in row["anomaly_reasons"][0]


def test_model_takes_vectors_by_every_api(made: dict[str, Artifact], flights: Flights) -> None:
    assert ModelProperties.of(made["model"]).inputs == ("embedding", "price")
    loaded = tf.saved_model.load(str(flights.store.local(made["model"]) / "saved_model"))
    taken = loaded.signatures["serving_default"].structured_input_signature[1]
    assert {name: (spec.shape.as_list(), spec.dtype.name) for name, spec in taken.items()} == {
        "embedding": ([None, WIDTH], "float32"), "price": ([None], "float32"),
    }  # fmt: skip
    rows = flights.rows(made["examples"], "eval")
    few = rows.slice(0, 200).to_pylist()
    by_columns = loaded.signatures["serving_default"](
        embedding=tf.constant([row["embedding"] or [np.nan] * WIDTH for row in few]),
        price=tf.constant([row["price"] for row in few], tf.float32),
    )["probability"]
    serialized = []
    for row in few:
        example = tf.train.Example()
        example.features.feature["embedding"].float_list.value.extend(row["embedding"] or [])
        if row["embedding"] is None:
            del example.features.feature["embedding"]
        example.features.feature["price"].float_list.value.append(row["price"])
        serialized.append(example.SerializeToString())
    by_examples = loaded.signatures["serving_examples"](examples=tf.constant(serialized))["probability"]
    np.testing.assert_allclose(by_examples, by_columns, rtol=1e-5)
    inputs = {"model": made["model"], "examples": made["examples"]}
    evaluated = flights.run(evaluate, model_name="items", splits=["eval"], **inputs)
    assert evaluated.properties["blessed"] and evaluated.metrics["eval_auc"] > 0.97
    # A server of its own, over gRPC and REST, vectors that are missing among them.
    assert flights.run(infra_validate, requests=20, **inputs).properties["blessed"]


@pytest.mark.parametrize(("examples", "frame"), [("examples", True), ("transformed", False)])
def test_estimators_serve_vectors(
    made: dict[str, Artifact], trainings: Trainings, flights: Flights, examples: str, frame: bool
) -> None:
    run_id = f"estimate-{examples}-{frame}"
    model = trainings("vector_functions:estimate", made[examples], run_id=run_id, strategy="single", np=1, frame=frame)
    assert ModelProperties.of(model).format == "onnx"
    assert set(ModelProperties.of(model).inputs or ()) == {"embedding", "price"}
    inputs = {"model": model, "examples": made["examples"]}
    evaluated = flights.run(evaluate, model_name="items", splits=["eval"], **inputs)
    assert evaluated.metrics["eval_auc"] > 0.97
    if frame:
        assert flights.run(infra_validate, requests=8, **inputs).properties["blessed"]


def test_fixed_size_lists_are_ingested(world: World, tmp_path: Path) -> None:
    raw = tmp_path / "fixed.parquet"
    write = f"""
import pyarrow as pa, pyarrow.parquet as pq, sys
fixed = pa.array([[1, 2], None, [3, None]], pa.list_(pa.float64(), 2))
large = pa.array([[0.5], None, []], pa.large_list(pa.float32()))
pq.write_table(pa.table({{"fixed": fixed, "large": large, "name": ["a", "b", "c"]}}), {str(raw)!r})
"""
    # The newer Arrow of the Airflow side, which can write what this one cannot.
    python = Path(__file__).parents[3] / ".venv/bin/python"
    subprocess.run([python, "-c", write], check=True, env={"PATH": str(Path(sys.executable).parent)})
    table = world.rows(world.run(ingest, sources={"rows": Source(str(raw)).to_dict()}), "rows")
    assert table["fixed"].type.value_type == pa.float64() and table["fixed"].to_pylist() == [[1, 2], None, [3, None]]
    assert table["large"].to_pylist() == [[0.5], None, []]

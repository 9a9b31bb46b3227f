"""Raw data to a served model for a label that is a number, and for one of several classes by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from sklearn.datasets import load_diabetes, load_wine

from airflow_hops.core.contract.artifacts import Artifact, Producer, RowCounts
from airflow_hops.core.contract.properties import ModelProperties
from airflow_hops.core.contract.target import Target
from airflow_hops.core.store import ArtifactStore
from airflow_hops.ml.features.feature_specs import FeatureSpecs
from airflow_hops.ml.schemas import classes_of, load_schema
from airflow_hops.ml.stages import prepare, schema, validation
from airflow_hops.ml.stages import statistics as feature_statistics
from airflow_hops.ml.stages.evaluate import stage as evaluate
from airflow_hops.ml.stages.transform import stage as transform
from tests.ml.train.trainings import Trainings

pytestmark = pytest.mark.runtime

Stages = dict[str, Artifact]


@pytest.fixture(scope="module")
def pipeline(
    spark: Any, run_shared_stage: Callable[..., Any], shared_store: ArtifactStore, trainings: Trainings
) -> Callable[..., Stages]:
    """Runs the stages on a table, and trains: ``pipeline(table, {"label": "y"}, lr=0.1, epochs=5)``."""

    def run(table: pa.Table, told: dict[str, Any], **params: Any) -> Stages:
        producer = Producer("tests", f"{told['label']}-raw", "snapshot")
        with shared_store.create(shared_store.address(producer, "snapshot"), "snapshot", producer) as writer:
            (writer.path / "rows").mkdir()
            pq.write_table(table, writer.path / "rows" / "part-00000.parquet")
            rows = {"rows": RowCounts(table.num_rows, table.num_rows)}
            made = {"tables": writer.commit(rows=rows, properties={"tables": ["rows"], "window": None})}
        for role, step, kind, params_of in (
            ("examples", prepare.run, "examples", {"prepare": "problem_functions:prepare", **told}),
            ("statistics", feature_statistics.run, "statistics", {}),
            ("schema", schema.run, "schema", {}),
            ("anomalies", validation.run, "anomalies", {}),
            ("transformed", transform.run, "transformed_examples", {"preprocess": "problem_functions:preprocess"}),
        ):
            made[role] = run_shared_stage(step, kind=kind, run_id=told["label"], inputs=made, **params_of)
        made["model"] = trainings("problem_functions:train", made["transformed"], np=1, **params)
        return made

    return run


@pytest.fixture(scope="module")
def evaluated(run_shared_stage: Callable[..., Any]) -> Callable[[Stages], Artifact]:
    """Evaluates what :func:`pipeline` has trained."""

    def run(made: Stages) -> Artifact:
        inputs = {"model": made["model"], "examples": made["examples"]}
        result: Artifact = run_shared_stage(
            evaluate.run, kind="evaluation", inputs=inputs, model_name="none", splits=["eval"]
        )
        return result

    return run


def rows_of(store: ArtifactStore, artifact: Artifact, split: str) -> pa.Table:
    return pq.read_table(sorted((store.local(artifact) / split).glob("*.parquet")))


def served(store: ArtifactStore, model: Artifact, rows: pa.Table) -> dict[str, Any]:
    """Returns the model's answers to rows of examples."""
    loaded = tf.saved_model.load(str(store.local(model) / "saved_model"))
    signature = loaded.signatures["serving_default"]
    taken = {name: spec.dtype for name, spec in signature.structured_input_signature[1].items()}
    assert set(taken) == set(ModelProperties.of(model).inputs or ())
    result = signature(**{name: tf.constant(rows[name].to_numpy(), dtype) for name, dtype in taken.items()})
    return {name: values.numpy() for name, values in result.items()}


def test_regression_uses_row_weights(
    pipeline: Callable[..., Stages], evaluated: Callable[[Stages], Artifact], shared_store: ArtifactStore
) -> None:
    data = load_diabetes(as_frame=True).frame.rename(columns={"target": "progression"})
    data["trust"] = 1.0
    # Every third row is nonsense, and says so.
    data.loc[::3, ["progression", "trust"]] = 5000.0, 1e-9
    made = pipeline(
        pa.Table.from_pandas(data, preserve_index=False),
        {"label": "progression", "weight": "trust", "problem": "regression"},
        lr=4.0,
        epochs=6,
    )
    report = {"label": "progression", "problem": "regression", "weight": "trust"}
    for role in ("examples", "statistics", "transformed"):
        assert {name: made[role].properties.get(name) for name in report} == report, role
        assert "classes" not in made[role].properties
    assert made["anomalies"].properties["errors"] == []
    features = {
        feature.name: feature for feature in load_schema(shared_store.local(made["schema"]) / "schema.pbtxt").feature
    }
    absent = [name for name, feature in features.items() if list(feature.not_in_environment) == ["SERVING"]]
    assert sorted(absent) == ["progression", "trust"] and not features["trust"].HasField("drift_comparator")
    table = rows_of(shared_store, made["transformed"], "train")
    assert table.column_names == ["numeric", "progression", "trust"]
    assert table.schema.types[1:] == [pa.float64(), pa.float64()]
    specs = FeatureSpecs.read(shared_store.local(made["transformed"]) / "features.json")
    assert specs.target == Target("progression", "regression", None, "trust")
    assert sorted(specs.features) == sorted(data.columns.drop(["progression", "trust"]))

    model = ModelProperties.of(made["model"])
    assert (model.problem, model.classes, model.framework) == ("regression", None, "keras")
    rows = rows_of(shared_store, made["examples"], "eval")
    rows = rows.filter(pa.array(rows["trust"].to_numpy() == 1))
    answers = served(shared_store, made["model"], rows)
    assert {name: (values.dtype.name, values.shape) for name, values in answers.items()} == {
        "prediction": ("float32", (len(rows),))
    }
    truth = rows["progression"].to_numpy()
    r2 = 1 - np.square(answers["prediction"] - truth).sum() / np.square(truth - truth.mean()).sum()
    assert r2 > 0.3
    # The nonsense counts for nothing here, too.
    evaluation = evaluated(made)
    assert evaluation.metrics["eval_r2"] == pytest.approx(r2, abs=1e-4)
    assert evaluation.properties["blessed"] is True, evaluation.properties["reasons"]


def test_class_names_are_found_stored_and_served(
    pipeline: Callable[..., Stages], evaluated: Callable[[Stages], Artifact], shared_store: ArtifactStore
) -> None:
    data = load_wine(as_frame=True).frame.rename(columns={"od280/od315_of_diluted_wines": "od280"})
    names = np.array(["grignolino", "barbera", "barolo"])
    data["cultivar"] = names[data.pop("target")]
    made = pipeline(pa.Table.from_pandas(data, preserve_index=False), {"label": "cultivar"}, lr=0.2, epochs=8)
    classes = ["barbera", "barolo", "grignolino"]
    for role in ("examples", "statistics", "transformed", "model"):
        reports = made[role].properties
        assert (reports["problem"], reports["classes"]) == ("multiclass", classes), role
    assert made["anomalies"].properties["errors"] == []
    schema = load_schema(shared_store.local(made["schema"]) / "schema.pbtxt")
    assert classes_of(schema, "cultivar") == tuple(classes)
    rows = rows_of(shared_store, made["examples"], "eval")
    assert set(rows["cultivar"].to_pylist()) == {0, 1, 2}
    answers = served(shared_store, made["model"], rows)
    assert (answers["probabilities"].dtype, answers["probabilities"].shape) == (np.float32, (len(rows), 3))
    np.testing.assert_allclose(answers["probabilities"].sum(axis=1), 1, rtol=1e-5)
    truth = np.array(classes)[rows["cultivar"].to_numpy()]
    accuracy = (answers["class"].astype(str) == truth).mean()
    assert accuracy > 0.9
    evaluation = evaluated(made)
    assert evaluation.metrics["eval_accuracy"] == pytest.approx(accuracy) and evaluation.properties["blessed"] is True
    report = json.loads((shared_store.local(evaluation) / "evaluation.json").read_text())
    assert [schema["name"] for schema in report["splits"]["eval"]["candidate"]["classes"]] == classes

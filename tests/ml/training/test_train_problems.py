"""Raw data to a served model for a label that is a number, in rows that have weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from sklearn.datasets import load_diabetes

from airflow_hops.core.artifacts.properties import ModelProperties
from airflow_hops.core.artifacts.target import Target
from airflow_hops.ml import prepare, validation
from airflow_hops.ml.evaluate import stage as evaluate
from airflow_hops.ml.features.feature_specs import FeatureSpecs
from airflow_hops.ml.schema import load_schema
from tests.ml.training.trainings import Trainings, transform_examples
from tests.ml.world import Flights


def test_regression_uses_row_weights(spark: Any, flights: Flights, trainings: Trainings) -> None:
    data = load_diabetes(as_frame=True).frame.rename(columns={"target": "progression"})
    data["trust"] = 1.0
    # Every third row is nonsense, and says so.
    data.loc[::3, ["progression", "trust"]] = 5000.0, 1e-9
    report = {"label": "progression", "problem": "regression", "weight": "trust"}
    tables = flights.snapshot({"rows": data})
    made = flights.described(flights.run(prepare, tables=tables, prepare="problem_functions:prepare", **report))
    made["anomalies"] = flights.run(validation, **made)
    made["transformed"] = transform_examples(trainings, "problem_functions:preprocess", made)
    made["model"] = trainings("problem_functions:train", made["transformed"], np=1, lr=4.0, epochs=6)
    for role in ("examples", "statistics", "transformed"):
        assert {name: made[role].properties.get(name) for name in report} == report, role
        assert "classes" not in made[role].properties
    assert made["anomalies"].properties["errors"] == []
    features = {each.name: each for each in load_schema(flights.store.local(made["schema"]) / "schema.pbtxt").feature}
    absent = [name for name, feature in features.items() if list(feature.not_in_environment) == ["SERVING"]]
    assert sorted(absent) == ["progression", "trust"] and not features["trust"].HasField("drift_comparator")
    table = flights.rows(made["transformed"], "train")
    assert table.column_names == ["numeric", "progression", "trust"]
    assert table.schema.types[1:] == [pa.float64(), pa.float64()]
    specs = FeatureSpecs.read(flights.store.local(made["transformed"]) / "features.json")
    assert specs.target == Target("progression", "regression", None, "trust")
    assert sorted(specs.features) == sorted(data.columns.drop(["progression", "trust"]))

    model = ModelProperties.of(made["model"])
    assert (model.problem, model.classes, model.framework) == ("regression", None, "keras")
    rows = flights.rows(made["examples"], "eval")
    rows = rows.filter(pa.array(rows["trust"].to_numpy() == 1))
    loaded = tf.saved_model.load(str(flights.store.local(made["model"]) / "saved_model"))
    signature = loaded.signatures["serving_default"]
    taken = {name: spec.dtype for name, spec in signature.structured_input_signature[1].items()}
    assert set(taken) == set(model.inputs or ())
    answers = signature(**{name: tf.constant(rows[name].to_numpy(), dtype) for name, dtype in taken.items()})
    assert {name: (values.dtype.name, values.shape) for name, values in answers.items()} == {
        "prediction": ("float32", (len(rows),))
    }
    truth = rows["progression"].to_numpy()
    r2 = 1 - np.square(answers["prediction"].numpy() - truth).sum() / np.square(truth - truth.mean()).sum()
    assert r2 > 0.3
    # The nonsense counts for nothing here, too.
    options = {"model_name": "none", "splits": ["eval"]}
    evaluation = flights.run(evaluate, model=made["model"], examples=made["examples"], **options)
    assert evaluation.metrics["eval_r2"] == pytest.approx(r2, abs=1e-4)
    assert evaluation.properties["blessed"] is True, evaluation.properties["reasons"]

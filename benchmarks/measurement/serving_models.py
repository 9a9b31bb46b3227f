"""The models that are served, and requests for them: a multi-layer perceptron of 784 inputs, and flights."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np

CARRIERS = ["9E", "AA", "AS", "B6", "DL", "EV", "F9", "FL", "HA", "MQ", "OO", "UA", "US", "VX", "WN", "YV"]
ORIGINS = ["EWR", "JFK", "LGA"]
DESTINATIONS = ["ATL", "BOS", "CLT", "DEN", "DFW", "FLL", "IAH", "LAS", "LAX", "MCO", "MIA", "ORD", "SEA", "SFO", "TPA"]
NUMBERS = ["distance", "hour", "minute", "temp", "dewp", "humid", "wind_speed", "pressure", "visib"]
STRINGS = ("carrier", "origin", "dest")
ROWS = (1, 64)


def make_mlp(folder: Path) -> None:
    """784 floats, a hidden layer of 128, ten probabilities."""
    import keras

    inputs = keras.Input((784,), name="x")
    hidden = keras.layers.Dense(128, activation="relu")(inputs)
    keras.Model(inputs, keras.layers.Dense(10, activation="softmax")(hidden)).export(str(folder))


def make_flights(folder: Path) -> None:
    """Three strings and nine numbers as they are asked for; ids, embeddings and z-scores inside, as in the demo."""
    import tensorflow as tf

    class Flights(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tables, self.embeddings = {}, {}
            for name, words in (("carrier", CARRIERS), ("origin", ORIGINS), ("dest", DESTINATIONS)):
                content = tf.lookup.KeyValueTensorInitializer(words, tf.range(1, len(words) + 1, dtype=tf.int64))
                self.tables[name] = tf.lookup.StaticHashTable(content, 0)
                self.embeddings[name] = tf.Variable(tf.random.normal([len(words) + 1, 8], seed=1))
            width = 3 * 8 + len(NUMBERS)
            self.layers = [tf.Variable(tf.random.normal(shape, 0, 0.1, seed=2)) for shape in ([width, 64], [64, 64])]
            self.last = tf.Variable(tf.random.normal([64, 1], 0, 0.1, seed=3))

        @tf.function(
            input_signature=[
                {
                    **{name: tf.TensorSpec([None], tf.string, name) for name in STRINGS},
                    **{name: tf.TensorSpec([None], tf.float32, name) for name in NUMBERS},
                }
            ]
        )
        def serve(self, features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            parts = [tf.gather(self.embeddings[name], self.tables[name].lookup(features[name])) for name in self.tables]
            parts += [tf.expand_dims((features[name] - 10.0) / 5.0, 1) for name in NUMBERS]
            hidden = tf.concat(parts, 1)
            for weights in self.layers:
                hidden = tf.nn.relu(hidden @ weights)
            return {"probability": tf.sigmoid(tf.squeeze(hidden @ self.last, 1))}

    flights = Flights()
    tf.saved_model.save(flights, str(folder), signatures={"serving_default": flights.serve})


MODELS = {"mlp": make_mlp, "flights": make_flights}


def inputs_of(model: str, rows: int) -> dict[str, np.ndarray]:
    """The inputs of a request, by name."""
    random = np.random.default_rng(rows)
    if model == "mlp":
        return {"x": random.random((rows, 784), np.float32)}
    strings = {"carrier": CARRIERS, "origin": ORIGINS, "dest": DESTINATIONS}
    chosen = {
        name: np.array([word.encode() for word in random.choice(words, rows)], object)
        for name, words in strings.items()
    }
    return {**chosen, **{name: (random.random(rows) * 20).astype(np.float32) for name in NUMBERS}}


def grpc_body(model: str, rows: int) -> bytes:
    """A ``PredictRequest`` as ``tf.make_tensor_proto`` would have a client write it: tensors' content as bytes."""
    from airflow_hops.core.serving_api import protocol, tensors

    request = protocol.PredictRequest()
    request.model_spec.name = model
    for name, array in inputs_of(model, rows).items():
        proto = request.inputs[name]
        if array.dtype == object:
            tensors.fill_proto(proto, array)
            continue
        proto.dtype = tensors.type_of(array).number
        for size in array.shape:
            proto.tensor_shape.dim.add().size = size
        proto.tensor_content = array.tobytes()
    return bytes(request.SerializeToString())


def columns(model: str, rows: int) -> dict[str, list[Any]]:
    """The inputs of a request as JSON has them."""
    return {name: _values(array).tolist() for name, array in inputs_of(model, rows).items()}


def _values(array: np.ndarray) -> np.ndarray:
    """Text, or numbers of as many digits as a client would send."""
    if array.dtype == object:
        return np.array([value.decode() for value in array], object)
    return np.round(array.astype(float), 4)


def json_body(model: str, rows: int) -> bytes:
    """The same request for TensorFlow Serving's REST API, and for peers that have no protocol of their own."""
    return json.dumps({"inputs": columns(model, rows)}).encode()


def open_inference_body(model: str, rows: int) -> bytes:
    """The same request in the Open Inference Protocol (V2) as JSON."""
    tensors = [
        {
            "name": name,
            "shape": list(array.shape),
            "datatype": "BYTES" if array.dtype == object else "FP32",
            "data": _values(array).ravel().tolist(),
        }
        for name, array in inputs_of(model, rows).items()
    ]
    return json.dumps({"inputs": tensors}).encode()


def write(folder: Path) -> None:
    """Writes the models as version 1 and 2 of each, and the bodies of requests."""
    for model, make in MODELS.items():
        make(folder / "models" / model / "1")
        shutil.copytree(folder / "models" / model / "1", folder / "models" / model / "2")
        for rows in ROWS:
            (folder / f"{model}-{rows}.grpc").write_bytes(grpc_body(model, rows))
            (folder / f"{model}-{rows}.json").write_bytes(json_body(model, rows))
            (folder / f"{model}-{rows}.v2.json").write_bytes(open_inference_body(model, rows))


if __name__ == "__main__":
    write(Path(sys.argv[1]))

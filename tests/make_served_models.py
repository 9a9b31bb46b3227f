"""Writes small models, raw features to probability; a step in the runtime environment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import tensorflow as tf
from onnx import helper

SIGNATURE = [
    tf.TensorSpec([None], tf.string, "carrier"),
    tf.TensorSpec([None], tf.float32, "distance"),
    tf.TensorSpec([None], tf.int64, "scheduled_at"),
]


class Late(tf.Module):
    """Late with a probability that grows with the distance, by a slope of its own."""

    def __init__(self, slope: float, kind: str) -> None:
        super().__init__()
        self.slope = tf.Variable(slope)
        self.kind = kind

    @tf.function(input_signature=SIGNATURE)
    def serve(self, carrier: tf.Tensor, distance: tf.Tensor, scheduled_at: tf.Tensor) -> dict[str, tf.Tensor]:
        probability = tf.sigmoid(self.slope * distance / 1000.0 - 1.0)
        if self.kind == "constant":
            probability = tf.zeros_like(probability) + 0.25
        elif self.kind == "nan":
            probability = tf.where(distance > 500.0, float("nan"), probability)
        elif self.kind == "failing":
            with tf.control_dependencies([tf.debugging.assert_less(distance, 900.0, "too far")]):
                probability = tf.identity(probability)
        elif self.kind == "slow":
            rounds = tf.while_loop(
                lambda i, _: i < 300,  # far more than the tolerated 10 ms, on the fastest machine too
                lambda i, m: (i + 1, tf.linalg.matmul(m, m) / tf.norm(m)),
                [tf.constant(0), tf.eye(300)],
            )[1]
            probability += 0.0 * tf.linalg.trace(rounds)
        return {"probability": probability}


def write_onnx(folder: Path, slope: float) -> None:
    """The same as an ONNX graph, which takes the distance alone."""
    number = onnx.TensorProto.FLOAT
    nodes = [
        helper.make_node("Mul", ["distance", "slope"], ["sloped"]),
        helper.make_node("Sub", ["sloped", "one"], ["logit"]),
        helper.make_node("Sigmoid", ["logit"], ["late"]),
    ]
    held = [helper.make_tensor("slope", number, [1], [slope / 1000]), helper.make_tensor("one", number, [1], [1.0])]
    values, made = (helper.make_tensor_value_info(name, number, ["batch"]) for name in ("distance", "late"))
    graph = helper.make_graph(nodes, "late", [values], [made], held)
    folder.mkdir()
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), folder / "model.onnx"
    )
    types = {"carrier": "string", "distance": "float", "scheduled_at": "int64"}
    columns = [{"name": name, "type": kind} for name, kind in types.items()]
    signature = {"columns": columns, "model": {"columns": columns[1:2]}, "problem": "binary"}
    (folder / "signature.json").write_text(json.dumps(signature))


def write_wider(folder: Path) -> None:
    """A model of the same inputs, of which one has another type, and one has several numbers a row."""
    types = {"carrier": tf.string, "distance": tf.float32, "scheduled_at": tf.float32}
    shapes = {"distance": [None, 3]}
    model = tf.Module()
    model.serve = tf.function(
        lambda carrier, distance, scheduled_at: {"probability": tf.sigmoid(distance[:, 0])},
        input_signature=[tf.TensorSpec(shapes.get(name, [None]), kind, name) for name, kind in types.items()],
    )
    tf.saved_model.save(model, str(folder), {"serving_default": model.serve})


def write(context: Any, folder: str) -> None:
    """One SavedModel a kind, and an ONNX graph; the broken one is none."""
    kinds = {"first": 1.0, "second": 1.2, "third": 1.4, "constant": 1.0, "nan": 1.0, "failing": 1.0, "slow": 1.0}
    for kind, slope in kinds.items():
        model = Late(slope, kind)
        tf.saved_model.save(model, f"{folder}/{kind}", {"serving_default": model.serve})
    write_onnx(Path(folder) / "onnx", 1.2)
    write_wider(Path(folder) / "wider")
    broken = Path(folder) / "broken"
    broken.mkdir()
    (broken / "saved_model.pb").write_bytes(b"this is no protocol buffer")

"""Writes models of every kind that the server opens: ``<model>/1`` in a folder."""

from __future__ import annotations

import operator
from pathlib import Path

import keras
import numpy as np
import onnx
import pandas as pd
import tensorflow as tf
import tf_keras
from onnx import helper
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder

from airflow_hops.core.artifacts.target import Target
from airflow_hops.extensions.frameworks import scikit_learn
from airflow_hops.ml.models.export import export_model

v1 = tf.compat.v1


def write_tf1_examples(folder: Path) -> None:
    """A TensorFlow 1 graph that parses ``tf.Example``, with classify and regress signatures, good and bad."""
    with v1.Graph().as_default(), v1.Session() as session:
        serialized = v1.placeholder(tf.string, [None], "serialized")
        features = {"x": tf.io.FixedLenFeature([], tf.float32), "bias": tf.io.FixedLenFeature([], tf.float32, 0.0)}
        parsed = tf.io.parse_example(serialized, features)
        weight = v1.get_variable("weight", initializer=2.0)
        value = parsed["x"] * weight + parsed["bias"]
        scores = tf.stack([value, -value], axis=1)
        labels = tf.tile(tf.constant([["up", "down"]]), [tf.shape(value)[0], 1])
        session.run(v1.global_variables_initializer())
        inputs = {"inputs": serialized}

        def signature(method: str, outputs: dict[str, tf.Tensor], given: dict[str, tf.Tensor] = inputs) -> object:
            return v1.saved_model.build_signature_def(
                {alias: v1.saved_model.build_tensor_info(tensor) for alias, tensor in given.items()},
                {alias: v1.saved_model.build_tensor_info(tensor) for alias, tensor in outputs.items()},
                f"tensorflow/serving/{method}",
            )

        builder = v1.saved_model.Builder(str(folder))
        builder.add_meta_graph_and_variables(
            session,
            ["serve"],
            {
                "serving_default": signature("classify", {"classes": labels, "scores": scores}),
                "labels": signature("classify", {"classes": labels}),
                "scores": signature("classify", {"scores": scores}),
                "value": signature("regress", {"outputs": value}),
                "column": signature("regress", {"outputs": value[:, None]}),
                "predict": signature("predict", {"value": value}, {"x": parsed["x"], "bias": parsed["bias"]}),
                "other_input": signature("regress", {"outputs": value}, {"inputs": tf.identity(serialized)}),
                "flat_scores": signature("classify", {"scores": value}),
                "wide_scores": signature("classify", {"scores": tf.cast(scores, tf.float64)}),
                "numbers_for_classes": signature("classify", {"classes": scores}),
                "one_class_less": signature("classify", {"classes": labels[:, :1], "scores": scores}),
                "one_row_less": signature("classify", {"scores": scores[1:]}),
                "misnamed_outputs": signature("classify", {"y": scores}),
                "misnamed_inputs": signature("classify", {"scores": scores}, {"examples": serialized}),
                "two_inputs": signature("classify", {"scores": scores}, {"inputs": serialized, "more": serialized}),
                "pairs": signature("regress", {"outputs": scores}),
                "one_value_less": signature("regress", {"outputs": value[1:]}),
                "wide_value": signature("regress", {"outputs": tf.cast(value, tf.float64)}),
                "two_values": signature("regress", {"outputs": value, "more": value}),
                "misnamed_value": signature("regress", {"y": value}),
                "no_inputs": signature("predict", {"y": tf.constant(1.0)}, {}),
            },
        )
        builder.save()


class Native(tf.Module):
    """TensorFlow 2 writes the predict method's name into every signature."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = tf.Variable(2.0)

    def _value(self, serialized: tf.Tensor) -> tf.Tensor:
        return self.weight * tf.io.parse_example(serialized, {"x": tf.io.FixedLenFeature([], tf.float32)})["x"]

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "inputs")])
    def classify(self, inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        value = self._value(inputs)
        return {"scores": tf.stack([value, -value], axis=1)}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "inputs")])
    def regress(self, inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"outputs": self._value(inputs)}


class Types(tf.Module):
    """A tensor of each type, back as it came."""

    NAMES = ("bfloat16", "bool", "complex128", "complex64", "float16", "float64", "int16", "int32", "int8", "string")
    NAMES += ("uint16", "uint32", "uint64", "uint8")

    def signatures(self) -> dict[str, tf.types.experimental.ConcreteFunction]:
        def echo(kind: str) -> tf.types.experimental.ConcreteFunction:
            function = tf.function(lambda x: {"y": tf.identity(x)})
            return function.get_concrete_function(tf.TensorSpec([None], kind, "x"))

        return {name: echo(name) for name in self.NAMES}


class Ragged(tf.Module):
    """A batch of rows of different lengths."""

    @tf.function(input_signature=[tf.RaggedTensorSpec([None, None], tf.string)])
    def join(self, words: tf.RaggedTensor) -> dict[str, tf.Tensor]:
        return {"text": tf.strings.reduce_join(words, axis=1, separator=" ")}

    @tf.function(input_signature=[tf.RaggedTensorSpec([None, None], tf.string)])
    def lengths(self, words: tf.RaggedTensor) -> dict[str, tf.RaggedTensor]:
        return {"words": words, "lengths": words.row_lengths()}


def write_keras(folder: Path, library: object) -> None:
    """Sums three inputs, and doubles them."""
    model = library.Sequential([library.layers.Input((3,)), library.layers.Dense(1, kernel_initializer="ones")])
    model.export(str(folder))


def write_estimators(folder: Path) -> None:
    """``delays`` takes columns, ``matrix`` a matrix, ``targets`` gives two answers; MLflow saves two more."""
    table = pd.DataFrame({"carrier": ["AA", "UA", "AA", "UA"] * 5, "distance": np.arange(20.0), "hour": range(20)})
    late = np.where(table.distance > 9.5, "late", "on time")
    encoder = ColumnTransformer(
        [("carrier", OneHotEncoder(handle_unknown="ignore"), ["carrier"])], remainder="passthrough"
    )
    classifier = make_pipeline(encoder, LogisticRegression(max_iter=1000)).fit(table, late)
    scikit_learn.save(classifier, folder / "delays" / "1", table)
    numbers = table[["distance", "hour"]].to_numpy()
    regressor = LinearRegression().fit(numbers, numbers.sum(axis=1))
    scikit_learn.save(regressor, folder / "matrix" / "1", numbers)
    targets = MultiOutputClassifier(LogisticRegression(max_iter=1000)).fit(numbers, np.stack([late, table.carrier], 1))
    scikit_learn.save(targets, folder / "targets" / "1", numbers)
    negated = make_pipeline(FunctionTransformer(operator.neg), LinearRegression()).fit(numbers, numbers.sum(axis=1))
    scikit_learn.save(negated, folder / "negated" / "1", numbers, trusted_types=["_operator.neg"])
    import mlflow.sklearn  # here, as only those who write models wait for it

    logged = {"signature": mlflow.models.infer_signature(table, late), "pip_requirements": ["scikit-learn"]}
    mlflow.sklearn.save_model(classifier, folder / "logged" / "1", **logged)
    mlflow.sklearn.save_model(classifier, folder / "pickled" / "1", serialization_format="cloudpickle", **logged)
    unsigned = folder / "unsigned" / "1"
    unsigned.mkdir(parents=True)
    (unsigned / "model.skops").write_bytes((folder / "matrix" / "1" / "model.skops").read_bytes())


def write_onnx(folder: Path) -> None:
    """``wine`` has three classes, ``litres`` is a regression, both of named columns; their two features are numbers."""
    numbers = np.stack([np.linspace(0, 1, 60), np.tile([0.0, 1.0], 30)], axis=1).astype(np.float32)
    values = {"framework": "sklearn", "sample": numbers, "order": ["alcohol", "hue"]}
    classes = (numbers[:, 0] * 3).astype(int).clip(0, 2)
    wine = LogisticRegression(max_iter=1000).fit(numbers, classes)
    litres = LinearRegression().fit(numbers, 2 * numbers[:, 0])
    for name, model, target in (
        ("wine", wine, Target("kind", "multiclass", ("barolo", "grignolino", "barbera"))),
        ("litres", litres, Target("litres", "regression")),
    ):
        export_model(model, folder / f"{name}-export", target=target, **values)
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / f"{name}-export" / "onnx").rename(folder / name / "1")
        (folder / f"{name}-export").rmdir()


def write_onnx_graphs(folder: Path) -> None:
    """Graphs without a signature file: ``graph`` is served by its own names; others do not load."""
    numbers, words = onnx.TensorProto.FLOAT, onnx.TensorProto.STRING
    info = helper.make_tensor_value_info
    x, y = info("x", numbers, ["batch", 2]), info("y", numbers, ["batch", 2])
    source, target = info("said", words, ["batch"]), info("heard", words, ["batch"])
    outside = onnx.TensorProto(name="w", data_type=numbers, dims=[2], data_location=onnx.TensorProto.EXTERNAL)
    for key, value in (("location", "../../secret.bin"), ("offset", "0"), ("length", "8")):
        outside.external_data.add(key=key, value=value)
    (folder / "secret.bin").write_bytes(b"secret!!")
    echo, opsets = helper.make_node("Identity", ["said"], ["heard"]), {"": 18}
    for name, node, inputs, outputs, held, opset in (
        ("graph", helper.make_node("Abs", ["x"], ["y"]), [x, source], [y, target], [], opsets),
        ("outside", helper.make_node("Add", ["x", "w"], ["y"]), [x, source], [y, target], [outside], opsets),
        ("future", helper.make_node("Abs", ["x"], ["y"]), [x, source], [y, target], [], {"": 99}),
        ("unknown_operator", helper.make_node("Fold", ["x"], ["y"]), [x, source], [y, target], [], opsets),
    ):
        made = helper.make_graph([node, echo], name, inputs, outputs, held)
        model = helper.make_model(
            made, opset_imports=[helper.make_opsetid(*each) for each in opset.items()], ir_version=9
        )
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "1" / "model.onnx").write_bytes(model.SerializeToString())
    graph = (folder / "graph" / "1" / "model.onnx").read_bytes()
    for name, content in (("no_graph", b"no graph"), ("no_text", graph.replace(b"said", b"\xffaid"))):
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "1" / "model.onnx").write_bytes(content)


def main(folder: Path) -> None:
    write_tf1_examples(folder / "examples" / "1")
    native = Native()
    native_signatures = {"serving_default": native.classify, "value": native.regress}
    tf.saved_model.save(native, str(folder / "native" / "1"), native_signatures)
    types = Types()
    tf.saved_model.save(types, str(folder / "types" / "1"), types.signatures())
    ragged = Ragged()
    tf.saved_model.save(
        ragged, str(folder / "ragged" / "1"), {"serving_default": ragged.join, "lengths": ragged.lengths}
    )
    write_keras(folder / "keras" / "1", keras)
    write_keras(folder / "tf_keras" / "1", tf_keras)
    write_estimators(folder)
    write_onnx(folder)
    write_onnx_graphs(folder)

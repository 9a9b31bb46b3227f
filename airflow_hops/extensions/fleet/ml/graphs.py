"""ONNX graphs of a fleet's models: from the encoded matrix, float32 ``[rows, width]``, to the answers."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from airflow_hops.core.artifacts.target import MULTICLASS, REGRESSION, Problem, Target
from airflow_hops.core.errors import BadInput

_CHECKED_ROWS = 256


_ACTIVATIONS = {name.lower(): name for name in ("Relu", "Sigmoid", "Tanh", "Softmax", "Elu")} | {"linear": "Identity"}


def dense_layers(model: Any) -> bytes:
    """Returns the graph of a Keras model of dense layers in a row, without layers that only train, such as dropout.

    Raises:
        BadInput: it has another layer or activation; the message names it.
    """
    from onnx import TensorProto, helper, numpy_helper

    nodes, last = list[Any](), "matrix"
    constants: list[Any] = []
    width = outputs = 0
    for number, layer in enumerate(model.layers):
        kind = type(layer).__name__
        if kind in ("InputLayer", "Dropout", "GaussianNoise", "ActivityRegularization"):
            continue
        activation = getattr(getattr(layer, "activation", None), "__name__", "")
        if kind != "Dense" or activation not in _ACTIVATIONS:
            raise BadInput(
                f"layer {layer.name!r} is {kind} with the activation {activation or 'none'!r}; models of segments are "
                f"made of Dense layers with {', '.join(_ACTIVATIONS)}"
            )
        kernel = np.asarray(layer.kernel, np.float32)
        bias = np.asarray(layer.bias, np.float32) if layer.use_bias else np.zeros(kernel.shape[1], np.float32)
        width, outputs = width or kernel.shape[0], kernel.shape[1]
        names = [f"kernel{number}", f"bias{number}"]
        constants += map(numpy_helper.from_array, (kernel, bias), names)
        nodes.append(helper.make_node("Gemm", [last, *names], [f"dense{number}"]))
        nodes.append(helper.make_node(_ACTIVATIONS[activation], [f"dense{number}"], [last := f"active{number}"]))
    if not nodes:
        raise BadInput("the Keras model has no Dense layer")
    taken = helper.make_tensor_value_info("matrix", TensorProto.FLOAT, ["rows", width])
    answers = helper.make_tensor_value_info(last, TensorProto.FLOAT, ["rows", outputs])
    graph = helper.make_graph(nodes, "segment", [taken], [answers], constants)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    content: bytes = made.SerializeToString()
    return content


def estimator_graph(model: Any, problem: Problem, matrix: np.ndarray) -> bytes:
    """Returns the graph of an estimator, as the framework that it belongs to writes it, with only its prediction.

    Raises:
        BadInput: it belongs to no registered framework, or cannot be written as ONNX.
    """
    import onnx

    from airflow_hops.ml.models.frameworks import NotExportable, framework_of, frameworks
    from airflow_hops.ml.models.samples import Sample

    if (name := framework_of(model)) is None or "onnx" not in frameworks()[name].formats(model):
        raise BadInput(
            f"the function returned {type(model).__name__}; expected an estimator that becomes an ONNX graph, or a "
            "Keras model of dense layers"
        )
    classes = tuple(map(str, range(len(model.classes_)))) if problem == MULTICLASS else None
    sample = Sample.of(matrix[:_CHECKED_ROWS].astype(np.float32), None)
    with tempfile.TemporaryDirectory() as folder:
        try:
            written = frameworks()[name].write(model, Path(folder), "onnx", sample, Target("label", problem, classes))
        except NotExportable as error:
            raise BadInput(f"{error}; {error.advice}") from error
        graph = onnx.load(next(Path(folder).glob("*.onnx")))
    output = written.outputs.get("")
    predictions = [each for each in graph.graph.output if each.name == output] if output else list(graph.graph.output)
    del graph.graph.output[:]
    graph.graph.output.extend(predictions)
    graph.graph.name = "segment"  # instead of a random one, so that the same model has the same bytes
    content: bytes = graph.SerializeToString()
    return content


def checked(content: bytes, problem: Problem, matrix: np.ndarray, expected: np.ndarray) -> bytes:
    """Returns a graph whose answers for some rows are those of the trained model.

    Raises:
        BadInput: the server would refuse it, or they differ by more than 0.001, of a probability or in standard
            deviations of the answers.
    """
    from airflow_hops.extensions.fleet.serving.sessions import GraphModel
    from airflow_hops.ml.models.proof import Differs, compare_rows

    rows, expected = matrix[:_CHECKED_ROWS], expected[:_CHECKED_ROWS]
    answers = GraphModel(content, matrix.shape[1]).answers(rows).reshape(len(rows), -1)
    exported = {"": answers if expected.ndim == 2 else answers[:, -1]}
    try:
        absolute = set() if problem == REGRESSION else {""}
        advice = "use another estimator", None
        compare_rows(exported, {"": expected}, "the ONNX graph", 1e-3, absolute, range(len(rows)), lambda *_: advice)
    except Differs as error:
        raise BadInput(f"{error}; {error.advice}") from error
    return content

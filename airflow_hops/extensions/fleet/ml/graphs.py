"""ONNX graphs of a fleet's models: from the encoded matrix, float32 ``[rows, width]``, to the answers."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from airflow_hops.core.artifacts.target import MULTICLASS, REGRESSION, Problem, Target
from airflow_hops.core.errors import BadInput

_TOLERANCE = 1e-3
_CHECKED_ROWS = 256
_OPSETS = {"": 13, "ai.onnx.ml": 3}
_INPUT, _OUTPUT = "matrix", "answers"


def boosted_trees(model: Any, problem: Problem, width: int) -> bytes:
    """Returns the graph of a gradient-boosted estimator of scikit-learn, whose trees are added up.

    A threshold is rounded down to a float32, so that each float32 value goes the way that it goes in scikit-learn.

    Args:
        model: The estimator, which begins with a constant, or with the answers of another such one.
        problem: Kind of problem.
        width: Columns of the matrix.
    """
    from onnx import TensorProto, helper
    from sklearn.frozen import FrozenEstimator

    estimators = [model]
    while isinstance(estimators[0].init_, FrozenEstimator):
        estimators.insert(0, estimators[0].init_.estimator)
    first = estimators[0]
    initial = np.zeros((1, width), np.float32)
    if problem == REGRESSION:
        base = first.init_.predict(initial)
    else:
        chances = np.clip(first.init_.predict_proba(initial)[0], 1e-7, 1 - 1e-7)
        base = np.log(chances) if problem == MULTICLASS else np.log(chances[1:] / chances[:1])
    nodes: dict[str, list[Any]] = {
        name: []
        for name in (
            "nodes_treeids", "nodes_nodeids", "nodes_featureids", "nodes_values", "nodes_modes", "nodes_truenodeids",
            "nodes_falsenodeids", "target_treeids", "target_nodeids", "target_ids", "target_weights",
        )
    }  # fmt: skip
    number = 0
    for estimator in estimators:
        for stage in estimator.estimators_:
            for output, regressor in enumerate(stage):
                _add_tree(nodes, number, output, regressor.tree_, estimator.learning_rate)
                number += 1
    trees = helper.make_node(
        "TreeEnsembleRegressor", [_INPUT], ["scores"], domain="ai.onnx.ml", n_targets=len(base),
        base_values=[float(value) for value in base], aggregate_function="SUM", post_transform="NONE", **nodes,
    )  # fmt: skip
    shape = helper.make_tensor("shape", TensorProto.INT64, [1], [-1])
    if problem == MULTICLASS:
        return _graph([trees, helper.make_node("Softmax", ["scores"], [_OUTPUT], axis=1)], width, len(base))
    flat = [trees, helper.make_node("Reshape", ["scores", "shape"], [_OUTPUT if problem == REGRESSION else "flat"])]
    if problem != REGRESSION:
        flat.append(helper.make_node("Sigmoid", ["flat"], [_OUTPUT]))
    return _graph(flat, width, None, [shape])


def _add_tree(nodes: dict[str, list[Any]], number: int, output: int, tree: Any, rate: float) -> None:
    is_leaf = tree.children_left < 0
    thresholds = tree.threshold.astype(np.float32)
    thresholds = np.where(thresholds > tree.threshold, np.nextafter(thresholds, np.float32(-np.inf)), thresholds)
    count = tree.node_count
    nodes["nodes_treeids"] += [number] * count
    nodes["nodes_nodeids"] += range(count)
    nodes["nodes_featureids"] += np.where(is_leaf, 0, tree.feature).tolist()
    nodes["nodes_values"] += np.where(is_leaf, np.float32(0), thresholds).tolist()
    nodes["nodes_modes"] += ["LEAF" if leaf else "BRANCH_LEQ" for leaf in is_leaf.tolist()]
    nodes["nodes_truenodeids"] += np.where(is_leaf, 0, tree.children_left).tolist()
    nodes["nodes_falsenodeids"] += np.where(is_leaf, 0, tree.children_right).tolist()
    leaves = np.flatnonzero(is_leaf)
    nodes["target_treeids"] += [number] * len(leaves)
    nodes["target_nodeids"] += leaves.tolist()
    nodes["target_ids"] += [output] * len(leaves)
    nodes["target_weights"] += (rate * tree.value[leaves, 0, 0]).tolist()


_ACTIVATIONS = {
    "linear": None,
    "relu": "Relu",
    "sigmoid": "Sigmoid",
    "tanh": "Tanh",
    "softmax": "Softmax",
    "elu": "Elu",
}


def dense_layers(model: Any) -> bytes:
    """Returns the graph of a Keras model of dense layers in a row, without layers that only train, such as dropout.

    Raises:
        BadInput: it has another layer or activation; the message names it.
    """
    from onnx import helper, numpy_helper

    nodes, constants, last = [], [], _INPUT
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
        constants += [
            numpy_helper.from_array(kernel, f"kernel{number}"),
            numpy_helper.from_array(bias, f"bias{number}"),
        ]
        nodes.append(helper.make_node("Gemm", [last, f"kernel{number}", f"bias{number}"], [f"dense{number}"]))
        last = f"dense{number}"
        if (operator := _ACTIVATIONS[activation]) is not None:
            nodes.append(helper.make_node(operator, [last], [f"active{number}"]))
            last = f"active{number}"
    if not nodes:
        raise BadInput("the Keras model has no Dense layer")
    nodes.append(helper.make_node("Identity", [last], [_OUTPUT]))
    return _graph(nodes, width, outputs, constants)


def _graph(nodes: Sequence[Any], width: int, outputs: int | None, constants: Sequence[Any] = ()) -> bytes:
    from onnx import TensorProto, helper

    taken = helper.make_tensor_value_info(_INPUT, TensorProto.FLOAT, ["rows", width])
    answers = helper.make_tensor_value_info(
        _OUTPUT, TensorProto.FLOAT, ["rows"] if outputs is None else ["rows", outputs]
    )
    graph = helper.make_graph(list(nodes), "segment", [taken], [answers], list(constants))
    opsets = [helper.make_opsetid(domain, version) for domain, version in _OPSETS.items()]
    content: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
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
        BadInput: they differ by more than 0.001, of a probability or in standard deviations of the answers, and by more
            than float32 rounds.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    rows = matrix[:_CHECKED_ROWS].astype(np.float32)
    answers = session.run([session.get_outputs()[0].name], {session.get_inputs()[0].name: rows})[0]
    expected = expected[: len(rows)]
    if answers.ndim == 2 and expected.ndim == 1:
        answers = answers[:, -1]
    scale = 1.0 if problem != REGRESSION else float(np.std(expected))
    allowed = _TOLERANCE * scale + 1e-6 * float(np.abs(expected).max(initial=0.0))
    differences = np.abs(answers - expected).reshape(len(rows), -1).max(axis=1)
    if len(rows) and not (differences <= allowed).all():
        row = int(np.nan_to_num(differences, nan=np.inf).argmax())
        raise BadInput(
            f"the ONNX graph answers {answers[row]} for row {row}, and the trained model {expected[row]}; expected a "
            f"difference of at most {allowed:.2g}"
        )
    return content

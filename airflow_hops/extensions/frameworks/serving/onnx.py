"""Serves ONNX models with onnxruntime."""

from __future__ import annotations

import math
import mmap
import os
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as states

from airflow_hops.core.serving_api import tensors
from airflow_hops.core.serving_api.protocol import SignatureDefMap
from airflow_hops.core.serving_api.wire import has_onnx_loops
from airflow_hops.serving.errors import ServingError, check_deadline, deadline_exceeded, invalid_argument
from airflow_hops.serving.models.described import DescribedServable, request_definitions
from airflow_hops.serving.models.formats import ModelOptions
from airflow_hops.serving.models.model_signature import (
    SIGNATURE_FILE,
    EstimatorInputs,
    ModelSignature,
    SignatureFileError,
    read_signature,
)
from airflow_hops.serving.models.servable import DEFAULT_SIGNATURE, Signature
from airflow_hops.serving.models.signature_defs import PREDICT, ProblemOutputs, fill_info

onnxruntime.disable_telemetry_events()

MODEL_FILE = "model.onnx"

_FATAL = 4
_NUMBERS = "fiub"
_LOAD_ERRORS = (
    states.Fail,
    states.InvalidGraph,
    states.NotImplemented,
    states.InvalidArgument,
    states.RuntimeException,
)


class OnnxServable(DescribedServable):
    """The ``model.onnx`` of a version folder.

    If the folder has a ``signature.json``, that file defines the inputs of requests, and the outputs are those of its
    problem; a ``transform_graph/`` may come before the model. Otherwise inputs and outputs are those of the ONNX graph.

    Deadlines end runs, between two operators.

    Raises:
        ServingError: ``INVALID_ARGUMENT`` if the file is not an ONNX model or contradicts the signature file;
            ``FAILED_PRECONDITION`` if onnxruntime lacks the opset or an operator, or if data lies outside the folder.
    """

    def __init__(self, model: str, version: int, folder: Path, options: ModelOptions) -> None:
        # onnxruntime 1.31: requires external data to lie in the file's folder, after symbolic links are resolved.
        path = folder.resolve() / MODEL_FILE
        self._session = _load(path, options)
        try:
            self._inputs = {node.name: node for node in self._session.get_inputs()}
            outputs = self._session.get_outputs()
            if (folder / SIGNATURE_FILE).is_file():
                signature = read_signature(folder)
                _check_inputs(signature, self._inputs)
                definitions = request_definitions(signature)
            else:
                columns = {name: _type_of(node) for name, node in self._inputs.items()}
                signature = ModelSignature(EstimatorInputs(columns), EstimatorInputs(columns))
                definitions = _definitions_of_graph(self._inputs.values(), _scalars(path, self._inputs.values()))
            self._made: dict[str, tuple[str, ProblemOutputs | None]] = {}
            if signature.outputs is not None:
                self._made = _fill_outputs(definitions, outputs, signature)
            else:
                of_graph = definitions.signature_def[DEFAULT_SIGNATURE].outputs
                for node in outputs:
                    fill_info(of_graph[node.name], node.name, _type_of(node), _shape(node))
        except SignatureFileError as error:
            raise invalid_argument(str(error)) from error
        except ValueError as error:
            raise invalid_argument(f"{path}: {error}") from error
        self._is_described = (folder / SIGNATURE_FILE).is_file()
        super().__init__(model, version, folder, options, signature, definitions)
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            self.computes_here = self.computes_here and not has_onnx_loops(content)

    def _free(self) -> None:
        super()._free()
        self._session = None

    def _run(
        self, signature: Signature, feeds: Sequence[np.ndarray], aliases: tuple[str, ...], deadline_s: float
    ) -> Sequence[np.ndarray]:
        check_deadline(deadline_s)
        try:
            names = [signature.outputs[alias] for alias in aliases]
            if not self._is_described:
                values = {name: _as_given(feed) for name, feed in zip(signature.inputs, feeds, strict=True)}
                return [_as_answer(value) for value in self._run_graph(names, values, deadline_s)]
            arranged = self._arranged(signature, feeds, deadline_s)
            self._signature.refused.check(arranged)
            values = {name: _as_input(node, arranged) for name, node in self._inputs.items()}
            if self._signature.outputs is None:
                return [_as_answer(value) for value in self._run_graph(names, values, deadline_s)]
            made, rows = [self._made[name] for name in names], len(next(iter(values.values())))
            wanted = list(dict.fromkeys(output for output, _ in made))
            result = dict(zip(wanted, self._run_graph(wanted, values, deadline_s), strict=True))
            return [
                _as_answer(result[output]) if head is None else head.array(name, head.scores(result[output], rows))
                for name, (output, head) in zip(names, made, strict=True)
            ]
        except (ValueError, TypeError) as error:
            raise invalid_argument(str(error)) from error

    def _run_graph(self, names: Sequence[object], values: Mapping[str, object], deadline_s: float) -> list[Any]:
        try:
            if deadline_s == math.inf:
                result: list[Any] = self._session.run(names, values)
            else:
                with _DEADLINES.ended_at(deadline_s) as run_options:
                    result = self._session.run(names, values, run_options)
            return result
        except (states.InvalidArgument, states.Fail, states.RuntimeException, states.NotImplemented) as error:
            check_deadline(deadline_s)
            if "terminate flag" in str(error):
                raise deadline_exceeded() from None
            raise invalid_argument(f"onnxruntime: {_plain(error)}") from error


def graph_inputs(folder: Path) -> EstimatorInputs:
    """Returns the inputs of the graph in a version folder: columns by name, or one matrix of several columns.

    Raises:
        ServingError: The graph does not load.
        ValueError: An input is not a tensor.
    """
    nodes = _load(folder / MODEL_FILE, ModelOptions()).get_inputs()
    columns = {node.name: _type_of(node) for node in nodes}
    width = nodes[0].shape[1] if len(nodes) == 1 and len(nodes[0].shape) == 2 else None
    is_matrix = isinstance(width, int) and width > 1
    return EstimatorInputs(columns, width if is_matrix else None)


def graph_labels(folder: Path) -> tuple[str, ...] | None:
    """Returns the labels of the classifier in a version folder, in the order of its probabilities.

    Returns None if the graph does not name them, as in neural networks, whose operators have no class attributes.
    """
    import onnx
    from google.protobuf.message import DecodeError

    try:
        graph = onnx.load(folder / MODEL_FILE, load_external_data=False).graph
    except DecodeError:
        return None  # opening the model reports the error
    labels = {
        tuple(str(label.decode() if isinstance(label, bytes) else label) for label in (each.strings or each.ints))
        for node in graph.node
        for each in node.attribute
        if each.name in ("classlabels_strings", "classlabels_int64s", "classlabels_ints")
    } - {()}
    return labels.pop() if len(labels) == 1 else None


def _load(path: Path, options: ModelOptions) -> Any:
    wanted = onnxruntime.SessionOptions()
    wanted.intra_op_num_threads = options.intra_op_threads
    wanted.log_severity_level = _FATAL  # errors raise exceptions
    # onnxruntime 1.31 (microsoft/onnxruntime#6895): spinning threads would use 5 ms of CPU after each call of 0.2 ms.
    # Spinning cannot be turned off for the threads that onnxruntime shares among sessions.
    wanted.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # Memory patterns are stored for each input shape, and clients choose the number of rows.
    wanted.enable_mem_pattern = False
    try:
        # onnxruntime 1.31: would print a banner about the provider with the fallback.
        return onnxruntime.InferenceSession(
            os.fspath(path), wanted, providers=["CPUExecutionProvider"], enable_fallback=0
        )
    except (states.InvalidProtobuf, UnicodeDecodeError) as error:
        raise invalid_argument(f"Could not load the ONNX model at {path}: {_plain(error)}") from error
    except states.NoSuchFile as error:
        raise ServingError(grpc.StatusCode.NOT_FOUND, f"Could not load the ONNX model at {path}: gone") from error
    except _LOAD_ERRORS as error:
        raise ServingError(
            grpc.StatusCode.FAILED_PRECONDITION,
            f"Could not load the ONNX model at {path} with onnxruntime {onnxruntime.__version__}: {_plain(error)}",
        ) from error


def _plain(error: Exception) -> str:
    """Returns the message without the name and number of the error and without the source location."""
    message = str(error).split(" : ", 3)[-1]
    place, bracket, rest = message.partition("&) ")
    return rest if bracket and place.startswith("/") else message


class _Deadlines:
    """Ends runs at their deadlines; one thread does it for all runs."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running: dict[int, tuple[float, Any]] = {}
        self._next_s = -math.inf  # without a thread
        self._thread = threading.Thread(target=self._watch, name="onnx-deadlines", daemon=True)

    @contextmanager
    def ended_at(self, deadline_s: float) -> Iterator[object]:
        """Yields options for a run that ends at the deadline."""
        run_options = onnxruntime.RunOptions()
        run_options.log_severity_level = _FATAL
        with self._changed:
            self._running[id(run_options)] = (deadline_s, run_options)
            if self._next_s == -math.inf:
                self._next_s = deadline_s
                self._thread.start()
            elif deadline_s < self._next_s:
                self._changed.notify()
        try:
            yield run_options
        finally:
            with self._changed:
                del self._running[id(run_options)]

    def _watch(self) -> None:
        with self._changed:
            while True:
                now_s = time.monotonic()
                self._next_s = math.inf
                for deadline_s, run_options in self._running.values():
                    if deadline_s <= now_s:
                        run_options.terminate = True
                    else:
                        self._next_s = min(self._next_s, deadline_s)
                self._changed.wait(min(self._next_s - now_s, threading.TIMEOUT_MAX))


_DEADLINES = _Deadlines()


def _type_of(node: onnxruntime.NodeArg) -> tensors.TensorType:
    """Returns the type of an input or output, which onnxruntime spells ``tensor(float)``."""
    name = node.type.removeprefix("tensor(").removesuffix(")")
    name = {"float16": "half"}.get(name, name)
    if not node.type.startswith("tensor(") or name not in tensors.BY_NAME:
        raise ValueError(
            f"{node.name!r} of the graph is a {node.type}; expected a tensor (with skl2onnx and onnxmltools, "
            "convert with the option zipmap=False)"
        )
    return tensors.BY_NAME[name]


def _shape(node: onnxruntime.NodeArg) -> tuple[int, ...] | None:
    # onnxruntime 1.31: reports [] for scalars and for tensors of any rank.
    return tuple(size if isinstance(size, int) else -1 for size in node.shape) or None


def _scalars(path: Path, inputs: Collection[onnxruntime.NodeArg]) -> frozenset[str]:
    """Returns the names of the inputs that are scalars, for which onnxruntime reports what it does for any rank."""
    if all(node.shape for node in inputs):
        return frozenset()
    import onnx

    types = {each.name: each.type.tensor_type for each in onnx.load(path, load_external_data=False).graph.input}
    return frozenset(name for name, each in types.items() if each.HasField("shape") and not each.shape.dim)


def _definitions_of_graph(inputs: Collection[onnxruntime.NodeArg], scalars: frozenset[str]) -> Any:
    definitions = SignatureDefMap()
    definition = definitions.signature_def[DEFAULT_SIGNATURE]
    definition.method_name = PREDICT
    for node in inputs:
        shape = () if node.name in scalars else _shape(node)
        fill_info(definition.inputs[node.name], node.name, _type_of(node), shape)
    return definitions


def _check_inputs(signature: ModelSignature, inputs: Mapping[str, Any]) -> None:
    """Raises ValueError if the graph's inputs differ from those in the signature file."""
    for node in inputs.values():
        _type_of(node)
        if len(node.shape) not in (1, 2):
            raise ValueError(
                f"input {node.name!r} of the graph has shape {node.shape}; expected [batch] or [batch, width]"
            )
    if signature.model.width is None:
        if signature.model.columns.keys() != inputs.keys():
            raise ValueError(
                f"the graph takes {', '.join(inputs)}; {SIGNATURE_FILE} says {', '.join(signature.model.columns)}"
            )
        return
    if len(inputs) != 1:
        raise ValueError(f"{SIGNATURE_FILE} says that the graph takes one matrix; it takes {', '.join(inputs)}")
    width = next(iter(inputs.values())).shape[-1]
    if isinstance(width, int) and width != signature.model.width:
        raise ValueError(f"the graph takes a matrix of {width}; {SIGNATURE_FILE} says {signature.model.width}")


def _fill_outputs(
    definitions: Any, outputs: Sequence[onnxruntime.NodeArg], signature: ModelSignature
) -> dict[str, tuple[str, ProblemOutputs | None]]:
    """Adds the predictions of a described graph to the signatures; returns the graph's output for each tensor."""
    assert signature.outputs is not None
    heads = [(_output(outputs, signature.output), signature.outputs)]
    heads += [(_output(outputs, output), predicted) for predicted, output in signature.heads.values()]
    made: dict[str, tuple[str, ProblemOutputs | None]] = {}
    for output, head in heads:
        head.fill(definitions)
        made |= dict.fromkeys(head.tensors, (output, head))
    nodes = {node.name: node for node in outputs}
    of_default = definitions.signature_def[DEFAULT_SIGNATURE].outputs
    for name, output in signature.passed.items():
        if name in made:
            raise ValueError(f"'passed' names {name!r}, which is the output of a prediction; rename it")
        node = nodes[_output(outputs, output)]
        fill_info(of_default[name], name, _type_of(node), _shape(node))
        made[name] = (output, None)
    return made


def _output(outputs: Sequence[onnxruntime.NodeArg], name: str | None) -> str:
    """Returns the output that is the prediction: the one with the name, or the only one of floats."""
    if name is None:
        results = [node.name for node in outputs if node.type in ("tensor(float)", "tensor(double)")]
    else:
        results = [node.name for node in outputs if node.name == name and _type_of(node)]
    if len(results) != 1:
        listed = ", ".join(f"{node.name} ({node.type})" for node in outputs)
        raise ValueError(
            f"the graph's outputs are {listed}; expected {repr(name) if name else 'one of floats'}: name the "
            f"prediction in 'output' of {SIGNATURE_FILE}"
        )
    return str(results[0])


def _as_input(node: onnxruntime.NodeArg, arranged: Mapping[str, np.ndarray]) -> Any:
    """Returns the value for an input of the graph: the column of that name, or the matrix."""
    values = arranged[node.name] if node.name in arranged else next(iter(arranged.values()))
    expected = _type_of(node).numpy
    if values.ndim != len(node.shape):
        values = values[:, np.newaxis] if values.ndim == 1 else values[:, 0] if values.shape[1:] == (1,) else values
    if values.dtype != expected:
        if values.dtype.kind not in _NUMBERS or expected.kind not in _NUMBERS:
            raise ValueError(f"input {node.name} is {values.dtype}; the graph takes {node.type}")
        values = values.astype(expected)
    return _as_given(values)


def _as_given(values: np.ndarray) -> np.ndarray:
    """Returns the array as onnxruntime takes it: strings as str."""
    return tensors.decoded(values) if values.dtype == object else values


def _as_answer(values: Any) -> np.ndarray:
    return tensors.encoded(values) if values.dtype == object else np.asarray(values)

"""Serves TensorFlow Lite models with interpreters in this process."""

from __future__ import annotations

import math
import mmap
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from flatbuffers import flexbuffers
from google.protobuf.message import DecodeError
from tensorflow.lite.python import schema_py_generated as schema
from tensorflow.lite.python.interpreter import Interpreter

from airflow_hops.core.serving_api import tensors
from airflow_hops.core.serving_api.protocol import SignatureDefMap
from airflow_hops.serving.errors import ServingError, deadline_exceeded, invalid_argument
from airflow_hops.serving.models.local import LocalServable
from airflow_hops.serving.models.model_options import ModelOptions
from airflow_hops.serving.models.servable import DEFAULT_SIGNATURE, Signature
from airflow_hops.serving.models.signature_defs import PREDICT, fill_info

# TensorFlow's signature_def_utils stores signatures under this name: a FlexBuffer map of serialized SignatureDefs.
_SIGNATURES_METADATA = b"signature_defs_metadata"

Detail = dict[str, Any]


class TfLiteServable(LocalServable):
    """The ``model.tflite`` of a version folder.

    Signatures come from the file's metadata, as in TensorFlow Serving, else from the converter. A file without
    signatures has ``serving_default``, whose inputs and outputs are named by their tensors. At most one request per
    core runs at once, each in its own interpreter, whose tensors are resized to those of the request.

    Raises:
        ServingError: The file is not a TensorFlow Lite model, or has operations that are not built in.
    """

    def __init__(self, model: str, version: int, folder: Path, options: ModelOptions) -> None:
        path = str(folder / "model.tflite")
        threads = options.intra_op_threads or None
        try:
            self._interpreters = _Pool(lambda: Interpreter(path, num_threads=threads), os.cpu_count() or 1)
            with self._interpreters.borrow() as interpreter:
                definitions, written = SignatureDefMap(), SignatureDefMap()
                inputs, outputs = _details(interpreter)
                serialized_signatures, scalars = _described(path)
                for name, serialized in serialized_signatures.items():
                    definition, values = definitions.signature_def[name], written.signature_def[name]
                    values.ParseFromString(serialized)
                    sides = [
                        {alias: _named_tensor(details, name, info.name) for alias, info in infos.items()}
                        for infos, details in ((values.inputs, inputs), (values.outputs, outputs))
                    ]
                    _fill_definition(definition, scalars, *sides)
                    definition.method_name = values.method_name or PREDICT
                self._by_tensor = bool(definitions.signature_def) or not interpreter.get_signature_list()
                if not definitions.signature_def:
                    definitions = _signature_defs(interpreter, scalars)
        except (ValueError, RuntimeError, KeyError, DecodeError) as error:
            raise ServingError(
                grpc.StatusCode.INVALID_ARGUMENT, f"Could not load the TensorFlow Lite model at {path}: {error}"
            ) from error
        super().__init__(model, version, str(folder), definitions.SerializeToString(), options)
        # A request may have to wait for an interpreter.
        self.computes_here = False

    def _free(self) -> None:
        self._interpreters.clear()

    def _run(
        self, signature: Signature, feeds: Sequence[np.ndarray], aliases: tuple[str, ...], deadline_s: float
    ) -> Sequence[np.ndarray]:
        with self._interpreters.borrow(deadline_s) as interpreter:
            try:
                if self._by_tensor:
                    tensors_given = dict(zip(signature.inputs.values(), feeds, strict=True))
                    return _run(interpreter, tensors_given, [signature.outputs[alias] for alias in aliases])
                inputs = dict(zip(signature.inputs, feeds, strict=True))
                outputs = interpreter.get_signature_runner(signature.name)(**inputs)
                return [np.asarray(outputs[alias]) for alias in aliases]
            except (ValueError, RuntimeError) as error:
                raise invalid_argument(f"Failed to run interpreter: {error}") from error


class _Pool:
    """Pool of interpreters, created on demand; an interpreter is not thread-safe."""

    def __init__(self, make: Callable[[], Interpreter], limit: int) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._idle: queue.LifoQueue[Interpreter] = queue.LifoQueue()
        self._to_make = limit

    @contextmanager
    def borrow(self, deadline_s: float = math.inf) -> Iterator[Interpreter]:
        """Waits for an idle interpreter; raises ServingError with DEADLINE_EXCEEDED."""
        interpreter = self._take(deadline_s)
        try:
            yield interpreter
        finally:
            self._idle.put(interpreter)

    def _take(self, deadline_s: float) -> Interpreter:
        with self._lock:
            if self._idle.empty() and self._to_make:
                interpreter = self._make()
                self._to_make -= 1
                return interpreter
        left_s = min(deadline_s - time.monotonic(), threading.TIMEOUT_MAX)
        try:
            return self._idle.get(timeout=max(0.0, left_s))
        except queue.Empty:
            raise deadline_exceeded() from None

    def clear(self) -> None:
        while not self._idle.empty():
            self._idle.get()


def _described(path: str) -> tuple[dict[str, bytes], frozenset[str]]:
    """Returns the serialized signatures in the file's metadata, and the names of its tensors that are scalars."""
    signatures: dict[str, bytes] = {}
    with Path(path).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        model = schema.Model.GetRootAs(content)
        for number in range(model.MetadataLength()):
            metadata = model.Metadata(number)
            if metadata.Name() == _SIGNATURES_METADATA:
                buffer = model.Buffers(metadata.Buffer()).DataAsNumpy().tobytes()
                named = flexbuffers.GetRoot(buffer).AsMap
                pairs = zip(named.Keys, named.Values, strict=True)
                signatures = {name.AsKey: serialized.AsStringBytes for name, serialized in pairs}
        graphs = [model.Subgraphs(number) for number in range(model.SubgraphsLength())]
        all_tensors = [graph.Tensors(number) for graph in graphs for number in range(graph.TensorsLength())]
        scalars = {each.Name().decode() for each in all_tensors if each.HasRank() and not each.ShapeLength()}
        del model, graphs, all_tensors  # they hold the file's content
    return signatures, frozenset(scalars)


def _named_tensor(details: dict[str, Detail], signature: str, name: str) -> Detail:
    detail = details.get(name) or details.get(name.removesuffix(":0"))
    if detail is None:
        raise ValueError(f"signature {signature!r} names a tensor {name!r}; those of the model are {sorted(details)}")
    return detail


def _details(interpreter: Interpreter) -> tuple[dict[str, Detail], dict[str, Detail]]:
    """Returns the inputs and outputs by tensor name."""
    inputs, outputs = interpreter.get_input_details(), interpreter.get_output_details()
    return {detail["name"]: detail for detail in inputs}, {detail["name"]: detail for detail in outputs}


def _signature_defs(interpreter: Interpreter, scalars: frozenset[str]) -> Any:
    definitions = SignatureDefMap()
    for name in interpreter.get_signature_list():
        runner = interpreter.get_signature_runner(name)
        sides = runner.get_input_details(), runner.get_output_details()
        _fill_definition(definitions.signature_def[name], scalars, *sides)
    if not definitions.signature_def:
        _fill_definition(definitions.signature_def[DEFAULT_SIGNATURE], scalars, *_details(interpreter))
    return definitions


def _fill_definition(
    definition: Any, scalars: frozenset[str], inputs: dict[str, Detail], outputs: dict[str, Detail]
) -> None:
    definition.method_name = PREDICT
    for infos, details in ((definition.inputs, inputs), (definition.outputs, outputs)):
        for alias, detail in details.items():
            kind = tensors.type_of(np.empty(0, detail["dtype"]))
            # The interpreter reports [] for scalars and for tensors of any rank.
            unranked = None if detail["name"] not in scalars else ()
            fill_info(infos[alias], detail["name"], kind, tuple(detail["shape_signature"].tolist()) or unranked)


def _run(interpreter: Interpreter, values: dict[str, np.ndarray], wanted: Sequence[str]) -> list[np.ndarray]:
    """Runs a model; inputs and outputs are named by their tensors."""
    inputs, outputs = _details(interpreter)
    for name, value in values.items():
        interpreter.resize_tensor_input(inputs[name]["index"], value.shape)
    interpreter.allocate_tensors()
    for name, value in values.items():
        interpreter.set_tensor(inputs[name]["index"], value)
    interpreter.invoke()
    return [interpreter.get_tensor(outputs[name]["index"]) for name in wanted]

"""A TensorFlow Lite model, in interpreters of this process."""

from __future__ import annotations

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
import tensorflow as tf

from airflow_hops.serving.errors import ServingError, invalid_argument
from airflow_hops.serving.models.local import LocalServable
from airflow_hops.serving.models.model_options import ModelOptions
from airflow_hops.serving.models.servable import DEFAULT_SIGNATURE, Signature
from airflow_hops.serving_api import tensors
from airflow_hops.serving_api.protocol import SignatureDefMap

PREDICT = "tensorflow/serving/predict"

Interpreter = Any
Detail = dict[str, Any]


class TfLiteServable(LocalServable):
    """The ``model.tflite`` of a version folder.

    Its signatures are those in the file; a file without any has ``serving_default``, whose inputs and outputs go by the
    names of the tensors. As many requests run at once as there are cores, each in an interpreter of its own, whose
    tensors take the sizes of the request's.

    Args:
        model: Model name.
        version: Version number.
        folder: The version folder.
        options: How to open it.

    Raises:
        ServingError: The file is no TensorFlow Lite model, or has operations that are not built in.
    """

    def __init__(self, model: str, version: int, folder: Path, options: ModelOptions) -> None:
        started_s = time.monotonic()
        path = str(folder / "model.tflite")
        threads = options.intra_op_threads or None
        try:
            self._interpreters = _Pool(lambda: tf.lite.Interpreter(path, num_threads=threads), os.cpu_count() or 1)
            with self._interpreters.borrow() as interpreter:
                self._named = bool(interpreter.get_signature_list())
                definitions = _signature_defs(interpreter)
        except (ValueError, RuntimeError) as error:
            raise ServingError(
                grpc.StatusCode.INVALID_ARGUMENT, f"Could not load the TensorFlow Lite model at {path}: {error}"
            ) from error
        super().__init__(model, version, str(folder), definitions.SerializeToString(), options)
        # A request waits for others where they have all interpreters.
        self.computes_here = False
        self.load_s = time.monotonic() - started_s

    def _free(self) -> None:
        self._interpreters.clear()

    def _run(
        self, signature: Signature, feeds: Sequence[np.ndarray], aliases: tuple[str, ...], deadline_s: float
    ) -> Sequence[np.ndarray]:
        inputs = dict(zip(signature.inputs, feeds, strict=True))
        with self._interpreters.borrow() as interpreter:
            try:
                if self._named:
                    outputs = interpreter.get_signature_runner(signature.name)(**inputs)
                else:
                    outputs = _run_unnamed(interpreter, inputs)
            except (ValueError, RuntimeError) as error:
                raise invalid_argument(f"Failed to run interpreter: {error}") from error
            return [np.asarray(outputs[alias]) for alias in aliases]


class _Pool:
    """Interpreters, which one thread at a time may use; made when they are wanted."""

    def __init__(self, make: Callable[[], Interpreter], limit: int) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._idle: queue.LifoQueue[Interpreter] = queue.LifoQueue()
        self._to_make = limit

    @contextmanager
    def borrow(self) -> Iterator[Interpreter]:
        """Waits for an interpreter that nobody uses."""
        interpreter = self._take()
        try:
            yield interpreter
        finally:
            self._idle.put(interpreter)

    def _take(self) -> Interpreter:
        with self._lock:
            if self._idle.empty() and self._to_make:
                interpreter = self._make()
                self._to_make -= 1
                return interpreter
        return self._idle.get()

    def clear(self) -> None:
        """Lets go of those that nobody uses."""
        while not self._idle.empty():
            self._idle.get()


def _signature_defs(interpreter: Interpreter) -> Any:
    definitions = SignatureDefMap()
    for name in interpreter.get_signature_list():
        runner = interpreter.get_signature_runner(name)
        _fill_definition(definitions.signature_def[name], runner.get_input_details(), runner.get_output_details())
    if not definitions.signature_def:
        inputs, outputs = (
            {detail["name"]: detail for detail in details}
            for details in (interpreter.get_input_details(), interpreter.get_output_details())
        )
        _fill_definition(definitions.signature_def[DEFAULT_SIGNATURE], inputs, outputs)
    return definitions


def _fill_definition(definition: Any, inputs: dict[str, Detail], outputs: dict[str, Detail]) -> None:
    definition.method_name = PREDICT
    for infos, details in ((definition.inputs, inputs), (definition.outputs, outputs)):
        for alias, detail in details.items():
            info = infos[alias]
            info.name = detail["name"]
            info.dtype = tensors.type_of(np.empty(0, detail["dtype"])).number
            info.tensor_shape.SetInParent()
            for size in detail["shape_signature"].tolist():
                info.tensor_shape.dim.add(size=size)


def _run_unnamed(interpreter: Interpreter, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    details = {detail["name"]: detail for detail in interpreter.get_input_details()}
    for name, value in inputs.items():
        interpreter.resize_tensor_input(details[name]["index"], value.shape)
    interpreter.allocate_tensors()
    for name, value in inputs.items():
        interpreter.set_tensor(details[name]["index"], value)
    interpreter.invoke()
    return {detail["name"]: interpreter.get_tensor(detail["index"]) for detail in interpreter.get_output_details()}

"""ONNX models of segments: many small ones in one process."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as states

from airflow_hops.core.errors import BadInput
from airflow_hops.core.serving_api.wire import has_onnx_loops

onnxruntime.disable_telemetry_events()

_FATAL = 4
# onnxruntime 1.31: would read a tensor with this key from another file, relative to the current folder.
_EXTERNAL = b"location"
_ERRORS = (
    states.Fail,
    states.InvalidGraph,
    states.InvalidProtobuf,
    states.NotImplemented,
    states.InvalidArgument,
    states.RuntimeException,
    UnicodeDecodeError,
)


class GraphModel:
    """An ONNX graph that takes a float32 matrix ``[rows, width]``, and has one output of floats.

    Attributes:
        size_bytes: What it takes in memory, about.

    Args:
        payload: The serialized model.
        width: Columns of the matrix.

    Raises:
        BadInput: it is not such a graph, does not load, or has operators whose time depends on the values.
    """

    def __init__(self, payload: bytes, width: int) -> None:
        if has_onnx_loops(payload):
            raise BadInput("the graph has a Loop or a Scan, or cannot be read; expected trees or dense layers")
        if _EXTERNAL in payload:
            raise BadInput("the graph names a 'location', as if its data were in another file; expected all data in it")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1  # no threads of its own
        options.log_severity_level = _FATAL  # errors raise exceptions
        # Both would grow with the numbers of rows that clients choose, in each of thousands of sessions.
        options.enable_mem_pattern = options.enable_cpu_mem_arena = False
        try:
            self._session: Any = onnxruntime.InferenceSession(
                payload, options, providers=["CPUExecutionProvider"], enable_fallback=0
            )
        except _ERRORS as error:
            raise BadInput(f"onnxruntime {onnxruntime.__version__} does not load it: {error}") from error
        inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        floats = [node.name for node in outputs if node.type in ("tensor(float)", "tensor(double)")]
        listed = ", ".join(f"{node.name} {node.type} {node.shape}" for node in (*inputs, *outputs))
        if len(inputs) != 1 or inputs[0].type != "tensor(float)" or len(inputs[0].shape) != 2 or len(floats) != 1:
            raise BadInput(f"the graph has {listed}; expected one matrix and one output, of floats")
        if isinstance(columns := inputs[0].shape[1], int) and columns != width:
            raise BadInput(f"the graph takes {columns} columns; the encoding has {width}")
        self._input, self._output = inputs[0].name, floats[0]
        # As measured of 600 bytes to 17 MB; of trees, the most
        self.size_bytes = 100_000 + (6 if b"TreeEnsemble" in payload else 2) * len(payload)

    def answers(self, matrix: np.ndarray) -> np.ndarray:
        """Returns the output for rows, ``[rows, width]``. Raises BadInput if the graph refuses them."""
        try:
            result: np.ndarray = self._session.run([self._output], {self._input: matrix.astype(np.float32)})[0]
            return result
        except _ERRORS as error:
            raise BadInput(f"onnxruntime: {error}") from error

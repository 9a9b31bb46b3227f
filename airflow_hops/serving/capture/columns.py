"""Captured requests as columns of an Arrow table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np

from airflow_hops.serving_api import tensors
from airflow_hops.serving_api.protocol import Method, PredictRequest, PredictResponse

CaptureMode = Literal["none", "inputs", "predictions", "all"]
CAPTURE_MODES: tuple[CaptureMode, ...] = get_args(CaptureMode)


@dataclass(frozen=True, slots=True)
class CapturedCall:
    """One answered request, as the request path leaves it.

    Attributes:
        request_id: The client's id of the request, or one made for it.
        model: Model name.
        version: The version that answered.
        method: The gRPC method.
        api: "grpc" or "rest".
        at_us: Arrival, microseconds since 1970 UTC.
        latency_ms: Milliseconds in the server.
        rows: Rows of the request.
        request: The request, serialized.
        response: The response, serialized.
    """

    request_id: str
    model: str
    version: int
    method: Method
    api: str
    at_us: int
    latency_ms: float
    rows: int
    request: bytes
    response: bytes


@dataclass(frozen=True)
class CapturedRequest:
    """One answered predict request, decoded.

    Attributes:
        request_id: The client's id of the request, or one made for it.
        model: Model name.
        version: The version that answered.
        signature: Signature name.
        api: "grpc" or "rest".
        at_us: Arrival, microseconds since 1970 UTC.
        latency_ms: Milliseconds in the server.
        rows: Rows of the request.
        inputs: Alias to array, empty where inputs are not captured.
        outputs: Alias to array, empty where predictions are not captured.
    """

    request_id: str
    model: str
    version: int
    signature: str
    api: str
    at_us: int
    latency_ms: float
    rows: int
    inputs: Mapping[str, np.ndarray]
    outputs: Mapping[str, np.ndarray]

    @cached_property
    def key(self) -> tuple[Any, ...]:
        """What the rows of one file have in common: model, version, signature and types of the columns."""
        return (
            self.model,
            self.version,
            self.signature,
            *((name, array.dtype.str, _depth(array, self.rows)) for name, array in sorted(self.inputs.items())),
            None,
            *((name, array.dtype.str, _depth(array, self.rows)) for name, array in sorted(self.outputs.items())),
        )


def decode(call: CapturedCall, mode: CaptureMode) -> CapturedRequest:
    """Decodes a predict request and its answer, as far as they are captured."""
    request = PredictRequest.FromString(call.request)
    response = PredictResponse.FromString(call.response)
    inputs, outputs = {}, {}
    if mode in ("inputs", "all"):
        inputs = {alias: tensors.from_proto(request.inputs[alias]) for alias in request.inputs}
    if mode in ("predictions", "all"):
        outputs = {alias: tensors.from_proto(response.outputs[alias]) for alias in response.outputs}
    return CapturedRequest(
        request_id=call.request_id,
        model=call.model,
        version=call.version,
        signature=response.model_spec.signature_name,
        api=call.api,
        at_us=call.at_us,
        latency_ms=call.latency_ms,
        rows=call.rows,
        inputs=inputs,
        outputs=outputs,
    )


def to_table(requests: Sequence[CapturedRequest]) -> Any:
    """Returns the requests, all of one ``key``, as one Arrow table with a row for each of their rows."""
    import pyarrow as pa

    rows = np.array([request.rows for request in requests])
    total = int(rows.sum())

    def repeated(values: list[Any], arrow_type: Any) -> Any:
        return pa.array(values, arrow_type).take(pa.array(np.repeat(np.arange(len(requests)), rows)))

    starts: np.ndarray = np.repeat(np.cumsum(rows) - rows, rows)
    columns = {
        "request_id": repeated([request.request_id for request in requests], pa.string()),
        "row": pa.array((np.arange(total) - starts).astype(np.int32)),
        "model": repeated([request.model for request in requests], pa.string()),
        "version": repeated([request.version for request in requests], pa.int64()),
        "signature": repeated([request.signature for request in requests], pa.string()),
        "api": repeated([request.api for request in requests], pa.string()),
        "captured_at": repeated([request.at_us for request in requests], pa.int64()).cast(pa.timestamp("us", "UTC")),
        "latency_ms": repeated([request.latency_ms for request in requests], pa.float64()),
    }
    for name in sorted(requests[0].inputs):
        columns[f"input.{name}"] = _column([_by_row(r.inputs[name], r.rows) for r in requests])
    for name in sorted(requests[0].outputs):
        columns[f"output.{name}"] = _column([_by_row(r.outputs[name], r.rows) for r in requests])
    return pa.table(columns)


def _by_row(array: np.ndarray, rows: int) -> np.ndarray:
    """An array with one entry a row: a tensor without a batch dimension belongs to every row."""
    if array.ndim and len(array) == rows:
        return array
    spread: np.ndarray = np.broadcast_to(array, (rows, *array.shape))
    return spread


def _depth(array: np.ndarray, rows: int) -> int:
    """How deep lists are nested in the column: 0 for shapes [batch] and [batch, 1]."""
    shape = array.shape[1:] if array.ndim and len(array) == rows else array.shape
    return 0 if shape in ((), (1,)) else len(shape)


def _column(arrays: list[np.ndarray]) -> Any:
    """One Arrow array over the arrays of all requests; their inner dimensions may differ, their number may not."""
    import pyarrow as pa

    flats = [array.reshape(-1) for array in arrays]
    flat = _flat(np.concatenate(flats) if len(flats) > 1 else flats[0])
    if all(array.shape[1:] in ((), (1,)) for array in arrays):
        return flat
    for axis in range(arrays[0].ndim - 1, 0, -1):
        sizes = np.concatenate(
            [np.full(int(np.prod(array.shape[:axis])), array.shape[axis], np.int32) for array in arrays]
        )
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
        flat = pa.ListArray.from_arrays(pa.array(offsets), flat)
    return flat


def _flat(values: np.ndarray) -> Any:
    """Strings become UTF-8 text where all of them are valid UTF-8, else stay binary."""
    import pyarrow as pa

    if values.dtype != object:
        return pa.array(values)
    binary = pa.array(values.tolist(), pa.binary())
    try:
        return binary.cast(pa.string())
    except pa.ArrowInvalid:
        return binary

"""Converts captured requests to Arrow tables of one model, version, signature and type for each column."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from airflow_hops.core.serving_api import protocol, tensors
from airflow_hops.core.serving_api.protocol import Method
from airflow_hops.core.serving_api.tensors import TensorError
from airflow_hops.serving.capture.options import CaptureMode
from airflow_hops.serving.capture.record import CapturedCall

EXAMPLES = "examples"
"""Name of the input that holds serialized examples."""

_DEFAULT_SIGNATURE = "serving_default"
# Rows without bytes, such as in shape [10**9, 0], are cheap for a client, but make a huge file.
_MOST_ROWS = 2**24
_LARGEST_REPEATED_BYTES = 2**28
_KINDS = {"bytes_list": np.dtype(object), "float_list": np.dtype(np.float32), "int64_list": np.dtype(np.int64)}
_MESSAGES: dict[Method, tuple[Any, Any]] = {
    Method.PREDICT: (protocol.PredictRequest, protocol.PredictResponse),
    Method.CLASSIFY: (protocol.ClassificationRequest, protocol.ClassificationResponse),
    Method.REGRESS: (protocol.RegressionRequest, protocol.RegressionResponse),
    Method.MULTI_INFERENCE: (protocol.MultiInferenceRequest, protocol.MultiInferenceResponse),
}

Arrays = Mapping[str, np.ndarray]


def captured_table(rows: int, facts: Mapping[str, object], columns: Mapping[str, Any]) -> Any:
    """Returns captured rows as an Arrow table.

    Args:
        rows: Number of rows.
        facts: An Arrow array, or one value for all rows: ``request_id``, ``row``, ``model``, ``version``,
            ``signature``, ``api``, ``captured_at`` (microseconds since 1970, or a time) and ``latency_ms``.
        columns: Inputs and outputs as Arrow arrays, by column.
    """
    import pyarrow as pa

    text, number = pa.string(), pa.int64()
    types = {
        "request_id": text, "row": pa.int32(), "model": text, "version": number, "signature": text, "api": text,
        "captured_at": pa.timestamp("us", "UTC"), "latency_ms": pa.float64(),
    }  # fmt: skip

    def column(value: object, kind: object) -> Any:
        return value.cast(kind) if isinstance(value, pa.Array) else pa.repeat(pa.scalar(value, kind), rows)

    return pa.table({name: column(facts[name], kind) for name, kind in types.items()} | dict(columns))


@dataclass
class RowGroup:
    """The rows of one file.

    Attributes:
        model: Model name.
        version: The version that answered.
        signature: Signature name.
        columns: Column to the values of each request, ``[rows, ...]``.
        calls: Requests, in order.
        rows: Number of rows of each request.
        total_rows: Number of rows of all requests.
    """

    model: str
    version: int
    signature: str
    columns: dict[str, list[np.ndarray]]
    calls: list[CapturedCall] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    total_rows: int = 0

    def to_table(self) -> Any:
        """Returns an Arrow table with one row for each row of the requests."""
        import pyarrow as pa

        rows = np.array(self.rows)
        index = pa.array(np.repeat(np.arange(len(rows)), rows))
        starts: np.ndarray = np.repeat(np.cumsum(rows) - rows, rows)

        def repeated(values: list[Any], arrow_type: object) -> Any:
            return pa.array(values, arrow_type).take(index)

        facts = {
            "request_id": repeated([call.request_id for call in self.calls], pa.string()),
            "row": pa.array(np.arange(self.total_rows) - starts),
            "model": self.model,
            "version": self.version,
            "signature": self.signature,
            "api": repeated([call.api for call in self.calls], pa.string()),
            "captured_at": repeated([call.at_us for call in self.calls], pa.int64()),
            "latency_ms": repeated([call.latency_ms for call in self.calls], pa.float64()),
        }
        return captured_table(self.total_rows, facts, {name: _to_arrow(each) for name, each in self.columns.items()})


class CallTables:
    """Sorts requests into groups of rows, each of which becomes a file.

    Args:
        mode: Whether to add the columns ``input.*``, ``output.*`` or both.
        roll_rows: Number of rows after which a group is closed.
    """

    def __init__(self, mode: CaptureMode = "all", roll_rows: int = 100_000) -> None:
        self.groups: list[RowGroup] = []
        self._mode, self._roll_rows = mode, roll_rows
        self._open: dict[tuple[Any, ...], RowGroup] = {}

    def add(self, call: CapturedCall) -> None:
        """Decodes the captured parts of a request; raises ValueError if they are inconsistent."""
        request_class, response_class = _MESSAGES[call.method]
        request, response = request_class.FromString(call.request), response_class.FromString(call.response)
        for signature, rows, inputs, outputs in _decoded(call, request, response):
            if rows > _MOST_ROWS:
                raise ValueError(f"{rows} rows in one request; expected {_MOST_ROWS} at most")
            captured = {
                **({f"input.{name}": inputs[name] for name in sorted(inputs)} if self._mode != "predictions" else {}),
                **({f"output.{name}": outputs[name] for name in sorted(outputs)} if self._mode != "inputs" else {}),
            }
            # Decodes all values before adding any, so that an invalid request does not damage other requests' rows.
            values = {column: _by_row(column, array, rows) for column, array in captured.items()}
            types = [(column, array.dtype, array.ndim) for column, array in values.items()]
            key = (call.model, call.version, signature, *types)
            group = self._open.get(key)
            if group is None:
                columns: dict[str, list[np.ndarray]] = {column: [] for column in values}
                group = self._open[key] = RowGroup(call.model, call.version, signature, columns)
                self.groups.append(group)
            for column, array in values.items():
                group.columns[column].append(array)
            group.calls.append(call)
            group.rows.append(rows)
            group.total_rows += rows
            if group.total_rows >= self._roll_rows:
                del self._open[key]


def _by_row(column: str, array: np.ndarray, rows: int) -> np.ndarray:
    """Returns one value per row; a tensor without a batch dimension is repeated for every row."""
    if not array.ndim or array.shape[0] != rows:
        if rows > 1 and rows * array.nbytes > _LARGEST_REPEATED_BYTES:
            raise TensorError(f"{column}: {array.nbytes} bytes for each of {rows} rows are too many")
        array = np.broadcast_to(array, (rows, *array.shape))
    return array.reshape(rows) if array.shape[1:] == (1,) else array


def _to_arrow(arrays: Sequence[np.ndarray]) -> object:
    """Returns arrays of one type and rank as one column; values that are not scalars become nested lists."""
    import pyarrow as pa

    shapes = [array.shape for array in arrays]
    values: np.ndarray = np.concatenate([array.reshape(-1) for array in arrays])
    if values.dtype.kind == "c":
        # PyArrow 10.0: has no complex numbers, so they become lists of the real and the imaginary part.
        values = values.view(values.real.dtype)
        shapes = [(*shape, 2) for shape in shapes]
    elif values.dtype.kind == "V" or values.dtype == np.float16:
        values = values.astype(np.float32)
    if values.dtype == object:
        column = pa.array(values.tolist(), pa.binary())
        with contextlib.suppress(pa.ArrowInvalid):  # if one is not valid UTF-8, all stay binary
            column = column.cast(pa.string())
    else:
        column = pa.array(values)
    for axis in range(len(shapes[0]) - 1, 0, -1):
        lists = [math.prod(shape[:axis]) for shape in shapes]
        sizes: np.ndarray = np.repeat([shape[axis] for shape in shapes], lists)
        offsets: np.ndarray = np.zeros(len(sizes) + 1, np.int32)
        np.cumsum(sizes, out=offsets[1:])
        column = pa.ListArray.from_arrays(pa.array(offsets), column)
    return column


def _decoded(call: CapturedCall, request: Any, response: Any) -> Iterable[tuple[str, int, Arrays, Arrays]]:
    """Yields signature, number of rows, inputs and outputs for each signature that a request uses."""
    if call.method is Method.PREDICT:
        arrays = {alias: tensors.from_proto(request.inputs[alias]) for alias in request.inputs}
        outputs = {alias: tensors.from_proto(response.outputs[alias]) for alias in response.outputs}
        yield _signature(request, response), call.rows, arrays, outputs
        return
    examples = _examples(request.input)
    inputs = _features(examples)
    rows = len(examples) or call.rows
    if call.method is not Method.MULTI_INFERENCE:
        yield _signature(request, response), rows, inputs, outputs_of_result(response.result)
    elif response.results:
        for each in response.results:
            yield _signature(each, each), rows, inputs, outputs_of_result(getattr(each, each.WhichOneof("result")))
    else:
        for task in request.tasks:
            yield _signature(task, task), rows, inputs, {}


def _signature(request: Any, response: Any) -> str:
    return str(response.model_spec.signature_name or request.model_spec.signature_name or _DEFAULT_SIGNATURE)


def _examples(values: Any) -> list[object]:
    if values.WhichOneof("kind") != "example_list_with_context":
        return list(values.example_list.examples)
    merged = []
    for example in values.example_list_with_context.examples:
        whole = protocol.Example()
        whole.CopyFrom(values.example_list_with_context.context)
        whole.MergeFrom(example)
        merged.append(whole)
    return merged


def _features(examples: Sequence[Any]) -> Arrays:
    """Returns a column per feature, or the serialized examples unless each feature has one value in each example."""
    values: dict[str, list[Any]] = {}
    kinds: dict[str, str] = {}
    for row, example in enumerate(examples):
        features = example.features.feature
        for name in features:
            kind = features[name].WhichOneof("kind")
            result = getattr(features[name], kind).value if kind else []
            if len(result) != 1 or kinds.setdefault(name, kind) != kind:
                return {EXAMPLES: _objects([each.SerializeToString() for each in examples])}
            values.setdefault(name, []).append(result[0])
        if any(len(column) != row + 1 for column in values.values()):
            return {EXAMPLES: _objects([each.SerializeToString() for each in examples])}
    return {name: _objects(column).astype(_KINDS[kinds[name]]) for name, column in values.items()}


def outputs_of_result(result: Any) -> Arrays:
    """Returns ``classes`` and ``scores`` (``[rows, classes]``) or ``value`` (``[rows]``); empty without a result."""
    if "regressions" in result.DESCRIPTOR.fields_by_name:
        values = [regression.value for regression in result.regressions]
        return {"value": np.array(values, np.float32)} if values else {}
    rows = result.classifications
    if not rows:
        return {}
    sizes = {len(row.classes) for row in rows}
    if len(sizes) != 1:
        raise ValueError(f"classifications of {sorted(sizes)} classes in one answer; expected the same number in each")
    shape = (len(rows), sizes.pop())
    labels = _objects([each.label.encode() for row in rows for each in row.classes])
    scores: np.ndarray = np.array([each.score for row in rows for each in row.classes], np.float32)
    return {"classes": labels.reshape(shape), "scores": scores.reshape(shape)}


def _objects(values: Sequence[object]) -> np.ndarray:
    array: np.ndarray = np.empty(len(values), object)
    array[:] = values
    return array

"""Captured requests decoded many at once, against the same requests decoded one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from airflow_hops.core.serving_api import protocol, tensors
from airflow_hops.serving.capture.options import CaptureMode
from airflow_hops.serving.capture.record import CallPacker, CapturedCall, unpack
from airflow_hops.serving.capture.tables import CallTables
from airflow_hops.serving.capture.waiting import WaitingRecords
from airflow_hops.serving.layouts import REQUEST_TENSORS, NoLayout, find_tensors
from airflow_hops.serving.request_kind import RequestKind

RANDOM = np.random.default_rng(7)
SHAPES = [(), (1,), (3,), (3, 2), (0, 4)]


def array_of(name: str, shape: Sequence[int]) -> np.ndarray:
    dtype = tensors.BY_NAME[name].numpy
    if name == "string":
        texts = [b"", b"a\0", b"JFK", b"\xff\xfe", b"two words"]
        return np.array([texts[i] for i in RANDOM.integers(0, 5, int(np.prod(shape)))], object).reshape(shape)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return RANDOM.choice(np.array([info.min, -1 if info.min else 1, 0, 1, 300 % info.max, info.max], dtype), shape)
    if dtype.kind == "b":
        return RANDOM.random(shape) < 0.5
    return (RANDOM.normal(size=shape) + (1j if dtype.kind == "c" else 0)).astype(dtype)


def call(
    number: int, inputs: dict[str, np.ndarray], rows: int, as_content: bool, reverse: bool = False
) -> CapturedCall:
    request, response = protocol.PredictRequest(), protocol.PredictResponse()
    request.model_spec.name = response.model_spec.name = "m"
    response.model_spec.signature_name = "serving_default"
    fragments = []
    for alias, array in inputs.items():
        one = protocol.PredictRequest()
        tensors.fill_proto(one.inputs[alias], array, as_content=as_content)
        fragments.append(one.SerializeToString())
    tensors.fill_proto(response.outputs["score"], RANDOM.normal(size=max(rows, 1)).astype(np.float32)[:rows])
    return CapturedCall(
        kind=RequestKind("m", 3, "Predict", ("GRPC", "REST")[number % 400 // 200]),
        request_id=f"id-{number:04x}",
        at_us=1_700_000_000_000_000 + number,
        latency_ms=number / 7,
        rows=rows,
        request=request.SerializeToString() + b"".join(fragments[::-1] if reverse else fragments),
        response=response.SerializeToString(),
    )


def packed(call: CapturedCall) -> bytes:
    return CallPacker(call.kind, call.shadow).pack(call)


def one_by_one(calls: Sequence[CapturedCall], mode: CaptureMode = "all") -> list[pa.Table]:
    slow = CallTables(mode)
    for number, each in enumerate(calls):
        slow.add(unpack(packed(each)), number)
    return [group.to_table() for group in slow.groups]


def at_once(calls: Sequence[CapturedCall], mode: CaptureMode = "all", roll_rows: int = 1000) -> list[pa.Table]:
    tables = CallTables(mode, roll_rows)
    for alike in WaitingRecords.of(map(packed, calls)).alike.values():
        assert not tables.add_records(alike.records)
    return [group.to_table() for group in tables.groups]


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many requests each look at a layout took."""
    counts: list[int] = []
    add_alike = CallTables.add_alike

    def counting(self: CallTables, *given: Any) -> np.ndarray:
        found = add_alike(self, *given)
        counts.append(int(found.sum()))
        return found

    monkeypatch.setattr(CallTables, "add_alike", counting)
    return counts


def same(left: list[pa.Table], right: list[pa.Table]) -> None:
    key = lambda table: str(table.schema)  # noqa: E731
    for a, b in zip(sorted(left, key=key), sorted(right, key=key), strict=True):
        assert a.schema.names == b.schema.names
        assert a.cast(b.schema).equals(b) or a.to_pydict() == pytest.approx(b.to_pydict(), nan_ok=True)


@pytest.mark.parametrize("as_content", [False, True])
@pytest.mark.parametrize("name", sorted(tensors.BY_NAME))
def test_every_type_and_shape_as_decoded_one_by_one(name: str, as_content: bool, taken: list[int]) -> None:
    for shape in SHAPES:
        rows = shape[0] if shape else 1
        calls = [call(i, {"x": array_of(name, shape)}, rows, as_content) for i in range(100)]
        same(at_once(calls), one_by_one(calls))
    # Values of several widths each have many layouts, of which those of the first requests are tried.
    assert sum(taken) >= 100 or (name == "string" and as_content)


def test_layouts_that_differ_within_a_batch_keep_their_order_and_values(taken: list[int]) -> None:
    calls = []
    for i in range(400):
        inputs = {"a": array_of("string", (1,)), "b": array_of("float", (1,)), "c": array_of("int64", (1,))}
        calls.append(call(i, inputs, 1, as_content=i % 3 == 0, reverse=i % 5 == 0))
    found = at_once(calls)
    same(found, one_by_one(calls))
    assert found[0]["request_id"].to_pylist() == [f"id-{i:04x}" for i in range(400)]
    assert sum(taken) > 50


@pytest.mark.parametrize("mode", ["inputs", "predictions"])
def test_one_half_of_a_request(mode: CaptureMode, taken: list[int]) -> None:
    calls = [call(i, {"x": array_of("float", (2, 3))}, 2, as_content=True) for i in range(40)]
    calls = [each._replace(response=b"") if mode == "inputs" else each._replace(request=b"") for each in calls]
    same(at_once(calls, mode), one_by_one(calls, mode))
    assert sum(taken) == 40


def test_a_value_for_all_rows_and_one_that_lies_about_its_shape_are_left_to_the_other_way(taken: list[int]) -> None:
    calls = [call(i, {"x": array_of("float", (3,)), "threshold": array_of("float", ())}, 3, False) for i in range(40)]
    same(at_once(calls), one_by_one(calls))
    lying = protocol.PredictRequest()
    lying.inputs["x"].CopyFrom(protocol.TensorProto(dtype=1, float_val=[1.5], tensor_shape={"dim": [{"size": 4}]}))
    filled = [call(i, {}, 4, False) for i in range(40)]
    filled = [each._replace(request=each.request + lying.SerializeToString()) for each in filled]
    same(at_once(filled), one_by_one(filled))
    assert sum(taken) == 0


def test_files_are_rolled_where_one_by_one_rolls_them(taken: list[int]) -> None:
    calls = [call(i, {"x": array_of("double", (7,))}, 7, as_content=True) for i in range(50)]
    assert [table.num_rows for table in at_once(calls, roll_rows=100)] == [105, 105, 105, 35]
    assert sum(taken) == 50


def test_requests_that_do_not_parse_cost_others_nothing() -> None:
    """A server upstream may answer what the parser here refuses."""
    calls = [call(i, {"x": array_of("float", (1,))}, 1, as_content=True) for i in range(40)]
    calls[:20] = [each._replace(request=b"\xff" * len(each.request)) for each in calls[:20]]
    tables = CallTables()
    (alike,) = WaitingRecords.of(map(packed, calls)).alike.values()
    assert tables.add_records(alike.records) == {"m": 20}
    (group,) = tables.groups
    assert group.to_table()["request_id"].to_pylist() == [each.request_id for each in calls[20:]]


def field(number: int, content: bytes) -> bytes:
    assert number < 16
    assert len(content) < 128
    return bytes((number << 3 | 2, len(content))) + content


@pytest.mark.parametrize("name", ["float", "int64", "half"])
def test_a_tensor_given_twice_is_what_the_parser_makes_of_it(name: str) -> None:
    tensor_type = tensors.BY_NAME[name]
    dtype = tensor_type.numpy
    content, values = protocol.TensorProto(), protocol.TensorProto()
    tensors.fill_proto(content, np.array([1], dtype), as_content=True)
    tensors.fill_proto(values, np.array([2], dtype))
    values.ClearField("tensor_shape")
    for tensor in (
        field(2, content.SerializeToString() + values.SerializeToString()),
        field(2, content.SerializeToString()) + field(2, values.SerializeToString()),
        field(2, values.SerializeToString()) + field(2, content.SerializeToString()),
        field(2, content.SerializeToString() + field(10 if name == "int64" else 5, b"")),
    ):
        message = field(2, field(1, b"x") + tensor)
        expected = tensors.from_proto(protocol.PredictRequest.FromString(message).inputs["x"])
        try:
            places = find_tensors(message, REQUEST_TENSORS, {"x": (tensor_type, 1)})
        except NoLayout:
            continue
        found = places["x"].values(np.frombuffer(message, np.uint8)[None])
        np.testing.assert_array_equal(found, expected)

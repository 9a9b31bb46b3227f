"""JSON that the server prints is JSON that it takes: every type, with its extremes, by both REST APIs."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
from campaigns import campaign

from airflow_hops.core.serving_api import tensors
from airflow_hops.core.serving_api.protocol import ClassificationResponse, Method
from airflow_hops.serving.api import rest, rest_tensors
from tests.ml.serving.test_request_memory import KINDS, V2, Server


def random_array(draw: random.Random, kind: str, shape: tuple[int, ...]) -> np.ndarray:
    """Values of a type: any bits, and those at its ends."""
    numpy = tensors.BY_NAME[kind].numpy
    count = int(np.prod(shape))
    flat: np.ndarray
    if kind == "string":
        texts = [b"", b"a", "é\u2028".encode(), b"\xff\0", b'{"b64": "YQ=="}', b"null", b"NaN", b"\\ud800", b"x" * 300]
        flat = np.empty(count, object)
        flat[:] = [draw.choice(texts) for _ in range(count)]
        return flat.reshape(shape)
    flat = np.frombuffer(draw.randbytes(count * numpy.itemsize), "u1" if kind == "bool" else numpy).copy()
    if kind == "bool":
        return (flat > 127).reshape(shape)
    kinds = np.finfo if numpy.kind == "f" else np.iinfo
    limits: Any = kinds(numpy)
    ends = [limits.max, limits.min, 0, 1]
    if numpy.kind == "f":
        ends += [limits.tiny, limits.smallest_subnormal, np.nan, np.inf, -np.inf, -0.0, 2.0**11, 2.0 ** min(24, 15)]
        ends += [np.nextafter(limits.max, numpy.type(0)), 1e20 if numpy.itemsize > 2 else 1.5, 16777216.0 % 65000]
    for index in range(count):
        if draw.random() < 0.6:
            flat[index] = draw.choice(ends)
    return flat.reshape(shape)


def same(first: np.ndarray, second: np.ndarray) -> bool:
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    if first.dtype == object:
        return bool((first == second).all())
    # The bits, but for those of NaN, which JSON does not tell apart.
    return bool(((first == second) & (np.signbit(first) == np.signbit(second) if first.dtype.kind == "f" else True)
                 | (np.isnan(first) & np.isnan(second) if first.dtype.kind == "f" else False)).all())  # fmt: skip


@campaign("draws", 200, 4000)
def test_own_json_is_taken(draws: int) -> None:
    server, kinds = Server(), [kind for kind in KINDS if kind != "complex64"]
    for number in range(draws):
        draw = random.Random(number)
        kind = draw.choice(kinds)
        shape = (draw.randint(1, 4), *draw.choices([1, 2, 3], k=draw.choice([0, 0, 1, 2])))
        array = random_array(draw, kind, shape)
        for body_format, key, own in (("row", b"predictions", b"instances"), ("columnar", b"outputs", b"inputs")):
            name = draw.choice(["x", "x_bytes"])
            body = rest.write_outputs({name: array}, body_format).replace(key, own, 1)  # type: ignore[arg-type]
            read = rest_tensors.read_tensors(rest_tensors.parse_body(body), {"x": tensors.BY_NAME[kind]})["x"]
            assert same(read, array), (number, body_format, body)
        datatype = V2.get(kind, "FP16")
        flat = array.ravel().tolist()
        if b"\xff\0" in flat or np.inf in flat or -np.inf in flat:
            continue  # JSON has no infinity, and v2 no form for single base64 texts
        values = [value.decode() if isinstance(value, bytes) else value for value in flat]
        values = [None if isinstance(value, float) and np.isnan(value) else value for value in values]
        rows = {"name": "inputs", "datatype": datatype, "shape": [len(values)], "data": values}
        for request_id in (None, "", "r"):
            asked = json.dumps({"id": request_id, "inputs": [rows]}).encode()
            answer = json.loads(server.answer(f"/v2/models/{kind}/infer", asked).body)
            (output,) = answer["outputs"]
            assert answer.get("id") == (request_id or None)
            rows = {**output, "name": "inputs"}  # what it has printed, as the next request
        data = [np.nan if each is None else each.encode() if kind == "string" else each for each in rows["data"]]
        assert same(np.array(data, array.dtype), array.ravel()), number


@pytest.mark.parametrize("value", [np.finfo(np.float32).max, np.finfo(np.float32).min, 0.1, 1e-45, float("nan")])
def test_own_results_are_taken_as_examples(value: float) -> None:
    response = ClassificationResponse()
    response.result.classifications.add().classes.add(label="a", score=value)
    ((label, score),) = json.loads(rest.write_response(Method.CLASSIFY, response.SerializeToString()))["results"][0]
    request = rest.read_request(Method.CLASSIFY, json.dumps({"examples": [{"x": score, "label": label}]}).encode())
    (taken,) = request.input.example_list.examples[0].features.feature["x"].float_list.value
    np.testing.assert_equal(taken, np.float32(value))

"""Requests of v2 that are wrong: each error names the input and the value, and the server stays well."""

from __future__ import annotations

import json
import random
import re
import struct
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from server_process import ServerProcess

from airflow_hops.extensions.open_inference.serving.rest_api import Body
from tests.ml.extensions.open_inference.v2_client import FORMS, HEADER, Refused, V2Client, infer_body, infer_message

X = {"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1.0, 2.0, 3.0]}
TEXT = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a"]}
STRINGS = {"parameters": {"signature_name": "strings"}}
SIGNATURES = {
    "BOOL": "bool", "INT8": "int8", "INT16": "int16", "INT32": "int32", "UINT8": "uint8", "UINT16": "uint16",
    "UINT64": "uint64", "FP16": "float16", "BF16": "bfloat16",
}  # fmt: skip
INPUT = r"input x \(FP32, shape \[1, 3\]\): "

# Changes of X, and the message.
INPUTS: list[tuple[dict[str, Any], str]] = [
    ({"shape": [1, 4]}, r"input x \(FP32, shape \[1, 4\]\): data holds 3 elements; expected 4"),
    ({"shape": [3, 1]}, r"input x has shape \[3, 1\]; expected \[batch, 3\]"),
    ({"shape": [-1, 3]}, r"input x: the shape holds -1; expected whole numbers"),
    ({"shape": [True, 3]}, r"input x: the shape holds true"),
    ({"shape": [1.0, 3]}, r"input x: the shape holds 1.0"),
    ({"shape": ["1", 3]}, r'input x: the shape holds "1"'),
    ({"shape": [2**63, 3]}, r"holds 9223372036854775808; expected whole numbers"),
    ({"shape": [2**62, 2**62, 4]}, "data holds 3 elements; expected 8507"),
    ({"shape": [2**32, 2**32]}, "data holds 3 elements; expected 18446744073709551616"),
    ({"shape": [0, 2**62, 2**62], "data": []}, r"x \(shape \[0, .*cannot be held"),
    ({"shape": [1] * 33}, "the shape has 33 dimensions; expected 32 or less"),
    ({"shape": 3}, r'input "x": shape is 3; expected a list'),
    ({"shape": None}, r'input "x": shape is null'),
    ({"datatype": "FP128"}, r'input x: datatype is "FP128"; expected one of BOOL'),
    ({"datatype": 1}, "input x: datatype is 1"),
    ({"datatype": ["FP32"]}, "input x: datatype is"),
    ({"datatype": "FP64"}, "input x is FP64; expected FP32"),
    ({"data": [1e39, 2, 3]}, INPUT + r"Cannot convert JSON value: 1e\+39 to float"),
    ({"data": [2**24 + 1, 2, 3]}, INPUT + "Cannot convert JSON value: 16777217 to float without loss"),
    ({"data": ["1", 2, 3]}, INPUT + '.*"1" Type: String is not of expected type: float'),
    ({"data": [[1.0, 2.0, 3.0], [1.0]]}, INPUT + r"data has shape \[2, 3\]"),
    ({"data": [[1.0], [2.0], [3.0]]}, INPUT + r"data has shape \[3, 1\]"),
    ({"data": [[1.0, 2.0], [3.0]]}, INPUT + r"data has shape \[2, 2\]"),
    ({"data": [1.0, [2.0], 3.0]}, INPUT + "Encountered list at unexpected level"),
    ({"data": {"b64": "AAAA"}}, INPUT + "data is .*; expected a list"),
    ({"data": 1.0}, INPUT + "data is 1.0; expected a list"),
    ({"data": None}, INPUT + "data is null; expected a list"),
    ({"name": ""}, 'an input\'s name is ""; expected a text'),
    ({"name": 5}, "an input's name is 5"),
    ({"name": "z"}, "not found in request"),
    ({"parameters": []}, None),  # type: ignore[list-item]
    ({"parameters": [1]}, "the parameters of input x are"),
    (
        {"parameters": {"shared_memory_region": "r"}},
        "input x has the parameter shared_memory_region, which this server",
    ),
    ({"parameters": {"binary_data_size": 12}}, INPUT + "it has both 'data' and 'binary_data_size'"),
]

# Inputs of shape [3] of models that take these types, and the message.
OF_TYPES: list[tuple[str, list[Any], str]] = [
    ("INT16", [1.5, 2, 3], "1.5 Type: Number is not of expected type: int16"),
    ("INT32", [2**31, 2, 3], "2147483648 Type: Number"),
    ("INT32", [float("nan"), 2, 3], "NaN Type: Number"),
    ("INT8", [128, 2, 3], "128 Type: Number is not of expected type: int8"),
    ("UINT64", [-1, 2, 3], "-1 Type: Number is not of expected type: uint64"),
    ("INT32", [None, 2, 3], "null Type: Null .*No int32 can be missing"),
    ("BOOL", [1, 0, 1], "1 Type: Number is not of expected type: bool"),
    ("BF16", [1, 0, 1], "BF16 has no JSON form; expected binary data"),
    ("FP16", [70000.0, 0, 1], "Cannot convert JSON value: 70000.0 to half without loss of precision"),
]

BODIES: list[tuple[Any, str]] = [
    (b"", "The document is empty"),
    (b"[1]", "Is not object"),
    (b"{", "JSON Parse error"),
    (b"\xff\xfe", "JSON Parse error"),
    ({}, "the request has no 'inputs'"),
    ({"inputs": X}, "inputs is .*; expected a list of objects"),
    ({"inputs": [1]}, "inputs is .*; expected a list of objects"),
    ({"inputs": []}, "Missing but required: {x}"),
    ({"inputs": [X, X]}, "input x is there twice"),
    ({"inputs": [X, {**X, "name": "y"}]}, "Sent extra: {y}"),
    ({"inputs": [X], "outputs": [{"name": "q"}]}, "output tensor alias not found in signature: q"),
    ({"inputs": [X], "outputs": [{"name": "y"}, {"name": "y"}]}, "output y is requested twice"),
    ({"inputs": [X], "outputs": [{}]}, "an output's name is null"),
    ({"inputs": [X], "outputs": "y"}, "outputs is"),
    ({"inputs": [X], "outputs": [{"name": "y", "parameters": {"binary_data": 1}}]}, "binary_data of output y is 1"),
    (
        {"inputs": [X], "outputs": [{"name": "y", "parameters": {"classification": 2}}]},
        "output y has the parameter clas",
    ),
    ({"inputs": [X], "parameters": {"binary_data_output": "yes"}}, 'binary_data_output of the request is "yes"'),
    ({"inputs": [X], "parameters": {"sequence_id": 3}}, "the request has the parameter sequence_id"),
    ({"inputs": [X], "parameters": {"signature_name": 3}}, "signature_name is 3; expected a text"),
    ({"inputs": [X], "parameters": 3}, "the parameters of the request are 3"),
    ({"inputs": [X], "id": 3}, "id is 3; expected a text"),
    ({"inputs": [X], "id": "i" * 1025}, "id has 1025 characters; expected 1024 or less"),
    ({**STRINGS, "inputs": [{**TEXT, "data": [1]}]}, r"input text \(BYTES, shape \[1\]\): .*1 Type: Number"),
    (
        {**STRINGS, "inputs": [{**TEXT, "parameters": {"content_type": "base64"}, "data": ["a b"]}]},
        r"input text .*base64",
    ),
    ({**STRINGS, "inputs": [{**TEXT, "data": ["a", "b"]}]}, "data holds 2 elements; expected 1"),
]


def binary(size: Any, datatype: str = "FP32", shape: Any = (1, 3), name: str = "x") -> bytes:
    entry = {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": size}}
    signature = {**STRINGS["parameters"]} if name == "text" else {}
    return json.dumps({"inputs": [entry], "parameters": signature}).encode()


OF_BINARY: list[tuple[bytes, bytes, str]] = [
    (binary(12), b"\0" * 11, "binary_data_size is 12, and 11 bytes of binary data are there"),
    (binary(12), b"\0" * 13, "1 bytes follow the binary data of the inputs"),
    (binary(8), b"\0" * 8, INPUT + "its binary data holds 8 bytes; expected 12"),
    (binary(-1), b"", "binary_data_size is -1"),
    (binary(2**60), b"\0" * 12, "binary_data_size is 1152921504606846976"),
    (binary("12"), b"\0" * 12, 'binary_data_size is "12"'),
    (binary(True), b"\0", "binary_data_size is true"),
    (binary(0, shape=[2**40, 2**20]), b"", "holds 0 bytes; expected 4611686018427387904"),
    (binary(6, "BYTES", [1], "text"), b"\1\0\0\0ab", r"ends within the length of element 1; expected 4 bytes"),
    (binary(6, "BYTES", [1], "text"), b"\3\0\0\0ab", r"element 0 has 3 bytes; only 2 follow"),
    (binary(6, "BYTES", [1], "text"), b"\xff\xff\xff\xffab", r"element 0 has 4294967295 bytes; only 2 follow"),
    (binary(8, "BYTES", [1], "text"), b"\0" * 8, "its binary data holds more than 1 elements"),
    (binary(0, "BYTES", [2**60], "text"), b"", "its binary data holds 0 elements; expected 1152921504606846976"),
]
LENGTHS = ("", "0", "-1", "1e3", "9" * 30, "1000000", "0x10", "²")


def test_values_that_a_type_does_not_have_are_named(formats_server: ServerProcess) -> None:
    def sent(datatype: str, **fields: Any) -> bytes:
        entry = {"name": "x", "datatype": datatype, "shape": [3], **fields}
        return json.dumps({"parameters": {"signature_name": SIGNATURES[datatype]}, "inputs": [entry]}).encode()

    head = sent("BOOL", parameters={"binary_data_size": 3})
    cases: list[tuple[bytes, dict[str, str], str]] = [
        (head + b"\0\2\1", {HEADER: str(len(head))}, r"\(BOOL, .*its binary data holds the byte 2; expected 0 or 1"),
        *((sent(name, data=data), {}, rf"input x \({name}, shape \[3\]\): .*{text}") for name, data, text in OF_TYPES),
    ]
    narrow = (("INT8", "int", 128), ("INT8", "int", -129), ("INT16", "int", 2**15), ("UINT8", "uint", 256))
    with V2Client(formats_server) as client:
        wrong = [refusal_fault(lambda b=b, h=h: client.post("/models/types/infer", b, h), 400, m) for b, h, m in cases]
        for name, field, value in (*narrow, ("UINT16", "uint", 2**16), ("FP16", "fp32", 1), ("BF16", "fp32", 1)):
            array = np.zeros(1, "f2" if name in ("FP16", "BF16") else name.lower())
            message = infer_message("types", {"x": array}, "raw", signature_name=SIGNATURES[name])
            message.ClearField("raw_input_contents")
            message.inputs[0].datatype = name
            getattr(message.inputs[0].contents, f"{field}_contents").append(value)
            expected = (
                f"{name} has no typed contents" if field == "fp32" else f"{field}_contents holds {value}; expected "
            )
            wrong.append(refusal_fault(lambda s=message: client.rpc("ModelInfer", s), "INVALID_ARGUMENT", expected))
    assert [each for each in wrong if each] == []


def test_wrong_rest_requests_name_input_and_value(shared_server: ServerProcess) -> None:
    cases: list[tuple[bytes, dict[str, str], str | None]] = [
        (json.dumps({"inputs": [{**X, **change}]}).encode(), {}, message) for change, message in INPUTS
    ]
    cases += [(body if isinstance(body, bytes) else json.dumps(body).encode(), {}, message) for body, message in BODIES]
    cases += [(head + tail, {HEADER: str(len(head))}, message) for head, tail, message in OF_BINARY]
    good = binary(12) + b"\0" * 12
    cases += [(good, {HEADER: length}, f"{HEADER} is ") for length in LENGTHS[:-1]]
    cases += [(good, {}, "JSON Parse error"), (binary(12), {}, f"expected the JSON's size in the header {HEADER}")]
    with V2Client(shared_server) as client:
        wrong = [
            fault
            for body, headers, message in cases
            if (
                fault := refusal_fault(
                    lambda b=body, h=headers: client.post("/models/vectors/infer", b, h), 400, message
                )
            )
        ]
    assert wrong == []


def test_a_body_can_be_read_again_for_another_version() -> None:
    body = Body.of(json.dumps({"inputs": [X], "outputs": [{"name": "y"}]}).encode(), None)
    for _ in range(2):
        assert (body.read_options(), [*body.outputs]) == ("", ["y"])


def refusal_fault(ask: Callable[[], object], code: int | str, message: str | None) -> str | None:
    """The fault of a refusal, None if there is none; a message of None means that the request is right."""
    try:
        ask()
    except Refused as error:
        is_right = message is not None and error.code == code and re.search(message, error.message, re.DOTALL)
        return None if is_right else f"{error.code}: {error.message}; expected {message}"
    return None if message is None else f"answered; expected {message}"


def test_wrong_grpc_requests_name_input_and_value(shared_server: ServerProcess) -> None:
    x, text = {"x": np.array([[1, 2, 3]], np.float32)}, {"text": np.array([b"a"], object)}

    def typed(change: Callable[[Any], object], arrays: Any = x, form: str = "typed") -> Any:
        options = {"signature_name": "strings"} if "text" in arrays else {}
        message = infer_message("vectors", arrays, form, **options)
        change(message)
        return message

    def field(name: str, values: list[Any], datatype: str = "FP32") -> Callable[[Any], object]:
        def change(message: Any) -> None:
            message.inputs[0].datatype = datatype
            message.inputs[0].ClearField("contents")
            getattr(message.inputs[0].contents, name).extend(values)

        return change

    def shape(*sizes: int) -> Callable[[Any], object]:
        def change(message: Any) -> None:
            message.inputs[0].shape[:] = sizes

        return change

    cases = [
        (b"\xff", "does not parse as a ModelInferRequest"),
        (b"", "ModelSpec has no name"),
        (typed(shape(1, 4)), r"input x \(FP32, shape \[1, 4\]\): fp32_contents holds 3 elements; expected 4"),
        (typed(shape(-1, 3)), r"input x: the shape holds -1"),
        (typed(shape(2**62, 2**62)), "fp32_contents holds 3 elements; expected 2126"),
        (typed(shape(*[1] * 40)), "the shape has 40 dimensions"),
        (typed(shape(1, 4), form="raw"), r"raw_input_contents\[0\] holds 12 bytes; expected 16"),
        (typed(shape(2**62, 8), form="raw"), r"raw_input_contents\[0\] holds 12 bytes; expected 1475"),
        (typed(field("fp64_contents", [1.0])), INPUT + "its contents are in fp64_contents; expected fp32_contents"),
        (typed(field("fp32_contents", [1, 2, 3], "X")), 'input x: datatype is "X"; expected one of BOOL'),
        (typed(lambda message: message.raw_input_contents.append(b"")), "it has both contents and raw_input_contents"),
        (typed(lambda message: message.raw_input_contents.append(b""), form="raw"), "has 2 entries; expected 1"),
        (typed(lambda message: message.inputs.add().CopyFrom(message.inputs[0])), "input x is there twice"),
        (typed(lambda message: message.parameters["sequence_id"].SetInParent()), "has the parameter sequence_id"),
        (typed(lambda message: message.parameters["signature_name"].SetInParent()), "is not a string_param"),
        (typed(lambda message: message.outputs.add(name="q")), "output tensor alias not found in signature: q"),
        (typed(lambda message: setattr(message, "id", "i" * 1025)), "id has 1025 characters; expected 1024 or less"),
        (typed(shape(2), text), r"input text \(BYTES, shape \[2\]\): bytes_contents holds 1 elements; expected 2"),
        (typed(lambda message: message.ClearField("inputs")), "Missing but required: {x}"),
        (
            typed(lambda message: setattr(message, "model_version", "9" * 25)),
            "version is 999.*; expected a number below",
        ),
    ]
    for content, expected in ((b"\1\0\0", "ends within"), (b"\5\0\0\0a", "element 0 has 5 bytes; only 1 follow")):
        cases.append((typed(lambda m, c=content: m.raw_input_contents.__setitem__(0, c), text, "raw"), expected))
    with V2Client(shared_server) as client:
        wrong = [
            fault
            for sent, message in cases
            if (fault := refusal_fault(lambda s=sent: client.rpc("ModelInfer", s), "INVALID_ARGUMENT", message))
        ]
    assert wrong == []


@pytest.mark.parametrize(
    ("seed", "count"),
    [(1, 400), *(pytest.param(n, 20_000, marks=pytest.mark.scheduled(part="campaigns")) for n in (2, 3))],
)
def test_damaged_requests_are_answered_or_refused(shared_server: ServerProcess, seed: int, count: int) -> None:
    draw, codes = random.Random(seed), Counter[Any]()
    arrays = {
        "carrier": np.array([b"AA", b"UA"], object),
        "distance": np.array([[733.0], [1.5]], np.float32),
        "hour": np.array([5, 6], np.int64),
    }
    log_end = len(shared_server.log())
    with V2Client(shared_server) as client:
        for _ in range(count):
            form = draw.choice(FORMS)
            try:
                if form in ("typed", "raw"):
                    message = infer_message("flights", arrays, form).SerializeToString()
                    client.rpc("ModelInfer", damaged(draw, message))
                else:
                    body, headers = infer_body(arrays, form)
                    if HEADER in headers and draw.random() < 0.3:
                        headers[HEADER] = str(int(headers[HEADER]) + draw.randint(-9, 9))
                    client.post("/models/flights/infer", damaged(draw, body), headers)
                codes["answered"] += 1
            except Refused as error:
                codes[error.code] += 1
        assert client.infer("flights", arrays, "raw", version="1").outputs["carrier_id"].tolist() == [1, 2]
    assert codes.keys() <= {"answered", 400, 404, "INVALID_ARGUMENT", "NOT_FOUND"}
    assert min(codes["answered"], codes[400], codes["INVALID_ARGUMENT"]) > 0.05 * count, codes
    assert "Traceback" not in shared_server.log()[log_end:]


def damaged(draw: random.Random, content: bytes) -> bytes:
    """Bytes with some replaced, removed, added, or numbers in their text made large."""
    data = bytearray(content)
    for _ in range(draw.choice([1, 1, 2, 5])):
        position = draw.randrange(len(data) or 1)
        kind = draw.choice(["flip", "cut", "insert", "remove", "word"])
        if kind == "flip" and data:
            data[position] = draw.randrange(256)
        elif kind == "cut" and draw.random() < 0.2:
            del data[position:]
        elif kind == "insert":
            data[position:position] = draw.choice(
                [b"\0", b"9", b"-", b"[", b'"', b"\xff\xff", b"null", b"1e999", b"{}"]
            )
        elif kind == "remove":
            del data[position : position + draw.randint(1, 4)]
        elif kind == "word":
            data[position : position + 4] = struct.pack("<I", draw.choice([0, 1, 2**31, 2**32 - 1]))
    return bytes(data)

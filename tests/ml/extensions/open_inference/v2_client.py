"""A small client of the Open Inference Protocol, which sends and reads each form of tensors."""

from __future__ import annotations

import json
import struct
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import grpc
import numpy as np
from server_process import ServerProcess

from airflow_hops.extensions.open_inference.serving.grpc_api import MESSAGES

FORMS = ("json", "nested", "binary", "typed", "raw")
CONTENTS = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents",
    "INT64": "int64_contents", "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents",
    "UINT64": "uint64_contents", "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip
HEADER = "Inference-Header-Content-Length"


def datatype(array: np.ndarray[Any, Any]) -> str:
    """The protocol's name of a type."""
    kind, bits = array.dtype.kind, array.dtype.itemsize * 8
    if kind in "OSU":
        return "BYTES"
    return {"b": "BOOL", "i": f"INT{bits}", "u": f"UINT{bits}", "f": f"FP{bits}", "V": f"BF{bits}"}[kind]


def numpy_type(name: str) -> Any:
    """The inverse of :func:`datatype`."""
    if name == "BYTES":
        return object
    kind, bits = name.rstrip("0123456789"), name.lstrip("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    return bool if name == "BOOL" else f"{ {'INT': 'i', 'UINT': 'u', 'FP': 'f'}[kind] }{int(bits) // 8}"


def raw(array: np.ndarray[Any, Any]) -> bytes:
    """The binary form of a tensor."""
    if array.dtype != object:
        return array.tobytes()
    return b"".join(struct.pack("<I", len(value)) + value for value in array.ravel())


def from_raw(content: bytes, name: str, shape: Sequence[int]) -> np.ndarray[Any, Any]:
    """The inverse of :func:`raw`."""
    if name != "BYTES":
        return np.frombuffer(content, numpy_type(name)).reshape(shape)
    values, position = [], 0
    while position < len(content):
        (size,) = struct.unpack_from("<I", content, position)
        values.append(content[position + 4 : position + 4 + size])
        position += 4 + size
    return of_values(values, name, shape)


def of_values(values: Sequence[Any], name: str, shape: Sequence[int]) -> np.ndarray[Any, Any]:
    """A tensor of values in row-major order."""
    array = np.empty(len(values), numpy_type(name))
    array[:] = [value.encode() if isinstance(value, str) else value for value in values]
    return array.reshape(shape)


def in_json(value: Any) -> Any:
    """Lists with text in place of bytes."""
    if isinstance(value, list):
        return [in_json(each) for each in value]
    return value.decode() if isinstance(value, bytes) else value


@dataclass
class Answer:
    """An answer: its outputs, and what else it says."""

    outputs: dict[str, np.ndarray[Any, Any]]
    version: str
    request_id: str
    headers: Mapping[str, str] = field(default_factory=dict)


class Refused(Exception):
    """An error: status of HTTP or name of gRPC's code, and message."""

    def __init__(self, code: int | str, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


class V2Client:
    """Asks a server."""

    def __init__(self, server: ServerProcess) -> None:
        self.server, self.channel = server, grpc.insecure_channel(server.address)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()

    def call(self, method: str, **fields: Any) -> Any:
        """Calls a gRPC method."""
        return self.rpc(method, MESSAGES[f"{method}Request"](**fields))

    def rpc(self, method: str, request: Any, metadata: Any = None) -> Any:
        """Sends a message, or bytes."""
        asked = self.channel.unary_unary(
            f"/inference.GRPCInferenceService/{method}", response_deserializer=MESSAGES[f"{method}Response"].FromString
        )
        message = request if isinstance(request, bytes) else request.SerializeToString()
        try:
            return asked(message, metadata=metadata)  # as strangers do: without a deadline
        except grpc.RpcError as error:
            raise Refused(error.code().name, error.details()) from None

    def get(self, path: str) -> Any:
        """The JSON of an answer."""
        status, document = self.server.call(f"/v2{path}")
        if status != 200:
            raise Refused(status, document["error"])
        return document

    def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> tuple[bytes, Mapping[str, str]]:
        """Body and headers of an answer."""
        request = urllib.request.Request(f"{self.server.url}/v2{path}", body, dict(headers))
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.read(), response.headers
        except urllib.error.HTTPError as error:
            raise Refused(error.code, json.loads(error.read())["error"]) from None

    def infer(
        self,
        model: str,
        arrays: Mapping[str, np.ndarray[Any, Any]],
        form: str,
        *,
        version: str = "",
        request_id: str = "",
        outputs: Sequence[str] = (),
        headers: Mapping[str, str] | None = None,
        **parameters: Any,
    ) -> Answer:
        """Asks a model; raises Refused."""
        if form in ("typed", "raw"):
            message = infer_message(model, arrays, form, version, request_id, outputs, **parameters)
            metadata = [(name.lower(), value) for name, value in (headers or {}).items()]
            return self._of_message(self.rpc("ModelInfer", message, metadata))
        body, sent = infer_body(arrays, form, request_id, outputs, **parameters)
        path = f"/models/{model}{f'/versions/{version}' if version else ''}/infer"
        return self._of_body(*self.post(path, body, {**sent, **(headers or {})}))

    def _of_message(self, response: Any) -> Answer:
        outputs = {}
        for index, each in enumerate(response.outputs):
            if response.raw_output_contents:
                outputs[each.name] = from_raw(response.raw_output_contents[index], each.datatype, each.shape)
            else:
                values = getattr(each.contents, CONTENTS[each.datatype])
                outputs[each.name] = of_values(values, each.datatype, each.shape)
        return Answer(outputs, response.model_version, response.id)

    def _of_body(self, body: bytes, headers: Mapping[str, str]) -> Answer:
        position = int(headers.get(HEADER, len(body)))
        document = json.loads(body[:position], parse_constant=lambda text: pytest_fail(text))
        outputs = {}
        for each in document["outputs"]:
            size = each.get("parameters", {}).get("binary_data_size")
            if size is None:
                outputs[each["name"]] = of_values(each["data"], each["datatype"], each["shape"])
            else:
                outputs[each["name"]] = from_raw(body[position : position + size], each["datatype"], each["shape"])
                position += size
        return Answer(outputs, document["model_version"], document.get("id", ""), headers)


def pytest_fail(text: str) -> None:
    raise AssertionError(f"{text} is no JSON")


def infer_body(
    arrays: Mapping[str, np.ndarray[Any, Any]],
    form: str,
    request_id: str = "",
    outputs: Sequence[str] = (),
    **parameters: Any,
) -> tuple[bytes, dict[str, str]]:
    """Body and headers of a REST request."""
    inputs = []
    for name, array in arrays.items():
        entry: dict[str, Any] = {"name": name, "datatype": datatype(array), "shape": list(array.shape)}
        if form == "binary":
            entry["parameters"] = {"binary_data_size": len(raw(array))}
        else:
            # Lists show no sizes behind one of 0, and a scalar is no list.
            is_nested = form == "nested" and array.ndim and array.size
            entry["data"] = in_json((array if is_nested else array.ravel()).tolist())
        inputs.append(entry)
    document: dict[str, Any] = {"inputs": inputs, "parameters": {**parameters, "binary_data_output": form == "binary"}}
    if request_id:
        document["id"] = request_id
    if outputs:
        document["outputs"] = [{"name": name} for name in outputs]
    body = json.dumps(document).encode()
    if form != "binary":
        return body, {"Content-Type": "application/json"}
    headers = {HEADER: str(len(body)), "Content-Type": "application/octet-stream"}
    return body + b"".join(raw(array) for array in arrays.values()), headers


def infer_message(
    model: str,
    arrays: Mapping[str, np.ndarray[Any, Any]],
    form: str,
    version: str = "",
    request_id: str = "",
    outputs: Sequence[str] = (),
    **parameters: str,
) -> Any:
    """A gRPC request."""
    message = MESSAGES["ModelInferRequest"](model_name=model, model_version=version, id=request_id)
    for name, value in parameters.items():
        message.parameters[name].string_param = value
    for name in outputs:
        message.outputs.add(name=name)
    for name, array in arrays.items():
        entry = message.inputs.add(name=name, datatype=datatype(array), shape=array.shape)
        if form == "raw":
            message.raw_input_contents.append(raw(array))
        else:
            getattr(entry.contents, CONTENTS[entry.datatype]).extend(array.ravel().tolist())
    return message

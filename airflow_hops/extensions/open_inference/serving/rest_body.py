"""Bodies of REST requests: JSON, which binary tensors may follow."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from airflow_hops.core.serving_api.tensors import STRING
from airflow_hops.extensions.open_inference.serving.datatypes import Declared, declare
from airflow_hops.extensions.open_inference.serving.predict import PredictMessage, check_id, check_parameters
from airflow_hops.serving.api.rest_json import base64_bytes, parse_document, shown
from airflow_hops.serving.api.rest_tensors import list_shape, read_tensor
from airflow_hops.serving.errors import ServingError, invalid_argument

HEADER_LENGTH = "Inference-Header-Content-Length"
"""HTTP header with the number of bytes of JSON before the binary tensors."""


@dataclass(frozen=True, slots=True)
class WantedOutput:
    """The form in which an output is answered.

    Attributes:
        binary: Whether it follows the JSON in binary form.
        base64: Whether its strings are base64 in JSON.
    """

    binary: bool = False
    base64: bool = False


@dataclass
class Body:
    """A parsed body.

    Attributes:
        document: Its JSON object.
        binary: The bytes that follow.
        outputs: The requested outputs, in order; empty for all.
        others: The form of outputs if none are requested.
    """

    document: dict[str, Any]
    binary: bytes
    outputs: dict[str, WantedOutput] = field(default_factory=dict)
    others: WantedOutput = WantedOutput()

    @classmethod
    def of(cls, body: bytes, header_length: str | None) -> Body:
        """Parses the JSON of a body; raises ServingError if it, or the header's value, is not valid."""
        size = len(body)
        if header_length is not None:
            is_number = header_length.isascii() and header_length.isdigit() and len(header_length) < 19
            size = int(header_length) if is_number else 0
            if not 0 < size <= len(body):
                raise invalid_argument(
                    f"{HEADER_LENGTH} is {header_length[:50]!r}; expected the number of bytes of JSON at the beginning "
                    f"of the body, 1 to {len(body)}"
                )
        return cls(parse_document(body[:size]), body[size:])

    @property
    def request_id(self) -> str | None:
        """The id that the request has, if it is valid."""
        value = self.document.get("id")
        return value if isinstance(value, str) and value else None

    def read_options(self) -> str:
        """Reads which outputs are requested, and in which form; returns the signature's name, empty for the default.

        Raises:
            ServingError: An option is not of the protocol's form.
        """
        request_id = self.document.get("id") or ""
        if not isinstance(request_id, str):
            raise invalid_argument(f"id is {shown(request_id)}; expected a text")
        check_id(request_id)
        parameters = _parameters("the request", self.document)
        signature = parameters.get("signature_name", "")
        if not isinstance(signature, str):
            raise invalid_argument(f"the parameter signature_name is {shown(signature)}; expected a text")
        self.others = WantedOutput(_flag("the request", parameters, "binary_data_output"))
        self.outputs = {}  # a request that another version has to answer is read again
        for output in _objects(self.document, "outputs"):
            name = output.get("name")
            if not isinstance(name, str):
                raise invalid_argument(f"an output's name is {shown(name)}; expected a text")
            if name in self.outputs:
                raise invalid_argument(f"output {name} is requested twice; expected it once")
            own = _parameters(f"output {name}", output)
            is_binary = _flag(f"output {name}", own, "binary_data", self.others.binary)
            self.outputs[name] = WantedOutput(is_binary, own.get("content_type") == "base64")
        return signature

    def wanted(self, output: str) -> WantedOutput:
        """Returns the form in which an output is answered."""
        return self.outputs.get(output, self.others)

    def fill(self, message: PredictMessage, keys: Collection[str]) -> None:
        """Adds the inputs to a message.

        Args:
            message: The message.
            keys: Inputs that must not be null.

        Raises:
            ServingError: The inputs are not of the protocol's form, or data do not fit types and shapes.
        """
        if "inputs" not in self.document:
            raise invalid_argument("the request has no 'inputs'; expected a list of objects with name, shape, datatype")
        position = 0
        for each in _objects(self.document, "inputs"):
            shape = each.get("shape")
            if not isinstance(shape, list):
                raise invalid_argument(f"input {shown(each.get('name'))}: shape is {shown(shape)}; expected a list")
            declared = declare(each.get("name"), each.get("datatype"), shape)
            parameters = _parameters(f"input {declared.name}", each)
            if "binary_data_size" in parameters:
                size = parameters["binary_data_size"]
                left = len(self.binary) - position
                if "data" in each:
                    raise declared.error("it has both 'data' and 'binary_data_size'; expected one")
                if type(size) is not int or not 0 <= size <= left:
                    raise declared.error(
                        f"binary_data_size is {shown(size)}, and {left} bytes of binary data are there; expected the "
                        f"JSON's size in the header {HEADER_LENGTH}, and all data behind it"
                    )
                message.add_raw(declared, self.binary[position : position + size], "its binary data")
                position += size
            else:
                tensor = message.add(declared)
                flat = from_json(declared, each.get("data"), parameters, declared.name in keys)
                if declared.tensor_type is STRING:
                    tensor.string_val.extend(flat.tolist())
                else:
                    tensor.tensor_content = flat.tobytes()
        if position < len(self.binary):
            raise invalid_argument(f"{len(self.binary) - position} bytes follow the binary data of the inputs")


def from_json(declared: Declared, data: object, parameters: Mapping[str, object], is_key: bool) -> np.ndarray:
    """Returns the values of a flat list, or of lists that are nested as the shape is, in row-major order.

    Args:
        declared: The input.
        data: JSON value; null is NaN for floats and empty for strings, as in TensorFlow Serving's API here.
        parameters: With ``content_type`` "base64", strings are base64.
        is_key: Whether null is refused, as no features can be looked up by it.

    Raises:
        ServingError: The values do not fit type and shape.
    """
    if not isinstance(data, list):
        raise declared.error(f"data is {shown(data)}; expected a list")
    if declared.datatype == "BF16":
        raise declared.error("BF16 has no JSON form; expected binary data")
    sent = list_shape(data)
    if len(sent) > 1 and list(sent) != declared.shape and declared.elements:
        raise declared.error(f"data has shape {list(sent)}; expected {declared.shape}, or a flat list")
    try:
        flat = read_tensor(data, sent, declared.tensor_type).ravel()
        if is_key and any(value is None for value in np.array(data, object).ravel()):
            raise invalid_argument("it is null; expected the key by which features are looked up")
        if declared.tensor_type is STRING and parameters.get("content_type") == "base64":
            flat[:] = [base64_bytes({"b64": value.decode()}) for value in flat]
    except (ServingError, UnicodeDecodeError) as error:
        raise declared.error(str(error)) from None
    declared.check_count(flat.size, "data")
    return flat


def _objects(document: Mapping[str, object], key: str) -> list[dict[str, object]]:
    values = document.get(key, [])
    if not isinstance(values, list) or not all(isinstance(each, dict) for each in values):
        raise invalid_argument(f"{key} is {shown(values)}; expected a list of objects")
    return values


def _parameters(owner: str, document: Mapping[str, object]) -> Mapping[str, Any]:
    parameters = document.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise invalid_argument(f"the parameters of {owner} are {shown(parameters)}; expected an object")
    check_parameters(owner, parameters)
    return parameters


def _flag(owner: str, parameters: Mapping[str, object], name: str, default: bool = False) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise invalid_argument(f"the parameter {name} of {owner} is {shown(value)}; expected true or false")
    return value

"""The protocol's data types and shapes, and tensors in its binary form."""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from airflow_hops.core.serving_api.tensors import BY_NAME, STRING, TensorType
from airflow_hops.serving.api.rest_json import shown
from airflow_hops.serving.errors import ServingError, invalid_argument

_NAMES = {
    "BOOL": "bool",
    "UINT8": "uint8",
    "UINT16": "uint16",
    "UINT32": "uint32",
    "UINT64": "uint64",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "FP16": "half",
    "BF16": "bfloat16",
    "FP32": "float",
    "FP64": "double",
    "BYTES": "string",
}
# bfloat16 is missing if ml_dtypes is not installed.
TYPES = {name: BY_NAME[of] for name, of in _NAMES.items() if of in BY_NAME}
"""TensorFlow's type by the protocol's name."""
_DATATYPES = {tensor_type.number: name for name, tensor_type in TYPES.items()}
# NumPy 1.26: its limit, which NumPy 2 has doubled.
_MAX_RANK = 32
_LENGTH = struct.Struct("<I")


def datatype_of(tensor: str, tensor_type: TensorType | None) -> str:
    """Returns the protocol's name of a type.

    Args:
        tensor: ``input x`` or ``output y``, for errors.
        tensor_type: The type; None if the server does not know it.

    Raises:
        ServingError: The protocol does not have the type.
    """
    datatype = _DATATYPES.get(tensor_type.number) if tensor_type is not None else None
    if datatype is None:
        name = tensor_type.name if tensor_type is not None else "of an unknown type"
        raise invalid_argument(
            f"{tensor} of the model is {name}, which the Open Inference Protocol does not have; expected "
            f"{', '.join(TYPES)}. TensorFlow Serving's API serves the model"
        )
    return datatype


class Declared(NamedTuple):
    """An input as a request declares it.

    Attributes:
        name: Its name.
        datatype: The protocol's name of its type.
        shape: Its shape.
        tensor_type: TensorFlow's type.
        elements: Number of its elements.
    """

    name: str
    datatype: str
    shape: Sequence[int]
    tensor_type: TensorType
    elements: int

    def error(self, message: str) -> ServingError:
        """Returns the error of an input."""
        return invalid_argument(f"input {self.name} ({self.datatype}, shape {list(self.shape)}): {message}")

    def check_count(self, elements: int, source: str) -> None:
        """Raises ServingError if the number of elements is not that of the shape."""
        if elements != self.elements:
            raise self.error(f"{source} holds {elements} elements; expected {self.elements}")


def declare(name: Any, datatype: Any, shape: Sequence[Any]) -> Declared:
    """Returns the declaration of an input.

    Raises:
        ServingError: The name is empty, the type is not known, or the shape is not valid.
    """
    if not isinstance(name, str) or not name:
        raise invalid_argument(f"an input's name is {shown(name)}; expected a text")
    tensor_type = TYPES.get(datatype) if isinstance(datatype, str) else None
    if tensor_type is None:
        raise invalid_argument(f"input {name}: datatype is {shown(datatype)}; expected one of {', '.join(TYPES)}")
    for size in shape:
        if type(size) is not int or not 0 <= size < 2**63:
            raise invalid_argument(
                f"input {name}: the shape holds {shown(size)}; expected whole numbers, 0 to {2**63 - 1}"
            )
    if len(shape) > _MAX_RANK:
        raise invalid_argument(f"input {name}: the shape has {len(shape)} dimensions; expected {_MAX_RANK} or less")
    return Declared(name, datatype, shape, tensor_type, math.prod(shape))


def fill_raw(tensor: Any, declared: Declared, content: bytes, source: str) -> None:
    """Fills a tensor from its binary form: little-endian numbers, or strings that each follow their length.

    Args:
        tensor: A ``TensorProto`` with type and shape.
        declared: The input.
        content: Its bytes.
        source: Their place, for errors.

    Raises:
        ServingError: The bytes do not fit type and shape.
    """
    if declared.tensor_type is STRING:
        strings = _strings(declared, content, source)
        declared.check_count(len(strings), source)
        tensor.string_val.extend(strings)
        return
    expected = declared.elements * declared.tensor_type.numpy.itemsize
    if len(content) != expected:
        raise declared.error(f"{source} holds {len(content)} bytes; expected {expected}")
    if declared.datatype == "BOOL" and (others := content.translate(None, b"\0\1")):
        raise declared.error(f"{source} holds the byte {others[0]}; expected 0 or 1")
    tensor.tensor_content = content


def _strings(declared: Declared, content: bytes, source: str) -> list[bytes]:
    values: list[bytes] = []
    position, end = 0, len(content)
    while position < end:
        start = position + 4
        if start > end:
            raise declared.error(f"{source} ends within the length of element {len(values)}; expected 4 bytes")
        (length,) = _LENGTH.unpack_from(content, position)
        position = start + length
        if position > end:
            raise declared.error(f"{source}: element {len(values)} has {length} bytes; only {end - start} follow")
        if len(values) == declared.elements:
            raise declared.error(f"{source} holds more than {declared.elements} elements")
        values.append(content[start:position])
    return values


def to_raw(array: np.ndarray) -> bytes:
    """Returns the binary form of a tensor."""
    if array.dtype != object:
        return array.tobytes()
    values = array.ravel().tolist()
    return b"".join(itertools.chain.from_iterable((_LENGTH.pack(len(value)), value) for value in values))

"""Layouts of Predict messages, so that many messages of one layout are decoded at once.

A client that asks again and again sends messages that differ in their values alone. Their bytes, one message a row of a
matrix, are the same but for those of the values, and a value is a few columns of the matrix. What such a message costs
is a copy, where protobuf's parser and a Python object for each tensor cost 50 microseconds.

See https://protobuf.dev/programming-guides/encoding for the encoding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from airflow_hops.core.serving_api.protocol import PredictRequest, PredictResponse, TensorProto
from airflow_hops.core.serving_api.tensors import STRING, TensorType

REQUEST_TENSORS: int = PredictRequest.DESCRIPTOR.fields_by_name["inputs"].number
RESPONSE_TENSORS: int = PredictResponse.DESCRIPTOR.fields_by_name["outputs"].number
"""Field numbers of the tensors in ``PredictRequest`` and ``PredictResponse``, both a map from alias to TensorProto."""

_TENSOR_FIELDS = {name: field.number for name, field in TensorProto.DESCRIPTOR.fields_by_name.items()}
_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5
# Values of their own width each; beyond so many of them, a message is decoded by itself.
_MOST_SINGLE_VALUES = 64


class NoLayout(ValueError):
    """A message whose values do not lie where others' of the same size do."""


@dataclass(frozen=True)
class Span:
    """Bytes of a message: from ``start`` up to ``end``."""

    start: int
    end: int


@dataclass(frozen=True)
class TensorPlace:
    """The place of one tensor's values.

    Attributes:
        type: Their type.
        spans: One for all numbers of a fixed width; one for each string, or for each number written as a varint.
        varints: Whether they are varints.
    """

    type: TensorType
    spans: tuple[Span, ...]
    varints: bool = False

    def values(self, messages: np.ndarray) -> np.ndarray:
        """Returns the values of all messages, message by message.

        Args:
            messages: ``[messages, bytes]``, uint8.
        """
        if self.varints:
            return self._from_varints(messages)
        parts = [np.ascontiguousarray(messages[:, span.start : span.end]) for span in self.spans]
        if self.type is not STRING:
            numbers: np.ndarray = parts[0].reshape(-1).view(self.type.numpy)
            return numbers
        strings: np.ndarray = np.empty((len(messages), len(parts)), object)
        for index, part in enumerate(parts):
            width = part.shape[1]
            strings[:, index] = part.reshape(-1).view(f"V{width}").tolist() if width else b""
        return strings.reshape(-1)

    def _from_varints(self, messages: np.ndarray) -> np.ndarray:
        found: np.ndarray = np.zeros((len(messages), len(self.spans)), np.uint64)
        for index, span in enumerate(self.spans):
            for byte in range(span.start, span.end):
                seven_bits = (messages[:, byte] & 0x7F).astype(np.uint64)
                found[:, index] |= seven_bits << np.uint64(7 * (byte - span.start))
        if self.type.field == "half_val":
            return found.astype(np.uint16).view(self.type.numpy).reshape(-1)
        # A negative number is written as 64 bits, whatever its own width.
        return found.view(np.int64).astype(self.type.numpy).reshape(-1)


def find_tensors(message: bytes, field: int, types: Mapping[str, tuple[TensorType, int]]) -> dict[str, TensorPlace]:
    """Returns where the tensors of a message lie.

    Args:
        message: A serialized ``PredictRequest`` or ``PredictResponse``, which parses.
        field: The field of the tensors.
        types: Alias to the tensor's type and how many elements its shape says.

    Raises:
        NoLayout: Values are not written in one of the ways that clients write them.
    """
    places: dict[str, TensorPlace] = {}
    for number, wire_type, entry in _fields(message, Span(0, len(message))):
        if number != field:
            continue
        _expect(wire_type == _LENGTH_DELIMITED)
        fields = [*_fields(message, entry)]
        parts = {key: (kind, span) for key, kind, span in fields}
        # Given twice, a tensor is what both of its parts say together.
        _expect(len(fields) == 2 and parts.keys() == {1, 2} and parts[2][0] == _LENGTH_DELIMITED)
        alias = message[parts[1][1].start : parts[1][1].end].decode()
        _expect(alias in types and alias not in places)
        places[alias] = _find_values(message, parts[2][1], *types[alias])
    _expect(places.keys() == types.keys())
    return places


def _find_values(message: bytes, tensor: Span, tensor_type: TensorType, elements: int) -> TensorPlace:
    spans, varints, given_as = [], False, set()
    for number, wire_type, span in _fields(message, tensor):
        as_content = number == _TENSOR_FIELDS["tensor_content"]
        if not as_content and number != _TENSOR_FIELDS[tensor_type.field]:
            continue
        _expect(wire_type == _LENGTH_DELIMITED and not (as_content and tensor_type is STRING))
        given_as.add(as_content)
        if as_content or tensor_type.packed_tag or tensor_type is STRING:
            spans.append(span)
        else:
            varints = True
            spans += list(_varints(message, span))
    # Given both ways, a tensor is its content.
    _expect(len(given_as) < 2)
    if varints or tensor_type is STRING:
        _expect(len(spans) == elements <= _MOST_SINGLE_VALUES)
    else:
        _expect(len(spans) == 1 and spans[0].end - spans[0].start == elements * tensor_type.numpy.itemsize)
    return TensorPlace(tensor_type, tuple(spans), varints)


def same_but(message: bytes, places: Mapping[str, TensorPlace]) -> np.ndarray:
    """Returns which bits are the same in all messages of a layout.

    Args:
        message: One of them.
        places: Its tensors.

    Returns:
        ``[bytes]``, uint8: a varint's highest bits say how long it is, and are of the layout; its others are not.
    """
    mask: np.ndarray = np.full(len(message), 0xFF, np.uint8)
    for place in places.values():
        for span in place.spans:
            mask[span.start : span.end] = 0x80 if place.varints else 0
    return mask


def _fields(message: bytes, within: Span) -> Iterator[tuple[int, int, Span]]:
    """Yields field number, wire type and payload of each field; a varint's payload is its bytes."""
    at = within.start
    while at < within.end:
        tag, at = _read_varint(message, at)
        wire_type = tag & 7
        if wire_type == _LENGTH_DELIMITED:
            length, start = _read_varint(message, at)
            end = start + length
        elif wire_type in (_FIXED32, _FIXED64):
            start, end = at, at + (4 if wire_type == _FIXED32 else 8)
        else:
            _expect(wire_type == _VARINT)
            start, end = at, _read_varint(message, at)[1]
        _expect(end <= within.end)
        yield tag >> 3, wire_type, Span(start, end)
        at = end


def _varints(message: bytes, within: Span) -> Iterator[Span]:
    at = within.start
    while at < within.end:
        end = _read_varint(message, at)[1]
        yield Span(at, end)
        at = end


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        _expect(at < len(message) and shift < 64)
        byte = message[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7


def _expect(condition: bool) -> None:
    if not condition:
        raise NoLayout

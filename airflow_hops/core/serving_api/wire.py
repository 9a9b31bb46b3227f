"""Walks serialized protobuf messages without their descriptors, in any encoding that a parser accepts."""

from __future__ import annotations

import functools
import mmap
import re
from collections.abc import Iterator
from typing import NamedTuple

# https://protobuf.dev/programming-guides/encoding: tags and lengths are varints, which may have more bytes than needed.
# Repeated numbers that are not packed have a tag each; a pattern skips them together, as there may be millions.

Message = bytes | mmap.mmap

VARINT, FIXED64, BYTES, START_GROUP, END_GROUP, FIXED32 = range(6)
_VALUES = {VARINT: rb"[\x80-\xff]*+[\x00-\x7f]", FIXED64: rb".{8}", FIXED32: rb".{4}"}
_VARINT = re.compile(rb"[\x80-\xff]{0,9}+[\x00-\x7f]")


class Field(NamedTuple):
    """A field of a message, or several numbers in a row that have the same tag.

    Attributes:
        number: Number of the field.
        wire_type: ``BYTES`` for strings, messages and packed numbers, else the type of a number.
        start: Position of the content, or of the first number's tag.
        end: Position behind it.
    """

    number: int
    wire_type: int
    start: int
    end: int


def fields_of(message: Message, start: int, end: int) -> Iterator[Field]:
    """Yields the fields of a part of a message; those of groups as if they were not in a group.

    Raises:
        ValueError: The part is not a message.
    """
    position = start
    while position < end:
        tag, after = _varint(message, position, end)
        wire_type = tag & 7
        if wire_type == BYTES:
            size, start = _varint(message, after, end)
            position = start + size
            if position > end:
                raise ValueError(f"a field at byte {start} has {size} bytes; only {end - start} follow")
            yield Field(tag >> 3, wire_type, start, position)
        elif wire_type in _VALUES:
            numbers = _numbers(message[position:after], wire_type).match(message, position, end)
            if numbers is None:
                raise ValueError(f"the message ends within a number at byte {position}")
            yield Field(tag >> 3, wire_type, position, numbers.end())
            position = numbers.end()
        elif wire_type in (START_GROUP, END_GROUP):
            position = after
        else:
            raise ValueError(f"byte {position} is no tag")


@functools.lru_cache(256)
def _numbers(tag: bytes, wire_type: int) -> re.Pattern[bytes]:
    return re.compile(rb"(?:%b%b)++" % (re.escape(tag), _VALUES[wire_type]), re.DOTALL)


def _varint(message: Message, position: int, end: int) -> tuple[int, int]:
    """Returns the varint at a position, and the position behind it."""
    byte = message[position] if position < end else 0x80
    if byte < 0x80:
        return byte, position + 1
    match = _VARINT.match(message, position, end)
    if match is None:
        raise ValueError(f"the message ends within a number at byte {position}")
    return sum((byte & 0x7F) << 7 * index for index, byte in enumerate(match[0])), match.end()


# Number of a field to the message in it, for the parts of onnx.proto that lead to nodes; 4 of a node is its operator.
_ONNX = {
    "model": {7: "graph", 25: "function"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node"},
    "node": {4: "operator", 5: "attribute"},
    "attribute": {6: "graph", 11: "graph"},
}
_LOOPS = (b"Loop", b"Scan", b"SequenceMap", b"BeamSearch", b"GreedySearch", b"Sampling", b"WhisperBeamSearch")


def has_onnx_loops(model: Message) -> bool:
    """Returns whether an ONNX model has operators whose run time depends on input values; True if it does not parse."""
    parts = [("model", 0, len(model))]
    try:
        while parts:
            kind, start, end = parts.pop()
            if kind == "operator" and model[start:end] in _LOOPS:
                return True
            for field in fields_of(model, start, end) if kind in _ONNX else ():
                if field.wire_type == BYTES and field.number in _ONNX[kind]:
                    parts.append((_ONNX[kind][field.number], field.start, field.end))
    except ValueError:
        return True
    return False

"""Random encodings of protobuf messages: each is another text of bytes for the same message."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

UNKNOWN = 1000  # number of a field that no message here has
_FORMATS = {
    FieldDescriptor.TYPE_FLOAT: "<f", FieldDescriptor.TYPE_DOUBLE: "<d", FieldDescriptor.TYPE_FIXED32: "<I",
    FieldDescriptor.TYPE_FIXED64: "<Q", FieldDescriptor.TYPE_SFIXED32: "<i", FieldDescriptor.TYPE_SFIXED64: "<q",
}  # fmt: skip


def varint(draw: random.Random, number: int, spare: int = 2) -> bytes:
    """A number in as many bytes as it needs, or in a few more, which parsers accept."""
    encoded = bytearray()
    number &= 2**64 - 1
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    if draw.random() < 0.3:
        more = draw.randint(0, max(0, min(spare, 5 - len(encoded))))
        if more:
            encoded[-1] |= 0x80
            encoded += b"\x80" * (more - 1) + b"\0"
    return bytes(encoded)


def tag(draw: random.Random, number: int, wire_type: int) -> bytes:
    return varint(draw, number << 3 | wire_type)


def with_size(draw: random.Random, number: int, content: bytes) -> bytes:
    return tag(draw, number, 2) + varint(draw, len(content)) + content


def encode(draw: random.Random, message: Any) -> bytes:
    """Serializes a message in a random form."""
    parts: list[list[bytes]] = []
    for field, value in message.ListFields():
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        repeated = field.label == FieldDescriptor.LABEL_REPEATED
        if is_map:
            key, content = field.message_type.fields
            entries = [b"".join(_one(draw, key, each) + _one(draw, content, value[each])) for each in value]
            parts.append([with_size(draw, field.number, entry) for entry in entries])
        elif not repeated:
            parts.append(_one(draw, field, value))
        elif field.message_type is not None:
            parts.append([part for each in value for part in _one(draw, field, each)])
        elif field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
            parts.append(_alike(list(value), lambda each, field=field: _one(draw, field, each)[0]))
        else:
            parts.append(_numbers(draw, field, list(value)))
    if draw.random() < 0.2:
        unknown = draw.choice([with_size(draw, UNKNOWN, b"x"), tag(draw, UNKNOWN, 3) + tag(draw, UNKNOWN, 4)])
        parts.append([unknown])
    # The order within a field counts, that of fields does not.
    draw.shuffle(parts)
    return b"".join(part for each in parts for part in each)


def _alike(values: list[Any], make: Callable[[Any], bytes]) -> list[bytes]:
    """The encodings of values; of many, equal ones are encoded alike, which takes less time."""
    if len(values) < 1000:
        return [make(value) for value in values]
    made = {value: make(value) for value in set(values)}
    return [made[value] for value in values]


def _one(draw: random.Random, field: Any, value: Any) -> list[bytes]:
    if field.message_type is not None:
        content = encode(draw, value)
        return [with_size(draw, field.number, content)]
    if field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
        return [with_size(draw, field.number, value.encode() if isinstance(value, str) else value)]
    wire_type = {4: 5, 8: 1}[struct.calcsize(_FORMATS[field.type])] if field.type in _FORMATS else 0
    return [tag(draw, field.number, wire_type) + _number(draw, field, value)]


def _number(draw: random.Random, field: Any, value: Any) -> bytes:
    return struct.pack(_FORMATS[field.type], value) if field.type in _FORMATS else varint(draw, int(value))


def _numbers(draw: random.Random, field: Any, values: list[Any]) -> list[bytes]:
    """Numbers in one packed field, in several, or with a tag each."""
    form, parts = draw.choice(["packed", "pieces", "tags"]), list[bytes]()
    if form == "tags":
        return _alike(values, lambda value: _one(draw, field, value)[0])
    step = len(values) if form == "packed" else draw.randint(1 + len(values) // 100, 1 + len(values))
    for start in range(0, len(values), step or 1):
        content = b"".join(_alike(values[start : start + step], lambda value: _number(draw, field, value)))
        parts.append(with_size(draw, field.number, content))
    return parts

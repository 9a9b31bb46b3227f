"""Limits the memory of all requests in progress, which is counted as they grow."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import grpc

from airflow_hops.core.serving_api.encoded_images import largest_image
from airflow_hops.core.serving_api.tensors import BY_NUMBER, STRING
from airflow_hops.core.serving_api.wire import BYTES, Field, fields_of
from airflow_hops.serving.errors import ServingError, too_large

# Memory is reserved in steps, as a request grows: its body as it arrives, an estimate for the parsed values, the
# largest decoded image. Each step can be refused; nothing waits for memory, so requests cannot block each other.
# Whoever starts a request releases its reservation when the request no longer runs, which may be after its answer.

# Assumes the worst growth for smaller requests, as a closer estimate costs more than it saves.
_LOOKED_AT_FROM_BYTES = 2**20
_WORST_GROWTH = 60
_WORST_MESSAGE_GROWTH = 80
# As measured from the request to the answer of a model that returns its input, in a process without free memory.
_FIELD_BYTES = 160
NARROW_BYTES = 14
"""Memory that a byte of a tensor's content takes beyond others, if a response has more bytes for each value."""
NARROW = frozenset(number for number, tensor_type in BY_NUMBER.items() if tensor_type.numpy.itemsize < 4)
"""Numbers of these types."""
_CONTINUED = bytes(range(0x80, 0x100))  # all bytes of a varint but the last
_PIXEL_BYTES = 5  # measured: 1.3 for one channel, 3.7 for three, 5.1 for four


class RequestMemory:
    """The memory that all requests of a server share; a limit of 0 bytes means no limit.

    Attributes:
        make_room: Called before a request is refused for lack of memory; releases memory of slow clients.
    """

    def __init__(self, limit_bytes: int = 0) -> None:
        self.limit_bytes = limit_bytes
        self.make_room: Callable[[], None] = lambda: None
        self.taken_bytes = 0
        self.lock = threading.Lock()

    def reserve(self, size_bytes: int = 0) -> Reservation:
        """Returns a new reservation of this size; raises ServingError as :meth:`Reservation.grow` does."""
        reservation = Reservation(self)
        reservation.grow(size_bytes)
        return reservation


class Reservation:
    """The memory of one request."""

    def __init__(self, memory: RequestMemory) -> None:
        self._memory = memory
        self._size_bytes = 0

    def grow(self, size_bytes: int) -> None:
        """Adds bytes to the reservation.

        Raises:
            ServingError: RESOURCE_EXHAUSTED: the request exceeds the total, or the part that other requests leave.
        """
        limit = self._memory.limit_bytes
        if limit and self._size_bytes + size_bytes > limit:
            raise too_large(
                f"The request takes more memory than there is for all requests under way ({limit} bytes, "
                "--max_request_memory_bytes)"
            )
        if self._take(size_bytes):
            return
        self._memory.make_room()
        if not self._take(size_bytes):
            raise ServingError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"Other requests under way leave too little memory ({limit} bytes for all, "
                "--max_request_memory_bytes); try again",
            )

    def _take(self, size_bytes: int) -> bool:
        memory = self._memory
        with memory.lock:
            if memory.limit_bytes and memory.taken_bytes + size_bytes > memory.limit_bytes:
                return False
            memory.taken_bytes += size_bytes
            self._size_bytes += size_bytes
            return True

    def release(self) -> None:
        """Releases the memory; a second call has no effect."""
        memory = self._memory
        with memory.lock:
            memory.taken_bytes -= self._size_bytes
            self._size_bytes = 0


def parsed_json_bytes(text: bytes) -> int:
    """Estimates the memory that parsing JSON takes in addition to its text, for Python objects and tensors.

    As measured, a short value takes 50 times the size of its text, and a long string 12 times.
    """
    if len(text) < _LOOKED_AT_FROM_BYTES:
        return _WORST_GROWTH * len(text)
    values, lists, objects, quotes = (text.count(sign) for sign in (b",", b"[", b"{", b'"'))
    return 12 * len(text) + 72 * values + 72 * lists + 240 * objects + 78 * quotes


@dataclass(frozen=True)
class MessageLayout:
    """The memory that the fields of a message take in their decoded forms, in all of a request's stages.

    Attributes:
        parts: Messages in it, by number of the field.
        varints: Fields of integers, which take the same memory however short they are.
        varint_bytes: Memory of each integer.
        growth: Memory of each byte of the other fields.
        content: Field that holds a tensor's values, whose type field 1 names, as in a ``TensorProto``.
    """

    parts: Mapping[int, MessageLayout] = field(default_factory=dict)
    varints: frozenset[int] = frozenset()
    varint_bytes: int = 95
    growth: int = 13
    content: int = 0


_TENSOR = MessageLayout({2: MessageLayout({2: MessageLayout()})}, frozenset({7, 10, 11, 13, 16, 17}), content=4)
PREDICT_LAYOUT = MessageLayout({2: MessageLayout({2: _TENSOR})})
_EXAMPLES = MessageLayout(growth=25)
EXAMPLES_LAYOUT = MessageLayout({2: MessageLayout({1: _EXAMPLES, 2: _EXAMPLES})})


def parsed_message_bytes(message: bytes, layout: MessageLayout, most_bytes: float = math.inf) -> int:
    """Estimates the memory that decoding and answering a request message takes in addition to the message.

    An estimate above ``most_bytes`` may be too low.
    """
    if len(message) < _LOOKED_AT_FROM_BYTES:
        return _WORST_MESSAGE_GROWTH * len(message)
    try:
        return _grown(message, 0, len(message), layout, most_bytes)
    except ValueError:  # the parser will refuse it after it has read a part
        return _WORST_MESSAGE_GROWTH * len(message)


def _grown(message: bytes, start: int, end: int, layout: MessageLayout, most_bytes: float) -> int:
    total = strings = content = 0
    types: set[int] = set()
    for each in fields_of(message, start, end):
        part = layout.parts.get(each.number)
        if part is not None and each.wire_type == BYTES:
            total += _grown(message, each.start, each.end, part, most_bytes - total)
        elif each.number in layout.varints:
            varints = _varints(message, each)
            total += layout.varint_bytes * (varints if each.wire_type == BYTES else varints // 2)  # each has a tag
        else:
            total += layout.growth * (each.end - each.start)
            if layout.content == each.number:
                strings, content = _varints(message, each), each.end - each.start
            elif layout.content and each.number == 1:
                types = {byte & 0x7F for byte in message[each.end - 2 : each.end]}
        total += _FIELD_BYTES
        if total > most_bytes:
            break
    return total + (_FIELD_BYTES * strings if STRING.number in types else NARROW_BYTES * content * bool(types & NARROW))


def _varints(message: bytes, place: Field) -> int:
    return len(message[place.start : place.end].translate(None, _CONTINUED))


def merged_context_bytes(message: bytes) -> int:
    """Estimates the memory of the context of a message's examples, which each of them gets."""
    examples = context = 0
    try:
        for source in fields_of(message, 0, len(message)):
            if source.number == 2 and source.wire_type == BYTES:
                for part in fields_of(message, source.start, source.end):
                    if part.number == 2 and part.wire_type == BYTES:
                        for each in fields_of(message, part.start, part.end):
                            examples += each.number == 1
                            context = max(context, each.end - each.start if each.number == 2 else 0)
    except ValueError:
        return 0
    return _EXAMPLES.growth * examples * context


def decoded_image_bytes(message: bytes) -> int:
    """Estimates the memory of the largest image of a request; a graph decodes one image at a time."""
    return _PIXEL_BYTES * largest_image(message)

"""The memory that all requests under way may take together, counted as they grow."""

from __future__ import annotations

import threading

import grpc

from airflow_hops.core.serving_api.encoded_images import largest_image
from airflow_hops.serving.errors import ServingError, TooLargeError

# A request of fewer bytes is taken to grow by as much as the worst of them do: looking would cost more than it saves.
_LOOKED_AT_FROM_BYTES = 2**20
_WORST_GROWTH = 40
_PIXEL_BYTES = 5  # measured: 1.3 of one channel, 3.7 of three, 5.1 of four


class RequestMemory:
    """The memory that the requests of one server share.

    Args:
        limit_bytes: What they may take together; 0 is no limit.
    """

    def __init__(self, limit_bytes: int = 0) -> None:
        self.limit_bytes = limit_bytes
        self.taken_bytes = 0
        self.lock = threading.Lock()

    def reserve(self, size_bytes: int = 0) -> Reservation:
        """Returns a request's own share, of this size at first.

        Raises:
            ServingError: RESOURCE_EXHAUSTED, as of ``Reservation.grow``.
        """
        reservation = Reservation(self)
        reservation.grow(size_bytes)
        return reservation


class Reservation:
    """The share of one request."""

    __slots__ = ("_memory", "_size_bytes")

    def __init__(self, memory: RequestMemory) -> None:
        self._memory = memory
        self._size_bytes = 0

    def grow(self, size_bytes: int) -> None:
        """Takes so much more.

        Raises:
            ServingError: RESOURCE_EXHAUSTED: it is more than there is for all requests, or than others leave.
        """
        memory = self._memory
        with memory.lock:
            limit = memory.limit_bytes
            if limit and self._size_bytes + size_bytes > limit:
                raise TooLargeError(
                    f"The request takes more memory than there is for all requests under way ({limit} bytes, "
                    "--max_request_memory_bytes)"
                )
            if limit and memory.taken_bytes + size_bytes > limit:
                raise ServingError(
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                    f"Other requests under way leave too little memory ({limit} bytes for all, "
                    "--max_request_memory_bytes); try again",
                )
            memory.taken_bytes += size_bytes
            self._size_bytes += size_bytes

    def release(self) -> None:
        """Gives all of it back; again does nothing."""
        memory = self._memory
        with memory.lock:
            memory.taken_bytes -= self._size_bytes
            self._size_bytes = 0


def parsed_json_bytes(text: bytes) -> int:
    """Returns about how much memory reading JSON takes beside its text, by what is in it: Python's objects, tensors.

    Measured; a value takes 30 times its text where that is short, and a long string 6 times.
    """
    if len(text) < _LOOKED_AT_FROM_BYTES:
        return _WORST_GROWTH * len(text)
    values, lists, objects, quotes = (text.count(sign) for sign in (b",", b"[", b"{", b'"'))
    return 6 * len(text) + 64 * values + 72 * lists + 240 * objects + 60 * quotes


def parsed_message_bytes(message: bytes) -> int:
    """Returns about how much memory decoding and answering a request message takes beside it.

    Numbers grow least, and short strings and examples most: each begins with its field's tag.
    """
    if len(message) < _LOOKED_AT_FROM_BYTES:
        return _WORST_GROWTH * len(message)
    return 12 * len(message) + 60 * (message.count(b"\x42") + message.count(b"\x0a"))


def decoded_image_bytes(message: bytes) -> int:
    """Returns about how much memory decoding the largest image of a request takes; a graph decodes one at a time."""
    return _PIXEL_BYTES * largest_image(message)

"""Limits the memory of all requests in progress, which is counted as they grow."""

from __future__ import annotations

import threading

import grpc

from airflow_hops.core.serving_api.encoded_images import largest_image
from airflow_hops.serving.errors import ServingError, too_large

# Memory is reserved in steps, as a request grows: its body as it arrives, an estimate for the parsed values, the
# largest decoded image. Each step can be refused; nothing waits for memory, so requests cannot block each other.
# Whoever starts a request releases its reservation when the request no longer runs, which may be after its answer.

# Assumes the worst growth for smaller requests, as a closer estimate costs more than it saves.
_LOOKED_AT_FROM_BYTES = 2**20
_WORST_GROWTH = 40
_PIXEL_BYTES = 5  # measured: 1.3 for one channel, 3.7 for three, 5.1 for four


class RequestMemory:
    """The memory that all requests of a server share; a limit of 0 bytes means no limit."""

    def __init__(self, limit_bytes: int = 0) -> None:
        self.limit_bytes = limit_bytes
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
        memory = self._memory
        with memory.lock:
            limit = memory.limit_bytes
            if limit and self._size_bytes + size_bytes > limit:
                raise too_large(
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
        """Releases the memory; a second call has no effect."""
        memory = self._memory
        with memory.lock:
            memory.taken_bytes -= self._size_bytes
            self._size_bytes = 0


def parsed_json_bytes(text: bytes) -> int:
    """Estimates the memory that parsing JSON takes in addition to its text, for Python objects and tensors.

    As measured, a short value takes 30 times the size of its text, and a long string 6 times.
    """
    if len(text) < _LOOKED_AT_FROM_BYTES:
        return _WORST_GROWTH * len(text)
    values, lists, objects, quotes = (text.count(sign) for sign in (b",", b"[", b"{", b'"'))
    return 6 * len(text) + 64 * values + 72 * lists + 240 * objects + 60 * quotes


def parsed_message_bytes(message: bytes) -> int:
    """Estimates the memory that decoding and answering a request message takes in addition to the message.

    Numbers grow least; short strings and examples, each of which begins with its field's tag, grow most.
    """
    if len(message) < _LOOKED_AT_FROM_BYTES:
        return _WORST_GROWTH * len(message)
    return 12 * len(message) + 60 * (message.count(b"\x42") + message.count(b"\x0a"))


def decoded_image_bytes(message: bytes) -> int:
    """Estimates the memory of the largest image of a request; a graph decodes one image at a time."""
    return _PIXEL_BYTES * largest_image(message)

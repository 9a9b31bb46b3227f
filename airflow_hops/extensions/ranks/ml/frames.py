"""JSON messages with binary bodies over a pair of descriptors: pipes to an SSH client, or a socket.

A frame is the length of its message (4 bytes, big-endian), that of its body (4 bytes), the message (JSON) and the body.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import struct
import threading
from collections.abc import Mapping
from typing import Any

GREETING = b"\nhops-agent-1\n"
"""An agent's first bytes; anything before them is output of a shell or a login."""

_HEADER = struct.Struct("!II")
_MOST_MESSAGE_BYTES = 64 << 20
_READ_BYTES = 1 << 18
_STUCK_S = 0.5
_CLOSED = -1


class Frames:
    """One end of a stream of frames, on one or two descriptors. Several threads may send, only one may receive."""

    def __init__(self, reading: int, writing: int | None = None) -> None:
        self.reading, self.writing = reading, reading if writing is None else writing
        self._sending = threading.Lock()
        self._buffer = bytearray()

    def send(self, message: Mapping[str, object], body: bytes = b"") -> None:
        """Sends a frame.

        Raises:
            OSError: the connection is closed.
        """
        text = json.dumps(message).encode()
        with self._sending:
            self._write(_HEADER.pack(len(text), len(body)) + text + body)

    def send_bytes(self, data: bytes) -> None:
        """Sends bytes that are not a frame.

        Raises:
            OSError: the connection is closed.
        """
        with self._sending:
            self._write(data)

    def receive(self, timeout_s: float | None = None) -> tuple[dict[str, Any], bytes]:
        """Waits for a frame, for at most ``timeout_s`` seconds without a byte, and returns its message and body.

        Raises:
            EOFError: the connection is closed, or the received data is not a frame.
            TimeoutError: no data was received in time.
        """
        self._fill(_HEADER.size, timeout_s)
        text_bytes, body_bytes = _HEADER.unpack(self._buffer[: _HEADER.size])
        if text_bytes > _MOST_MESSAGE_BYTES or body_bytes > _MOST_MESSAGE_BYTES:
            raise EOFError("the received data is not a frame")
        end = _HEADER.size + text_bytes + body_bytes
        self._fill(end, timeout_s)
        text, body = self._buffer[_HEADER.size : _HEADER.size + text_bytes], self._buffer[end - body_bytes : end]
        del self._buffer[:end]
        return json.loads(text), bytes(body)

    def skip_to_greeting(self, timeout_s: float | None = None) -> str:
        """Reads up to the greeting, and returns the text before it.

        Raises:
            EOFError: there was no greeting; the error's message is the text.
            TimeoutError: no data was received in time.
        """
        while (result := self._buffer.find(GREETING)) < 0:
            try:
                self._fill(len(self._buffer) + 1, timeout_s)
            except EOFError:
                raise EOFError(self._buffer.decode(errors="replace").strip()) from None
        chatter = self._buffer[:result].decode(errors="replace").strip()
        del self._buffer[: result + len(GREETING)]
        return chatter

    def close_writing(self) -> None:
        """Ends the stream for the other end, if the descriptors differ and no thread is blocked in a send."""
        if self.writing not in (self.reading, _CLOSED) and self._sending.acquire(timeout=_STUCK_S):
            os.close(self.writing)
            self.writing = _CLOSED
            self._sending.release()

    def close(self) -> None:
        """Closes both descriptors; it may be called more than once."""
        for descriptor in {self.reading, self.writing} - {_CLOSED}:
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self.reading = self.writing = _CLOSED

    def _fill(self, size: int, timeout_s: float | None) -> None:
        while len(self._buffer) < size:
            if timeout_s is not None:
                poll = select.poll()
                poll.register(self.reading, select.POLLIN)
                if not poll.poll(1000 * timeout_s):
                    raise TimeoutError
            try:
                chunk = os.read(self.reading, _READ_BYTES)
            except OSError as error:
                raise EOFError(str(error)) from error
            if not chunk:
                raise EOFError
            self._buffer += chunk

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self.writing, view) :]

"""Messages between the server and a worker: on each connection one request at a time, then its answer.

A frame is a fixed header and a message. There are as many connections to a worker as it has had requests at once, so
that the thread that asks is the one that the kernel wakes with the answer: no request number, no thread in between.
"""

from __future__ import annotations

import math
import socket
import struct
import time

import grpc

from airflow_hops.core.serving_api.protocol import Method
from airflow_hops.serving.errors import ServingError, code_of
from airflow_hops.serving.models.servable import Call, Reply

_REQUEST = struct.Struct("<BdI")  # method, deadline on the clock that processes of one machine share, bytes
_REPLY = struct.Struct("<BqI")  # status code, rows, bytes
_METHODS = tuple(Method)
_NUMBERS = {method: number for number, method in enumerate(_METHODS)}
_METRICS = 255
_TIMEOUT = struct.Struct("@ll")
_NO_TIMEOUT = _TIMEOUT.pack(0, 0)
_OK = 0
_CHUNK_BYTES = 1 << 16
_BUFFER_BYTES = 1 << 22


class PeerGone(Exception):
    """The other process is no more."""


class PeerDied(PeerGone):
    """The other process ended after it had been sent a request, and before it answered."""


def connection_pair() -> tuple[socket.socket, socket.socket]:
    """Returns both ends of a connection, with as much room in between as the kernel gives."""
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    for end in pair:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
    return pair


class Connection:
    """The server's end of a connection.

    Args:
        end: A socket of ``connection_pair``.
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._has_timeout = False

    def ask(self, call: Call) -> Reply | ServingError:
        """Sends a request and waits for its answer; after an exception the connection is of no use any more.

        Raises:
            ServingError: The deadline has passed.
            PeerGone: There was nobody to read the request.
            PeerDied: There was, but no answer came.
        """
        return self._exchange(_NUMBERS[call.method], call.deadline_s, call.message)

    def ask_for_metrics(self, deadline_s: float) -> Reply | ServingError:
        """Asks what the worker counts, instead of a request; see ``ask``."""
        return self._exchange(_METRICS, deadline_s, b"")

    def close(self) -> None:
        """Closes the connection."""
        self._socket.close()

    def _exchange(self, number: int, deadline_s: float, message: bytes) -> Reply | ServingError:
        self._set_deadline(deadline_s)
        try:
            _send(self._socket, _REQUEST.pack(number, deadline_s, len(message)), message)
            try:
                return receive_reply(self._socket)
            except PeerGone:
                raise PeerDied from None
        except BlockingIOError:
            raise ServingError(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded") from None

    def _set_deadline(self, deadline_s: float) -> None:
        if deadline_s == math.inf:
            if not self._has_timeout:
                return
            timeout = _NO_TIMEOUT
        else:
            # The kernel's time-outs, for Python's own cost a system call more for each send and receive.
            left_s = max(deadline_s - time.monotonic(), 1e-3)
            timeout = _TIMEOUT.pack(int(left_s), int(left_s % 1 * 1e6))
        self._has_timeout = deadline_s != math.inf
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)


def receive_request(connection: socket.socket) -> Call | None:
    """Receives a request, or None if the server asks for what the worker counts.

    Raises:
        PeerGone: The server has closed the connection.
    """
    (method, deadline_s, _), message = _receive(connection, _REQUEST)
    return None if method == _METRICS else Call(_METHODS[method], message, deadline_s)


def send_reply(connection: socket.socket, reply: Reply | ServingError) -> None:
    """Sends an answer.

    Raises:
        PeerGone: The server has closed the connection: the client has given up, or the server is no more.
    """
    if isinstance(reply, Reply):
        _send(connection, _REPLY.pack(_OK, reply.rows, len(reply.message)), reply.message)
    else:
        text = reply.message.encode("utf-8", "replace")
        _send(connection, _REPLY.pack(reply.number, 0, len(text)), text)


def receive_reply(connection: socket.socket) -> Reply | ServingError:
    """Receives an answer.

    Raises:
        PeerGone: The worker ended before it answered.
        BlockingIOError: The socket's time-out has passed.
    """
    (code, rows, _), message = _receive(connection, _REPLY)
    if code == _OK:
        return Reply(message, int(rows))
    return ServingError(code_of(code), message.decode("utf-8", "replace"))


def _send(connection: socket.socket, header: bytes, message: bytes) -> None:
    try:
        sent = connection.sendmsg((header, message))
        total = len(header) + len(message)
        while sent < total:
            sent += connection.send(memoryview(message)[sent - len(header) :])
    except ConnectionError:
        raise PeerGone from None


def _receive(connection: socket.socket, header: struct.Struct) -> tuple[tuple[int, float, int], bytes]:
    """Receives one frame; its header ends with the number of bytes of its message."""
    try:
        data = connection.recv(_CHUNK_BYTES)
        while 0 < len(data) < header.size:
            data += connection.recv(header.size - len(data), socket.MSG_WAITALL) or _gone()
        fields: tuple[int, float, int] = header.unpack_from(data or _gone())
        parts = [data[header.size :]]
        missing = fields[2] - len(parts[0])
        while missing:
            parts.append(connection.recv(missing, socket.MSG_WAITALL) or _gone())
            missing -= len(parts[-1])
    except ConnectionError:
        raise PeerGone from None
    return fields, parts[0] if len(parts) == 1 else b"".join(parts)


def _gone() -> bytes:
    raise PeerGone

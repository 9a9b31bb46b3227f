"""The handshake of a Spark task with the driver: each proves that it belongs to the same job.

Both have a secret that is made for one gang and is part of the job's closure; neither sends it. The frames that follow
are neither signed nor encrypted.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import socket
from typing import Any

from airflow_hops.core.errors import HopsError

_NONCE_BYTES = 32
_MOST_BYTES = 1 << 16
TIMEOUT_S = 10.0


def call_driver(address: tuple[str, int], secret: bytes, words: dict[str, object]) -> socket.socket:
    """Connects a task to the driver, and sends it ``words``, the task's description.

    Raises:
        OSError: the driver cannot be reached.
        HopsError: the process that listens there is not the driver.
    """
    connection = socket.create_connection(address, timeout=TIMEOUT_S)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        challenge = _receive(connection)
        body, own = json.dumps(words).encode(), os.urandom(_NONCE_BYTES)
        for part in (body, own, _proof(secret, b"task", challenge + own + body)):
            _send(connection, part)
        if not hmac.compare_digest(_receive(connection), _proof(secret, b"driver", own + challenge)):
            raise HopsError(f"{address[0]}:{address[1]} is not the driver of this job")
        connection.settimeout(None)
    except BaseException:
        connection.close()
        raise
    return connection


def answer_task(connection: socket.socket, secret: bytes) -> dict[str, Any]:
    """Answers a task's :func:`call_driver` on the driver, and returns its ``words``.

    Raises:
        OSError: the connection broke, or no data was received in time.
        HopsError: it is not a task of this gang.
    """
    connection.settimeout(TIMEOUT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    challenge = os.urandom(_NONCE_BYTES)
    _send(connection, challenge)
    body, other, proof = (_receive(connection) for _ in range(3))
    if not hmac.compare_digest(proof, _proof(secret, b"task", challenge + other + body)):
        raise HopsError("a connection came from something that is not a task of this job")
    _send(connection, _proof(secret, b"driver", other + challenge))
    connection.settimeout(None)
    words: dict[str, Any] = json.loads(body)
    return words


def _proof(secret: bytes, role: bytes, message: bytes) -> bytes:
    return hmac.new(secret, role + message, hashlib.sha256).digest()


def _send(connection: socket.socket, part: bytes) -> None:
    connection.sendall(len(part).to_bytes(4, "big") + part)


def _receive(connection: socket.socket) -> bytes:
    size = int.from_bytes(_exactly(connection, 4), "big")
    if size > _MOST_BYTES:
        raise HopsError("a connection speaks another protocol")
    return _exactly(connection, size)


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise ConnectionError("the connection was closed during the handshake")
        data += more
    return data

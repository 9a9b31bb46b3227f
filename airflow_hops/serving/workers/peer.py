"""Remote procedure calls between two processes over a socket, in both directions at once."""

from __future__ import annotations

import itertools
import logging
import pickle
import socket
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

# Messages are pickled triples over a Unix socket between processes of one server, which trust each other: (number,
# method, arguments) is a call; (number, None, (value, error)) its response; number 0 is a call without response.
# Calls run in a pool, so they can cross and be answered in any order; calls without response run in order in the
# reading thread. When the other process ends, every pending call gets PeerGone.

log = logging.getLogger(__name__)

_THREADS = 32
_BUFFER_BYTES = 1 << 22


class PeerGone(Exception):
    """The other process has ended."""


def connection_pair() -> tuple[socket.socket, socket.socket]:
    """Returns both ends of a connection, with the largest send buffers that the kernel allows."""
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    for end in pair:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
    return pair


class Peer:
    """The other process.

    Args:
        end: One end of a pair of sockets.
        methods: Methods that the other process may call; each runs in its own thread, and exceptions are sent back.
        told: Methods without a response, which run in order in the reading thread.
        on_end: Called when the other process has ended.
    """

    def __init__(
        self,
        end: socket.socket,
        methods: Mapping[str, Callable[..., Any]],
        told: Mapping[str, Callable[..., Any]] | None = None,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._connection = Connection(end.detach())
        self._methods, self._told, self._on_end = methods, told or {}, on_end
        self._sending, self._lock = threading.Lock(), threading.Lock()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Future[Any]] = {}
        self._is_gone = False
        self._pool = ThreadPoolExecutor(_THREADS, "peer")

    def start(self) -> None:
        """Starts a thread that runs :meth:`read`."""
        threading.Thread(target=self.read, name="peer", daemon=True).start()

    def read(self) -> None:
        """Handles calls and responses until the other process ends."""
        try:
            while True:
                number, method, content = self._connection.recv()
                if method is None:
                    with self._lock:
                        future = self._waiting.pop(number)
                    value, error = content
                    future.set_exception(error) if error is not None else future.set_result(value)
                elif number:
                    self._pool.submit(self._answer, number, method, content)
                else:
                    self._told[method](*content)
        except (EOFError, OSError):
            pass
        except Exception:
            log.exception("cannot read a message of the other process; closing the connection")
        self._end()
        with self._sending:
            self._connection.close()
        self._pool.shutdown(wait=False)
        self._on_end()

    def call(self, method: str, *arguments: Any) -> Future[Any]:
        """Calls a method; the future holds its result or exception, or PeerGone."""
        future: Future[Any] = Future()
        number = next(self._numbers)
        with self._lock:
            if self._is_gone:
                future.set_exception(PeerGone())
                return future
            self._waiting[number] = future
        try:
            self._send((number, method, arguments))
        except OSError:
            self._end()
        return future

    def ask(self, method: str, *arguments: Any, timeout_s: float | None = None) -> Any:
        """Calls a method and waits for its result.

        Raises:
            PeerGone: The other process has ended.
            TimeoutError: No response arrives in time.
        """
        return self.call(method, *arguments).result(timeout_s)

    def tell(self, method: str, *arguments: Any) -> None:
        """Calls a method that does not respond.

        Raises:
            OSError: The other process has ended.
        """
        self._send((0, method, arguments))

    def _send(self, record: tuple[int, str | None, Any]) -> None:
        with self._sending:
            self._connection.send(record)

    def _answer(self, number: int, method: str, arguments: tuple[Any, ...]) -> None:
        value, error = None, None
        try:
            value = self._methods[method](*arguments)
        except Exception as raised:
            error = _portable(raised)
        try:
            self._send((number, None, (value, error)))
        except OSError:
            self._end()
        except Exception as raised:  # the other process must not wait forever for a result that cannot be pickled
            self._send((number, None, (None, RuntimeError(f"{method}: {raised}"))))

    def _end(self) -> None:
        with self._lock:
            self._is_gone = True
            waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            future.set_exception(PeerGone())


def error_of(call: Future[Any], timeout_s: float | None) -> BaseException | None:
    """Returns the error of a call; None for PeerGone, which is handled elsewhere."""
    error = call.exception() if call.done() else TimeoutError(f"no answer within {timeout_s} s")
    return None if isinstance(error, PeerGone) else error


def _portable(error: Exception) -> Exception:
    """Returns the error, or a RuntimeError with its message if the error cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error

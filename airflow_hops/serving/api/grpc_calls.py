"""Serves unary gRPC methods, from bytes to bytes, with less overhead than gRPC's own Python handlers.

gRPC's Python server takes a thread for each call when the call begins, and that thread waits for the call's message. So
a few slow clients can occupy all threads, and a request wakes three threads in turn, which costs more than running a
small model. Here a call only takes a thread after its message has arrived. Quick requests are answered by the thread
that received them; the others go to a pool.

This uses private parts of grpcio (:mod:`~airflow_hops.serving.api.grpc_internals`). gRPC's server still serves all
other methods; its thread passes the events of these calls to the callbacks (tags) that they were requested with.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import grpc

from airflow_hops.serving.api.grpc_internals import STARTED, STATUS_NUMBERS, check_server, cygrpc, serve
from airflow_hops.serving.errors import ServingError
from airflow_hops.serving.request_memory import (
    PREDICT_LAYOUT,
    MessageLayout,
    RequestMemory,
    Reservation,
    parsed_message_bytes,
)

# States of a call, each entered by an event in gRPC's thread: requested → accepted (the next call is requested at once)
# → received → answered → done. A call in the pool has two open events, its close by the client and the end of its
# answer; it is done after both (`_open`). A call whose message comes too late is answered by the timing thread, and its
# missing message is its second event.
# No callback may block or raise: gRPC's thread serves all connections. If the answer to a quick request blocks, the
# timing thread starts another thread for gRPC's events, and the blocked one ends with its answer.

log = logging.getLogger(__name__)

Metadata = tuple[tuple[str, str | bytes], ...]
Answering = Callable[[Any, Metadata, float], tuple[bytes, Metadata | None]]

_FLAGS = 0
_FULL = (grpc.StatusCode.UNAVAILABLE, "Too many requests in flight")
# grpcio 1.85: reports the missing deadline of a call as 2^63 ns, which neither its client nor Python's locks can wait.
_STUCK_S = 1.0
_LONGEST_S = 10 * 365 * 86_400.0
# A tag's return value for gRPC's thread: the call that has ended, if any, and functions to call then.
_GOES_ON: tuple[None, tuple[()]] = (None, ())


@dataclass(frozen=True)
class UnaryMethod:
    """A method with one request and one response.

    Attributes:
        path: ``/package.Service/Method``.
        read: Parses a message. It runs in the receiving thread, so it must be fast.
        is_quick: Returns whether to answer a request in the receiving thread, which delays all other requests.
        answer: Takes the request, the client's metadata and its deadline (``time.monotonic()``), and returns the
            response and trailing metadata. Errors other than ServingError are answered as INTERNAL.
        check: Raises ServingError if the client's metadata do not authorize the call.
        layout: The memory that requests take.
    """

    path: str
    read: Callable[[bytes], Any]
    is_quick: Callable[[Any], bool]
    answer: Answering
    check: Callable[[Metadata], object]
    layout: MessageLayout = PREDICT_LAYOUT


class UnaryCalls:
    """Serves methods in addition to those of a server's own handlers.

    Args:
        server: Server that has not been started.
        max_threads: Number of requests that run at once, not counting the quick ones.
        max_in_flight: Number of received requests beyond which new ones are refused; 0 means no limit.
        memory: Accounts for the memory of requests, except the quick ones.
        receive_s: Time limit for the arrival of a call's message.

    Attributes:
        stuck: Number of threads that had served gRPC, and are still answering one request; none is quick until then.
    """

    def __init__(
        self,
        server: grpc.Server,
        max_threads: int,
        max_in_flight: int = 0,
        memory: RequestMemory | None = None,
        receive_s: float = math.inf,
    ) -> None:
        self.pool = ThreadPoolExecutor(max_threads, "grpc")
        self.memory = memory or RequestMemory()
        check_server(server)
        self._server: Any = server
        self._max_in_flight = max_in_flight
        self._in_flight = 0
        self._lock = threading.Lock()
        self._receive_s = receive_s
        self._receiving: dict[_Call, float] = {}
        self._here_since_s = math.inf
        self.stuck = 0
        self._methods: list[UnaryMethod] = []

    def add(self, method: UnaryMethod) -> None:
        """Adds a method; must be called before :meth:`start`."""
        self._methods.append(method)
        self._server._cy_server.register_method(method.path)

    def start(self) -> None:
        """Starts the server and accepts calls."""
        self._server.start()
        threading.Thread(target=self._watch, name="grpc-watch", daemon=True).start()
        for method in self._methods:
            self.accept(method)

    def accept(self, method: UnaryMethod) -> None:
        """Requests the method's next call from gRPC, unless the server is stopping."""
        state = self._server._state
        with state.lock:
            if state.stage is not STARTED:
                return
            call = _Call(self, method)
            # grpcio 1.85: its server ends when this set is empty.
            state.rpc_states.add(call)
            queue = state.completion_queue
            state.server.request_registered_call(queue, queue, method.path, call.accepted)

    def is_full(self) -> bool:
        """Returns whether the limit of calls in flight is reached."""
        return 0 < self._max_in_flight <= self._in_flight

    def enter(self) -> bool:
        """Adds a call whose message is there to the calls in flight; returns False if the limit is reached."""
        if not self._max_in_flight:
            return True
        with self._lock:
            if self.is_full():
                return False
            self._in_flight += 1
            return True

    def leave(self) -> None:
        """Removes a call from the calls in flight."""
        if self._max_in_flight:
            with self._lock:
                self._in_flight -= 1

    def enter_receiving(self, call: _Call) -> None:
        """Records when a call began to wait for its message."""
        with self._lock:
            self._receiving[call] = time.monotonic()

    def leave_receiving(self, call: _Call) -> bool:
        """Stops timing a call's message; returns False if the call was already ended as late."""
        with self._lock:
            return self._receiving.pop(call, None) is not None

    def answer_here(self, answer: Callable[[], None]) -> None:
        """Answers a quick request in gRPC's thread; ends the thread if another one has taken its place meanwhile."""
        self._here_since_s = since_s = time.monotonic()
        answer()
        with self._lock:
            if self._here_since_s == since_s:
                self._here_since_s = math.inf
                return
            self.stuck -= 1
        raise SystemExit  # of this thread

    def _watch(self) -> None:
        while True:
            time.sleep(min(_STUCK_S / 2, self._receive_s / 2))
            self._end_late_calls()  # a function of its own, whose variables keep no call while this one sleeps
            self._replace_stuck_thread()

    def _replace_stuck_thread(self) -> None:
        """Starts another thread for gRPC's events if a request that was quick so far takes long."""
        with self._lock:
            if time.monotonic() - self._here_since_s < _STUCK_S:
                return
            self._here_since_s = math.inf
            self.stuck += 1
        log.warning("a request takes more than %g s, though others like it were quick; it delays no others", _STUCK_S)
        threading.Thread(target=serve, args=(self._server._state,), name="grpc", daemon=True).start()

    def _end_late_calls(self) -> None:
        begun_by_s = time.monotonic() - self._receive_s
        with self._lock:
            late = [call for call, begun_s in self._receiving.items() if begun_s < begun_by_s]
            for call in late:
                del self._receiving[call]
                call.expect_another_event()
        for call in late:
            try:
                call.end_late()
            except Exception:
                log.exception("could not end a call whose message did not arrive")


class _Call:
    """One call: requested, accepted, received, answered, done. gRPC's thread calls the public callbacks."""

    def __init__(self, calls: UnaryCalls, method: UnaryMethod) -> None:
        self._calls, self._method = calls, method
        self._is_counted = self._is_watched = self._is_given_up = False
        self._open = 1

    def accepted(self, event: Any) -> Any:
        """Handles an incoming call, or the stop of the server."""
        if not event.success:
            return self, ()
        self._core = event.call
        self._calls.accept(self._method)
        self._metadata = event.invocation_metadata
        try:
            self._method.check(self._metadata)
        except ServingError as error:
            self._refuse(error.code, error.message)
            return _GOES_ON
        left_s = event.call_details.deadline - time.time()
        self._deadline_s = math.inf if left_s > _LONGEST_S else time.monotonic() + left_s
        if self._calls.is_full():  # already before the message arrives
            self._refuse(*_FULL)
        else:
            self._calls.enter_receiving(self)
            self._core.start_server_batch((cygrpc.ReceiveMessageOperation(_FLAGS),), self.received)
        return _GOES_ON

    def received(self, event: Any) -> object:
        """Handles the message; it is None if the client closed or cancelled the call, or sent too much."""
        if not self._calls.leave_receiving(self):
            return self.done(event)
        message = event.batch_operations[0].message()
        try:
            if message is None:
                details = f'"{self._method.path}" requires exactly one request message.'
                self._refuse(grpc.StatusCode.UNIMPLEMENTED, details)
                return _GOES_ON
            request = self._method.read(message)
            self._is_counted = self._calls.enter()
            if not self._is_counted:
                self._refuse(*_FULL)
            elif not self._calls.stuck and self._method.is_quick(request):
                self._calls.answer_here(lambda: self._answer(request))
            else:
                reservation = self._calls.memory.reserve(len(message))
                # Tells whether the client gives up before a thread is free.
                self._is_watched, self._open = True, 2
                self._core.start_server_batch((cygrpc.ReceiveCloseOnServerOperation(_FLAGS),), self.closed)
                self._calls.pool.submit(self._answer_in_pool, request, message, reservation)
        except ServingError as error:
            self._refuse(error.code, error.message)
        except Exception as error:
            self._fail(error)
        return _GOES_ON

    def closed(self, event: Any) -> Any:
        """Handles the close of a call that went to the pool: the client gave up, or has the response."""
        self._is_given_up = event.batch_operations[0].cancelled()
        return self.done(event)

    def done(self, event: object) -> Any:
        """Handles the last event of a call: the client has the response, or has disconnected."""
        self._open -= 1
        if self._open:
            return _GOES_ON
        if self._is_counted:
            self._calls.leave()
        return self, ()

    def expect_another_event(self) -> None:
        """Keeps the call until both its end and the missing message were reported."""
        self._open = 2

    def end_late(self) -> None:
        """Ends a call whose message has not arrived in time."""
        self._refuse(grpc.StatusCode.DEADLINE_EXCEEDED, "The message of the request did not arrive")

    def _answer_in_pool(self, request: object, message: bytes, reservation: Reservation) -> None:
        try:
            if self._is_given_up:
                self._refuse(grpc.StatusCode.CANCELLED, "The client gave up before a thread was free")
                return
            try:
                most_bytes = self._calls.memory.limit_bytes or math.inf
                reservation.grow(parsed_message_bytes(message, self._method.layout, most_bytes))
            except ServingError as error:
                self._refuse(error.code, error.message)
            else:
                self._answer(request)
        finally:
            reservation.release()

    def _answer(self, request: object) -> None:
        try:
            response, metadata = self._method.answer(request, self._metadata, self._deadline_s)
        except ServingError as error:
            self._refuse(error.code, error.message)
        except Exception as error:
            self._fail(error)
        else:
            self._send(
                cygrpc.SendMessageOperation(response, _FLAGS),
                cygrpc.SendStatusFromServerOperation(metadata, cygrpc.StatusCode.ok, b"", _FLAGS),
            )

    def _fail(self, error: Exception) -> None:
        log.error("%s failed", self._method.path, exc_info=error)
        self._refuse(grpc.StatusCode.INTERNAL, f"{type(error).__name__}: {error}"[:1024])

    def _refuse(self, code: grpc.StatusCode, details: str) -> None:
        number = STATUS_NUMBERS[code]
        self._send(cygrpc.SendStatusFromServerOperation(None, number, details.encode("utf-8", "replace"), _FLAGS))

    def _send(self, *operations: object) -> None:
        begin = cygrpc.SendInitialMetadataOperation(None, _FLAGS)
        end = () if self._is_watched else (cygrpc.ReceiveCloseOnServerOperation(_FLAGS),)
        self._core.start_server_batch((begin, *operations, *end), self.done)

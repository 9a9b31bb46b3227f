"""HTTP over aiohttp: connections, bodies, limits, compression, drain. ``Routes`` holds the handlers of requests."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import logging
import re
import socket
import ssl
import threading
import time
import zlib
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qsl, unquote

import grpc
from aiohttp import web

from airflow_hops.serving.access import Access, Right
from airflow_hops.serving.errors import ServingError, check_deadline, deadline_exceeded, invalid_argument, too_large
from airflow_hops.serving.flags import Flags
from airflow_hops.serving.lifecycle import Lifecycle
from airflow_hops.serving.request_memory import RequestMemory, Reservation, parsed_json_bytes
from airflow_hops.serving.routes import Answer, HttpRequest, HttpResponse, Routes, error_response, json_response

# Slow clients: a request counts against --max_in_flight once its body is there. The memory of a body that arrives
# slowly is given to other requests that need it.
# Threads: the event loop reads bodies, checks tokens and writes answers; the pool parses and runs. Only the loop
# changes _in_flight, so it needs no lock. A time-out answers the client, while the pool's thread finishes the run and
# only then releases the memory.
# drain() is called by another thread: it asks the loop to check, and each finished request checks again.

log = logging.getLogger(__name__)

_BACKLOG = 1024
# Scheme and host of a request target in absolute form, as clients send it to proxies (RFC 9112, 3.2.2).
_ORIGIN = re.compile(r"^https?://[^/?#]*", re.IGNORECASE)
_TAKES_GZIP = re.compile(r"(?<![\w-])(?:x-)?gzip(?![\w-])(?!\s*;\s*q=0(?:\.0*)?\s*(?:,|$))", re.IGNORECASE)
_COMPRESSED_FROM_BYTES = 1024
_INFLATED_AT_ONCE_BYTES = 2**20
_SLOW_BYTES_PER_S = 16_384
_CORS_HEADERS = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Methods": "GET, POST, OPTIONS",
    "Access-Control-Allow-Headers": "Origin, Accept, Content-Type, Authorization, X-Request-Id",
}


class HttpServer:
    """An HTTP server on an event loop in its own thread, with a thread pool that answers requests.

    The event loop itself answers routes that need no right, such as ``/healthz``, even if all threads are busy. A body
    that arrives slowly does not occupy a thread.

    Args:
        listener: Bound socket; the server listens on it after :meth:`start`.
        lifecycle: Tells whether the server is ready or draining.
        access: Checks the tokens of requests.
        flags: Limits of threads, times, sizes and connections.
        memory: Accounts for the memory of requests.
        tls: TLS context; None for plain HTTP.
    """

    def __init__(
        self,
        listener: socket.socket,
        routes: Routes,
        lifecycle: Lifecycle,
        access: Access,
        flags: Flags,
        memory: RequestMemory,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._access = access
        self._tls = tls
        self._listener = listener
        self._routes = routes
        self._lifecycle = lifecycle
        routes.add("GET /healthz", lambda request, match: json_response({"status": "ok"}))
        routes.add("GET /readyz", self._report)
        self._timeout_s = flags.rest_api_timeout_in_ms / 1000
        self._max_bytes = flags.request_bytes
        self._flags = flags
        self._memory = memory
        self._pool = ThreadPoolExecutor(flags.rest_api_num_threads or flags.request_threads, "rest")
        self._loop = asyncio.new_event_loop()
        server = web.Server(
            self._answer,
            loop=self._loop,
            access_log=None,
            keepalive_timeout=flags.rest_api_idle_seconds,
            lingering_time=1.0,
            auto_decompress=False,
        )
        self._runner = web.ServerRunner(server, shutdown_timeout=1.0)
        self._thread = threading.Thread(target=self._loop.run_forever, name="rest", daemon=True)
        self._in_flight = self._running = 0
        self._receiving: set[_Receiving] = set()
        memory.make_room = self._end_slow
        self._drained = threading.Event()

    def start(self) -> None:
        """Starts listening and answering; raises OSError if another program listens on the port."""

        async def start() -> None:
            await self._runner.setup()
            await web.SockSite(self._runner, self._listener, ssl_context=self._tls, backlog=_BACKLOG).start()

        self._thread.start()
        asyncio.run_coroutine_threadsafe(start(), self._loop).result()

    def drain(self, timeout_s: float) -> bool:
        """Waits for the requests in flight; returns whether all were answered in time.

        The lifecycle must be draining, so that new requests are refused.
        """
        self._loop.call_soon_threadsafe(self._check_drained)
        return self._drained.wait(timeout_s)

    def stop(self) -> None:
        """Closes all connections."""
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _report(self, request: HttpRequest, match: re.Match[str]) -> HttpResponse:
        report = self._lifecycle.report()
        return json_response(report, 200 if report["ready"] else 503)

    def _check_drained(self) -> None:
        if self._lifecycle.draining and not self._in_flight:
            self._drained.set()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        path, _, query = _ORIGIN.sub("", request.raw_path).partition("?")
        path = path or "/"
        if request.method == "OPTIONS" and self._flags.rest_api_enable_cors_support:
            return self._finished(request, HttpResponse(b""))
        if "%" in path:
            path = unquote(path)
        try:
            right, answer, match = self._routes.find(request.method, path)
            if right is Right.OPEN:
                return self._finished(request, answer(HttpRequest(request.method, path), match))
            if self._lifecycle.draining:
                return self._finished(request, error_response(_unavailable("The server is shutting down")), close=True)
            self._access.check(right, request.headers.get("Authorization"))
        except ServingError as error:
            # The body of an unauthorized request is not read, so the connection cannot be reused.
            return self._finished(request, error_response(error), close=not request.content.is_eof())
        if self._is_full():
            return self._finished(request, error_response(_full()))
        self._in_flight += 1
        reservation = self._memory.reserve()
        running: Future[HttpResponse] | None = None
        try:
            body = await self._body(request, reservation)
            if self._is_full():
                raise _full()
            deadline_s = time.monotonic() + self._timeout_s
            parameters = dict(parse_qsl(query, keep_blank_values=True))
            asked = HttpRequest(request.method, path, body, request.headers, parameters, deadline_s)
            running = self._pool.submit(self._run, answer, match, asked, reservation)
            self._running += 1
            async with asyncio.timeout(self._timeout_s):
                response = await asyncio.wrap_future(running)
            return self._finished(request, response)
        except ServingError as error:
            # The body is not read to its end, so the connection cannot be reused.
            return self._finished(request, error_response(error), close=True)
        except TimeoutError:
            return self._finished(request, error_response(deadline_exceeded()))
        finally:
            if running is None:
                reservation.release()
            else:
                self._running -= 1
                # A request that timed out still runs, and takes memory until it ends.
                running.add_done_callback(lambda _: reservation.release())
            self._in_flight -= 1
            self._check_drained()

    async def _body(self, request: web.BaseRequest, reservation: Reservation) -> bytes:
        content, limit = request.content, self._max_bytes
        if request.content_length is not None and request.content_length > limit:
            raise _too_large(limit)
        if request.headers.get("Expect", "").lower() == "100-continue":
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            request.writer.output_size = 0
        chunks: list[bytes] = []
        size = 0
        receiving = _Receiving(reservation, now_s := self._loop.time(), now_s)
        received_by_s = now_s + self._flags.max_receive_seconds
        self._receiving.add(receiving)
        try:
            while not content.at_eof():
                idle_by_s = self._loop.time() + self._flags.rest_api_idle_seconds
                async with asyncio.timeout_at(min(received_by_s, idle_by_s)) as receiving.timeout:
                    chunk = await content.readany()
                if receiving.is_ended:
                    raise TimeoutError
                size += len(chunk)
                if size > limit:
                    raise _too_large(limit)
                receiving.count(len(chunk), self._loop.time())
                reservation.grow(len(chunk))
                chunks.append(chunk)
        except TimeoutError:
            raise ServingError(grpc.StatusCode.DEADLINE_EXCEEDED, "The body of the request did not arrive") from None
        finally:
            self._receiving.discard(receiving)
        return b"".join(chunks)

    def _is_full(self) -> bool:
        return 0 < self._flags.max_in_flight <= self._running

    def _end_slow(self) -> None:
        """Ends requests whose bodies arrive slowly, and releases their memory; called by any thread."""
        for receiving in list(self._receiving):
            if receiving.timeout is not None and receiving.is_slow(self._loop.time()):
                receiving.is_ended = True
                receiving.reservation.release()
                self._loop.call_soon_threadsafe(receiving.end)

    def _run(
        self, answer: Answer, match: re.Match[str], request: HttpRequest, reservation: Reservation
    ) -> HttpResponse:
        """Answers a request, in a thread of the pool."""
        try:
            body = decompressed(request, self._max_bytes, reservation)
            response = answer(replace(request, body=body), match)
        except ServingError as error:
            return error_response(error)
        except Exception as error:
            log.exception("%s %s failed", request.method, request.path)
            return error_response(ServingError(grpc.StatusCode.INTERNAL, f"{type(error).__name__}: {error}"))
        takes_gzip = _TAKES_GZIP.search(request.headers.get("Accept-Encoding", ""))
        if len(response.body) < _COMPRESSED_FROM_BYTES or not takes_gzip:
            return response
        headers = {**response.headers, "Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
        return replace(response, body=gzip.compress(response.body, 1), headers=headers)

    def _finished(self, request: web.BaseRequest, response: HttpResponse, close: bool = False) -> web.Response:
        headers = {"Content-Type": response.content_type, **response.headers}
        if self._flags.rest_api_enable_cors_support:
            headers.update(_CORS_HEADERS)
        finished = web.Response(body=response.body, status=response.status, headers=headers)
        if close:
            finished.force_close()
        return finished


@dataclass(eq=False)
class _Receiving:
    """A body in arrival.

    Attributes:
        reservation: Its memory.
        since_s: Start of the present second or, while less arrives, of a longer time; on the clock of the event loop.
        last_s: Arrival of the last chunk.
        size_bytes: Bytes that arrived since ``since_s``.
        timeout: Time limit of the chunk that is awaited.
        is_ended: Whether its memory was given to others.
    """

    reservation: Reservation
    since_s: float
    last_s: float
    size_bytes: int = 0
    timeout: asyncio.Timeout | None = None
    is_ended: bool = False

    def count(self, size_bytes: int, now_s: float) -> None:
        """Counts a chunk."""
        if now_s - self.since_s > 1 and not self.is_slow(now_s):
            self.since_s, self.size_bytes = now_s, 0
        self.size_bytes += size_bytes
        self.last_s = now_s

    def is_slow(self, now_s: float) -> bool:
        """Returns whether nothing arrives, or less than any network should carry."""
        elapsed_s = now_s - self.since_s
        return elapsed_s > 1 and (now_s - self.last_s > 1 or self.size_bytes < _SLOW_BYTES_PER_S * elapsed_s)

    def end(self) -> None:
        """Ends the wait for the next chunk."""
        if self.timeout is not None:
            with contextlib.suppress(RuntimeError):  # it has just arrived
                self.timeout.reschedule(0.0)


def _full() -> ServingError:
    return _unavailable("Too many requests in flight")


def _unavailable(message: str) -> ServingError:
    return ServingError(grpc.StatusCode.UNAVAILABLE, message)


def _too_large(limit: int) -> ServingError:
    return too_large(f"Received message larger than max ({limit} bytes, --max_request_bytes)")


def decompressed(request: HttpRequest, limit: int, reservation: Reservation) -> bytes:
    """Returns the decompressed body, and reserves memory for it and for the values parsed from it."""
    body, encoding = request.body, request.headers.get("Content-Encoding")
    if encoding is not None and encoding.lower() not in ("gzip", "x-gzip", "deflate", "identity"):
        raise invalid_argument(f"Content-Encoding {encoding} is not supported; expected gzip or deflate")
    is_plain = encoding.lower() == "identity" if encoding is not None else body[:2] != b"\x1f\x8b"
    if is_plain:
        reservation.grow(parsed_json_bytes(body))
        return body
    inflate: Any = zlib.decompressobj(zlib.MAX_WBITS | 32)  # detects gzip and zlib
    chunks: list[bytes] = []
    size = 0
    for start in range(0, len(body), _INFLATED_AT_ONCE_BYTES):
        compressed, has_more = body[start : start + _INFLATED_AT_ONCE_BYTES], True
        while has_more and not inflate.eof:
            check_deadline(request.deadline_s)
            try:
                chunk = inflate.decompress(compressed, _INFLATED_AT_ONCE_BYTES)
            except zlib.error as error:
                raise invalid_argument(f"Body is not valid gzip: {error}") from None
            compressed = inflate.unconsumed_tail
            has_more = bool(compressed) or len(chunk) == _INFLATED_AT_ONCE_BYTES
            size += len(chunk)
            if size > limit:
                raise _too_large(limit)
            reservation.grow(len(chunk) + parsed_json_bytes(chunk))
            chunks.append(chunk)
    if not inflate.eof:
        raise invalid_argument("Body is not valid gzip: it ends early")
    return b"".join(chunks)

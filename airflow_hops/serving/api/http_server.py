"""HTTP over aiohttp: connections, bodies, limits, compression, drain. What is answered is for ``Routes``."""

from __future__ import annotations

import asyncio
import gzip
import logging
import socket
import threading
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote

import grpc
from aiohttp import web

from airflow_hops.serving.api.routes import HttpRequest, HttpResponse, Routes, error_response, json_response
from airflow_hops.serving.errors import ServingError, invalid_argument
from airflow_hops.serving.lifecycle import Lifecycle

log = logging.getLogger(__name__)

_COMPRESSED_FROM_BYTES = 1024
_CORS_HEADERS = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Methods": "GET, POST, OPTIONS",
    "Access-Control-Allow-Headers": "Origin, Accept, Content-Type, Authorization, X-Request-Id",
}


@dataclass(frozen=True)
class HttpOptions:
    """Limits of the HTTP server.

    Attributes:
        max_threads: Requests answered at once.
        timeout_s: How long an answer may take.
        max_request_bytes: Size of a body, decompressed.
        max_in_flight: Requests answered or waiting for a thread; 0 is no limit.
        idle_s: A connection that sends nothing for as long is closed.
        cors: Whether pages of other origins may ask.
    """

    max_threads: int = 8
    timeout_s: float = 30.0
    max_request_bytes: int = 2**30
    max_in_flight: int = 0
    idle_s: float = 75.0
    cors: bool = False


class HttpServer:
    """An HTTP server on an event loop in a thread of its own; requests are answered in a pool of threads.

    A body that arrives slowly holds no thread. ``/healthz`` and ``/readyz`` are answered by the event loop itself,
    however busy the threads are.

    Args:
        listener: A bound socket.
        routes: What answers.
        lifecycle: Whether the server is ready, or draining.
        options: Limits.
    """

    def __init__(self, listener: socket.socket, routes: Routes, lifecycle: Lifecycle, options: HttpOptions) -> None:
        self._listener = listener
        self._routes = routes
        self._lifecycle = lifecycle
        self._options = options
        self._pool = ThreadPoolExecutor(options.max_threads, "rest")
        self._loop = asyncio.new_event_loop()
        self._runner: web.ServerRunner | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, name="rest", daemon=True)
        self._in_flight = 0
        self._drained = threading.Event()
        self._shown: dict[str, Callable[[], HttpResponse]] = {"/healthz": self._healthz, "/readyz": self._readyz}

    def start(self) -> None:
        """Starts answering."""
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()

    def drain(self, timeout_s: float) -> bool:
        """Waits for the requests in flight; new ones are refused meanwhile, as the lifecycle is draining.

        Returns:
            Whether all were answered within the time.
        """
        self._loop.call_soon_threadsafe(self._check_drained)
        return self._drained.wait(timeout_s)

    def stop(self) -> None:
        """Closes all connections."""
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _start(self) -> None:
        server = web.Server(
            self._answer,
            access_log=None,
            keepalive_timeout=self._options.idle_s,
            lingering_time=1.0,
            auto_decompress=False,
        )
        self._runner = web.ServerRunner(server, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.SockSite(self._runner, self._listener).start()

    async def _stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    def _check_drained(self) -> None:
        if self._lifecycle.draining and not self._in_flight:
            self._drained.set()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        path, _, query = request.raw_path.partition("?")
        shown = self._shown.get(path)
        if shown is not None:
            return self._finished(request, shown())
        if request.method == "OPTIONS" and self._options.cors:
            return self._finished(request, HttpResponse(b""))
        if self._lifecycle.draining:
            return self._finished(request, error_response(_unavailable("The server is shutting down")), close=True)
        if self._options.max_in_flight and self._in_flight >= self._options.max_in_flight:
            return self._finished(request, error_response(_unavailable("Too many requests in flight")))
        self._in_flight += 1
        try:
            body = await self._body(request)
            deadline_s = time.monotonic() + self._options.timeout_s
            async with asyncio.timeout(self._options.timeout_s):
                response = await self._loop.run_in_executor(
                    self._pool, self._run, request, unquote(path) if "%" in path else path, query, body, deadline_s
                )
            return self._finished(request, response)
        except _Refused as refused:
            return self._finished(request, error_response(refused.error), close=True)
        except TimeoutError:
            late = ServingError(grpc.StatusCode.DEADLINE_EXCEEDED, "Timed out waiting for notification")
            return self._finished(request, error_response(late))
        finally:
            self._in_flight -= 1
            self._check_drained()

    async def _body(self, request: web.BaseRequest) -> bytes:
        limit = self._options.max_request_bytes
        if request.content_length is not None and request.content_length > limit:
            raise _Refused(_too_large(limit))
        content = request.content
        if content.is_eof() and request.content_length:
            return await content.read()
        if request.headers.get("Expect", "").lower() == "100-continue":
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            request.writer.output_size = 0
        chunks: list[bytes] = []
        size = 0
        while not content.at_eof():
            try:
                async with asyncio.timeout(self._options.idle_s):
                    chunk = await content.readany()
            except TimeoutError:
                slow = ServingError(grpc.StatusCode.DEADLINE_EXCEEDED, "The body of the request did not arrive")
                raise _Refused(slow) from None
            size += len(chunk)
            if size > limit:
                raise _Refused(_too_large(limit))
            chunks.append(chunk)
        return b"".join(chunks)

    def _run(self, request: web.BaseRequest, path: str, query: str, body: bytes, deadline_s: float) -> HttpResponse:
        """Answers in a thread of the pool."""
        headers = request.headers
        try:
            encoding = headers.get("Content-Encoding")
            if encoding is not None or body[:2] == b"\x1f\x8b":
                body = _decompressed(body, encoding, self._options.max_request_bytes)
            parameters = dict(parse_qsl(query, keep_blank_values=True)) if query else {}
            response = self._routes.find(HttpRequest(request.method, path, body, headers, parameters, deadline_s))
        except ServingError as error:
            return error_response(error)
        except Exception as error:
            log.exception("%s %s failed", request.method, path)
            return error_response(ServingError(grpc.StatusCode.INTERNAL, f"{type(error).__name__}: {error}"))
        if len(response.body) >= _COMPRESSED_FROM_BYTES and "gzip" in headers.get("Accept-Encoding", ""):
            body = gzip.compress(response.body, 1)
            gzipped = {**response.headers, "Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
            return HttpResponse(body, response.status, response.content_type, gzipped)
        return response

    def _finished(self, request: web.BaseRequest, response: HttpResponse, close: bool = False) -> web.Response:
        headers = {"Content-Type": response.content_type, **response.headers}
        if self._options.cors:
            headers.update(_CORS_HEADERS)
        finished = web.Response(body=response.body, status=response.status, headers=headers)
        if close:
            finished.force_close()
        return finished

    def _healthz(self) -> HttpResponse:
        return json_response({"status": "ok"})

    def _readyz(self) -> HttpResponse:
        report = self._lifecycle.report()
        return json_response(report, 200 if report["ready"] else 503)


class _Refused(Exception):
    """A request whose body is not read to its end: its connection cannot be used again."""

    def __init__(self, error: ServingError) -> None:
        super().__init__(error.message)
        self.error = error


def _unavailable(message: str) -> ServingError:
    return ServingError(grpc.StatusCode.UNAVAILABLE, message)


def _too_large(limit: int) -> ServingError:
    return ServingError(
        grpc.StatusCode.RESOURCE_EXHAUSTED, f"Received message larger than max ({limit} bytes, --max_request_bytes)"
    )


def _decompressed(body: bytes, encoding: str | None, limit: int) -> bytes:
    if encoding is not None and encoding.lower() not in ("gzip", "x-gzip", "deflate", "identity"):
        raise invalid_argument(f"Content-Encoding {encoding} is not supported; expected gzip or deflate")
    if encoding is not None and encoding.lower() == "identity":
        return body
    inflate: Any = zlib.decompressobj(zlib.MAX_WBITS | 32)  # tells gzip from zlib by itself
    try:
        plain: bytes = inflate.decompress(body, limit + 1)
    except zlib.error as error:
        raise invalid_argument(f"Body is not valid gzip: {error}") from None
    if len(plain) > limit:
        raise _too_large(limit)
    if not inflate.eof:
        raise invalid_argument("Body is not valid gzip: it ends early")
    return plain

"""TensorFlow Serving's REST API over aiohttp, and a few routes of ours."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import re
import socket
import threading
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import grpc
from aiohttp import web
from google.protobuf import json_format

from airflow_hops.serving.api import rest_examples, rest_json
from airflow_hops.serving.api.grpc_service import REQUEST_ID, model_metadata, model_status
from airflow_hops.serving.errors import ServingError, invalid_argument
from airflow_hops.serving.models.servable import DEFAULT_SIGNATURE, Call, Servable
from airflow_hops.serving.request_handler import RequestHandler, Target
from airflow_hops.serving_api import protocol, tensors
from airflow_hops.serving_api.protocol import Method

log = logging.getLogger(__name__)

_MODEL = r"/v1/models/(?P<model>[^/:]+)(?:/versions/(?P<version>\d+)|/labels/(?P<label>[^/:]+))?"
_VERB = re.compile(_MODEL + r":(?P<verb>classify|regress|predict)", re.IGNORECASE)
_STATUS = re.compile(_MODEL, re.IGNORECASE)
_METADATA = re.compile(_MODEL + r"/metadata", re.IGNORECASE)
_MAX_BODY_BYTES = 2**30

Status = Callable[[], tuple[bool, dict[str, Any]]]


class RestServer:
    """The REST API, on an event loop in a thread of its own; models run in a pool of threads.

    Args:
        listener: A bound socket.
        handler: Answers requests.
        readiness: Whether the server is ready, and what to say about it.
        max_threads: Predict requests that run at once.
        drain_s: How long ``stop`` waits for requests in flight.
    """

    def __init__(
        self, listener: socket.socket, handler: RequestHandler, readiness: Status, max_threads: int, drain_s: float
    ) -> None:
        self._listener = listener
        self._handler = handler
        self._readiness = readiness
        self._drain_s = drain_s
        self._pool = ThreadPoolExecutor(max_threads, "rest")
        self._loop = asyncio.new_event_loop()
        self._runner: web.AppRunner | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, name="rest", daemon=True)

    def start(self) -> None:
        """Starts answering."""
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()

    def stop(self) -> None:
        """Takes no new request and waits for those in flight."""
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._pool.shutdown(wait=False)

    async def _start(self) -> None:
        application = web.Application(client_max_size=_MAX_BODY_BYTES)
        application.router.add_get("/healthz", self._healthz)
        application.router.add_get("/readyz", self._readyz)
        application.router.add_get("/v1/stats", self._stats)
        application.router.add_get("/v1/capture", self._capture_status)
        application.router.add_post("/v1/capture:flush", self._capture_flush)
        application.router.add_route("*", "/{path:.*}", self._dispatch)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=self._drain_s)
        await self._runner.setup()
        await web.SockSite(self._runner, self._listener).start()

    async def _stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _healthz(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _readyz(self, request: web.Request) -> web.Response:
        ready, details = self._readiness()
        return web.json_response({"ready": ready, **details}, status=200 if ready else 503)

    async def _stats(self, request: web.Request) -> web.Response:
        return web.json_response(self._handler.stats_report(histograms=request.query.get("histograms") == "1"))

    async def _capture_status(self, request: web.Request) -> web.Response:
        return web.json_response(self._handler.capture.status())

    async def _capture_flush(self, request: web.Request) -> web.Response:
        capture = self._handler.capture
        done = await self._loop.run_in_executor(None, capture.flush)
        return web.json_response({"flushed": done, **capture.status()}, status=200 if done else 503)

    async def _dispatch(self, request: web.Request) -> web.Response:
        try:
            return await self._answer(request)
        except ServingError as error:
            return _error(error)
        except web.HTTPException:
            raise
        except Exception as error:
            log.exception("%s %s failed", request.method, request.path)
            return _error(ServingError(grpc.StatusCode.INTERNAL, f"{type(error).__name__}: {error}"))

    async def _answer(self, request: web.Request) -> web.Response:
        path = request.path
        verb = _VERB.fullmatch(path) if request.method == "POST" else None
        if verb is not None:
            target = _target(verb)
            body = await _body(request)
            keys = request.headers.get(REQUEST_ID), request.headers.get(self._handler.sticky_header)
            answer_verb = self._predict if verb["verb"].lower() == "predict" else partial(self._infer, verb["verb"])
            return await self._loop.run_in_executor(self._pool, answer_verb, target, body, *keys)
        if request.method == "GET":
            for pattern, answer in ((_METADATA, self._metadata), (_STATUS, self._status)):
                match = pattern.fullmatch(path)
                if match is not None:
                    return web.Response(text=answer(_target(match)), content_type="application/json")
        if path.lower().startswith("/v1/"):
            raise invalid_argument(f"Malformed request: {request.method} {path}")
        return web.json_response({"error": f"Not found: {path}"}, status=404)

    def _predict(self, target: Target, body: bytes, request_id: str | None, sticky_key: str | None) -> web.Response:
        format = None

        def make_call(servable: Servable) -> Call:
            nonlocal format
            parsed = rest_json.parse_body(body)
            format = parsed.format
            request = protocol.PredictRequest()
            target.fill(request.model_spec)
            request.model_spec.signature_name = parsed.signature
            for alias, array in rest_json.read_tensors(parsed, _input_types(servable, parsed.signature)).items():
                tensors.fill_proto(request.inputs[alias], array)
            return Call(Method.PREDICT, request.SerializeToString())

        answered = self._handler.answer(target, make_call, "rest", request_id, sticky_key)
        assert format is not None
        response = protocol.PredictResponse.FromString(answered.message)
        outputs = {alias: tensors.from_proto(response.outputs[alias]) for alias in sorted(response.outputs)}
        headers = {REQUEST_ID: answered.request_id} if answered.request_id else None
        text = rest_json.write_outputs(outputs, format)
        return web.Response(body=text, content_type="application/json", headers=headers)

    def _infer(
        self, verb: str, target: Target, body: bytes, request_id: str | None, sticky_key: str | None
    ) -> web.Response:
        method = Method.CLASSIFY if verb.lower() == "classify" else Method.REGRESS
        request = rest_examples.read_request(method, body)
        target.fill(request.model_spec)
        call = Call(method, request.SerializeToString())
        answered = self._handler.answer(target, lambda servable: call, "rest", request_id, sticky_key)
        headers = {REQUEST_ID: answered.request_id} if answered.request_id else None
        text = rest_examples.write_response(method, answered.message)
        return web.Response(body=text, content_type="application/json", headers=headers)

    def _status(self, target: Target) -> str:
        request = protocol.GetModelStatusRequest()
        target.fill(request.model_spec)
        status = model_status(self._handler.catalog, request)
        return _proto_json(status)

    def _metadata(self, target: Target) -> str:
        request = protocol.GetModelMetadataRequest(metadata_field=["signature_def"])
        target.fill(request.model_spec)
        response = model_metadata(self._handler.catalog, request)
        signatures = protocol.SignatureDefMap.FromString(response.metadata["signature_def"].value)
        spec = {
            "name": response.model_spec.name,
            "signature_name": response.model_spec.signature_name,
            "version": str(response.model_spec.version.value),
        }
        document = {"model_spec": spec, "metadata": {"signature_def": json.loads(_proto_json(signatures))}}
        return json.dumps(document, indent=1)


def _input_types(servable: Servable, signature: str) -> Mapping[str, tensors.TensorType | None]:
    """Types of a signature's inputs: JSON does not say what a number is."""
    try:
        return servable.signature(signature).input_types
    except ServingError:
        name = signature or DEFAULT_SIGNATURE
        raise invalid_argument(f'Serving signature name: "{name}" not found in signature def') from None


async def _body(request: web.Request) -> bytes:
    try:
        body = await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise ServingError(grpc.StatusCode.RESOURCE_EXHAUSTED, f"Request body too large: {error.text}") from None
    # aiohttp's parser has already inflated a body whose encoding it knows.
    if body[:2] == b"\x1f\x8b":
        try:
            return gzip.decompress(body)
        except (OSError, EOFError, zlib.error) as error:
            raise invalid_argument(f"Body is not valid gzip: {error}") from None
    return body


def _target(match: re.Match[str]) -> Target:
    version = match["version"]
    if version is not None and int(version) >= 2**63:
        raise invalid_argument(f"Failed to convert version: {version} to numeric.")
    return Target(match["model"], int(version) if version else None, match["label"])


def _proto_json(message: Any) -> str:
    text: str = json_format.MessageToJson(
        message, preserving_proto_field_name=True, including_default_value_fields=True, indent=1
    )
    return text


def _error(error: ServingError) -> web.Response:
    return web.json_response({"error": error.message}, status=error.http_status)

"""Answers encoded requests of both APIs: selects the version, runs it, counts and captures."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import grpc
from google.protobuf.message import DecodeError

from airflow_hops.core.serving_api.protocol import Method, MultiInferenceHead, RequestHead
from airflow_hops.serving.capture.capture import Capture
from airflow_hops.serving.capture.record import CapturedCall
from airflow_hops.serving.errors import ServingError, invalid_argument
from airflow_hops.serving.models.catalog import Catalog
from airflow_hops.serving.models.servable import Call, Servable, VersionGone
from airflow_hops.serving.monitoring.stats import RequestStats, RunTimes
from airflow_hops.serving.request_kind import RequestKind
from airflow_hops.serving.request_memory import RequestMemory, decoded_image_bytes, merged_context_bytes

# Order of a request: acquire the version, parse for its signature, account for images, run, release, count,
# capture. Capture comes after the release, so a slow disk does not delay an unload. A request counts once,
# either as answered or under its error code.

# Handing a request to another thread costs 0.1 to 0.2 ms; longer requests in the receiving thread idle other cores.
QUICK_S = max(0.0002, 0.001 / (os.cpu_count() or 1))

Api = Literal["grpc", "rest"]
_ENTRYPOINTS: dict[Api, str] = {"grpc": "GRPC", "rest": "REST"}


class RequestTarget(NamedTuple):
    """The target of a request: a model, and optionally a version or a label."""

    model: str
    version: int | None = None
    label: str | None = None

    @classmethod
    def of(cls, spec: Any) -> RequestTarget:
        """Reads a target from a ``ModelSpec``."""
        choice = spec.WhichOneof("version_choice")
        return cls(
            model=spec.name,
            version=spec.version.value if choice == "version" else None,
            label=spec.version_label if choice == "version_label" else None,
        )

    def fill(self, spec: Any) -> None:
        """Writes the target into a ``ModelSpec``."""
        spec.name = self.model
        if self.version is not None:
            spec.version.value = self.version
        elif self.label is not None:
            spec.version_label = self.label


class Answer(NamedTuple):
    """The answer to a request.

    Attributes:
        message: The serialized response.
        version: The version that answered.
        request_id: The client's request id, or the generated one; captured rows contain it.
        captured: Whether the request is captured, and stays so if the server is killed.
    """

    message: bytes
    version: int
    request_id: str | None
    captured: bool = False


class RequestHandler:
    """Answers requests.

    Args:
        catalog: Versions that answer requests.
        stats: Counts requests.
        capture: Captures answered requests.
        sticky_header: HTTP header or gRPC metadata key in lower case; equal values go to the same version.
        memory: Memory that requests share; accounts for decoded images. None means no limit.
    """

    def __init__(
        self,
        catalog: Catalog,
        stats: RequestStats,
        capture: Capture,
        sticky_header: str = "x-sticky-key",
        memory: RequestMemory | None = None,
    ) -> None:
        self.catalog = catalog
        self.stats = stats
        self.capture = capture
        self.sticky_header = sticky_header
        self.memory = memory or RequestMemory()
        self._run_times = RunTimes()

    def is_quick(self, model: str, method: Method, message_bytes: int) -> bool:
        """Returns whether the receiving thread should answer: the request only computes, and for a short time."""
        view = self.catalog.views.get(model)
        if view is None or not view.computes_here:
            return False
        return self._run_times.usual_s(model, method, message_bytes) < QUICK_S

    def answer(
        self,
        target: RequestTarget,
        make_call: Callable[[Servable], Call],
        api: Api,
        request_id: str | None = None,
        sticky_key: str | None = None,
        received_bytes: int | None = None,
    ) -> Answer:
        """Answers one request.

        Args:
            target: Model, and the version that answers; if it names none, the traffic split selects one.
            make_call: Returns the request for the selected version: parsing REST's JSON takes that version's signature.
            api: API through which the request came.
            request_id: The client's request id, or None.
            sticky_key: Equal keys go to the same version of a split; None selects versions in turn.
            received_bytes: Size for which :meth:`is_quick` was asked; None for that of the call's message.

        Raises:
            ServingError: The request failed; code and message are those of TensorFlow Serving.
        """
        started_s = time.perf_counter()
        at_s = time.time()
        servable: Servable | None = None
        call: Call | None = None
        images = self.memory.reserve()
        try:
            for tries_left in (2, 1, 0):
                servable = self.catalog.acquire(target.model, target.version, target.label, sticky_key)
                call = make_call(servable)
                images.grow(decoded_image_bytes(call.message))
                if call.method is not Method.PREDICT:
                    images.grow(merged_context_bytes(call.message))
                began_s, cpu_s = time.perf_counter(), time.thread_time()
                try:
                    reply = servable.answer(call)
                    break
                except VersionGone:
                    if target.version is not None or target.label is not None or not tries_left:
                        raise
                    # Another process unloaded the selected version; updates the catalog and selects again.
                    servable.release()
                    images.release()
                    servable = None
                    self.catalog.discover(target.model)
            answered_s, cpu_s = time.perf_counter(), time.thread_time() - cpu_s
            run_s = answered_s - began_s
            assert servable is not None
            assert call is not None
        except Exception as error:
            is_known = servable is not None or target.model in self.catalog.views
            kind = RequestKind(
                model=target.model if is_known else "",
                version=servable.version if servable is not None else 0,
                method=call.method.label if call is not None else "",
                api=_ENTRYPOINTS[api],
            )
            code = error.code.name if isinstance(error, ServingError) else grpc.StatusCode.INTERNAL.name
            self.stats.record_error(kind, code)
            raise
        finally:
            images.release()
            if servable is not None:
                servable.release()
        latency_s = answered_s - started_s
        if servable.computes_here:
            self._run_times.add(target.model, call.method, received_bytes or len(call.message), run_s, cpu_s)
        version = reply.version or servable.version
        kind = RequestKind(target.model, version, call.method.label, _ENTRYPOINTS[api])
        self.stats.record(kind, reply.rows, latency_s, run_s)
        captured = False
        if self.capture.enabled:
            request_id = request_id or self.capture.new_request_id()
            at_us, latency_ms = int(at_s * 1e6), latency_s * 1e3
            asked = reply.captured or call.message
            captured_call = CapturedCall(kind, request_id, at_us, latency_ms, reply.rows, asked, reply.message)
            captured = self.capture.offer(captured_call)
        return Answer(reply.message, version, request_id, captured)


def target_of(method: Method, message: bytes) -> RequestTarget:
    """Returns the target of a request; decodes only its ``ModelSpec``.

    Raises:
        ServingError: The ``ModelSpec`` is missing, or the message does not parse.
    """
    try:
        if method is Method.MULTI_INFERENCE:
            # Without a task the model name is empty, which leads to TensorFlow Serving's error.
            return RequestTarget.of((MultiInferenceHead.FromString(message).tasks or [RequestHead()])[0].model_spec)
        head = RequestHead.FromString(message)
    except DecodeError as error:
        raise invalid_argument(f"The message does not parse as a {method.label} request: {error}") from None
    if not head.HasField("model_spec"):
        raise invalid_argument("Missing ModelSpec")
    return RequestTarget.of(head.model_spec)

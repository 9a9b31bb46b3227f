"""OpenTelemetry spans of requests that belong to a sampled trace, sent to a collector by OTLP over HTTP."""

from __future__ import annotations

import contextlib
import logging
import os
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any

from airflow_hops.serving.errors import ServingError, StartError

# The exporter is not OpenTelemetry's own: every version of that wants a protobuf newer than TensorFlow's in the profile
# 'base'. Its libraries are imported only with --otlp_traces_endpoint.
# Times are those of time.perf_counter(), which on Linux is the clock of time.monotonic(), too.

log = logging.getLogger(__name__)

_TIMEOUT_S = 10.0


@dataclass
class RequestTrace:
    """The measured phases of a request in progress, as names with begin and end, and the attributes of its span."""

    phases: list[tuple[str, float, float]] = field(default_factory=list)
    attributes: dict[str, str | int] = field(default_factory=dict)
    error: str | None = None


_current: ContextVar[RequestTrace | None] = ContextVar("trace", default=None)
current_trace = _current.get
"""Returns the trace of the request that this thread answers; None if it is not traced."""

NOT_TRACED: contextlib.nullcontext[None] = contextlib.nullcontext()


class Traces:
    """Traces requests whose ``traceparent`` (W3C Trace Context) is sampled; others cost a look at their headers.

    Args:
        endpoint: URL of the collector; empty without traces.

    Raises:
        StartError: OpenTelemetry's SDK is not installed.
    """

    def __init__(self, endpoint: str) -> None:
        try:
            from opentelemetry import trace
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

            exporter: Any = _Exporter(endpoint)
        except ImportError as error:
            raise StartError(
                f"--otlp_traces_endpoint={endpoint}: {error}; it needs opentelemetry-sdk and opentelemetry-proto, "
                "which 'airflow hops runtime create' installs"
            ) from error
        self._trace, self._propagator = trace, TraceContextTextMapPropagator()
        service = os.environ.get("OTEL_SERVICE_NAME", "airflow-hops-model-server")
        provider = TracerProvider(sampler=ParentBased(ALWAYS_OFF), resource=Resource.create({"service.name": service}))
        provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer, self.close = provider.get_tracer("airflow_hops.serving"), provider.shutdown

    @contextlib.contextmanager
    def request(self, headers: Mapping[str, Any], name: str, arrived_s: float) -> Iterator[RequestTrace | None]:
        """Traces a request that arrived at this time; yields None if its client's trace is not sampled."""
        parent = self._propagator.extract(headers)
        if not self._trace.get_current_span(parent).get_span_context().trace_flags.sampled:
            yield None
            return
        trace = RequestTrace([("queue", arrived_s, time.perf_counter())])
        token = _current.set(trace)
        try:
            yield trace
        except ServingError as error:
            trace.attributes["rpc.grpc.status_code"] = error.number
            trace.error = error.message if error.http_status >= 500 else None
            raise
        except Exception as error:
            trace.error = f"{type(error).__name__}: {error}"
            raise
        finally:
            _current.reset(token)
            self._end(trace, parent, name, arrived_s)

    def _end(self, trace: RequestTrace, parent: Any, name: str, arrived_s: float) -> None:
        epoch_ns = time.time_ns() - time.perf_counter_ns()

        def at(seconds: float) -> int:
            return epoch_ns + round(seconds * 1e9)

        span = self._tracer.start_span(
            name, parent, self._trace.SpanKind.SERVER, trace.attributes, start_time=at(arrived_s)
        )
        for phase, began_s, ended_s in trace.phases:
            inside = self._trace.set_span_in_context(span)
            self._tracer.start_span(phase, inside, start_time=at(began_s)).end(at(ended_s))
        if trace.error is not None:
            span.set_status(self._trace.StatusCode.ERROR, trace.error)
        span.end()


class _Exporter:
    """Posts spans to a collector; those that it does not take are dropped, which is logged once per outage."""

    def __init__(self, endpoint: str) -> None:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
        from opentelemetry.sdk.trace.export import SpanExportResult
        from opentelemetry.util.re import parse_env_headers

        self._endpoint, self._message, self._result = endpoint, ExportTraceServiceRequest, SpanExportResult
        headers = ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS")
        texts = (os.environ.get(name) for name in headers)
        own = parse_env_headers(next(filter(None, texts), ""), liberal=True)
        self._headers = {**own, "Content-Type": "application/x-protobuf"}
        self._failed = False

    def export(self, spans: Sequence[Any]) -> Any:
        """Sends ended spans."""
        request = urllib.request.Request(self._endpoint, self._encoded(spans), self._headers, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S):
                self._failed = False
                return self._result.SUCCESS
        except (OSError, HTTPException) as error:
            if not self._failed:
                log.warning("spans are dropped: --otlp_traces_endpoint=%s: %s", self._endpoint, error)
            self._failed = True
            return self._result.FAILURE

    def shutdown(self) -> None:
        """No-op: no connection stays open."""

    def _encoded(self, spans: Sequence[Any]) -> bytes:
        message = self._message()
        resource = message.resource_spans.add()
        _fill(resource.resource.attributes, spans[0].resource.attributes)
        scope = resource.scope_spans.add()
        scope.scope.name = spans[0].instrumentation_scope.name
        for span in spans:
            context = span.context
            encoded = scope.spans.add(
                trace_id=context.trace_id.to_bytes(16, "big"),
                span_id=context.span_id.to_bytes(8, "big"),
                parent_span_id=span.parent.span_id.to_bytes(8, "big"),  # each has one, its client's or the request's
                trace_state=context.trace_state.to_header(),
                name=span.name,
                kind=span.kind.value + 1,
                start_time_unix_nano=span.start_time,
                end_time_unix_nano=span.end_time,
            )
            encoded.status.code = span.status.status_code.value
            encoded.status.message = span.status.description or ""
            _fill(encoded.attributes, span.attributes)
        return bytes(message.SerializeToString())


def _fill(encoded: Any, attributes: Mapping[str, Any]) -> None:
    for name, value in attributes.items():
        key = encoded.add(key=name)
        if isinstance(value, int):
            key.value.int_value = value
        else:
            key.value.string_value = str(value)

"""TensorFlow Serving's gRPC services: prediction, model status and reload, and health."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc

from airflow_hops.serving.api.control import Control, bearer, traffic_service
from airflow_hops.serving.api.grpc_methods import unary
from airflow_hops.serving.api.health import health_service
from airflow_hops.serving.errors import ServingError, invalid_argument
from airflow_hops.serving.lifecycle import Lifecycle
from airflow_hops.serving.models.catalog import Catalog
from airflow_hops.serving.models.servable import Call
from airflow_hops.serving.request_handler import Answer, RequestHandler, Target, target_of
from airflow_hops.serving_api import protocol
from airflow_hops.serving_api.protocol import Method

log = logging.getLogger(__name__)

REQUEST_ID = "x-request-id"
CAPTURED = "x-captured"


@dataclass(frozen=True)
class GrpcOptions:
    """Limits of the gRPC server.

    Attributes:
        max_threads: Requests that run at once.
        max_request_bytes: Size of a request.
        max_in_flight: Requests that run or wait for a thread; 0 is no limit.
        channel_arguments: gRPC's own options by name.
    """

    max_threads: int = 8
    max_request_bytes: int = -1
    max_in_flight: int = 0
    channel_arguments: Mapping[str, int | str] = field(default_factory=dict)


class GrpcServer:
    """A gRPC server that listens nowhere yet.

    Args:
        options: Its limits.
    """

    def __init__(self, options: GrpcOptions) -> None:
        self._pool = ThreadPoolExecutor(options.max_threads, "grpc")
        self._max_in_flight = options.max_in_flight
        if options.max_in_flight:
            self._pool = _CountingPool(options.max_threads, "grpc")
        arguments: dict[str, int | str] = {
            # gRPC would share a taken port with whoever holds it, and half the requests would go astray.
            "grpc.so_reuseport": 0,
            "grpc.max_receive_message_length": options.max_request_bytes,
            "grpc.max_send_message_length": -1,
            **options.channel_arguments,
        }
        self.server = grpc.server(self._pool, options=list(arguments.items()))

    def add_services(
        self, handler: RequestHandler, control: Control, lifecycle: Lifecycle, others: Sequence[Any] = ()
    ) -> None:
        """Adds all services.

        Args:
            handler: Answers requests.
            control: Takes new configs and traffic.
            lifecycle: What the health service reports.
            others: Generic handlers of further services.
        """
        self.server.add_generic_rpc_handlers(
            (
                self._limited(_PredictionService(handler).handlers()),
                _ModelService(handler.catalog, control).handlers(),
                traffic_service(control),
                health_service(lifecycle),
                *others,
            )
        )

    def _limited(self, handlers: grpc.GenericRpcHandler) -> grpc.GenericRpcHandler:
        if not isinstance(self._pool, _CountingPool):
            return handlers
        return _Limited(handlers, self._pool, self._max_in_flight)


class _CountingPool(ThreadPoolExecutor):
    """Threads that know how much runs or waits for them."""

    def __init__(self, max_workers: int, thread_name_prefix: str) -> None:
        super().__init__(max_workers, thread_name_prefix)
        self._count_lock = threading.Lock()
        self.in_flight = 0

    def submit(self, *arguments: Any, **keywords: Any) -> Future[Any]:
        future = super().submit(*arguments, **keywords)
        self._count(1)
        future.add_done_callback(lambda done: self._count(-1))
        return future

    def _count(self, change: int) -> None:
        with self._count_lock:
            self.in_flight += change


class _Limited(grpc.GenericRpcHandler):
    """Refuses requests beyond a number in flight when they arrive, in a thread that no request waits for."""

    def __init__(self, handlers: grpc.GenericRpcHandler, pool: _CountingPool, max_in_flight: int) -> None:
        self._handlers = handlers
        self._pool = pool
        self._max_in_flight = max_in_flight

        def refuse(message: bytes, context: grpc.ServicerContext) -> bytes:
            context.abort(grpc.StatusCode.UNAVAILABLE, "Too many requests in flight")
            raise AssertionError("abort does not return")

        refuse.experimental_thread_pool = ThreadPoolExecutor(1, "refuse")  # type: ignore[attr-defined]
        self._refusal = grpc.unary_unary_rpc_method_handler(refuse)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        found = self._handlers.service(handler_call_details)
        if found is not None and self._pool.in_flight >= self._max_in_flight:
            return self._refusal
        return found


class _PredictionService:
    """The methods of ``PredictionService``, from bytes to bytes: what a request holds is for the model to decode."""

    def __init__(self, handler: RequestHandler) -> None:
        self._handler = handler

    def handlers(self) -> Any:
        """What a gRPC server takes."""
        methods = {method.label: grpc.unary_unary_rpc_method_handler(self._method(method)) for method in Method}
        methods["GetModelMetadata"] = unary(self._metadata, protocol.GetModelMetadataRequest)
        return grpc.method_handlers_generic_handler("tensorflow.serving.PredictionService", methods)

    def _method(self, method: Method) -> Callable[[bytes, grpc.ServicerContext], bytes]:
        def answer(message: bytes, context: grpc.ServicerContext) -> bytes:
            left_s = context.time_remaining()
            deadline_s = math.inf if left_s is None else time.monotonic() + left_s
            try:
                call = Call(method, message, deadline_s)
                target = target_of(method, message)
                request_id, sticky_key = _keys(context, self._handler.sticky_header)
                answered = self._handler.answer(target, lambda servable: call, "grpc", request_id, sticky_key)
            except ServingError as error:
                context.abort(error.code, error.message)
            except Exception as error:
                log.exception("%s failed", method.label)
                context.abort(grpc.StatusCode.INTERNAL, f"{type(error).__name__}: {error}"[:1024])
            if answered.request_id is not None:
                context.set_trailing_metadata(metadata_of(answered))
            return answered.message

        return answer

    def _metadata(self, request: Any, context: grpc.ServicerContext) -> Any:
        return model_metadata(self._handler.catalog, request)


def metadata_of(answered: Answer) -> tuple[tuple[str, str], ...]:
    """Returns what an answer says beside its message: the request's id, and whether it is captured."""
    found = []
    if answered.request_id is not None:
        found.append((REQUEST_ID, answered.request_id))
    if answered.captured:
        found.append((CAPTURED, "1"))
    return tuple(found)


class _ModelService:
    """GetModelStatus and HandleReloadConfigRequest."""

    def __init__(self, catalog: Catalog, control: Control) -> None:
        self._catalog = catalog
        self._control = control

    def handlers(self) -> Any:
        """What a gRPC server takes."""
        methods = {
            "GetModelStatus": unary(self._status, protocol.GetModelStatusRequest),
            "HandleReloadConfigRequest": unary(self._reload, protocol.ReloadConfigRequest),
        }
        return grpc.method_handlers_generic_handler("tensorflow.serving.ModelService", methods)

    def _status(self, request: Any, context: grpc.ServicerContext) -> Any:
        return model_status(self._catalog, request)

    def _reload(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Takes a new config; answers once what it adds is available."""
        self._control.check(bearer(context))
        self._control.reload(request.config)
        return protocol.ReloadConfigResponse()


def model_status(catalog: Catalog, request: Any) -> Any:
    """Returns ``GetModelStatusResponse``; labels are ignored, as TensorFlow Serving does.

    Raises:
        ServingError: There is no model spec, or no such model or version.
    """
    _require_spec(request)
    spec = request.model_spec
    version = spec.version.value if spec.WhichOneof("version_choice") == "version" else None
    response = protocol.GetModelStatusResponse()
    for status in catalog.statuses(spec.name, version):
        entry = response.model_version_status.add(version=status.version, state=int(status.state))
        entry.status.SetInParent()
        if status.error is not None:
            entry.status.error_code = status.error.number
            entry.status.error_message = status.error.message
    return response


def model_metadata(catalog: Catalog, request: Any) -> Any:
    """Returns ``GetModelMetadataResponse``.

    Raises:
        ServingError: There is no model spec, no such model, or a field other than "signature_def" is asked for.
    """
    _require_spec(request)
    if not request.metadata_field:
        raise invalid_argument("GetModelMetadataRequest must specify at least one metadata_field")
    for name in request.metadata_field:
        if name != "signature_def":
            raise invalid_argument(f"Metadata field {name} is not supported")
    target = Target.of(request.model_spec)
    servable = catalog.find(target.model, target.version, target.label)
    response = protocol.GetModelMetadataResponse()
    response.model_spec.name = target.model
    response.model_spec.version.value, definitions = servable.metadata()
    response.metadata["signature_def"].type_url = "type.googleapis.com/tensorflow.serving.SignatureDefMap"
    response.metadata["signature_def"].value = definitions
    return response


def _require_spec(request: Any) -> None:
    if not request.HasField("model_spec"):
        raise invalid_argument("Missing ModelSpec")


def _keys(context: grpc.ServicerContext, sticky_header: str) -> tuple[str | None, str | None]:
    """The client's id of the request, and its sticky key."""
    request_id = sticky_key = None
    for key, value in context.invocation_metadata():
        if key == REQUEST_ID:
            request_id = _text(value)
        if key == sticky_header:
            sticky_key = _text(value)
    return request_id, sticky_key


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "replace")

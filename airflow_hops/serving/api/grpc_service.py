"""TensorFlow Serving's gRPC services: prediction, model status and reload, and health."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from airflow_hops.serving.errors import ServingError, invalid_argument
from airflow_hops.serving.models.catalog import Catalog
from airflow_hops.serving.models.loader import Loader
from airflow_hops.serving.models.servable import Call
from airflow_hops.serving.request_handler import RequestHandler, Target, target_of
from airflow_hops.serving_api import protocol
from airflow_hops.serving_api.protocol import Method

log = logging.getLogger(__name__)

REQUEST_ID = "x-request-id"


def make_server(max_threads: int) -> grpc.Server:
    """Returns a server that listens nowhere yet.

    Args:
        max_threads: Requests that run at once.
    """
    return grpc.server(
        ThreadPoolExecutor(max_threads, "grpc"),
        options=[
            # gRPC would share a taken port with whoever holds it, and half the requests would go astray.
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", -1),
            ("grpc.max_send_message_length", -1),
        ],
    )


def add_services(server: grpc.Server, handler: RequestHandler, loader: Loader, is_serving: Callable[[], bool]) -> None:
    """Adds all services to a server.

    Args:
        server: Made by ``make_server``.
        handler: Answers requests.
        loader: Takes new configs.
        is_serving: What the health service reports.
    """
    server.add_generic_rpc_handlers(
        (
            _PredictionService(handler).handlers(),
            _ModelService(handler.catalog, loader).handlers(),
            _health_handler(is_serving),
        )
    )


class _PredictionService:
    """The methods of ``PredictionService``, from bytes to bytes: what a request holds is for the model to decode."""

    def __init__(self, handler: RequestHandler) -> None:
        self._handler = handler

    def handlers(self) -> Any:
        """What a gRPC server takes."""
        methods = {method.label: grpc.unary_unary_rpc_method_handler(self._method(method)) for method in Method}
        methods["GetModelMetadata"] = grpc.unary_unary_rpc_method_handler(
            self._metadata,
            request_deserializer=protocol.GetModelMetadataRequest.FromString,
            response_serializer=protocol.GetModelMetadataResponse.SerializeToString,
        )
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
                context.set_trailing_metadata(((REQUEST_ID, answered.request_id),))
            return answered.message

        return answer

    def _metadata(self, request: Any, context: grpc.ServicerContext) -> Any:
        try:
            return model_metadata(self._handler.catalog, request)
        except ServingError as error:
            context.abort(error.code, error.message)


class _ModelService:
    """GetModelStatus and HandleReloadConfigRequest."""

    def __init__(self, catalog: Catalog, loader: Loader) -> None:
        self._catalog = catalog
        self._loader = loader

    def handlers(self) -> Any:
        """What a gRPC server takes."""
        methods = {
            "GetModelStatus": grpc.unary_unary_rpc_method_handler(
                self._status,
                request_deserializer=protocol.GetModelStatusRequest.FromString,
                response_serializer=protocol.GetModelStatusResponse.SerializeToString,
            ),
            "HandleReloadConfigRequest": grpc.unary_unary_rpc_method_handler(
                self._reload,
                request_deserializer=protocol.ReloadConfigRequest.FromString,
                response_serializer=protocol.ReloadConfigResponse.SerializeToString,
            ),
        }
        return grpc.method_handlers_generic_handler("tensorflow.serving.ModelService", methods)

    def _status(self, request: Any, context: grpc.ServicerContext) -> Any:
        try:
            return model_status(self._catalog, request)
        except ServingError as error:
            context.abort(error.code, error.message)

    def _reload(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Takes a new config; answers once what it adds is available."""
        try:
            self._loader.reload(request.config)
        except ServingError as error:
            context.abort(error.code, error.message)
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
    response.model_spec.version.value = servable.version
    response.metadata["signature_def"].type_url = "type.googleapis.com/tensorflow.serving.SignatureDefMap"
    response.metadata["signature_def"].value = servable.signature_defs
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


def _health_handler(is_serving: Callable[[], bool]) -> Any:
    def check(request: Any, context: grpc.ServicerContext) -> Any:
        known = ("", "tensorflow.serving.PredictionService", "tensorflow.serving.ModelService")
        if request.service not in known:
            context.abort(grpc.StatusCode.NOT_FOUND, f"unknown service {request.service!r}; known are {known[1:]}")
        return protocol.HealthCheckResponse(status=1 if is_serving() else 2)

    method = grpc.unary_unary_rpc_method_handler(
        check,
        request_deserializer=protocol.HealthCheckRequest.FromString,
        response_serializer=protocol.HealthCheckResponse.SerializeToString,
    )
    return grpc.method_handlers_generic_handler(protocol.HEALTH_SERVICE, {"Check": method})

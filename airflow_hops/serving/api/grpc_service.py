"""TensorFlow Serving's gRPC services: prediction, model status and reload, and health."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from airflow_hops.core.serving_api import protocol
from airflow_hops.core.serving_api.protocol import Method
from airflow_hops.serving.access import Access, Right, authorization_of, right_of
from airflow_hops.serving.api.control import Control, traffic_service
from airflow_hops.serving.api.grpc_calls import Answering, Metadata, UnaryCalls, UnaryMethod
from airflow_hops.serving.api.grpc_methods import TokenGuard, service, unary
from airflow_hops.serving.errors import invalid_argument, not_found
from airflow_hops.serving.flags import Flags
from airflow_hops.serving.lifecycle import Lifecycle
from airflow_hops.serving.models.catalog import Catalog
from airflow_hops.serving.models.servable import Call
from airflow_hops.serving.request_handler import Answer, RequestHandler, RequestTarget, target_of
from airflow_hops.serving.request_memory import EXAMPLES_LAYOUT, PREDICT_LAYOUT, MessageLayout, RequestMemory

REQUEST_ID = "x-request-id"
CAPTURED = "x-captured"
_SERVING, _NOT_SERVING = 1, 2
_Received = tuple[bytes, RequestTarget]  # an encoded request, of which nothing else is decoded here
_HEALTH_OF = ("", "tensorflow.serving.PredictionService", "tensorflow.serving.ModelService")


class GrpcServer:
    """A gRPC server that is not bound to an address yet; if its port is shared, other processes listen on it, too."""

    def __init__(self, flags: Flags, memory: RequestMemory, access: Access, shared: bool = False) -> None:
        self._access = access
        pool = ThreadPoolExecutor(flags.request_threads, "grpc-control")
        arguments = list(channel_arguments(flags, shared).items())
        self._guard = TokenGuard(access)
        self.server = grpc.server(pool, interceptors=[self._guard], options=arguments)
        self._calls = UnaryCalls(
            self.server, flags.request_threads, flags.max_in_flight, memory, flags.max_receive_seconds
        )

    def start(self) -> None:
        """Starts to accept requests."""
        self._calls.start()

    def add_services(self, handler: RequestHandler, control: Control, lifecycle: Lifecycle) -> None:
        """Adds all services."""
        for method in Method:
            layout = PREDICT_LAYOUT if method is Method.PREDICT else EXAMPLES_LAYOUT
            self.add_method(str(method), right_of(str(method)), *_inference(method, handler), layout)
        self.server.add_generic_rpc_handlers(
            (*_services(handler.catalog, control), traffic_service(control), health_service(lifecycle))
        )

    def add_method(
        self,
        path: str,
        right: Right,
        read: Callable[[bytes], Any],
        is_quick: Callable[[Any], bool],
        answer: Answering,
        layout: MessageLayout,
    ) -> None:
        """Adds a method that a model answers, within the limits of requests; arguments are those of UnaryMethod."""

        def check(metadata: Metadata) -> None:
            self._access.check(right, authorization_of(metadata))

        self._calls.add(UnaryMethod(path, read, is_quick, answer, check, layout))

    def add_service(self, name: str, methods: Mapping[str, grpc.RpcMethodHandler], rights: Mapping[str, Right]) -> None:
        """Adds the methods of a service that run no model, each with the right that it requires."""
        self._guard.rights |= {f"/{name}/{method}": rights[method] for method in methods}
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, methods),))


def channel_arguments(flags: Flags, shared: bool) -> dict[str, int | str]:
    """Returns the options of gRPC itself; as in TensorFlow Serving, values that parse as integers are integers."""
    pairs = (pair.partition("=") for pair in flags.grpc_channel_arguments.split(",") if pair)
    return {
        # grpcio 1.85 (grpc/grpc#10755): shares the port by default with another server, which then gets half the
        # requests.
        "grpc.so_reuseport": 0,
        "grpc.max_receive_message_length": flags.request_bytes,
        "grpc.max_send_message_length": -1,
        **{name: int(value) if value.lstrip("-").isdigit() else value for name, _, value in pairs},
        **({"grpc.so_reuseport": 1} if shared else {}),
    }


def _inference(
    method: Method, handler: RequestHandler
) -> tuple[Callable[[bytes], _Received], Callable[[_Received], bool], Answering]:
    """Returns the functions of a method that a model answers, from bytes to bytes; the model decodes the request."""

    def read(message: bytes) -> _Received:
        return message, target_of(method, message)

    def is_quick(received: _Received) -> bool:
        message, target = received
        return handler.is_quick(target.model, method, len(message))

    def answer(received: _Received, metadata: Metadata, deadline_s: float) -> tuple[bytes, Metadata | None]:
        message, target = received
        call = Call(method, message, deadline_s)
        request_id, sticky_key = keys_of(metadata, handler.sticky_header)
        answered = handler.answer(target, lambda servable: call, "grpc", request_id, sticky_key)
        # Metadata costs server and client as much as a small model does, so only clients that sent an id get it back.
        return answered.message, metadata_of(answered) if request_id is not None else None

    return read, is_quick, answer


def keys_of(metadata: Metadata, sticky_header: str) -> tuple[str | None, str | None]:
    """Returns the request id and the sticky key in a call's metadata."""
    texts = {
        key: value if isinstance(value, str) else value.decode("utf-8", "replace")
        for key, value in metadata
        if key in (REQUEST_ID, sticky_header)
    }
    return texts.get(REQUEST_ID), texts.get(sticky_header)


def metadata_of(answered: Answer) -> tuple[tuple[str, str], ...]:
    """Returns the trailing metadata of an answer: the request id, and whether the request is captured."""
    request_id, captured = answered.request_id, ((CAPTURED, "1"),) if answered.captured else ()
    # Clients may send other characters, but gRPC and HTTP refuse them in an answer.
    if not request_id or not (request_id.isascii() and request_id.isprintable()):
        return captured
    return ((REQUEST_ID, request_id), *captured)


def _services(catalog: Catalog, control: Control) -> list[Any]:
    """Returns the services whose methods do not run a model."""

    def metadata(request: object, context: grpc.ServicerContext) -> Any:
        return model_metadata(catalog, request)

    def status(request: object, context: grpc.ServicerContext) -> Any:
        return model_status(catalog, request)

    def reload(request: Any, context: grpc.ServicerContext) -> Any:
        control.reload(request.config)
        return protocol.ReloadConfigResponse()

    prediction = {"GetModelMetadata": unary(metadata, protocol.GetModelMetadataRequest)}
    model = {
        "GetModelStatus": unary(status, protocol.GetModelStatusRequest),
        "HandleReloadConfigRequest": unary(reload, protocol.ReloadConfigRequest),
    }
    return [
        service("tensorflow.serving.PredictionService", prediction),
        service("tensorflow.serving.ModelService", model),
    ]


def model_status(catalog: Catalog, request: Any) -> object:
    """Returns ``GetModelStatusResponse``; ignores labels, as TensorFlow Serving does.

    Raises:
        ServingError: The model spec is missing, or the model or version does not exist.
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
        ServingError: The model spec is missing, the model does not exist, or a field other than "signature_def" is
            requested.
    """
    _require_spec(request)
    if not request.metadata_field:
        raise invalid_argument("GetModelMetadataRequest must specify at least one metadata_field")
    for name in request.metadata_field:
        if name != "signature_def":
            raise invalid_argument(f"Metadata field {name} is not supported")
    target = RequestTarget.of(request.model_spec)
    servable = catalog.find(target.model, target.version, target.label)
    response = protocol.GetModelMetadataResponse()
    response.model_spec.name = target.model
    response.model_spec.version.value, definitions = servable.metadata()
    response.metadata["signature_def"].type_url = "type.googleapis.com/tensorflow.serving.SignatureDefMap"
    response.metadata["signature_def"].value = definitions
    return response


def health_service(lifecycle: Lifecycle) -> object:
    """Returns the gRPC handler of ``grpc.health.v1.Health``."""

    def check(request: Any, context: grpc.ServicerContext) -> Any:
        if request.service not in _HEALTH_OF:
            raise not_found(f"unknown service {request.service!r}; known are {_HEALTH_OF[1:]}")
        return protocol.HealthCheckResponse(status=_SERVING if lifecycle.ready else _NOT_SERVING)

    return service(protocol.HEALTH_SERVICE, {"Check": unary(check, protocol.HealthCheckRequest)})


def _require_spec(request: Any) -> None:
    if not request.HasField("model_spec"):
        raise invalid_argument("Missing ModelSpec")

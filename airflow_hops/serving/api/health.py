"""The gRPC health protocol, ``grpc.health.v1``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

from airflow_hops.core.serving_api import protocol
from airflow_hops.serving.api.grpc_methods import service, unary
from airflow_hops.serving.errors import not_found
from airflow_hops.serving.lifecycle import Lifecycle

_SERVING, _NOT_SERVING, _SERVICE_UNKNOWN = 1, 2, 3
_SERVICES = ("", "tensorflow.serving.PredictionService", "tensorflow.serving.ModelService")


def health_service(lifecycle: Lifecycle) -> Any:
    """Returns the service as a gRPC server takes it."""
    response = protocol.HealthCheckResponse

    def status(ready: bool) -> Any:
        return response(status=_SERVING if ready else _NOT_SERVING)

    def check(request: Any, context: grpc.ServicerContext) -> Any:
        if request.service not in _SERVICES:
            raise not_found(f"unknown service {request.service!r}; known are {_SERVICES[1:]}")
        return status(lifecycle.ready)

    def watch(request: Any, context: grpc.ServicerContext, send: Callable[[Any], None]) -> None:
        known = request.service in _SERVICES
        if not known:
            send(response(status=_SERVICE_UNKNOWN))

        def tell(ready: bool | None) -> None:
            if ready is None:
                send(None)
            elif known:
                send(status(ready))

        stop = lifecycle.watch(tell)
        if not context.add_callback(stop):
            stop()

    # A stream that nothing waits for holds no thread: a few watchers would take them all from the requests.
    watch.experimental_non_blocking = True  # type: ignore[attr-defined]
    methods = {
        "Check": unary(check, protocol.HealthCheckRequest),
        "Watch": grpc.unary_stream_rpc_method_handler(
            watch,
            request_deserializer=protocol.HealthCheckRequest.FromString,
            response_serializer=response.SerializeToString,
        ),
    }
    return service(protocol.HEALTH_SERVICE, methods)

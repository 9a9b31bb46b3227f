"""The protocol as a part of the model server: its REST routes and its gRPC service."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_hops.serving.parts import ServerPart

if TYPE_CHECKING:
    from airflow_hops.serving.api.grpc_service import GrpcServer
    from airflow_hops.serving.lifecycle import Lifecycle
    from airflow_hops.serving.request_handler import RequestHandler
    from airflow_hops.serving.routes import Routes


class OpenInference(ServerPart):
    """Answers the Open Inference Protocol on the ports of the server."""

    def add_api(self, handler: RequestHandler, lifecycle: Lifecycle, routes: Routes, server: GrpcServer) -> None:
        """Adds the routes below ``/v2`` and ``inference.GRPCInferenceService``."""
        from airflow_hops.extensions.open_inference.serving import grpc_api, rest_api

        rest_api.add_routes(routes, handler, lifecycle)
        grpc_api.add_service(server, handler, lifecycle)

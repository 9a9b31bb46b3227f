"""Parts of the model server that answer another API on its ports."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from airflow_hops.serving.parts import ServerPart

if TYPE_CHECKING:
    from airflow_hops.serving.api.grpc_service import GrpcServer
    from airflow_hops.serving.lifecycle import Lifecycle
    from airflow_hops.serving.request_handler import RequestHandler
    from airflow_hops.serving.routes import Routes


class ApiPart(ServerPart, ABC):
    """A part with an API."""

    @abstractmethod
    def add_api(self, handler: RequestHandler, lifecycle: Lifecycle, routes: Routes, server: GrpcServer) -> None:
        """Adds the API to the ports of this process.

        Args:
            handler: Answers Predict requests, with split, capture and counts.
            lifecycle: Tells whether the server is ready.
            routes: REST routes; each new one needs its ``right``.
            server: Takes gRPC methods.
        """

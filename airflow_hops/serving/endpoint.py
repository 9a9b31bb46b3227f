"""The endpoint of one process: its ports, limits, counts and capture."""

from __future__ import annotations

import logging
import time
from dataclasses import fields

from airflow_hops.serving.access import Access, TokenFile
from airflow_hops.serving.api import rest
from airflow_hops.serving.api.control import Control
from airflow_hops.serving.api.grpc_service import GrpcServer
from airflow_hops.serving.api.http_server import HttpServer
from airflow_hops.serving.capture.capture import Capture
from airflow_hops.serving.capture.options import CaptureOptions
from airflow_hops.serving.capture.routes import add_feedback_route
from airflow_hops.serving.errors import StartError
from airflow_hops.serving.flags import Flags
from airflow_hops.serving.lifecycle import Lifecycle
from airflow_hops.serving.listeners import (
    bind_grpc,
    bind_grpc_socket,
    grpc_credentials,
    hold_port,
    port_error,
    read_ssl_config,
    rest_context,
)
from airflow_hops.serving.models.catalog import Catalog
from airflow_hops.serving.monitoring.batches import BATCHES
from airflow_hops.serving.monitoring.stats import RequestStats
from airflow_hops.serving.parts import server_parts
from airflow_hops.serving.request_handler import RequestHandler
from airflow_hops.serving.request_memory import RequestMemory
from airflow_hops.serving.routes import Routes

# Order of opening: take all ports and read all files in the constructor, so that a start fails before models load;
# listen after the first loads. The socket that holds the gRPC port is closed only after gRPC has bound the same port.
# Order of draining: the lifecycle refuses new requests, gRPC and REST finish those in flight within drain_seconds, and
# close() empties the capture spool.

log = logging.getLogger(__name__)


class Endpoint:
    """Answers requests in this process once its ports are open.

    Args:
        flags: Settings.
        catalog: Versions that answer requests.
        lifecycle: Tells whether the server accepts requests.
        shared: Whether other processes listen on the same ports.

    Attributes:
        grpc_port: gRPC port.
        rest_api_port: REST port; None if it is off.
        capture: Captures answered requests.
        stats: Counts requests.
        batches: Returns the counts of batches.

    Raises:
        ConfigError: A file of certificates or tokens is invalid.
        StartError: A port is taken, or the capture folder cannot be written.
    """

    def __init__(self, flags: Flags, catalog: Catalog, lifecycle: Lifecycle, shared: bool = False) -> None:
        self._flags = flags
        self._lifecycle = lifecycle
        self._access = access_of(flags)
        ssl_config = read_ssl_config(flags.ssl_config_file)
        context = rest_context(ssl_config) if ssl_config else None  # also checks gRPC's keys, before models load
        self._tls = context if flags.rest_api_enable_ssl else None
        self._credentials = grpc_credentials(ssl_config) if ssl_config else None
        self._memory = RequestMemory(flags.request_memory_bytes)
        self._grpc = GrpcServer(flags, self._memory, self._access, shared)
        self._listener = None
        if flags.rest_api_port is not None:
            self._listener = hold_port("rest_api_port", flags.host, flags.rest_api_port, shared)
        self.rest_api_port: int | None = self._listener.getsockname()[1] if self._listener else None
        self._grpc_holder = hold_port("port", flags.host, flags.port, shared)
        self.grpc_port: int = self._grpc_holder.getsockname()[1]
        self._is_open = False
        self._rest: HttpServer | None = None
        names = [field.name for field in fields(CaptureOptions) if field.name != "base_path"]
        options = CaptureOptions(flags.capture_place, **{name: getattr(flags, f"capture_{name}") for name in names})
        try:
            self.capture = Capture(options)
        except (OSError, ImportError, ValueError) as error:
            raise StartError(f"--capture_base_path={flags.capture_base_path}: {error}") from error
        self.stats = RequestStats()
        self.batches = BATCHES.totals
        self._handler = RequestHandler(catalog, self.stats, self.capture, flags.sticky_header, self._memory)

    def start(self, controls: Control, routes: Routes) -> None:
        """Builds the handlers of requests.

        Args:
            controls: Answers requests about config and traffic.
            routes: REST routes; those for inference are added.
        """
        catalog = self._handler.catalog
        flags = self._flags
        self._grpc.add_services(self._handler, controls, self._lifecycle)
        rest.add_routes(routes, self._handler)
        for part in server_parts().values():
            part.add_api(self._handler, self._lifecycle, routes, self._grpc)
        add_feedback_route(routes, self.capture, lambda model: model in catalog.views or catalog.discover(model))
        if self._listener is not None:
            self._rest = HttpServer(
                self._listener, routes, self._lifecycle, self._access, flags, self._memory, self._tls
            )

    def open_ports(self) -> None:
        """Opens the ports; raises StartError if another program has taken a port in the meantime."""
        bind_grpc(self._grpc.server, self._flags.host, self.grpc_port, self._credentials)
        if self._flags.grpc_socket_path:
            bind_grpc_socket(self._grpc.server, self._flags.grpc_socket_path)
        self._grpc_holder.close()
        if self._rest is not None:
            try:
                self._rest.start()
            except OSError as error:
                raise port_error("rest_api_port", self._flags.host, self.rest_api_port or 0, error) from error
        self._grpc.start()
        self._is_open = True

    def drain(self) -> None:
        """Waits for the requests in flight; the lifecycle already refuses new ones."""
        if not self._is_open:
            return
        timeout_s = self._flags.drain_seconds
        until_s = time.monotonic() + timeout_s
        grpc_drained = self._grpc.server.stop(timeout_s)
        if self._rest is not None and not self._rest.drain(timeout_s):
            log.error("requests were not answered within --drain_seconds=%g", timeout_s)
        grpc_drained.wait(max(0.0, until_s - time.monotonic()) + 1.0)
        if self._rest is not None:
            self._rest.stop()

    def close(self) -> None:
        """Writes captured requests."""
        if not self.capture.close():
            log.error("capture: not everything could be written in time")


def access_of(flags: Flags) -> Access:
    """Returns the access control of the flags; raises ConfigError if a token file is unreadable or empty."""
    files = (flags.control_token_file, flags.prediction_token_file, flags.feedback_token_file)
    names = ("--control_token_file", "--prediction_token_file", "--feedback_token_file")
    return Access(*(TokenFile(name, file) if file else None for name, file in zip(names, files, strict=True)))

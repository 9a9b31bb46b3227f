"""The server from its flags to its exit: ports, first load, ready, drain."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

from airflow_hops.processes.files import write_atomically
from airflow_hops.serving import assembly
from airflow_hops.serving.api import control, rest
from airflow_hops.serving.api.access import warnings_of
from airflow_hops.serving.api.grpc_service import GrpcServer
from airflow_hops.serving.api.http_server import HttpServer
from airflow_hops.serving.api.routes import Routes
from airflow_hops.serving.assembly import StartError
from airflow_hops.serving.capture import routes as capture_routes
from airflow_hops.serving.capture.metrics import CaptureCollector
from airflow_hops.serving.flags import Flags
from airflow_hops.serving.gateway import report as gateway_report
from airflow_hops.serving.gateway.traffic import TrafficTable
from airflow_hops.serving.lifecycle import Lifecycle
from airflow_hops.serving.listeners import (
    GrpcSocket,
    PortError,
    bind_grpc,
    bind_rest,
    grpc_credentials,
    read_ssl_config,
    rest_context,
)
from airflow_hops.serving.models.catalog import Catalog
from airflow_hops.serving.models.workers import report
from airflow_hops.serving.monitoring import logs, metrics, series
from airflow_hops.serving.monitoring.batch_counts import BATCHES
from airflow_hops.serving.monitoring.stats import RequestStats
from airflow_hops.serving.request_handler import RequestHandler
from airflow_hops.serving.request_memory import RequestMemory
from airflow_hops.serving_api.config import ConfigError

log = logging.getLogger(__name__)


class ModelServer:
    """The bundled model server.

    Args:
        flags: How to run.

    Raises:
        StartError: A port is taken, a config file cannot be read, or the capture folder cannot be written.
    """

    def __init__(self, flags: Flags) -> None:
        self._flags = flags
        self._stop = threading.Event()
        self._lifecycle = Lifecycle(self._models)
        self._remove_ready_file()
        try:
            self._build()
        except (ConfigError, PortError) as error:
            raise StartError(str(error)) from error

    def _build(self) -> None:
        """Makes every part: files first, ports next, and nothing is loaded until all of them are there."""
        flags = self._flags
        config = assembly.model_server_config(flags)
        catalog = Catalog(TrafficTable(flags.traffic_config_file or None))
        access = assembly.access(flags)
        metrics_path = metrics.prometheus_path(flags.monitoring_config_file)
        ssl_config = read_ssl_config(flags.ssl_config_file)
        tls = rest_context(ssl_config) if flags.rest_api_enable_ssl else None
        batching = assembly.batching_options(flags)

        memory = RequestMemory(flags.request_memory_bytes)
        self._grpc = GrpcServer(assembly.grpc_options(flags), memory, access)
        listener = None if flags.rest_api_port is None else bind_rest(flags.host, flags.rest_api_port)
        self.rest_api_port: int | None = listener.getsockname()[1] if listener else None
        credentials = grpc_credentials(ssl_config) if ssl_config else None
        self.grpc_port = bind_grpc(self._grpc.server, flags.host, flags.port, credentials)
        self._socket = GrpcSocket(self._grpc.server, flags.grpc_socket_path) if flags.grpc_socket_path else None

        self._workers = assembly.workers(flags, batching)
        open_version = self._workers.open if self._workers else assembly.version_opener(flags, batching)
        self._catalog = catalog
        self._capture = assembly.capture(flags)
        self._loader = assembly.model_source(flags, catalog, config, open_version)
        stats = RequestStats()
        self._series = series.RequestSeries(stats, BATCHES.totals)
        self._shadow = assembly.shadow(flags, catalog, self._capture)
        handler = RequestHandler(catalog, stats, self._capture, self._shadow, flags.sticky_header)
        handler.request_log = self._request_log = assembly.request_log(flags)
        controls = control.Control(catalog, self._loader)
        self._grpc.add_services(handler, controls, self._lifecycle, assembly.profiler(flags))
        routes = Routes()
        rest.add_routes(routes, handler)
        series.add_routes(routes, self._series)
        control.add_routes(routes, controls)
        logs.add_routes(routes)
        capture_routes.add_routes(
            routes, self._capture, lambda model: model in catalog.views or catalog.discover(model)
        )
        metrics.REGISTRY.register(CaptureCollector(self._capture))
        gateway_report.add_routes(routes, catalog, self._shadow)
        metrics.REGISTRY.register(gateway_report.ShadowCollector(self._shadow))
        if self._workers is not None:
            report.add_route(routes, self._workers)
            metrics.REGISTRY.register(report.WorkerCollector(self._workers))
        metrics.REGISTRY.register(
            metrics.RequestCollector(stats, lambda: {model: catalog.traffic_percent(model) for model in catalog.views})
        )
        if metrics_path:
            metrics.add_route(routes, metrics_path)
        http = assembly.http_options(flags)
        self._rest = HttpServer(listener, routes, self._lifecycle, access, http, memory, tls) if listener else None
        self._warnings = list(warnings_of(flags.host, access, assembly.plain_ports(flags)))

    def run(self) -> None:
        """Serves until SIGTERM or SIGINT, then answers what is in flight and writes what was captured."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        if self._rest is not None:
            self._rest.start()
        self._series.start()
        self._loader.start()
        self._grpc.start()
        self._loader.wait_for_first_round(self._stop.is_set)
        if not self._stop.is_set():
            if self._socket is not None:
                self._socket.appear()
            self._lifecycle.set_ready(True)
            self._write_ready_file()
            for warning in self._warnings:
                log.warning("%s", warning)
            log.info(
                "serving gRPC at %s:%d, REST %s",
                self._flags.host,
                self.grpc_port,
                f"at {self._flags.host}:{self.rest_api_port}" if self.rest_api_port else "off",
            )
        # A wait without a time-out would keep Python from running the signal handler on some platforms.
        while not self._stop.wait(1.0):
            pass
        self._drain()

    def _drain(self) -> None:
        """Answers what is in flight while new requests are refused, and ends."""
        was_ready = self._lifecycle.ready
        self._lifecycle.set_ready(False)
        self._remove_ready_file()
        if was_ready and self._flags.drain_delay_seconds:
            log.info("not ready any more; new requests are answered for another %g s", self._flags.drain_delay_seconds)
            time.sleep(self._flags.drain_delay_seconds)
        log.info("draining: requests in flight are answered, new ones refused")
        until_s = time.monotonic() + self._flags.drain_seconds
        self._lifecycle.drain()
        grpc_drained = self._grpc.server.stop(self._flags.drain_seconds)
        if self._rest is not None and not self._rest.drain(self._flags.drain_seconds):
            log.error("requests were not answered within --drain_seconds=%g", self._flags.drain_seconds)
        grpc_drained.wait(max(0.0, until_s - time.monotonic()) + 1.0)
        if self._rest is not None:
            self._rest.stop()
        self._series.close()
        self._shadow.close()
        self._loader.stop()
        if self._workers is not None:
            self._workers.close()
        if not self._capture.close():
            log.error("capture: not everything could be written in time")
        if self._request_log is not None:
            self._request_log.close()
        if self._socket is not None:
            self._socket.remove()
        log.info("stopped")

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._stop.is_set():
            log.error("stopped at once by a second signal")
            os._exit(128 + number)
        self._stop.set()

    def _models(self) -> dict[str, Any]:
        """What is available, and what is wanted and is not, for ``/readyz``."""
        views = self._catalog.views
        return {
            "models": {name: sorted(view.servables) for name, view in sorted(views.items())},
            "unavailable": sorted(self._loader.current_names() - views.keys()),
        }

    def _write_ready_file(self) -> None:
        if not self._flags.ready_file:
            return
        document = {"pid": os.getpid(), "grpc_port": self.grpc_port, "rest_api_port": self.rest_api_port or 0}
        write_atomically(Path(self._flags.ready_file), json.dumps(document) + "\n")

    def _remove_ready_file(self) -> None:
        if self._flags.ready_file:
            Path(self._flags.ready_file).unlink(missing_ok=True)

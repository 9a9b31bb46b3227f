"""Runs the server from start to exit: opens ports, waits for the first loads, serves and drains."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from pathlib import Path
from types import FrameType

from prometheus_client import CollectorRegistry

from airflow_hops.core.serving_api.config import ConfigError
from airflow_hops.serving.access import warnings_of
from airflow_hops.serving.api import control
from airflow_hops.serving.capture import routes as capture_routes
from airflow_hops.serving.endpoint import Endpoint, access_of
from airflow_hops.serving.errors import StartError
from airflow_hops.serving.flags import Flags
from airflow_hops.serving.lifecycle import Lifecycle
from airflow_hops.serving.models.catalog import Catalog, ModelSource
from airflow_hops.serving.models.formats import version_opener
from airflow_hops.serving.models.loader import Loader, first_config
from airflow_hops.serving.models.traffic import TrafficTable
from airflow_hops.serving.monitoring import report
from airflow_hops.serving.monitoring.batches import REGISTRY
from airflow_hops.serving.parts import Counted, server_parts
from airflow_hops.serving.peers import Peers
from airflow_hops.serving.ready_file import remove_ready_file, write_ready_file
from airflow_hops.serving.routes import Routes

# States: starting (ports held, models load) → ready → not ready (signal; drain_delay_seconds for load balancers to
# notice) → draining → stopped. The ready file exists exactly in the state ready, except after a kill; the next start
# removes it first. A second signal ends the process at once; captured requests are then in the spool, and the writer or
# the next server writes them.

log = logging.getLogger(__name__)


class BundledServer:
    """The bundled model server.

    Args:
        flags: Settings.
        peers: Other processes at the same ports, if there are any.

    Raises:
        StartError: A port is taken, a config file cannot be read, or the capture folder cannot be written.
    """

    def __init__(self, flags: Flags, peers: Peers | None = None) -> None:
        self._flags, self._peers = flags, peers
        self._stop = threading.Event()
        remove_ready_file(flags.ready_file)
        try:
            self._build()
        except ConfigError as error:
            raise StartError(str(error)) from error

    def _build(self) -> None:
        """Builds all parts: reads files first, then takes ports; models are loaded only after that."""
        own_flags, peers = self._flags, self._peers
        flags = own_flags if peers is None else peers.flags(own_flags)
        config = first_config(flags)
        slots = peers.slots_of_keys() if peers is not None else None
        catalog = self._catalog = Catalog(TrafficTable(flags.traffic_config_file or None, slots))
        self._lifecycle = Lifecycle(catalog, lambda: self._loader.current_names() - catalog.views.keys())
        access = access_of(flags)
        endpoint = self._endpoint = Endpoint(flags, catalog, self._lifecycle, peers is not None)
        counted: Counted = endpoint if peers is None else peers.reported()
        registry = REGISTRY if peers is None else CollectorRegistry()
        parts = server_parts()
        if flags.models_flag:
            (part,) = (part for part in parts.values() if part.models_flag == flags.models_flag)
            self._loader: ModelSource = part.models(flags, catalog, config)
        else:
            unmarked = "HandleReloadConfigRequest" if peers is not None else ""
            self._loader = loader = Loader(catalog, version_opener(flags), flags, config, unmarked)
            if peers is not None and own_flags.write_back_model_config:
                loader.written.append(Path(own_flags.model_config_file))
        self._controls = control.Control(catalog, self._loader, bool(own_flags.traffic_config_file))
        routes = self._routes = Routes()
        control.add_routes(routes, self._controls)
        capture_routes.add_routes(routes, counted.capture)
        report.add_routes(routes, counted.stats, catalog)
        if peers is not None:
            peers.add_reports(routes, registry)
        for part in parts.values():
            part.reports(flags, routes, catalog, counted, registry)
        plain_ports = [] if flags.ssl_config_file else ["gRPC port (--ssl_config_file)"]
        if flags.rest_api_port is not None and not flags.rest_api_enable_ssl:
            plain_ports.append("REST port (--rest_api_enable_ssl)")
        self._warnings = list(warnings_of(flags.host, access, plain_ports))

    def run(self) -> None:
        """Serves until SIGTERM or SIGINT, then answers the requests in flight and writes captured ones.

        Like TensorFlow Serving, it opens its ports once every model of the config has loaded or failed, so a client
        that waits for a port gets answers from models.

        Raises:
            StartError: The worker processes cannot start, or a port was taken in the meantime.
        """
        endpoint, peers = self._endpoint, self._peers
        if peers is None:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, self._on_signal)
        endpoint.start(self._controls, self._routes)
        self._loader.start()
        if peers is not None:
            assert isinstance(self._loader, Loader)
            peers.start(endpoint, self._catalog, self._loader)
        self._loader.wait_for_first_round(self._stop.is_set)
        if not self._stop.is_set():
            self._lifecycle.ready = True
            endpoint.open_ports()
            for warning in self._warnings if peers is None or peers.is_first else ():
                log.warning("%s", warning)
            log.info(
                "serving gRPC at %s:%d, REST %s",
                self._flags.host,
                endpoint.grpc_port,
                f"at {self._flags.host}:{endpoint.rest_api_port}" if endpoint.rest_api_port else "off",
            )
            if peers is not None:
                peers.open()
            write_ready_file(self._flags.ready_file, endpoint.grpc_port, endpoint.rest_api_port)
        # On some platforms, a wait without a timeout prevents Python from running the signal handler.
        while not self._stop.wait(1.0):
            pass
        # Drain: answers the requests in flight and refuses new ones
        was_ready = self._lifecycle.ready
        self._lifecycle.ready = False
        remove_ready_file(self._flags.ready_file)
        if was_ready and self._flags.drain_delay_seconds:
            log.info("no longer ready; new requests are answered for another %g s", self._flags.drain_delay_seconds)
            time.sleep(self._flags.drain_delay_seconds)
        log.info("draining: requests in flight are answered, new ones refused")
        self._lifecycle.draining = True
        endpoint.drain()
        self._loader.stop()
        endpoint.close()
        if peers is not None:
            peers.close()
        log.info("stopped")

    def stop(self) -> None:
        """Ends :meth:`run`."""
        self._stop.set()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._stop.is_set():
            log.error("stopped at once after a second signal")
            os._exit(128 + number)
        self._stop.set()

"""The server from its flags to its exit: ports, first load, ready, drain."""

from __future__ import annotations

import functools
import json
import logging
import os
import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from airflow_hops.serving.capture.capture import Capture, CaptureOptions
from airflow_hops.serving.errors import ServingError
from airflow_hops.serving.flags import Flags
from airflow_hops.serving.gateway.traffic import TrafficTable
from airflow_hops.serving.listeners import PortError, bind_grpc, bind_rest
from airflow_hops.serving.models.batching_options import BatchingOptions, read_batching_parameters
from airflow_hops.serving_api.config import ConfigError, read_config
from airflow_hops.serving_api.protocol import ModelServerConfig

log = logging.getLogger(__name__)


class StartError(Exception):
    """What keeps the server from starting, in one line for the user."""


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
        self._ready = False
        self._remove_ready_file()
        # Everything that can be wrong with the command line is found before TensorFlow's import, which takes seconds.
        try:
            config = _config(flags)
            self._traffic = TrafficTable(flags.traffic_config_file or None)
            self._batching = _batching(flags)
        except ConfigError as error:
            raise StartError(str(error)) from error
        try:
            self._rest_socket = None if flags.rest_api_port is None else bind_rest(flags.host, flags.rest_api_port)
        except PortError as error:
            raise StartError(str(error)) from error
        self._capture = _capture(flags)
        self._load_services(config)

    def _load_services(self, config: Any) -> None:
        from airflow_hops.serving.api import grpc_service
        from airflow_hops.serving.api.rest import RestServer
        from airflow_hops.serving.models.catalog import Catalog
        from airflow_hops.serving.models.formats import ModelOptions, open_model
        from airflow_hops.serving.models.loader import Loader, LoaderOptions
        from airflow_hops.serving.monitoring.stats import RequestStats
        from airflow_hops.serving.request_handler import RequestHandler

        flags = self._flags
        self._grpc = grpc_service.make_server(flags.request_threads)
        try:
            self.grpc_port = bind_grpc(self._grpc, flags.host, flags.port)
        except PortError as error:
            raise StartError(str(error)) from error
        catalog = Catalog(self._traffic)
        self._catalog = catalog
        options = LoaderOptions(
            file_system_poll_s=flags.file_system_poll_wait_seconds,
            config_poll_s=flags.model_config_file_poll_wait_seconds,
            traffic_poll_s=flags.traffic_config_file_poll_wait_seconds if flags.traffic_config_file else 0,
            max_load_retries=flags.max_num_load_retries,
            retry_interval_s=flags.load_retry_interval_micros / 1e6,
            load_threads=flags.num_load_threads or 2,
            labels_for_unavailable=flags.allow_version_labels_for_unavailable_models,
        )
        model_options = ModelOptions(
            tags=tuple(flags.saved_model_tags.split(",")),
            intra_op_threads=flags.tensorflow_intra_op_parallelism,
            inter_op_threads=flags.tensorflow_inter_op_parallelism,
            tensor_content=flags.enable_serialization_as_tensor_content,
            check_method_names=flags.enable_signature_method_name_check,
            prefer_tflite=flags.prefer_tflite_model,
            allow_pickled=flags.allow_pickled_models,
            trusted_skops_types=tuple(name for name in flags.trusted_skops_types.split(",") if name),
            batching=self._batching,
            per_model_batching=flags.enable_per_model_batching_parameters,
            warmup_iterations=(flags.num_request_iterations_for_warmup or 1) if flags.enable_model_warmup else 0,
        )
        open_version = functools.partial(open_model, options=model_options)
        self._loader = Loader(catalog, open_version, options, config, flags.model_config_file or None)
        handler = RequestHandler(catalog, RequestStats(), self._capture, flags.sticky_header)
        grpc_service.add_services(self._grpc, handler, self._loader, lambda: self._ready)
        self._rest = None
        self.rest_api_port: int | None = None
        if self._rest_socket is not None:
            self.rest_api_port = self._rest_socket.getsockname()[1]
            threads = flags.rest_api_num_threads or flags.request_threads
            self._rest = RestServer(self._rest_socket, handler, self._readiness, threads, flags.drain_seconds)

    def run(self) -> None:
        """Serves until SIGTERM or SIGINT, then answers what is in flight and writes what was captured."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        if self._rest is not None:
            self._rest.start()
        self._loader.start()
        self._loader.wait_for_first_round(self._stop.is_set)
        if not self._stop.is_set():
            self._grpc.start()
            self._ready = True
            self._write_ready_file()
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
        was_ready, self._ready = self._ready, False
        self._remove_ready_file()
        log.info("draining: requests in flight are answered, new ones refused")
        drained = self._grpc.stop(self._flags.drain_seconds) if was_ready else None
        if self._rest is not None:
            self._rest.stop()
        if drained is not None:
            drained.wait()
        self._loader.stop()
        if not self._capture.close():
            log.error("capture: not everything could be written in time")
        log.info("stopped")

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._stop.set()

    def _readiness(self) -> tuple[bool, dict[str, Any]]:
        views = self._catalog.views
        return self._ready, {"models": {name: sorted(view.servables) for name, view in sorted(views.items())}}

    def _write_ready_file(self) -> None:
        if not self._flags.ready_file:
            return
        path = Path(self._flags.ready_file)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        document = {"pid": os.getpid(), "grpc_port": self.grpc_port, "rest_api_port": self.rest_api_port or 0}
        temporary.write_text(json.dumps(document) + "\n")
        temporary.replace(path)

    def _remove_ready_file(self) -> None:
        if self._flags.ready_file:
            Path(self._flags.ready_file).unlink(missing_ok=True)


def _config(flags: Flags) -> Any:
    if flags.model_config_file:
        return read_config(flags.model_config_file)
    config = ModelServerConfig()
    config.model_config_list.config.add(
        name=flags.model_name, base_path=flags.model_base_path, model_platform="tensorflow"
    )
    return config


def _batching(flags: Flags) -> BatchingOptions | None:
    if not flags.enable_batching:
        return None
    if not flags.batching_parameters_file:
        return BatchingOptions(thread_pool_name="model_server_batch_threads")
    try:
        return read_batching_parameters(flags.batching_parameters_file)
    except ServingError as error:
        raise StartError(f"--batching_parameters_file: {error.message}") from error


def _capture(flags: Flags) -> Capture:
    options = CaptureOptions(
        base_path=flags.capture_path,
        mode=flags.capture_mode,
        sampling_percent=flags.capture_sampling_percent,
        roll_rows=flags.capture_roll_rows,
        roll_seconds=flags.capture_roll_seconds,
        buffer_rows=flags.capture_buffer_rows,
    )
    try:
        return Capture(options)
    except OSError as error:
        raise StartError(f"--capture_base_path={flags.capture_base_path}: {error}") from error

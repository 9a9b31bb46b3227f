"""The server's parts, each made from the flags by a function of its own."""

from __future__ import annotations

import functools
import time
from pathlib import Path
from typing import Any

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.core.serving_api.config import read_config
from airflow_hops.core.serving_api.protocol import ModelServerConfig
from airflow_hops.core.serving_api.server_address import TlsFiles
from airflow_hops.serving.access import Access
from airflow_hops.serving.api.grpc_service import GrpcOptions
from airflow_hops.serving.api.http_server import HttpOptions
from airflow_hops.serving.api.profiler import ProfilerService
from airflow_hops.serving.capture.capture import Capture
from airflow_hops.serving.capture.options import CaptureOptions
from airflow_hops.serving.capture.record import CapturedCall
from airflow_hops.serving.errors import ServingError
from airflow_hops.serving.flags import Flags
from airflow_hops.serving.gateway.shadow import Shadow, ShadowCopy, ShadowOptions
from airflow_hops.serving.gateway.upstream import Upstream
from airflow_hops.serving.gateway.upstream_watcher import UpstreamWatcher
from airflow_hops.serving.models.batching_options import BatchingOptions, read_batching_parameters
from airflow_hops.serving.models.catalog import Catalog, ModelSource
from airflow_hops.serving.models.formats import formats, open_model
from airflow_hops.serving.models.loader import Loader
from airflow_hops.serving.models.model_cache import ModelCache
from airflow_hops.serving.models.model_options import ModelOptions
from airflow_hops.serving.models.servable import Reply
from airflow_hops.serving.models.transitions import LoaderOptions, OpenVersion
from airflow_hops.serving.monitoring.logs import RequestLog
from airflow_hops.serving.request_kind import RequestKind
from airflow_hops.serving.tokens import TokenFile


class StartError(Exception):
    """The server cannot start; the message says why, in one line for the user."""


def model_server_config(flags: Flags) -> Any:
    """Returns the ``ModelServerConfig`` to start with.

    Raises:
        ConfigError: The file cannot be taken.
    """
    if flags.model_config_file:
        return read_config(flags.model_config_file)
    config = ModelServerConfig()
    if flags.upstream:
        return config
    config.model_config_list.config.add(
        name=flags.model_name, base_path=flags.model_base_path, model_platform="tensorflow"
    )
    return config


def model_source(flags: Flags, catalog: Catalog, config: Any, open_version: OpenVersion) -> ModelSource:
    """Returns what keeps the catalog equal to config and disk, or to what the servers upstream have."""
    traffic_poll_s = flags.traffic_config_file_poll_wait_seconds if flags.traffic_config_file else 0
    if flags.upstream:
        upstreams = [Upstream(address, upstream_tls(flags), upstream_token(flags)) for address in flags.upstream]
        return UpstreamWatcher(catalog, upstreams, config, flags.model_config_file, traffic_poll_s)
    options = LoaderOptions(
        file_system_poll_s=flags.file_system_poll_wait_seconds,
        config_poll_s=flags.model_config_file_poll_wait_seconds,
        traffic_poll_s=traffic_poll_s,
        write_back_config=flags.write_back_model_config,
        first_loads_s=flags.first_load_timeout_seconds,
        max_load_retries=flags.max_num_load_retries,
        retry_interval_s=max(0, flags.load_retry_interval_micros) / 1e6,
        load_threads=flags.num_load_threads or 2,
        unload_threads=flags.num_unload_threads or 2,
        labels_for_unavailable=flags.allow_version_labels_for_unavailable_models,
    )
    cache = ModelCache(Path(flags.model_cache_path).absolute() if flags.model_cache_path else None)
    return Loader(catalog, open_version, options, config, flags.model_config_file or None, cache)


def access(flags: Flags) -> Access:
    """Returns who may do what.

    Raises:
        ConfigError: A file of tokens cannot be read, or holds none.
    """
    files = (flags.control_token_file, flags.prediction_token_file, flags.feedback_token_file)
    names = ("--control_token_file", "--prediction_token_file", "--feedback_token_file")
    return Access(*(TokenFile(name, file) if file else None for name, file in zip(names, files, strict=True)))


def plain_ports(flags: Flags) -> list[str]:
    """Returns the ports without TLS, each with the flags that would give it to them."""
    grpc_port = [] if flags.ssl_config_file else ["gRPC port (--ssl_config_file)"]
    rest_is_plain = flags.rest_api_port is not None and not flags.rest_api_enable_ssl
    return grpc_port + (["REST port (--rest_api_enable_ssl)"] if rest_is_plain else [])


def upstream_tls(flags: Flags) -> TlsFiles | None:
    """Returns the files of connections to the servers upstream; None if those speak no TLS.

    Raises:
        StartError: One is not there.
    """
    files = TlsFiles(*(getattr(flags, f"upstream_{name}_file") or None for name in ("ca", "cert", "key")))
    if files == TlsFiles():
        return None
    try:
        files.credentials()
    except OSError as error:
        raise StartError(f"--upstream_…_file: {error}") from error
    return files


def upstream_token(flags: Flags) -> TokenFile | None:
    """Returns the file of the token for the servers upstream.

    Raises:
        ConfigError: It cannot be read, or holds no token.
    """
    return TokenFile("--upstream_token_file", flags.upstream_token_file) if flags.upstream_token_file else None


def version_opener(flags: Flags, batching: BatchingOptions | None) -> OpenVersion:
    """Returns what opens a version, and so says what answers its requests.

    Raises:
        StartError: A third-party format of models is broken.
    """
    try:
        formats()
    except BadInput as error:
        raise StartError(str(error)) from error
    return functools.partial(open_model, options=model_options(flags, batching))


def profiler(flags: Flags) -> list[Any]:
    """Returns the handler of the profiler service, where one is asked for."""
    return [ProfilerService(Path(flags.profiler_log_dir)).handlers()] if flags.enable_profiler else []


def model_options(flags: Flags, batching: BatchingOptions | None) -> ModelOptions:
    """Returns how models are opened."""
    return ModelOptions(
        tags=tuple(flags.saved_model_tags.split(",")),
        intra_op_threads=flags.tensorflow_intra_op_parallelism,
        inter_op_threads=flags.tensorflow_inter_op_parallelism,
        tensor_content=flags.enable_serialization_as_tensor_content,
        check_method_names=flags.enable_signature_method_name_check,
        prefer_tflite=flags.prefer_tflite_model,
        allow_pickled=flags.allow_pickled_models,
        trusted_skops_types=tuple(name for name in flags.trusted_skops_types.split(",") if name),
        batching=batching,
        per_model_batching=flags.enable_per_model_batching_parameters,
        warmup_iterations=(flags.num_request_iterations_for_warmup or 1) if flags.enable_model_warmup else 0,
    )


def batching_options(flags: Flags) -> BatchingOptions | None:
    """Returns how requests are batched, or None if they are not.

    Raises:
        StartError: The parameters' file cannot be taken.
    """
    if not flags.enable_batching:
        return None
    if not flags.batching_parameters_file:
        return BatchingOptions(thread_pool_name="model_server_batch_threads")
    try:
        return read_batching_parameters(flags.batching_parameters_file)
    except ServingError as error:
        raise StartError(f"--batching_parameters_file: {error.message}") from error


def capture(flags: Flags) -> Capture:
    """Returns what keeps answered requests.

    Raises:
        StartError: Its folder cannot be written.
    """
    options = CaptureOptions(
        base_path=flags.capture_place,
        mode=flags.capture_mode,
        sampling_percent=flags.capture_sampling_percent,
        format=flags.capture_format,
        spool_path=flags.capture_spool_path,
        spool_bytes=flags.capture_spool_bytes,
        roll_rows=flags.capture_roll_rows,
        roll_seconds=flags.capture_roll_seconds,
        retention_days=flags.capture_retention_days,
        retention_bytes=flags.capture_retention_bytes,
    )
    try:
        return Capture(options)
    except (OSError, ImportError, ValueError) as error:
        raise StartError(f"--capture_base_path={flags.capture_base_path}: {error}") from error


def request_log(flags: Flags) -> RequestLog | None:
    """Returns the log of requests, or None.

    Raises:
        StartError: Its file cannot be written.
    """
    if not flags.request_log:
        return None
    try:
        return RequestLog(flags.request_log, flags.request_log_sampling_percent)
    except OSError as error:
        raise StartError(f"--request_log={flags.request_log}: {error.strerror}") from error


def shadow(flags: Flags, catalog: Catalog, capture: Capture) -> Shadow:
    """Returns what sends copies of requests to other versions."""
    options = ShadowOptions(
        queue_requests=flags.shadow_queue_requests,
        threads=flags.shadow_threads,
        quiet_in_flight=max(1, flags.request_threads // 2),
        tolerance=flags.shadow_tolerance,
    )
    if not (flags.capture_shadow and capture.enabled):
        return Shadow(catalog, options)

    def keep(copy: ShadowCopy, reply: Reply, version: int, latency_s: float) -> None:
        kind = RequestKind(copy.model, version, copy.call.method.label, copy.api.upper())
        request_id = copy.request_id or capture.new_request_id()
        at_us, messages = int((time.time() - latency_s) * 1e6), (copy.call.message, reply.message)
        capture.offer(CapturedCall(kind, request_id, at_us, latency_s * 1e3, reply.rows, *messages, shadow=True))

    return Shadow(catalog, options, keep)


def grpc_options(flags: Flags, shared_port: bool = False) -> GrpcOptions:
    """Returns the limits of the gRPC server, whose port other processes may listen at."""
    shared = {"grpc.so_reuseport": 1} if shared_port else {}
    return GrpcOptions(
        max_threads=flags.request_threads,
        max_request_bytes=flags.request_bytes,
        max_in_flight=flags.max_in_flight,
        receive_s=flags.max_receive_seconds,
        channel_arguments={**flags.channel_arguments, **shared},
    )


def http_options(flags: Flags) -> HttpOptions:
    """Returns the limits of the HTTP server."""
    return HttpOptions(
        max_threads=flags.rest_api_num_threads or flags.request_threads,
        timeout_s=flags.rest_api_timeout_in_ms / 1000,
        max_request_bytes=flags.request_bytes,
        max_in_flight=flags.max_in_flight,
        idle_s=flags.rest_api_idle_seconds,
        receive_s=flags.max_receive_seconds,
        max_connections=flags.connections_per_client,
        cors=flags.rest_api_enable_cors_support,
    )

"""The command line's flags, in groups: TensorFlow Serving's under their own names, and a few more."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_hops.core.machine_memory import memory_bytes
from airflow_hops.serving import flag_values
from airflow_hops.serving.capture.options import CaptureFormat, CaptureMode


def _flag(default: Any, text: str, parse: Callable[[str], Any] = str) -> Any:
    """Returns a flag with its default, its help text, and the parser of its value."""
    return field(default=default, metadata={"help": text, "parse": parse})


@dataclass(frozen=True)
class PortFlags:
    """Ports and transport (TensorFlow Serving's flags)."""

    port: int = _flag(8500, "gRPC port; 0 chooses a free one", flag_values.port)
    rest_api_port: int | None = _flag(
        None, "REST port; 0 disables REST, 'auto' chooses a free port (default 0)", flag_values.rest_port
    )
    grpc_max_threads: int = _flag(
        0, "maximum number of concurrent requests (default 4 per core, at least 8)", flag_values.count
    )
    grpc_socket_path: str = _flag("", "UNIX socket to listen on for gRPC, in addition to the port")
    grpc_channel_arguments: str = _flag(
        "", "gRPC channel arguments, such as grpc.max_connection_age_ms=2000,…", flag_values.arguments
    )
    ssl_config_file: str = _flag("", "SSLConfig in text format: TLS for gRPC")
    rest_api_enable_ssl: bool = _flag(
        False, "not a TensorFlow Serving flag: TLS for REST as well, with --ssl_config_file"
    )
    monitoring_config_file: str = _flag("", "MonitoringConfig in text format: metrics for Prometheus")
    rest_api_timeout_in_ms: int = _flag(30_000, "time limit of a REST request", flag_values.positive)
    rest_api_enable_cors_support: bool = _flag(False, "allow requests from pages of other origins")
    rest_api_num_threads: int = _flag(
        0, "maximum number of concurrent REST requests (default as for gRPC)", flag_values.count
    )
    version: bool = _flag(False, "print the versions and exit")
    enable_profiler: bool = _flag(False, "gRPC service for TensorBoard's profiler; needs --profiler_log_dir")


@dataclass(frozen=True)
class VersionFlags:
    """Models and versions (TensorFlow Serving's flags)."""

    model_name: str = _flag("default", "name of the model at --model_base_path (default 'default')")
    model_base_path: str = _flag("", "absolute path or URL of the folder with the versions of one model")
    model_config_file: str = _flag("", "ModelServerConfig in text format; overrides --model_base_path")
    model_config_file_poll_wait_seconds: float = _flag(
        0, "seconds between checks of it; 0 disables them", flag_values.interval
    )
    file_system_poll_wait_seconds: float = _flag(
        1, "seconds between checks for new versions; 0 checks once, a negative number never", flag_values.interval
    )
    max_num_load_retries: int = _flag(5, "number of retries after a failed load", flag_values.count)
    load_retry_interval_micros: int = _flag(60_000_000, "time between those retries; a negative number means 0", int)
    num_load_threads: int = _flag(0, "number of versions to load in parallel (default 2)", flag_values.count)
    num_unload_threads: int = _flag(0, "number of versions to unload in parallel (default 2)", flag_values.count)
    flush_filesystem_caches: bool = _flag(True, "accepted, but there is no such cache")
    enable_model_warmup: bool = _flag(True, "send a version its warm-up requests before it serves")
    num_request_iterations_for_warmup: int = _flag(
        0, "how often each warm-up request is sent (default 1)", flag_values.count
    )
    saved_model_tags: str = _flag("serve", "comma-separated tags of the meta graph (default 'serve')")
    allow_version_labels_for_unavailable_models: bool = _flag(False, "allow labels of versions that are not loaded")
    use_tflite_model: bool = _flag(False, "old name of --prefer_tflite_model")
    prefer_tflite_model: bool = _flag(False, "serve a version's model.tflite, if it has one")


@dataclass(frozen=True)
class RunFlags:
    """How models run (TensorFlow Serving's flags)."""

    enable_batching: bool = _flag(False, "run waiting requests for one model as one batch")
    batching_parameters_file: str = _flag("", "BatchingParameters in text format")
    enable_per_model_batching_parameters: bool = _flag(
        False, "batch only models with batching_params.pbtxt in the version's folder, with those parameters"
    )
    tensorflow_intra_op_parallelism: int = _flag(
        0, "number of threads within an operation (default auto)", flag_values.count
    )
    tensorflow_session_parallelism: int = _flag(
        0, "sets both of the other two, unless they are given", flag_values.count
    )
    tensorflow_inter_op_parallelism: int = _flag(
        0, "number of threads across operations (default auto)", flag_values.count
    )
    enable_serialization_as_tensor_content: bool = _flag(False, "Predict returns tensors in tensor_content")
    enable_signature_method_name_check: bool = _flag(False, "Classify and Regress reject TF2 signatures")


@dataclass(frozen=True)
class FeatureFlags:
    """Feature store."""

    online_store: str = _flag(
        "",
        "Feast's online store, from which models get features: redis://host:port/0, rediss://..., "
        "sqlite:///absolute/path, or a file that holds such a URL, as one with a password should",
    )


@dataclass(frozen=True)
class TrafficFlags:
    """Traffic and upstream servers."""

    traffic_config_file: str = _flag("", "JSON file with the shares of each model's versions, in percent")
    traffic_config_file_poll_wait_seconds: float = _flag(
        1, "seconds between checks of it; 0 disables them", flag_values.interval
    )
    upstream: tuple[str, ...] = _flag(
        (),
        "host:port or unix:path of a tensorflow_model_server's gRPC port, or several separated by commas: requests "
        "are forwarded to them, and this server loads no models",
        flag_values.addresses,
    )
    upstream_ca_file: str = _flag("", "PEM file of the CA that signed the upstreams' certificates; enables TLS")
    upstream_cert_file: str = _flag("", "PEM file of the client certificate for the upstreams")
    upstream_key_file: str = _flag("", "PEM file of the private key of the client certificate")
    upstream_token_file: str = _flag("", "file whose first token is sent to the upstreams")
    sticky_header: str = _flag(
        "x-sticky-key",
        "HTTP header or gRPC metadata key: requests with the same value go to the same version of a split",
        str.lower,
    )
    shadow_queue_requests: int = _flag(1000, "maximum number of queued copies for shadow traffic", flag_values.positive)
    shadow_threads: int = _flag(1, "number of copies to run in parallel", flag_values.positive)
    shadow_tolerance: float = _flag(
        1e-5,
        "absolute or relative difference up to which two outputs count as equal (default 1e-5)",
        flag_values.tolerance,
    )


@dataclass(frozen=True)
class CaptureFlags:
    """Captured requests."""

    capture_base_path: str = _flag("", "folder or URL for captured requests; if empty, no files are written")
    capture_mode: CaptureMode = _flag("all", "what to capture")  # noqa: RUF009
    capture_sampling_percent: float = _flag(100, "percentage of requests to capture", flag_values.percent)
    capture_roll_rows: int = _flag(100_000, "number of rows after which a file is closed", flag_values.positive)
    capture_roll_seconds: float = _flag(60, "age in seconds at which a file is closed", flag_values.seconds)
    capture_format: CaptureFormat = _flag("parquet", "file formats")  # noqa: RUF009
    capture_spool_path: str = _flag(
        "", "local folder for rows that have not been written yet (default: next to a local base path)"
    )
    capture_spool_bytes: int = _flag(2**30, "maximum size of that folder", flag_values.spool_bytes)
    capture_retention_days: float = _flag(
        0, "age in days at which files are deleted; 0 keeps them (default)", flag_values.seconds
    )
    capture_retention_bytes: int = _flag(
        0, "maximum size of a model's files; 0 means no limit (default)", flag_values.count
    )
    capture_topic: str = _flag("", "Kafka topic that gets a message for each captured row, besides files or instead")
    capture_topic_config: str = _flag("", "JSON file with librdkafka's options, such as bootstrap.servers")
    capture_shadow: bool = _flag(False, "also capture the answers of shadow traffic")


@dataclass(frozen=True)
class ProcessFlags:
    """Processes."""

    workers: int = _flag(1, "number of processes that share the ports, each with all models", flag_values.positive)
    worker_timeout_seconds: float = _flag(
        10, "seconds without a sign of life after which one of them is replaced; 0 waits for ever", flag_values.seconds
    )


@dataclass(frozen=True)
class ModelFlags:
    """Models."""

    allow_pickled_models: bool = _flag(
        False, "load scikit-learn models from model.pkl and model.joblib: a pickle can run any code"
    )
    model_cache_path: str = _flag(
        "", "folder for copies of versions whose base path is a URL (default: the system's temporary folder)"
    )
    trusted_skops_types: str = _flag(
        "", "comma-separated types that model.skops may hold, besides those that skops trusts"
    )


@dataclass(frozen=True)
class LimitFlags:
    """Limits."""

    max_request_memory_bytes: int = _flag(
        0,
        "maximum memory of all requests in progress, including their decoded forms and answers (default: a quarter "
        "of that of the machine or container)",
        flag_values.positive,
    )
    max_request_bytes: int = _flag(
        0,
        "maximum size of a decompressed request (default: a quarter of --max_request_memory_bytes, at most 1073741824)",
        flag_values.positive,
    )
    max_in_flight: int = _flag(
        0,
        "maximum number of running and waiting requests, for gRPC and REST each; 0 means no limit (default)",
        flag_values.count,
    )
    rest_api_idle_seconds: float = _flag(75, "time after which an idle REST connection is closed", flag_values.seconds)
    max_receive_seconds: float = _flag(
        300, "maximum time for receiving the body of a request or a gRPC message", flag_values.positive_float
    )
    rest_api_connections_per_client: int | None = _flag(
        None,
        "maximum number of REST connections per client address; 0 means no limit (default: half of the open files "
        "allowed, at most 1000)",
        flag_values.count,
    )


@dataclass(frozen=True)
class ControlFlags:
    """Address, control, logs, start and stop."""

    host: str = _flag(
        "127.0.0.1",
        "address to listen on (default 127.0.0.1, because anyone who can reach the server can use and reconfigure "
        "it; 0.0.0.0 for all addresses)",
    )
    write_back_model_config: bool = _flag(False, "write a config that arrives by RPC to --model_config_file")
    control_token_file: str = _flag(
        "", "file of tokens, one per line; everything except predictions and health requires one of them"
    )
    prediction_token_file: str = _flag(
        "", "file of tokens; predictions require one of them, or one of --control_token_file"
    )
    feedback_token_file: str = _flag("", "file of tokens that only allow feedback; requires --control_token_file")
    profiler_log_dir: str = _flag("", "folder for the profiles of --enable_profiler")
    log_file: str = _flag("", "also write the log to this file")
    request_log: str = _flag("", "log of requests, as JSON Lines")
    request_log_sampling_percent: float = _flag(
        100, "percentage of answered requests to log; errors are always logged", flag_values.percent
    )
    first_load_timeout_seconds: float = _flag(
        600, "at the start, maximum wait for models that are still loading before the ports open", flag_values.seconds
    )
    drain_delay_seconds: float = _flag(
        0, "after SIGTERM, how long new requests are still answered while /readyz returns 503", flag_values.seconds
    )
    drain_seconds: float = _flag(30, "after SIGTERM, maximum wait for requests in flight", flag_values.seconds)
    ready_file: str = _flag(
        "", "file for the JSON object {pid, grpc_port, rest_api_port}, written when the server is ready"
    )


@dataclass(frozen=True)
class Flags(
    ControlFlags,
    LimitFlags,
    ModelFlags,
    ProcessFlags,
    CaptureFlags,
    FeatureFlags,
    TrafficFlags,
    RunFlags,
    VersionFlags,
    PortFlags,
):
    """Parsed flags; names and defaults are those of TensorFlow Serving, for flags that it has."""

    @property
    def request_threads(self) -> int:
        """Requests that run at once: by default four per core as in TensorFlow Serving, at least eight."""
        return self.grpc_max_threads or max(8, 4 * (os.cpu_count() or 1))

    @property
    def request_memory_bytes(self) -> int:
        """Memory for all requests in progress together: by default a quarter of the machine's."""
        return self.max_request_memory_bytes or memory_bytes() // 4

    @property
    def request_bytes(self) -> int:
        """Maximum size of a request: by default a quarter of the memory for all, at most 1 GiB."""
        return self.max_request_bytes or min(2**30, self.request_memory_bytes // 4)

    @property
    def connections_per_client(self) -> int:
        """REST connections per client: by default half of the files that the process may open, at most 1000."""
        if self.rest_api_connections_per_client is not None:
            return self.rest_api_connections_per_client
        open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return 1000 if open_files == resource.RLIM_INFINITY else min(1000, open_files // 2)

    @property
    def capture_place(self) -> str:
        """Folder or URL of the captured requests; empty if capture is off."""
        path = self.capture_base_path
        return str(Path(path).absolute()) if path and "://" not in path else path

"""The command line's flags, in groups: TensorFlow Serving's under their own names, and a few more."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from airflow_hops.core.machine_memory import memory_bytes
from airflow_hops.serving import flag_values
from airflow_hops.serving.capture.options import CaptureMode

_PartFlags = TypeVar("_PartFlags")


def flag(default: object, text: str, parse: Callable[[str], object] = str) -> Any:
    """Returns a flag with its default, its help text, and the parser of its value."""
    return field(default=default, metadata={"help": text, "parse": parse})


GROUPS = {
    "port": "Ports and transport (TensorFlow Serving's flags)",
    "model_name": "Models and versions (TensorFlow Serving's flags)",
    "tensorflow_intra_op_parallelism": "How models run (TensorFlow Serving's flags)",
    "traffic_config_file": "Traffic",
    "capture_base_path": "Captured requests",
    "allow_pickled_models": "Models",
    "max_request_memory_bytes": "Limits",
    "host": "Address, control, logs, start and stop",
}
"""Headings of ``--help``, by the first flag of each group."""


@dataclass(frozen=True)
class Flags:
    """Parsed flags; names and defaults are those of TensorFlow Serving, for flags that it has.

    Attributes:
        of_parts: Flags of the parts that distributions add (:class:`~airflow_hops.serving.parts.ServerPart`).
        models_flag: Name of the flag by which a part provides the models; empty if this server loads them.
    """

    port: int = flag(8500, "gRPC port; 0 chooses a free one", flag_values.port)
    rest_api_port: int | None = flag(
        None, "REST port; 0 disables REST, 'auto' chooses a free port (default 0)", flag_values.rest_port
    )
    grpc_max_threads: int = flag(
        0, "maximum number of concurrent requests (default 4 per core, at least 8)", flag_values.count
    )
    grpc_channel_arguments: str = flag(
        "", "gRPC channel arguments, such as grpc.max_connection_age_ms=2000,…", flag_values.arguments
    )
    grpc_socket_path: str = flag("", "path of a UNIX socket for gRPC, besides --port and without TLS")
    ssl_config_file: str = flag("", "SSLConfig in text format: TLS for gRPC")
    rest_api_enable_ssl: bool = flag(
        False, "not a TensorFlow Serving flag: TLS for REST as well, with --ssl_config_file"
    )
    rest_api_timeout_in_ms: int = flag(30_000, "time limit of a REST request", flag_values.milliseconds)
    rest_api_enable_cors_support: bool = flag(False, "allow requests from pages of other origins")
    rest_api_num_threads: int = flag(
        0, "maximum number of concurrent REST requests (default as for gRPC)", flag_values.count
    )
    version: bool = flag(False, "print the versions and exit")

    model_name: str = flag("default", "name of the model at --model_base_path (default 'default')")
    model_base_path: str = flag("", "absolute path or URL of the folder with the versions of one model")
    model_config_file: str = flag("", "ModelServerConfig in text format; overrides --model_base_path")
    model_config_file_poll_wait_seconds: float = flag(
        0, "seconds between checks of it; 0 disables them", flag_values.interval
    )
    file_system_poll_wait_seconds: float = flag(
        1, "seconds between checks for new versions; 0 checks once, a negative number never", flag_values.interval
    )
    max_num_load_retries: int = flag(5, "number of retries after a failed load", flag_values.count)
    load_retry_interval_micros: int = flag(60_000_000, "time between those retries; a negative number means 0", int)
    num_load_threads: int = flag(0, "number of versions to load in parallel (default 2)", flag_values.count)
    num_unload_threads: int = flag(0, "number of versions to unload in parallel (default 2)", flag_values.count)
    flush_filesystem_caches: bool = flag(True, "accepted, but there is no such cache")
    enable_model_warmup: bool = flag(True, "send a version its warm-up requests before it serves")
    num_request_iterations_for_warmup: int = flag(
        0, "how often each warm-up request is sent (default 1)", flag_values.count
    )
    saved_model_tags: str = flag("serve", "comma-separated tags of the meta graph (default 'serve')")
    allow_version_labels_for_unavailable_models: bool = flag(False, "allow labels of versions that are not loaded")

    tensorflow_intra_op_parallelism: int = flag(
        0, "number of threads within an operation (default auto)", flag_values.count
    )
    tensorflow_session_parallelism: int = flag(
        0, "sets both of the other two, unless they are given", flag_values.count
    )
    tensorflow_inter_op_parallelism: int = flag(
        0, "number of threads across operations (default auto)", flag_values.count
    )
    enable_serialization_as_tensor_content: bool = flag(False, "Predict returns tensors in tensor_content")
    enable_signature_method_name_check: bool = flag(False, "Classify and Regress reject TF2 signatures")

    traffic_config_file: str = flag("", "JSON file with the shares of each model's versions, in percent")
    traffic_config_file_poll_wait_seconds: float = flag(
        1, "seconds between checks of it; 0 disables them", flag_values.interval
    )
    sticky_header: str = flag(
        "x-sticky-key",
        "HTTP header or gRPC metadata key: requests with the same value go to the same version of a split",
        str.lower,
    )

    capture_base_path: str = flag("", "folder or URL for captured requests; if empty, none are captured")
    capture_mode: CaptureMode = flag("all", "what to capture")  # noqa: RUF009
    capture_sampling_percent: float = flag(100, "percentage of requests to capture", flag_values.percent)
    capture_roll_rows: int = flag(100_000, "number of rows after which a file is closed", flag_values.positive)
    capture_roll_seconds: float = flag(60, "age in seconds at which a file is closed", flag_values.seconds)
    capture_spool_path: str = flag(
        "", "local folder for rows that have not been written yet (default: next to a local base path)"
    )
    capture_spool_bytes: int = flag(2**30, "maximum size of that folder", flag_values.spool_bytes)

    allow_pickled_models: bool = flag(
        False, "load scikit-learn models from model.pkl and model.joblib: a pickle can run any code"
    )
    trusted_skops_types: str = flag(
        "", "comma-separated types that model.skops may hold, besides those that skops trusts"
    )

    max_request_memory_bytes: int = flag(
        0,
        "maximum memory of all requests in progress, including their decoded forms and answers (default: a quarter "
        "of that of the machine or container)",
        flag_values.positive,
    )
    max_request_bytes: int = flag(
        0,
        "maximum size of a decompressed request (default: a quarter of --max_request_memory_bytes, at most 1073741824)",
        flag_values.positive,
    )
    max_in_flight: int = flag(
        0,
        "maximum number of running and waiting requests, for gRPC and REST each; 0 means no limit (default)",
        flag_values.count,
    )
    rest_api_idle_seconds: float = flag(75, "time after which an idle REST connection is closed", flag_values.seconds)
    max_receive_seconds: float = flag(
        300, "maximum time for receiving the body of a request or a gRPC message", flag_values.positive_float
    )

    host: str = flag(
        "127.0.0.1",
        "address to listen on (default 127.0.0.1, because anyone who can reach the server can use and reconfigure "
        "it; 0.0.0.0 for all addresses)",
    )
    write_back_model_config: bool = flag(False, "write a config that arrives by RPC to --model_config_file")
    control_token_file: str = flag(
        "", "file of tokens, one per line; everything except predictions and health requires one of them"
    )
    prediction_token_file: str = flag(
        "", "file of tokens; predictions require one of them, or one of --control_token_file"
    )
    feedback_token_file: str = flag("", "file of tokens that only allow feedback; requires --control_token_file")
    log_file: str = flag("", "also write the log to this file")
    first_load_timeout_seconds: float = flag(
        600, "at the start, maximum wait for models that are still loading before the ports open", flag_values.seconds
    )
    drain_delay_seconds: float = flag(
        0, "after SIGTERM, how long new requests are still answered while /readyz returns 503", flag_values.seconds
    )
    drain_seconds: float = flag(30, "after SIGTERM, maximum wait for requests in flight", flag_values.seconds)
    ready_file: str = flag(
        "", "file for the JSON object {pid, grpc_port, rest_api_port}, written when the server is ready"
    )

    of_parts: tuple[Any, ...] = ()
    models_flag: str = ""

    def of(self, kind: type[_PartFlags]) -> _PartFlags:
        """Returns the flags of a part."""
        return next((flags for flags in self.of_parts if type(flags) is kind), None) or kind()

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
    def capture_place(self) -> str:
        """Folder or URL of the captured requests; empty if capture is off."""
        path = self.capture_base_path
        return str(Path(path).absolute()) if path and "://" not in path else path

"""The command line: TensorFlow Serving's flags by their own names, and a few of ours."""

from __future__ import annotations

import argparse
import os
import resource
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from airflow_hops.core.processes.machine_memory import memory_bytes
from airflow_hops.serving.capture.options import CaptureFormat, CaptureMode
from airflow_hops.serving.flag_parser import make_parser

# TensorFlow Serving's flags that change nothing here, and why: saying so beats silence.
_WITHOUT_EFFECT = {
    "enable_grpc_healthcheck_service": "the health service is always there",
    "mixed_precision": "this pass does not exist",
    "num_tflite_interpreters_per_pool": "each request thread has its own interpreter",
    "num_tflite_pools": "each request thread has its own interpreter",
    "per_process_gpu_memory_fraction": "TensorFlow allocates GPU memory as needed",
    "platform_config_file": "models are recognised by their files",
    "remove_unused_fields_from_bundle_metagraph": "they are never kept",
    "skip_initialize_tpu": "there is no TPU",
    "tensorflow_session_config_file": "see --tensorflow_intra_op_parallelism and --tensorflow_inter_op_parallelism",
    "thread_pool_factory_config_file": "TensorFlow manages the threads",
    "use_alts_credentials": "see --ssl_config_file",
    "xla_cpu_compilation_enabled": "a model is compiled if its graph requests it",
}


@dataclass(frozen=True)
class Flags:
    """Parsed flags; names and defaults are TensorFlow Serving's where it has the flag."""

    host: str = "127.0.0.1"
    allow_pickled_models: bool = False
    trusted_skops_types: str = ""
    port: int = 8500
    rest_api_port: int | None = None
    model_name: str = "default"
    model_base_path: str = ""
    model_cache_path: str = ""
    model_config_file: str = ""
    model_config_file_poll_wait_seconds: float = 0
    file_system_poll_wait_seconds: float = 1
    max_num_load_retries: int = 5
    load_retry_interval_micros: int = 60_000_000
    num_load_threads: int = 0
    num_unload_threads: int = 0
    flush_filesystem_caches: bool = True
    enable_batching: bool = False
    batching_parameters_file: str = ""
    enable_per_model_batching_parameters: bool = False
    enable_model_warmup: bool = True
    num_request_iterations_for_warmup: int = 0
    write_back_model_config: bool = False
    grpc_socket_path: str = ""
    grpc_channel_arguments: str = ""
    grpc_max_threads: int = 0
    rest_api_num_threads: int = 0
    rest_api_timeout_in_ms: int = 30_000
    rest_api_enable_cors_support: bool = False
    rest_api_idle_seconds: float = 75
    max_receive_seconds: float = 300
    rest_api_connections_per_client: int | None = None
    ssl_config_file: str = ""
    rest_api_enable_ssl: bool = False
    monitoring_config_file: str = ""
    control_token_file: str = ""
    prediction_token_file: str = ""
    feedback_token_file: str = ""
    log_file: str = ""
    request_log: str = ""
    request_log_sampling_percent: float = 100
    max_request_bytes: int = 0
    max_request_memory_bytes: int = 0
    max_in_flight: int = 0
    saved_model_tags: str = "serve"
    enable_serialization_as_tensor_content: bool = False
    enable_signature_method_name_check: bool = False
    prefer_tflite_model: bool = False
    enable_profiler: bool = False
    profiler_log_dir: str = ""
    allow_version_labels_for_unavailable_models: bool = False
    tensorflow_intra_op_parallelism: int = 0
    tensorflow_inter_op_parallelism: int = 0
    traffic_config_file: str = ""
    traffic_config_file_poll_wait_seconds: float = 1
    upstream: tuple[str, ...] = ()
    upstream_ca_file: str = ""
    upstream_cert_file: str = ""
    upstream_key_file: str = ""
    upstream_token_file: str = ""
    sticky_header: str = "x-sticky-key"
    fronts: int = 1
    front_timeout_seconds: float = 10
    shadow_queue_requests: int = 1000
    shadow_threads: int = 1
    shadow_tolerance: float = 1e-5
    capture_base_path: str = ""
    capture_mode: CaptureMode = "all"
    capture_sampling_percent: float = 100
    capture_roll_rows: int = 100_000
    capture_roll_seconds: float = 60
    capture_format: CaptureFormat = "parquet"
    capture_spool_path: str = ""
    capture_spool_bytes: int = 2**30
    capture_retention_days: float = 0
    capture_retention_bytes: int = 0
    capture_shadow: bool = False
    first_load_timeout_seconds: float = 600
    drain_seconds: float = 30
    drain_delay_seconds: float = 0
    ready_file: str = ""
    version: bool = False

    @property
    def request_threads(self) -> int:
        """Requests that run at once, by default four a core as in TensorFlow Serving, eight at least."""
        return self.grpc_max_threads or max(8, 4 * (os.cpu_count() or 1))

    @property
    def request_memory_bytes(self) -> int:
        """What all requests under way may take together, by default a quarter of the memory that there is."""
        return self.max_request_memory_bytes or memory_bytes() // 4

    @property
    def request_bytes(self) -> int:
        """Size of a request, by default a quarter of what all may take, 1 GiB at most."""
        return self.max_request_bytes or min(2**30, self.request_memory_bytes // 4)

    @property
    def connections_per_client(self) -> int:
        """REST connections of one client, by default half of the files that the process may open, 1000 at most."""
        if self.rest_api_connections_per_client is not None:
            return self.rest_api_connections_per_client
        open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return 1000 if open_files == resource.RLIM_INFINITY else min(1000, open_files // 2)

    @property
    def channel_arguments(self) -> dict[str, int | str]:
        """Options of gRPC itself by name; as in TensorFlow Serving, what reads as an integer is one."""
        pairs = (pair.partition("=") for pair in self.grpc_channel_arguments.split(",") if pair)
        return {name: int(value) if value.lstrip("-").isdigit() else value for name, _, value in pairs}

    @property
    def capture_place(self) -> str:
        """Folder or URL of the captured requests; empty if none are."""
        path = self.capture_base_path
        return str(Path(path).absolute()) if path and "://" not in path else path


def parse_flags(arguments: Sequence[str]) -> tuple[Flags, list[str]]:
    """Parses a command line.

    Args:
        arguments: Without the program's name.

    Returns:
        The flags, and one line for each argument that was ignored.

    Raises:
        SystemExit: A value is not valid (status 2, one line on stderr), or ``--help`` was asked for (status 0).
    """
    parser = make_parser()
    namespace, rest = parser.parse_known_args(arguments)
    notes = []
    for argument in rest:
        name = argument.lstrip("-").partition("=")[0]
        reason = _WITHOUT_EFFECT.get(name) if argument.startswith("-") else None
        if reason is not None:
            notes.append(f"flag --{name} has no effect here: {reason}")
        else:
            close = get_close_matches(
                f"--{name}", [flag for action in parser._actions for flag in action.option_strings]
            )
            notes.append(f"unknown argument: {argument}" + (f"; did you mean {' or '.join(close)}?" if close else ""))
    values = vars(namespace)
    threads = values.pop("tensorflow_session_parallelism", 0)
    values.setdefault("prefer_tflite_model", values.pop("use_tflite_model", False))
    values = {"tensorflow_intra_op_parallelism": threads, "tensorflow_inter_op_parallelism": threads, **values}
    flags = Flags(**values)
    _check(parser, flags)
    return flags, notes


def _check(parser: argparse.ArgumentParser, flags: Flags) -> None:
    if flags.port and flags.port == flags.rest_api_port:
        parser.error("--rest_api_port cannot be same as --port. Please use a different port for HTTP/REST API.")
    if not (flags.model_base_path or flags.model_config_file or flags.upstream or flags.version):
        parser.error("--model_base_path, --model_config_file and --upstream are all empty; expected one of them")
    if flags.model_base_path and flags.upstream:
        parser.error("--model_base_path and --upstream are both given; a gateway loads no model itself")
    _check_fronts(parser, flags)
    if flags.model_base_path and "://" not in flags.model_base_path and not Path(flags.model_base_path).is_absolute():
        parser.error(
            f"--model_base_path={flags.model_base_path}: Expected model {flags.model_name} to have an absolute path "
            f"or URI; got base_path()={flags.model_base_path}"
        )
    if flags.batching_parameters_file and not flags.enable_batching:
        parser.error(
            "server_options.batching_parameters_file is set without setting server_options.enable_batching to true."
        )
    if flags.enable_profiler and not flags.profiler_log_dir:
        parser.error("--enable_profiler is set without --profiler_log_dir; expected the folder to write profiles below")
    if flags.enable_profiler and flags.upstream:
        parser.error("--enable_profiler is set with --upstream; there is no model in this process to profile")
    for name in ("prediction_token_file", "feedback_token_file"):
        if getattr(flags, name) and not flags.control_token_file:
            parser.error(f"--{name} is set without --control_token_file; everything else would be open to everyone")
    if flags.rest_api_enable_ssl and not flags.ssl_config_file:
        parser.error(
            "--rest_api_enable_ssl is set without --ssl_config_file; expected the file with key and certificate"
        )
    if bool(flags.upstream_cert_file) != bool(flags.upstream_key_file):
        parser.error("--upstream_cert_file and --upstream_key_file go together; expected both or neither")
    if flags.write_back_model_config and not flags.model_config_file:
        parser.error("--write_back_model_config is set without --model_config_file; expected the file to write")


def _check_fronts(parser: argparse.ArgumentParser, flags: Flags) -> None:
    if flags.fronts == 1:
        return
    for name, why in {
        "upstream": "start several gateways instead",
        "grpc_socket_path": "only ports can be shared",
        "enable_profiler": "a profile is of one process",
    }.items():
        if getattr(flags, name):
            parser.error(f"--fronts={flags.fronts} and --{name} are both given; {why}")

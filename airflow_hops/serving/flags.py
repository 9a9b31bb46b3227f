"""The command line: TensorFlow Serving's flags by their own names, and a few of ours."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from airflow_hops.serving.capture.options import CAPTURE_FORMATS, CAPTURE_MODES, CaptureFormat, CaptureMode
from airflow_hops.serving.models.workers.autoscaling import NO_WORKERS, WorkerBounds

# TensorFlow Serving's flags that this server knows of and does not act on yet: saying so beats silence.
_NOT_YET = (
    "per_process_gpu_memory_fraction",
    "use_tflite_model",
)


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
    ssl_config_file: str = ""
    monitoring_config_file: str = ""
    control_token_file: str = ""
    log_file: str = ""
    request_log: str = ""
    request_log_sampling_percent: float = 100
    max_request_bytes: int = 2**30
    max_in_flight: int = 0
    saved_model_tags: str = "serve"
    enable_serialization_as_tensor_content: bool = False
    enable_signature_method_name_check: bool = False
    prefer_tflite_model: bool = False
    enable_profiler: bool = True
    allow_version_labels_for_unavailable_models: bool = False
    tensorflow_intra_op_parallelism: int = 0
    tensorflow_inter_op_parallelism: int = 0
    traffic_config_file: str = ""
    traffic_config_file_poll_wait_seconds: float = 1
    upstream: tuple[str, ...] = ()
    sticky_header: str = "x-sticky-key"
    workers: WorkerBounds = NO_WORKERS
    worker_target_in_flight: float = 2
    worker_scale_in_seconds: float = 30
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
    drain_seconds: float = 30
    drain_delay_seconds: float = 0
    ready_file: str = ""
    version: bool = False

    @property
    def request_threads(self) -> int:
        """Requests that run at once, by default four a core as in TensorFlow Serving, eight at least."""
        return self.grpc_max_threads or max(8, 4 * (os.cpu_count() or 1))

    @property
    def channel_arguments(self) -> dict[str, int | str]:
        """Options of gRPC itself by name; as in TensorFlow Serving, what reads as an integer is one."""
        pairs = (pair.partition("=") for pair in self.grpc_channel_arguments.split(",") if pair)
        return {name: int(value) if value.lstrip("-").isdigit() else value for name, _, value in pairs}

    @property
    def capture_place(self) -> str:
        """Folder or URL of the captured requests; empty where none are."""
        path = self.capture_base_path
        return str(Path(path).absolute()) if path and "://" not in path else path


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def parse_flags(arguments: Sequence[str]) -> tuple[Flags, list[str]]:
    """Parses a command line.

    Args:
        arguments: Without the program's name.

    Returns:
        The flags, and one line for each argument that was ignored.

    Raises:
        SystemExit: A value is not valid (status 2, one line on stderr), or ``--help`` was asked for (status 0).
    """
    parser = _parser()
    namespace, rest = parser.parse_known_args(arguments)
    notes = []
    for argument in rest:
        name = argument.lstrip("-").partition("=")[0]
        if name in _NOT_YET:
            notes.append(f"flag --{name} is TensorFlow Serving's; this server does not act on it yet, and ignores it")
        else:
            notes.append(f"unknown argument: {argument}")
    values = vars(namespace)
    flags = Flags(**values)
    if not (flags.model_base_path or flags.model_config_file or flags.upstream or flags.version):
        parser.error("--model_base_path, --model_config_file and --upstream are all empty; expected one of them")
    if flags.model_base_path and flags.upstream:
        parser.error("--model_base_path and --upstream are both given; a gateway loads no model itself")
    if flags.model_base_path and not Path(flags.model_base_path).is_absolute():
        parser.error(
            f"--model_base_path={flags.model_base_path}: Expected model {flags.model_name} to have an absolute path "
            f"or URI; got base_path()={flags.model_base_path}"
        )
    if flags.batching_parameters_file and not flags.enable_batching:
        parser.error(
            "server_options.batching_parameters_file is set without setting server_options.enable_batching to true."
        )
    if flags.write_back_model_config and not flags.model_config_file:
        parser.error("--write_back_model_config is set without --model_config_file; expected the file to write")
    return flags, notes


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m airflow_hops.serving",
        description="Serves SavedModels over TensorFlow Serving's gRPC and REST API. An unknown flag is printed and "
        "ignored, as TensorFlow Serving does.",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    served = parser.add_argument_group("TensorFlow Serving's flags")
    served.add_argument("--port", type=_port, help="gRPC port; 0 takes a free one (default 8500)")
    served.add_argument(
        "--rest_api_port", type=_rest_port, help="REST port; 0 is off, 'auto' takes a free one (default 0)"
    )
    served.add_argument("--model_name", help="name of the model at --model_base_path (default 'default')")
    served.add_argument("--model_base_path", help="absolute folder of the versions of one model")
    served.add_argument("--model_config_file", help="ModelServerConfig in text format; beats --model_base_path")
    served.add_argument(
        "--model_config_file_poll_wait_seconds", type=float, help="seconds between looks at it; 0 never (default 0)"
    )
    served.add_argument(
        "--file_system_poll_wait_seconds",
        type=float,
        help="seconds between looks for versions; 0 once, negative never (default 1)",
    )
    served.add_argument("--max_num_load_retries", type=_count, help="tries after a load that failed (default 5)")
    served.add_argument("--load_retry_interval_micros", type=_count, help="between those tries (default 60000000)")
    served.add_argument("--num_load_threads", type=_count, help="versions loaded at once (default 2)")
    served.add_argument("--num_unload_threads", type=_count, help="versions unloaded at once (default 2)")
    _add_switch(served, "--flush_filesystem_caches", "accepted; no such cache is kept (default true)")
    _add_switch(served, "--enable_batching", "requests that wait for one model run as one (default false)")
    served.add_argument("--batching_parameters_file", help="BatchingParameters in text format")
    _add_switch(
        served,
        "--enable_per_model_batching_parameters",
        "batching as batching_params.pbtxt in a version's folder says, and none without (default false)",
    )
    _add_switch(served, "--enable_model_warmup", "a version answers its warm-up requests first (default true)")
    served.add_argument(
        "--num_request_iterations_for_warmup", type=_count, help="times each of these is asked (default 1)"
    )
    served.add_argument("--grpc_max_threads", type=_count, help="requests at once (default 4 a core, 8 at least)")
    served.add_argument("--grpc_socket_path", help="UNIX socket to listen at for gRPC, beside the port")
    served.add_argument(
        "--grpc_channel_arguments", type=_arguments, help="gRPC's own options, as grpc.max_connection_age_ms=2000,…"
    )
    served.add_argument("--ssl_config_file", help="SSLConfig in text format: TLS for gRPC")
    served.add_argument("--monitoring_config_file", help="MonitoringConfig in text format: metrics for Prometheus")
    served.add_argument(
        "--rest_api_timeout_in_ms", type=_positive, help="how long a REST answer may take (default 30000)"
    )
    _add_switch(served, "--rest_api_enable_cors_support", "pages of other origins may ask (default false)")
    served.add_argument("--rest_api_num_threads", type=_count, help="REST requests at once (default as for gRPC)")
    served.add_argument("--saved_model_tags", help="comma-separated tags of the meta graph (default 'serve')")
    served.add_argument(
        "--allow_version_labels_for_unavailable_models",
        type=_boolean,
        nargs="?",
        const=True,
        help="a label may name a version that is not loaded (default false)",
    )
    served.add_argument(
        "--tensorflow_intra_op_parallelism", type=_count, help="threads of one operation (default auto)"
    )
    served.add_argument("--tensorflow_inter_op_parallelism", type=_count, help="threads over operations (default auto)")
    served.add_argument("--version", action="store_true", help="prints the versions and exits")
    for name, text in (
        ("enable_serialization_as_tensor_content", "Predict answers in tensor_content (default false)"),
        ("enable_signature_method_name_check", "Classify and Regress take no TF2 signatures (default false)"),
        ("prefer_tflite_model", "a version's model.tflite is served, where it has one (default false)"),
        ("enable_profiler", "gRPC service for TensorBoard's profiler (default true)"),
    ):
        served.add_argument(f"--{name}", type=_boolean, nargs="?", const=True, help=text)
    own = parser.add_argument_group("beyond TensorFlow Serving")
    own.add_argument(
        "--host",
        help="address to listen at (default 127.0.0.1: whoever reaches the server may use and reconfigure it; "
        "0.0.0.0 for every address)",
    )
    own.add_argument(
        "--allow_pickled_models",
        type=_boolean,
        nargs="?",
        const=True,
        help="scikit-learn models in model.pkl and model.joblib are loaded: a pickle runs whatever code it holds "
        "(default false)",
    )
    own.add_argument(
        "--trusted_skops_types", help="comma-separated types that model.skops may hold beyond those skops trusts itself"
    )
    own.add_argument("--traffic_config_file", help="JSON: shares of the versions of a model, in percent")
    own.add_argument(
        "--traffic_config_file_poll_wait_seconds", type=float, help="seconds between looks at it; 0 never (default 1)"
    )
    own.add_argument(
        "--upstream",
        type=_addresses,
        help="host:port or unix:path of a tensorflow_model_server's gRPC port, or several with commas between: requests "
        "are handed on to them, and no model is loaded here",
    )
    own.add_argument(
        "--sticky_header",
        type=str.lower,
        help="HTTP header or gRPC metadata whose equal values go to one version of a split (default x-sticky-key)",
    )
    own.add_argument(
        "--shadow_queue_requests", type=_positive, help="copies for shadow traffic that wait at most (default 1000)"
    )
    own.add_argument("--shadow_threads", type=_positive, help="copies that run at once (default 1)")
    own.add_argument(
        "--shadow_tolerance",
        type=_tolerance,
        help="difference, absolute or relative, up to which two outputs are the same (default 1e-5)",
    )
    own.add_argument("--capture_base_path", help="folder or URL for captured requests; empty captures nothing")
    own.add_argument("--capture_mode", choices=CAPTURE_MODES, help="what is captured (default all)")
    own.add_argument("--capture_sampling_percent", type=_percent, help="share of the requests captured (default 100)")
    own.add_argument("--capture_roll_rows", type=_positive, help="rows after which a file is closed (default 100000)")
    own.add_argument("--capture_roll_seconds", type=_seconds, help="age at which a file is closed (default 60)")
    own.add_argument("--capture_format", choices=CAPTURE_FORMATS, help="kinds of file (default parquet)")
    own.add_argument(
        "--capture_spool_path", help="local folder of what waits to be written (default beside a local base path)"
    )
    own.add_argument("--capture_spool_bytes", type=_spool_bytes, help="size of that at most (default 1073741824)")
    own.add_argument("--capture_retention_days", type=_seconds, help="age at which files go; 0 never (default)")
    own.add_argument(
        "--capture_retention_bytes", type=_count, help="size of a model's files at most; 0 is no limit (default)"
    )
    _add_switch(own, "--capture_shadow", "answers of shadow traffic are captured, too (default false)")
    _add_switch(
        own, "--write_back_model_config", "a config that came by RPC is written to --model_config_file (default false)"
    )
    own.add_argument(
        "--control_token_file", help="whoever reloads configs or sets traffic must show the token in this file"
    )
    own.add_argument("--log_file", help="the log goes there, too")
    own.add_argument("--request_log", help="file of JSON lines, one a request")
    own.add_argument(
        "--request_log_sampling_percent",
        type=_percent,
        help="share of the answered requests in it; errors always are (default 100)",
    )
    own.add_argument("--max_request_bytes", type=_positive, help="size of a request (default 1073741824)")
    own.add_argument(
        "--max_in_flight", type=_count, help="requests that run or wait, each of gRPC and REST; 0 is no limit (default)"
    )
    own.add_argument(
        "--rest_api_idle_seconds", type=_seconds, help="a REST connection as long idle is closed (default 75)"
    )
    own.add_argument(
        "--drain_delay_seconds",
        type=_seconds,
        help="on SIGTERM new requests are answered for as long, while /readyz says 503 (default 0)",
    )
    own.add_argument(
        "--workers",
        type=_workers,
        help="worker processes of each version: N, or MIN:MAX to scale by requests in flight; 0 runs models in the "
        "server's own process (default 0)",
    )
    own.add_argument(
        "--worker_target_in_flight",
        type=_positive_float,
        help="requests in flight that one worker is for, beyond which another is started (default 2)",
    )
    own.add_argument(
        "--worker_scale_in_seconds",
        type=_seconds,
        help="how long fewer workers must have been enough before one is ended (default 30)",
    )
    own.add_argument("--drain_seconds", type=_seconds, help="wait for requests in flight on SIGTERM (default 30)")
    own.add_argument("--ready_file", help="JSON {pid, grpc_port, rest_api_port}, written when the server is ready")
    return parser


def _add_switch(group: argparse._ArgumentGroup, name: str, what: str) -> None:
    group.add_argument(name, type=_boolean, nargs="?", const=True, help=what)


def _number(text: str, low: float, high: float, expected: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not low <= value <= high:
        raise argparse.ArgumentTypeError(f"value is {text!r}; expected {expected}")
    return value


def _port(text: str) -> int:
    return _number(text, 0, 65535, "a port from 0 to 65535")


def _rest_port(text: str) -> int | None:
    """None is off, 0 any free port."""
    if text == "auto":
        return 0
    return _number(text, 0, 65535, "a port from 0 to 65535, or 'auto'") or None


def _addresses(text: str) -> tuple[str, ...]:
    addresses = tuple(text.split(","))
    for address in addresses:
        host, _, port = address.rpartition(":")
        is_path = address.startswith("unix:") and len(address) > len("unix:")
        if not is_path and not (host and port.isascii() and port.isdigit() and 0 < int(port) <= 65535):
            raise argparse.ArgumentTypeError(f"value is {address!r}; expected host:port or unix:path")
    return addresses


def _count(text: str) -> int:
    return _number(text, 0, math.inf, "a whole number, 0 or more")


def _spool_bytes(text: str) -> int:
    return _number(text, 2**16, math.inf, "a whole number of bytes, 65536 or more")


def _positive(text: str) -> int:
    return _number(text, 1, math.inf, "a whole number, 1 or more")


def _float(text: str, low: float, high: float, expected: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise argparse.ArgumentTypeError(f"value is {text!r}; expected {expected}")
    return value


def _arguments(text: str) -> str:
    for pair in text.split(","):
        name, equals, _ = pair.partition("=")
        if pair and not (name and equals):
            raise argparse.ArgumentTypeError(f"value is {pair!r}; expected name=value, separated by commas")
    return text


def _percent(text: str) -> float:
    return _float(text, 0, 100, "a percent from 0 to 100")


def _tolerance(text: str) -> float:
    return _float(text, 0, 1e300, "a number, 0 or more")


def _seconds(text: str) -> float:
    return _float(text, 0, 1e9, "seconds, 0 or more")


def _positive_float(text: str) -> float:
    return _float(text, 1e-3, 1e9, "a number above 0")


def _workers(text: str) -> WorkerBounds:
    try:
        return WorkerBounds.parse(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"value is {text!r}; expected a number of processes, as 4, or MIN:MAX, as 1:4"
        ) from None


def _boolean(text: str) -> bool:
    if text.lower() in ("true", "1"):
        return True
    if text.lower() in ("false", "0"):
        return False
    raise argparse.ArgumentTypeError(f"value is {text!r}; expected true or false")

"""The flags as the command line takes them, in groups; ``--help`` is made of this."""

from __future__ import annotations

import argparse
from typing import NoReturn

from airflow_hops.serving import flag_values
from airflow_hops.serving.capture.options import CAPTURE_FORMATS, CAPTURE_MODES


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


class _Help(argparse.HelpFormatter):
    """Flags as they are written, ``--name=VALUE``, each on a line of its own where it is long."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=40, width=120)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        name = action.option_strings[-1]
        if action.nargs == 0:
            return name
        choices = "|".join(map(str, action.choices)) if action.choices else "VALUE"
        return f"{name}[=true|false]" if action.nargs == "?" else f"{name}={choices}"


def make_parser() -> argparse.ArgumentParser:
    """Returns a parser of the command line; a flag that is not given leaves no trace in what it finds."""
    parser = _Parser(
        prog="python -m airflow_hops.serving",
        description="Serves models over TensorFlow Serving's gRPC and REST API, by its own flags and a few more. An "
        "unknown flag is printed and ignored, as TensorFlow Serving does.",
        usage="%(prog)s --model_base_path=/FOLDER | --model_config_file=FILE | --upstream=HOST:PORT [--flag=VALUE …]",
        formatter_class=_Help,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    _add_transport(parser.add_argument_group("Ports and transport (TensorFlow Serving's flags)"))
    _add_models(parser.add_argument_group("Models and versions (TensorFlow Serving's flags)"))
    _add_running(parser.add_argument_group("How models run (TensorFlow Serving's flags)"))
    _add_traffic(parser.add_argument_group("Traffic and upstream servers"))
    _add_capture(parser.add_argument_group("Captured requests"))
    _add_workers(parser.add_argument_group("Worker processes"))
    _add_own_models(parser.add_argument_group("Models"))
    _add_limits(parser.add_argument_group("Limits"))
    _add_control(parser.add_argument_group("Address, control, logs, start and stop"))
    return parser


def _add_transport(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--port", type=flag_values.port, help="gRPC port; 0 takes a free one (default 8500)")
    group.add_argument(
        "--rest_api_port", type=flag_values.rest_port, help="REST port; 0 is off, 'auto' takes a free one (default 0)"
    )
    group.add_argument(
        "--grpc_max_threads", type=flag_values.count, help="requests at once (default 4 a core, 8 at least)"
    )
    group.add_argument("--grpc_socket_path", help="UNIX socket to listen at for gRPC, beside the port")
    group.add_argument(
        "--grpc_channel_arguments",
        type=flag_values.arguments,
        help="gRPC's own options, as grpc.max_connection_age_ms=2000,…",
    )
    group.add_argument("--ssl_config_file", help="SSLConfig in text format: TLS for gRPC")
    _add_switch(group, "--rest_api_enable_ssl", "ours: TLS for REST too, of --ssl_config_file (default false)")
    group.add_argument("--monitoring_config_file", help="MonitoringConfig in text format: metrics for Prometheus")
    group.add_argument(
        "--rest_api_timeout_in_ms", type=flag_values.positive, help="how long a REST answer may take (default 30000)"
    )
    _add_switch(group, "--rest_api_enable_cors_support", "pages of other origins may ask (default false)")
    group.add_argument(
        "--rest_api_num_threads", type=flag_values.count, help="REST requests at once (default as for gRPC)"
    )
    group.add_argument("--version", action="store_true", help="prints the versions and exits")
    _add_switch(
        group, "--enable_profiler", "gRPC service for TensorBoard's profiler; needs --profiler_log_dir (default false)"
    )


def _add_models(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--model_name", help="name of the model at --model_base_path (default 'default')")
    group.add_argument("--model_base_path", help="absolute folder, or URL, of the versions of one model")
    group.add_argument("--model_config_file", help="ModelServerConfig in text format; beats --model_base_path")
    group.add_argument(
        "--model_config_file_poll_wait_seconds",
        type=flag_values.interval,
        help="seconds between looks at it; 0 never (default 0)",
    )
    group.add_argument(
        "--file_system_poll_wait_seconds",
        type=flag_values.interval,
        help="seconds between looks for versions; 0 once, negative never (default 1)",
    )
    group.add_argument(
        "--max_num_load_retries", type=flag_values.count, help="tries after a load that failed (default 5)"
    )
    group.add_argument(
        "--load_retry_interval_micros", type=int, help="between those tries; negative is 0 (default 60000000)"
    )
    group.add_argument("--num_load_threads", type=flag_values.count, help="versions loaded at once (default 2)")
    group.add_argument("--num_unload_threads", type=flag_values.count, help="versions unloaded at once (default 2)")
    _add_switch(group, "--flush_filesystem_caches", "accepted; no such cache is kept (default true)")
    _add_switch(group, "--enable_model_warmup", "a version answers its warm-up requests first (default true)")
    group.add_argument(
        "--num_request_iterations_for_warmup", type=flag_values.count, help="times each of these is asked (default 1)"
    )
    group.add_argument("--saved_model_tags", help="comma-separated tags of the meta graph (default 'serve')")
    _add_switch(
        group,
        "--allow_version_labels_for_unavailable_models",
        "a label may name a version that is not loaded (default false)",
    )
    _add_switch(group, "--use_tflite_model", "the older name of --prefer_tflite_model")
    _add_switch(group, "--prefer_tflite_model", "a version's model.tflite is served, where it has one (default false)")


def _add_running(group: argparse._ArgumentGroup) -> None:
    _add_switch(group, "--enable_batching", "requests that wait for one model run as one (default false)")
    group.add_argument("--batching_parameters_file", help="BatchingParameters in text format")
    _add_switch(
        group,
        "--enable_per_model_batching_parameters",
        "batching as batching_params.pbtxt in a version's folder says, and none without (default false)",
    )
    group.add_argument(
        "--tensorflow_intra_op_parallelism", type=flag_values.count, help="threads of one operation (default auto)"
    )
    group.add_argument("--tensorflow_session_parallelism", type=flag_values.count, help="both, unless they are given")
    group.add_argument(
        "--tensorflow_inter_op_parallelism", type=flag_values.count, help="threads over operations (default auto)"
    )
    _add_switch(group, "--enable_serialization_as_tensor_content", "Predict answers in tensor_content (default false)")
    _add_switch(
        group, "--enable_signature_method_name_check", "Classify and Regress take no TF2 signatures (default false)"
    )


def _add_traffic(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--traffic_config_file", help="JSON: shares of the versions of a model, in percent")
    group.add_argument(
        "--traffic_config_file_poll_wait_seconds",
        type=flag_values.interval,
        help="seconds between looks at it; 0 never (default 1)",
    )
    group.add_argument(
        "--upstream",
        type=flag_values.addresses,
        help="host:port or unix:path of a tensorflow_model_server's gRPC port, or several with commas between: "
        "requests are handed on to them, and no model is loaded here",
    )
    group.add_argument("--upstream_ca_file", help="PEM file of who signed the upstreams' certificates; turns TLS on")
    group.add_argument("--upstream_cert_file", help="PEM file of the certificate that is shown to them")
    group.add_argument("--upstream_key_file", help="PEM file of its private key")
    group.add_argument("--upstream_token_file", help="file whose first token is shown to them")
    group.add_argument(
        "--sticky_header",
        type=str.lower,
        help="HTTP header or gRPC metadata whose equal values go to one version of a split (default x-sticky-key)",
    )
    group.add_argument(
        "--shadow_queue_requests",
        type=flag_values.positive,
        help="copies for shadow traffic that wait at most (default 1000)",
    )
    group.add_argument("--shadow_threads", type=flag_values.positive, help="copies that run at once (default 1)")
    group.add_argument(
        "--shadow_tolerance",
        type=flag_values.tolerance,
        help="difference, absolute or relative, up to which two outputs are the same (default 1e-5)",
    )


def _add_capture(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--capture_base_path", help="folder or URL for captured requests; empty captures nothing")
    group.add_argument("--capture_mode", choices=CAPTURE_MODES, help="what is captured (default all)")
    group.add_argument(
        "--capture_sampling_percent", type=flag_values.percent, help="share of the requests captured (default 100)"
    )
    group.add_argument(
        "--capture_roll_rows", type=flag_values.positive, help="rows after which a file is closed (default 100000)"
    )
    group.add_argument(
        "--capture_roll_seconds", type=flag_values.seconds, help="age at which a file is closed (default 60)"
    )
    group.add_argument("--capture_format", choices=CAPTURE_FORMATS, help="kinds of file (default parquet)")
    group.add_argument(
        "--capture_spool_path", help="local folder of what waits to be written (default beside a local base path)"
    )
    group.add_argument(
        "--capture_spool_bytes", type=flag_values.spool_bytes, help="size of that at most (default 1073741824)"
    )
    group.add_argument(
        "--capture_retention_days", type=flag_values.seconds, help="age at which files go; 0 never (default)"
    )
    group.add_argument(
        "--capture_retention_bytes",
        type=flag_values.count,
        help="size of a model's files at most; 0 is no limit (default)",
    )
    _add_switch(group, "--capture_shadow", "answers of shadow traffic are captured, too (default false)")


def _add_workers(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--workers",
        type=flag_values.workers,
        help="worker processes of each version: N, or MIN:MAX to scale by requests in flight; 0 runs models in the "
        "server's own process (default 0)",
    )
    group.add_argument(
        "--worker_target_in_flight",
        type=flag_values.positive_float,
        help="requests in flight that one worker is for, beyond which another is started (default 2)",
    )
    group.add_argument(
        "--worker_scale_in_seconds",
        type=flag_values.seconds,
        help="how long fewer workers must have been enough before one is ended (default 30)",
    )


def _add_own_models(group: argparse._ArgumentGroup) -> None:
    _add_switch(
        group,
        "--allow_pickled_models",
        "scikit-learn models in model.pkl and model.joblib are loaded: a pickle runs whatever code it holds "
        "(default false)",
    )
    group.add_argument(
        "--model_cache_path",
        help="folder for copies of versions whose base path is a URL (default the system's temporary folder)",
    )
    group.add_argument(
        "--trusted_skops_types", help="comma-separated types that model.skops may hold beyond those skops trusts itself"
    )


def _add_limits(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--max_request_memory_bytes",
        type=flag_values.positive,
        help="memory that all requests under way may take together, what becomes of them included (default a quarter "
        "of the machine's or container's)",
    )
    group.add_argument(
        "--max_request_bytes",
        type=flag_values.positive,
        help="size of a request, decompressed (default a quarter of --max_request_memory_bytes, 1073741824 at most)",
    )
    group.add_argument(
        "--max_in_flight",
        type=flag_values.count,
        help="requests that run or wait, each of gRPC and REST; 0 is no limit (default)",
    )
    group.add_argument(
        "--rest_api_idle_seconds",
        type=flag_values.seconds,
        help="a REST connection as long idle is closed (default 75)",
    )
    group.add_argument(
        "--max_receive_seconds",
        type=flag_values.positive_float,
        help="how long the body of a request, or its message over gRPC, may take to arrive (default 300)",
    )
    group.add_argument(
        "--rest_api_connections_per_client",
        type=flag_values.count,
        help="REST connections of one address; 0 is no limit (default half of the open files allowed, 1000 at most)",
    )


def _add_control(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--host",
        help="address to listen at (default 127.0.0.1: whoever reaches the server may use and reconfigure it; "
        "0.0.0.0 for every address)",
    )
    _add_switch(
        group,
        "--write_back_model_config",
        "a config that came by RPC is written to --model_config_file (default false)",
    )
    group.add_argument(
        "--control_token_file", help="file of tokens, one a line: all but predictions and health takes one of them"
    )
    group.add_argument(
        "--prediction_token_file", help="file of tokens: predictions take one of them, or of --control_token_file"
    )
    group.add_argument(
        "--feedback_token_file", help="file of tokens that are for feedback alone, beside --control_token_file"
    )
    group.add_argument("--profiler_log_dir", help="folder below which --enable_profiler may write")
    group.add_argument("--log_file", help="the log goes there, too")
    group.add_argument("--request_log", help="file of JSON lines, one a request")
    group.add_argument(
        "--request_log_sampling_percent",
        type=flag_values.percent,
        help="share of the answered requests in it; errors always are (default 100)",
    )
    group.add_argument(
        "--drain_delay_seconds",
        type=flag_values.seconds,
        help="on SIGTERM new requests are answered for as long, while /readyz says 503 (default 0)",
    )
    group.add_argument(
        "--drain_seconds", type=flag_values.seconds, help="wait for requests in flight on SIGTERM (default 30)"
    )
    group.add_argument("--ready_file", help="JSON {pid, grpc_port, rest_api_port}, written when the server is ready")


def _add_switch(group: argparse._ArgumentGroup, name: str, what: str) -> None:
    group.add_argument(name, type=flag_values.boolean, nargs="?", const=True, help=what)

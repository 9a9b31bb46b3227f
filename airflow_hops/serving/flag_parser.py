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
        description="Serves models with TensorFlow Serving's gRPC and REST APIs. Takes its flags, and a few more. "
        "Like TensorFlow Serving, prints and ignores unknown flags.",
        usage="%(prog)s --model_base_path=/FOLDER | --model_config_file=FILE | --upstream=HOST:PORT [--flag=VALUE …]",
        formatter_class=_Help,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    group = parser.add_argument_group("Ports and transport (TensorFlow Serving's flags)")
    group.add_argument("--port", type=flag_values.port, help="gRPC port; 0 chooses a free one (default 8500)")
    group.add_argument(
        "--rest_api_port",
        type=flag_values.rest_port,
        help="REST port; 0 disables REST, 'auto' chooses a free port (default 0)",
    )
    group.add_argument(
        "--grpc_max_threads",
        type=flag_values.count,
        help="maximum number of concurrent requests (default 4 per core, at least 8)",
    )
    group.add_argument("--grpc_socket_path", help="UNIX socket to listen on for gRPC, in addition to the port")
    group.add_argument(
        "--grpc_channel_arguments",
        type=flag_values.arguments,
        help="gRPC channel arguments, such as grpc.max_connection_age_ms=2000,…",
    )
    group.add_argument("--ssl_config_file", help="SSLConfig in text format: TLS for gRPC")
    _add_switch(
        group,
        "--rest_api_enable_ssl",
        "not a TensorFlow Serving flag: TLS for REST as well, with --ssl_config_file (default false)",
    )
    group.add_argument("--monitoring_config_file", help="MonitoringConfig in text format: metrics for Prometheus")
    group.add_argument(
        "--rest_api_timeout_in_ms", type=flag_values.positive, help="time limit of a REST request (default 30000)"
    )
    _add_switch(group, "--rest_api_enable_cors_support", "allow requests from pages of other origins (default false)")
    group.add_argument(
        "--rest_api_num_threads",
        type=flag_values.count,
        help="maximum number of concurrent REST requests (default as for gRPC)",
    )
    group.add_argument("--version", action="store_true", help="print the versions and exit")
    _add_switch(
        group, "--enable_profiler", "gRPC service for TensorBoard's profiler; needs --profiler_log_dir (default false)"
    )
    _add_models(parser.add_argument_group("Models and versions (TensorFlow Serving's flags)"))
    _add_running(parser.add_argument_group("How models run (TensorFlow Serving's flags)"))
    _add_traffic(parser.add_argument_group("Traffic and upstream servers"))
    _add_capture(parser.add_argument_group("Captured requests"))
    _add_processes(parser.add_argument_group("Processes"))
    _add_own_models(parser.add_argument_group("Models"))
    _add_limits(parser.add_argument_group("Limits"))
    _add_control(parser.add_argument_group("Address, control, logs, start and stop"))
    return parser


def _add_models(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--model_name", help="name of the model at --model_base_path (default 'default')")
    group.add_argument("--model_base_path", help="absolute path or URL of the folder with the versions of one model")
    group.add_argument("--model_config_file", help="ModelServerConfig in text format; overrides --model_base_path")
    group.add_argument(
        "--model_config_file_poll_wait_seconds",
        type=flag_values.interval,
        help="seconds between checks of it; 0 disables them (default 0)",
    )
    group.add_argument(
        "--file_system_poll_wait_seconds",
        type=flag_values.interval,
        help="seconds between checks for new versions; 0 checks once, a negative number never (default 1)",
    )
    group.add_argument(
        "--max_num_load_retries", type=flag_values.count, help="number of retries after a failed load (default 5)"
    )
    group.add_argument(
        "--load_retry_interval_micros",
        type=int,
        help="time between those retries; a negative number means 0 (default 60000000)",
    )
    group.add_argument(
        "--num_load_threads", type=flag_values.count, help="number of versions to load in parallel (default 2)"
    )
    group.add_argument(
        "--num_unload_threads", type=flag_values.count, help="number of versions to unload in parallel (default 2)"
    )
    _add_switch(group, "--flush_filesystem_caches", "accepted, but there is no such cache (default true)")
    _add_switch(group, "--enable_model_warmup", "send a version its warm-up requests before it serves (default true)")
    group.add_argument(
        "--num_request_iterations_for_warmup",
        type=flag_values.count,
        help="how often each warm-up request is sent (default 1)",
    )
    group.add_argument("--saved_model_tags", help="comma-separated tags of the meta graph (default 'serve')")
    _add_switch(
        group,
        "--allow_version_labels_for_unavailable_models",
        "allow labels of versions that are not loaded (default false)",
    )
    _add_switch(group, "--use_tflite_model", "old name of --prefer_tflite_model")
    _add_switch(group, "--prefer_tflite_model", "serve a version's model.tflite, if it has one (default false)")


def _add_running(group: argparse._ArgumentGroup) -> None:
    _add_switch(group, "--enable_batching", "run waiting requests for one model as one batch (default false)")
    group.add_argument("--batching_parameters_file", help="BatchingParameters in text format")
    _add_switch(
        group,
        "--enable_per_model_batching_parameters",
        "batch only models with batching_params.pbtxt in the version's folder, with those parameters (default false)",
    )
    group.add_argument(
        "--tensorflow_intra_op_parallelism",
        type=flag_values.count,
        help="number of threads within an operation (default auto)",
    )
    group.add_argument(
        "--tensorflow_session_parallelism",
        type=flag_values.count,
        help="sets both of the other two, unless they are given",
    )
    group.add_argument(
        "--tensorflow_inter_op_parallelism",
        type=flag_values.count,
        help="number of threads across operations (default auto)",
    )
    _add_switch(
        group, "--enable_serialization_as_tensor_content", "Predict returns tensors in tensor_content (default false)"
    )
    _add_switch(
        group, "--enable_signature_method_name_check", "Classify and Regress reject TF2 signatures (default false)"
    )


def _add_traffic(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--traffic_config_file", help="JSON file with the shares of each model's versions, in percent")
    group.add_argument(
        "--traffic_config_file_poll_wait_seconds",
        type=flag_values.interval,
        help="seconds between checks of it; 0 disables them (default 1)",
    )
    group.add_argument(
        "--upstream",
        type=flag_values.addresses,
        help="host:port or unix:path of a tensorflow_model_server's gRPC port, or several separated by commas: "
        "requests are forwarded to them, and this server loads no models",
    )
    group.add_argument(
        "--upstream_ca_file", help="PEM file of the CA that signed the upstreams' certificates; enables TLS"
    )
    group.add_argument("--upstream_cert_file", help="PEM file of the client certificate for the upstreams")
    group.add_argument("--upstream_key_file", help="PEM file of the private key of the client certificate")
    group.add_argument("--upstream_token_file", help="file whose first token is sent to the upstreams")
    group.add_argument(
        "--sticky_header",
        type=str.lower,
        help="HTTP header or gRPC metadata key: requests with the same value go to the same version of a split "
        "(default x-sticky-key)",
    )
    group.add_argument(
        "--shadow_queue_requests",
        type=flag_values.positive,
        help="maximum number of queued copies for shadow traffic (default 1000)",
    )
    group.add_argument(
        "--shadow_threads", type=flag_values.positive, help="number of copies to run in parallel (default 1)"
    )
    group.add_argument(
        "--shadow_tolerance",
        type=flag_values.tolerance,
        help="absolute or relative difference up to which two outputs count as equal (default 1e-5)",
    )


def _add_capture(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--capture_base_path", help="folder or URL for captured requests; if empty, nothing is captured")
    group.add_argument("--capture_mode", choices=CAPTURE_MODES, help="what to capture (default all)")
    group.add_argument(
        "--capture_sampling_percent", type=flag_values.percent, help="percentage of requests to capture (default 100)"
    )
    group.add_argument(
        "--capture_roll_rows",
        type=flag_values.positive,
        help="number of rows after which a file is closed (default 100000)",
    )
    group.add_argument(
        "--capture_roll_seconds", type=flag_values.seconds, help="age in seconds at which a file is closed (default 60)"
    )
    group.add_argument("--capture_format", choices=CAPTURE_FORMATS, help="file formats (default parquet)")
    group.add_argument(
        "--capture_spool_path",
        help="local folder for rows that have not been written yet (default: next to a local base path)",
    )
    group.add_argument(
        "--capture_spool_bytes", type=flag_values.spool_bytes, help="maximum size of that folder (default 1073741824)"
    )
    group.add_argument(
        "--capture_retention_days",
        type=flag_values.seconds,
        help="age in days at which files are deleted; 0 keeps them (default)",
    )
    group.add_argument(
        "--capture_retention_bytes",
        type=flag_values.count,
        help="maximum size of a model's files; 0 means no limit (default)",
    )
    _add_switch(group, "--capture_shadow", "also capture the answers of shadow traffic (default false)")


def _add_processes(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--fronts",
        type=flag_values.positive,
        help="number of processes that share the ports, each with all models (default 1)",
    )
    group.add_argument(
        "--front_timeout_seconds",
        type=flag_values.seconds,
        help="seconds without a sign of life after which one of them is replaced; 0 waits for ever (default 10)",
    )


def _add_own_models(group: argparse._ArgumentGroup) -> None:
    _add_switch(
        group,
        "--allow_pickled_models",
        "load scikit-learn models from model.pkl and model.joblib: a pickle can run any code (default false)",
    )
    group.add_argument(
        "--model_cache_path",
        help="folder for copies of versions whose base path is a URL (default: the system's temporary folder)",
    )
    group.add_argument(
        "--trusted_skops_types", help="comma-separated types that model.skops may hold, besides those that skops trusts"
    )


def _add_limits(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--max_request_memory_bytes",
        type=flag_values.positive,
        help="maximum memory of all requests in progress, including their decoded forms and answers (default: a "
        "quarter of that of the machine or container)",
    )
    group.add_argument(
        "--max_request_bytes",
        type=flag_values.positive,
        help="maximum size of a decompressed request (default: a quarter of --max_request_memory_bytes, at most "
        "1073741824)",
    )
    group.add_argument(
        "--max_in_flight",
        type=flag_values.count,
        help="maximum number of running and waiting requests, for gRPC and REST each; 0 means no limit (default)",
    )
    group.add_argument(
        "--rest_api_idle_seconds",
        type=flag_values.seconds,
        help="time after which an idle REST connection is closed (default 75)",
    )
    group.add_argument(
        "--max_receive_seconds",
        type=flag_values.positive_float,
        help="maximum time for receiving the body of a request or a gRPC message (default 300)",
    )
    group.add_argument(
        "--rest_api_connections_per_client",
        type=flag_values.count,
        help="maximum number of REST connections per client address; 0 means no limit (default: half of the open "
        "files allowed, at most 1000)",
    )


def _add_control(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--host",
        help="address to listen on (default 127.0.0.1, because anyone who can reach the server can use and "
        "reconfigure it; 0.0.0.0 for all addresses)",
    )
    _add_switch(
        group,
        "--write_back_model_config",
        "write a config that arrives by RPC to --model_config_file (default false)",
    )
    group.add_argument(
        "--control_token_file",
        help="file of tokens, one per line; everything except predictions and health requires one of them",
    )
    group.add_argument(
        "--prediction_token_file",
        help="file of tokens; predictions require one of them, or one of --control_token_file",
    )
    group.add_argument(
        "--feedback_token_file", help="file of tokens that only allow feedback; requires --control_token_file"
    )
    group.add_argument("--profiler_log_dir", help="folder for the profiles of --enable_profiler")
    group.add_argument("--log_file", help="also write the log to this file")
    group.add_argument("--request_log", help="log of requests, as JSON Lines")
    group.add_argument(
        "--request_log_sampling_percent",
        type=flag_values.percent,
        help="percentage of answered requests to log; errors are always logged (default 100)",
    )
    group.add_argument(
        "--first_load_timeout_seconds",
        type=flag_values.seconds,
        help="at the start, maximum wait for models that are still loading before the ports open (default 600)",
    )
    group.add_argument(
        "--drain_delay_seconds",
        type=flag_values.seconds,
        help="after SIGTERM, how long new requests are still answered while /readyz returns 503 (default 0)",
    )
    group.add_argument(
        "--drain_seconds",
        type=flag_values.seconds,
        help="after SIGTERM, maximum wait for requests in flight (default 30)",
    )
    group.add_argument(
        "--ready_file",
        help="file for the JSON object {pid, grpc_port, rest_api_port}, written when the server is ready",
    )


def _add_switch(group: argparse._ArgumentGroup, name: str, what: str) -> None:
    group.add_argument(name, type=flag_values.boolean, nargs="?", const=True, help=what)

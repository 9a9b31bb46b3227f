"""The model server's command line, built from :class:`~airflow_hops.serving.flags.Flags`."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Sequence
from dataclasses import fields
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args, get_origin, get_type_hints

from airflow_hops.core.errors import BadInput
from airflow_hops.serving import flag_values
from airflow_hops.serving.flags import GROUPS, Flags
from airflow_hops.serving.parts import ServerPart, server_parts

# TensorFlow Serving's flags that need nothing here.
_WITHOUT_EFFECT = {
    "enable_grpc_healthcheck_service": "the health service is always there",
    "remove_unused_fields_from_bundle_metagraph": "they are never kept",
    "skip_initialize_tpu": "there is no TPU",
}
# TensorFlow Serving's flags that this server does not have, unless they are false, and what to do.
_NOT_TAKEN = {
    "enable_profiler": "profile a model in a process of your own, with tf.profiler.experimental",
    "mixed_precision": "this pass does not exist",
    "num_tflite_interpreters_per_pool": "models of TensorFlow Lite are not served",
    "num_tflite_pools": "models of TensorFlow Lite are not served",
    "per_process_gpu_memory_fraction": "TensorFlow allocates GPU memory as needed",
    "platform_config_file": "models are recognised by their files",
    "prefer_tflite_model": "models of TensorFlow Lite are not served",
    "tensorflow_session_config_file": "see --tensorflow_intra_op_parallelism and --tensorflow_inter_op_parallelism",
    "thread_pool_factory_config_file": "TensorFlow manages the threads",
    "use_alts_credentials": "see --ssl_config_file",
    "use_tflite_model": "models of TensorFlow Lite are not served",
    "xla_cpu_compilation_enabled": "a model is compiled if its graph requests it",
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line; flags that are not set are absent from its result.

    Raises:
        BadInput: A part of the server cannot be loaded.
    """
    parts = server_parts().values()
    models = "".join(f" | --{part.models_flag}=VALUE" for part in parts if part.models_flag)
    parser = _Parser(
        prog="python -m airflow_hops.serving",
        description="Serves models with TensorFlow Serving's gRPC and REST APIs. Takes its flags, and a few more. "
        "Refuses flags that it does not have.",
        usage=f"%(prog)s --model_base_path=/FOLDER | --model_config_file=FILE{models} [--flag=VALUE …]",
        formatter_class=partial(argparse.HelpFormatter, max_help_position=40, width=120),
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    kinds: list[Any] = [Flags, *(part.flags for part in parts if part.flags is not None)]
    for flags in kinds:
        types = get_type_hints(flags)
        for number, each in enumerate(each for each in fields(flags) if "help" in each.metadata):
            if each.name in GROUPS or number == 0:
                group = parser.add_argument_group(GROUPS.get(each.name) or (flags.__doc__ or "").rstrip("."))
            text, kind = each.metadata["help"], types[each.name]
            if "default" not in text and each.default not in ("", None, ()):
                text += f" (default {str(each.default).lower()})"
            if each.name == "version":
                group.add_argument("--version", action="store_true", help=each.metadata["help"])
            elif kind is bool:
                group.add_argument(
                    f"--{each.name}", type=flag_values.boolean, nargs="?", const=True, metavar="true|false", help=text
                )
            elif get_origin(kind) is Literal:
                group.add_argument(f"--{each.name}", choices=get_args(kind), help=text)
            else:
                group.add_argument(f"--{each.name}", type=each.metadata["parse"], metavar="VALUE", help=text)
    return parser


def parse_flags(arguments: Sequence[str]) -> tuple[Flags, list[str]]:
    """Parses a command line, without the program's name.

    Returns:
        The flags, and one line for each ignored argument.

    Raises:
        SystemExit: A value is invalid (status 2, one line on stderr), ``--help`` was requested (status 0), or a part of
            the server cannot be loaded (status 1).
    """
    try:
        parser = make_parser()
    except BadInput as error:
        raise SystemExit(f"airflow_hops.serving: {error}") from error
    namespace, rest = parser.parse_known_args(arguments)
    notes = []
    for argument in rest:
        name, _, value = argument.lstrip("-").partition("=")
        flag = name if argument.startswith("-") else ""
        if flag in _WITHOUT_EFFECT:
            notes.append(f"flag --{name} has no effect here: {_WITHOUT_EFFECT[name]}")
        elif flag in _NOT_TAKEN:
            if value.lower() not in ("false", "0"):
                parser.error(f"--{name} is not supported: {_NOT_TAKEN[name]}; leave it out")
        else:
            close = get_close_matches(
                f"--{name}", [option for action in parser._actions for option in action.option_strings]
            )
            parser.error(f"unknown argument: {argument}" + (f"; did you mean {' or '.join(close)}?" if close else ""))
    values = vars(namespace)
    threads = values.get("tensorflow_session_parallelism", 0)
    values = {"tensorflow_intra_op_parallelism": threads, "tensorflow_inter_op_parallelism": threads, **values}
    parts = server_parts().values()
    of_parts, models_flag = [], ""
    for part in parts:
        if part.flags is None:
            continue
        known = {each.name: values.pop(each.name) for each in fields(part.flags) if each.name in values}
        of_parts.append(part.flags(**known))
        models_flag = part.models_flag if known.get(part.models_flag) else models_flag
    flags = Flags(**values, of_parts=tuple(of_parts), models_flag=models_flag)
    _check(parser, flags, parts, notes)
    return flags, notes


def _check(parser: argparse.ArgumentParser, flags: Flags, parts: Collection[ServerPart], notes: Sequence[str]) -> None:
    if flags.port and flags.port == flags.rest_api_port:
        parser.error("--rest_api_port cannot be same as --port. Please use a different port for HTTP/REST API.")
    if not (flags.model_base_path or flags.model_config_file or flags.models_flag or flags.version):
        names = ["model_base_path", "model_config_file", *(part.models_flag for part in parts if part.models_flag)]
        parser.error("; ".join([f"expected one of {', '.join(f'--{name}' for name in names)}", *notes]))
    if flags.model_base_path and flags.models_flag:
        parser.error(f"--model_base_path and --{flags.models_flag} are both given; expected one of them")
    if flags.model_base_path and "://" not in flags.model_base_path and not Path(flags.model_base_path).is_absolute():
        parser.error(
            f"--model_base_path={flags.model_base_path}: Expected model {flags.model_name} to have an absolute path "
            f"or URI; got base_path()={flags.model_base_path}"
        )
    for name in ("prediction_token_file", "feedback_token_file"):
        if getattr(flags, name) and not flags.control_token_file:
            parser.error(f"--{name} is set without --control_token_file; everything else would be open to everyone")
    if flags.rest_api_enable_ssl and not flags.ssl_config_file:
        parser.error(
            "--rest_api_enable_ssl is set without --ssl_config_file; expected the file with key and certificate"
        )
    if flags.write_back_model_config and not flags.model_config_file:
        parser.error("--write_back_model_config is set without --model_config_file; expected the file to write")
    for part in parts:
        if fault := part.check(flags):
            parser.error(fault)

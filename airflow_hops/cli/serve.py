"""``airflow hops serve``: runs the model server of a connection in the runtime environment."""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import suppress

from airflow_hops.cli.doctor import is_this_machine
from airflow_hops.core.errors import BadInput, ConnectionFieldError
from airflow_hops.core.processes.programs import module_command
from airflow_hops.core.serving_api.server_kinds import kind_name, model_server_kinds
from airflow_hops.core.serving_api.tls_files import rest_speaks_tls
from airflow_hops.core.steps.shared_places import capture_path, local_path, storage_options_of
from airflow_hops.core.store import ArtifactStore
from airflow_hops.runner.launchers.local import runtime_python, runtime_variables
from airflow_hops.runner.runtime import RuntimeHook

_TOKENS = {"serving_token": "control_token_file", "serving_prediction_token": "prediction_token_file"}


def serve(args: Namespace) -> None:
    """Replaces this process by the model server; never returns.

    Raises:
        BadInput: the connection or the flags do not describe a server that this command can start.
    """
    hook = RuntimeHook(args.hops_conn_id)
    runtime, services = hook.settings.runtime, hook.settings.services
    python = runtime_python(runtime)
    env = runtime_variables(runtime) | storage_variables(services, hook.open_store())
    values = args.flags[1:] if args.flags[:1] == ["--"] else args.flags  # some argparse versions keep the "--"
    command = module_command(python, "airflow_hops.serving", *server_flags(services, values))
    # Replaces this process, so signals and exit code are the server's own.
    os.execve(command[0], command, env)


def server_flags(services: Mapping[str, str], given: Sequence[str] = ()) -> list[str]:
    """Returns the server's flags: those of the connection, then the given ones, which take precedence.

    Creates a missing config file, without models. Tokens are passed in memory.

    Args:
        services: The connection's ``serving_*`` entries.
        given: Further flags.

    Raises:
        BadInput: the connection is for another server, or connection and flags are incomplete.
    """
    names = {flag.partition("=")[0] for flag in given}
    if not model_server_kinds()[kind := kind_name(services)].is_bundled:
        raise ConnectionFieldError(
            "serving_kind", f" is {kind!r}, expected 'bundled': this command starts no other server"
        )
    if services.get("serving_ca_file") and "--ssl_config_file" not in names:
        raise ConnectionFieldError(
            "serving_ca_file",
            " says that the server speaks TLS; give its own key and certificate: -- --ssl_config_file=FILE",
        )
    config_file = local_path(services, "serving_config_file")
    if config_file is None and not given:
        raise ConnectionFieldError(
            "serving_config_file",
            " is empty, so there is nothing to serve; fill it in, or give "
            "--model_config_file or --model_base_path after --",
        )
    host: str | None = services.get("serving_host") or "127.0.0.1"
    if not is_this_machine(str(host)):
        if "--host" not in names:
            print(
                f"The connection's host {host!r} is not an address of this machine: the server listens at 127.0.0.1 "
                "only, unless you pass -- --host=ADDRESS",
                file=sys.stderr,
                flush=True,
            )
        host = None
    values: dict[str, object] = {
        "host": host,
        "port": services.get("serving_port"),
        "rest_api_port": services.get("serving_rest_port"),
        "rest_api_enable_ssl": rest_speaks_tls(services),
        "model_config_file": config_file,
        "model_config_file_poll_wait_seconds": config_file and 1,
        "traffic_config_file": local_path(services, "serving_traffic_file"),
        "capture_base_path": capture_path(services),
        **{flag: _in_memory(services[name]) for name, flag in _TOKENS.items() if services.get(name)},
    }
    if config_file is not None:
        try:
            config_file.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError), config_file.open("x") as file:
                file.write("model_config_list {}\n")
        except OSError as error:
            what = f"connection field 'serving_config_file' is '{config_file}', which cannot be written: {error}"
            raise BadInput(what) from None
    return [*(f"--{name}={value}" for name, value in values.items() if value), *given]


def storage_variables(services: Mapping[str, str], store: ArtifactStore) -> dict[str, str]:
    """Returns the environment variables with fsspec's options for the stores of models and captured rows."""
    results = {}
    for location in (services.get("serving_base_path") or "", services.get("serving_capture_path") or ""):
        protocol, separator, _ = location.partition("://")
        options = storage_options_of(services, location, store) if separator else {}
        if options:
            name = f"FSSPEC_{protocol.upper()}"
            results[name] = json.dumps(json.loads(os.environ.get(name) or "{}") | dict(options))
    return results


def _in_memory(token: str) -> str:
    """Returns the path of an in-memory file that the server inherits, so that tokens are in no file or command line."""
    descriptor = os.memfd_create("token", 0)  # without the default MFD_CLOEXEC
    os.write(descriptor, token.encode())
    return f"/proc/self/fd/{descriptor}"

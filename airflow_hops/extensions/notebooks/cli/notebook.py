"""``airflow hops notebook``: JupyterLab with kernels of the runtime environment and the store of a connection."""

from __future__ import annotations

import getpass
import json
import os
import secrets
import socket
import uuid
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from airflow_hops.airflow_internals.tasks import conf
from airflow_hops.cli.runtime import find_uv, say
from airflow_hops.core.artifacts.artifact import Producer
from airflow_hops.core.errors import BadInput
from airflow_hops.core.processes.temporary_folders import make_temporary_folder, socket_root
from airflow_hops.core.profiles import base_of
from airflow_hops.core.steps.protocol import NOTEBOOK_VARIABLE, StepSpec
from airflow_hops.extensions.notebooks.core import kernel_command
from airflow_hops.runner.environments.named import make_named, named_folder, named_state
from airflow_hops.runner.environments.runtime import pins_of
from airflow_hops.runner.launchers.local import runtime_python, step_variables
from airflow_hops.runner.runtime import RuntimeHook

LAB = "jupyterlab"
"""Name of the package and of its environment."""
KERNEL = "airflow-hops"
_SOCKET_LENGTH = len(f"/hops-notebook-12345678.locked/r/kernel-{uuid.UUID(int=0)}-ipc-5")


def notebook(args: Namespace) -> None:
    """Replaces this process by JupyterLab; never returns.

    Raises:
        BadInput: the runtime environment or the folder is missing, or the port is in use.
    """
    dags = Path(conf.get("core", "dags_folder")).expanduser().absolute()
    folder = Path(args.folder).expanduser().absolute() if args.folder else dags
    if not folder.is_dir():
        raise BadInput(f"{folder}: there is no such folder; name the folder of the notebooks")
    try:  # another user's server on this port would receive the token
        socket.create_server(("127.0.0.1", args.port)).close()
    except (OSError, OverflowError) as error:
        raise BadInput(f"--port {args.port}: cannot listen there ({error}); choose another") from None
    hook = RuntimeHook(args.hops_conn_id, runtime=args.runtime)
    runtime = hook.settings.runtime
    python, base = runtime_python(runtime), base_of(runtime)
    lab_folder = named_folder(base, LAB)
    lab = lab_folder / "bin" / "python"
    if not lab.exists() or not named_state(lab_folder).good:
        print(f"Installing JupyterLab into {lab_folder}, in addition to the packages of {base}:", flush=True)
        make_named(base, LAB, [LAB], pins_of(base), uv=find_uv(), say=say)
    # It acts as a step: its artifacts are stored under the user's name and the current time.
    producer = Producer("notebook", f"{getpass.getuser()}-{datetime.now(UTC):%Y-%m-%dT%H%M%S}", "notebook")
    code_paths = tuple(dict.fromkeys([str(folder), str(dags)]))
    spec = hook.complete(replace(StepSpec("notebook", ""), producer=producer, code_paths=code_paths))
    home, lock = make_temporary_folder("notebook", root=socket_root(_SOCKET_LENGTH))
    # JupyterLab inherits the lock; after it has ended, the user's next temporary folder removes this one.
    os.set_inheritable(lock, True)
    env = _variables(step_variables(runtime, spec.code_paths), spec, home, python)
    token = env["JUPYTER_TOKEN"]
    print(
        f"JupyterLab: http://127.0.0.1:{args.port}/lab?token={token}\n"
        f"  notebooks  {folder}\n  kernel     {python}\n"
        f"  store      {spec.store} (connection {args.hops_conn_id!r}): "
        "from airflow_hops.extensions.notebooks import pipeline\n"
        "It listens on this machine only; press Ctrl-C to stop it.",
        flush=True,
    )
    options = ["--ServerApp.ip=127.0.0.1", f"--ServerApp.port={args.port}", "--ServerApp.port_retries=0"]
    options += [f"--ServerApp.root_dir={folder}", f"--ServerApp.open_browser={not args.no_browser}"]
    options += ["--KernelSpecManager.ensure_native_kernel=False", f"--MultiKernelManager.default_kernel_name={KERNEL}"]
    # Unix sockets in a private folder, since other users of the machine could read TCP traffic.
    options += ["--KernelManager.transport=ipc"]
    options += ["--ServerApp.answer_yes=True", "--ServerApp.allow_root=True", "--LabApp.news_url="]
    os.execve(lab, [str(lab), "-P", "-m", "jupyterlab", *options], env)


def _variables(inherited: Mapping[str, str], spec: StepSpec, home: Path, python: Path) -> dict[str, str]:
    """Returns the environment variables of JupyterLab and its kernels, which alone hold the connection's secrets."""
    (home / "spec.json").write_text(spec.to_json())
    kernel = home / "kernels" / KERNEL
    kernel.mkdir(parents=True)
    spec_file = {"argv": kernel_command(python), "display_name": "airflow-hops", "language": "python"}
    (kernel / "kernel.json").write_text(json.dumps(spec_file))
    return {
        **inherited,
        **spec.variables(),
        NOTEBOOK_VARIABLE: str(home / "spec.json"),
        "JUPYTER_PATH": str(home),
        "JUPYTER_RUNTIME_DIR": str(home / "r"),  # short, since paths of Unix sockets are limited
        "JUPYTER_TOKEN": secrets.token_hex(24),
    }

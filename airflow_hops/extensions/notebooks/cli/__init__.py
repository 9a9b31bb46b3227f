"""Commands of notebooks."""

from __future__ import annotations

from airflow_hops.cli.arguments import ARG_VERBOSE, CLICommand, command, flag, option

_NOTEBOOK_ARGUMENTS = (
    option("folder", "Folder of the notebooks (default: [core] dags_folder)", nargs="?"),
    option("--hops-conn-id", "Connection of type hops, which has the store", default="hops_default"),
    option("--runtime", "Named environment of the kernels (default: the connection's)"),
    option("--port", "Port of 127.0.0.1 to listen on (default: 8888)", type=int, default=8888),
    flag("--no-browser", "Do not open a browser"),
    ARG_VERBOSE,
)

COMMANDS: tuple[CLICommand, ...] = (
    command(
        "airflow_hops.extensions.notebooks.cli.notebook.notebook",
        "Open JupyterLab with kernels of the runtime environment and access to the store",
        _NOTEBOOK_ARGUMENTS,
        "Listens on 127.0.0.1 only, with a token, in the foreground. JupyterLab is installed in a "
        "separate environment next to the runtime environment, named jupyterlab, which the first call "
        "creates. Nothing is installed into your home. Values of the connection are in the kernels' "
        "environment only, not in files or command lines.",
    ),
)

"""What ``airflow hops`` offers. Airflow reads this at each start of its command line, so it imports nothing else."""

from __future__ import annotations

from airflow.cli.cli_config import (
    ARG_OUTPUT,
    ARG_VERBOSE,
    ActionCommand,
    Arg,
    CLICommand,
    GroupCommand,
    lazy_load_command,
)

_PATH = Arg(
    ("path",),
    nargs="?",
    help="Folder of the runtime environment (default: as configured, or hops-runtime in AIRFLOW_HOME)",
)
_PYTHON = Arg(("--python",), help="Python 3.11 to build it on (default: the one that runs Airflow)")
_FORCE = Arg(("--force",), action="store_true", help="Make it anew, whatever is there")
_HOPS_CONNECTION = Arg(("--hops-conn-id",), default="hops_default", help="Connection of type hops to check")
_SPARK_CONNECTION = Arg(("--spark-conn-id",), default="spark_default", help="Spark connection to check")

_RUNTIME_COMMANDS = (
    ActionCommand(
        name="create",
        help="Make the runtime environment from the pins that this package carries",
        description="Installs TensorFlow, TFDV, Horovod, Spark and MLflow into an environment of their own. What is "
        "good already stays; an interrupted installation is completed.",
        func=lazy_load_command("airflow_hops.cli.runtime.create"),
        args=(_PATH, _PYTHON, _FORCE),
    ),
    ActionCommand(
        name="path",
        help="Print the folder of the runtime environment",
        func=lazy_load_command("airflow_hops.cli.runtime.path"),
        args=(),
    ),
)


def get_hops_cli_commands() -> list[CLICommand]:
    """The commands, for Airflow's provider manager."""
    return [
        GroupCommand(
            name="hops",
            help="Machine-learning pipelines: runtime environment and checks",
            subcommands=(
                GroupCommand(name="runtime", help="Manage the runtime environment", subcommands=_RUNTIME_COMMANDS),
                ActionCommand(
                    name="doctor",
                    help="Check Java, both environments, connections, ports, disk, memory and GPU",
                    description="Exits with 1 when a check fails.",
                    func=lazy_load_command("airflow_hops.cli.doctor.doctor"),
                    args=(_HOPS_CONNECTION, _SPARK_CONNECTION, ARG_OUTPUT, ARG_VERBOSE),
                ),
            ),
        )
    ]

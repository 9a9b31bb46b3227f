"""Arguments and commands of ``airflow hops``, for the modules that define commands."""

from __future__ import annotations

from argparse import Namespace

from airflow_hops.airflow_internals.cli_config import (
    ARG_OUTPUT,
    ARG_VERBOSE,
    ActionCommand,
    Arg,
    CLICommand,
    GroupCommand,
    lazy_load_command,
)

__all__ = [
    "ARG_OUTPUT",
    "ARG_VERBOSE",
    "DAG",
    "OWNERS_ARGUMENTS",
    "STORE_CONNECTION",
    "Arg",
    "CLICommand",
    "GroupCommand",
    "command",
    "flag",
    "option",
    "repeated",
]


def option(name: str, help: str, **more: object) -> Arg:
    """Returns an argument; ``more`` is as for ``argparse``."""
    return Arg((name,), help=help, **more)


def flag(name: str, help: str) -> Arg:
    """Returns an option without a value, which is False unless it is given."""
    return Arg((name,), help=help, action="store_true")


def repeated(name: str, help: str, **more: object) -> Arg:
    """Returns an option that can be repeated; its value is a list."""
    return Arg((name,), help=help, action="append", default=[], **more)


STORE_CONNECTION = option(
    "--hops-conn-id", "Connection of type hops that has the artifact store", default="hops_default"
)
DAG = option("dag_id", "The pipeline's DAG")
OWNERS_ARGUMENTS = (
    option("name", "Its name (default: list all)", nargs="?"),
    option("dag", "DAGs that own it from now on (default: show the owners)", nargs="*"),
    option("--reason", "Reason; stored with the owners"),
    option("--by", "User who decides (default: the user of this machine)"),
    STORE_CONNECTION,
    ARG_OUTPUT,
    ARG_VERBOSE,
)
"""Arguments of a command that calls :func:`airflow_hops.cli.owners.change_owners`."""
_TEAM = option("--team", "Team whose connections are used, with Airflow's multi_team (default: that of the DAG)")


def command(
    function: str, help: str, args: tuple[Arg, ...], description: str | None = None, name: str | None = None
) -> ActionCommand:
    """Returns a command; an error ends the program with its message.

    Args:
        function: ``module.function``, imported when the command runs; it takes the parsed arguments.
        help: One line, for the list of commands.
        args: Arguments of the command.
        description: More lines, for its own ``--help``.
        name: Name of the command; by default that of the function.
    """
    lazy = lazy_load_command(function)
    if any(flag.endswith("conn-id") for each in args for flag in each.flags):
        args = (*args, _TEAM)

    def run(parsed: Namespace) -> None:
        from airflow_hops.cli.terminal import shown, terminal
        from airflow_hops.core.errors import HopsError
        from airflow_hops.runner.connections import connections_of_tasks

        try:
            team, dag_id = (getattr(parsed, name, None) for name in ("team", "dag_id"))
            with terminal(), connections_of_tasks(team=team, dag_id=dag_id):
                lazy(parsed)
        except (HopsError, OSError) as error:
            raise SystemExit(shown(str(error))) from None
        except KeyboardInterrupt:
            raise SystemExit(130) from None

    return ActionCommand(
        name=name or function.rpartition(".")[2], help=help, description=description, func=run, args=args
    )

"""Names by which commands are defined, at each start of Airflow's command line."""

from airflow.cli.cli_config import (
    ARG_OUTPUT,
    ARG_VERBOSE,
    ActionCommand,
    Arg,
    CLICommand,
    GroupCommand,
    lazy_load_command,
)

__all__ = ["ARG_OUTPUT", "ARG_VERBOSE", "ActionCommand", "Arg", "CLICommand", "GroupCommand", "lazy_load_command"]

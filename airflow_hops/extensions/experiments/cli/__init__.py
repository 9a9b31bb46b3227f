"""Command of experiments."""

from __future__ import annotations

from airflow_hops.cli.arguments import ARG_VERBOSE, DAG, STORE_CONNECTION, CLICommand, command, option

_SEARCH_ARGUMENTS = (
    DAG,
    option("study", "Name of the study: the DAG run's id, unless the task gives another"),
    option("--task", "Searching task, if several tasks have a study of that name"),
    option("--optuna", "The database, such as sqlite:////tmp/study.db", metavar="URL", required=True),
    STORE_CONNECTION,
    ARG_VERBOSE,
)

COMMANDS: tuple[CLICommand, ...] = (
    command(
        "airflow_hops.extensions.experiments.cli.search.search",
        "Export a hyperparameter search to a database, for Optuna's dashboard",
        _SEARCH_ARGUMENTS,
        "The view Studies of the page Runs shows all searches while they run, and stops them.",
    ),
)

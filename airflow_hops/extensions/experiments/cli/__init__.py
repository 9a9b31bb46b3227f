"""Commands of experiments."""

from __future__ import annotations

from airflow_hops.cli.arguments import ARG_OUTPUT, ARG_VERBOSE, DAG, STORE_CONNECTION, CLICommand, command, option

_SEARCH_ARGUMENTS = (
    DAG,
    option("study", "Name of a study: the DAG run's id, unless the task gives another", nargs="?"),
    option("--task", "Searching task, if several tasks have a study of that name"),
    option(
        "--optuna",
        "Export the study to a database, such as sqlite:////tmp/study.db, for Optuna's dashboard",
        metavar="URL",
    ),
    STORE_CONNECTION,
    ARG_OUTPUT,
    ARG_VERBOSE,
)

COMMANDS: tuple[CLICommand, ...] = (
    command(
        "airflow_hops.extensions.experiments.cli.search.search",
        "Show the hyperparameter searches of a DAG, or export one",
        _SEARCH_ARGUMENTS,
        "Lists the studies of a DAG; with a study's name, shows its progress, the best trial "
        "so far and failures. With --output json, all of its trials.",
    ),
)

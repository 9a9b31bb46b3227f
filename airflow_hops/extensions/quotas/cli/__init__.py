"""Commands of quotas and costs."""

from __future__ import annotations

from airflow_hops.cli.arguments import ARG_OUTPUT, ARG_VERBOSE, STORE_CONNECTION, CLICommand, command, option

COMMANDS: tuple[CLICommand, ...] = (
    command(
        "airflow_hops.extensions.quotas.cli.commands.costs",
        "Tell the CPU and GPU hours of steps, and the size of their artifacts",
        (
            option("--by", "What to sum by (default: dag)", choices=("dag", "task", "kind", "month"), default="dag"),
            option("--dag-id", "Only the steps of this DAG"),
            option("--days", "Only artifacts that are younger, in days", type=float),
            STORE_CONNECTION,
            ARG_OUTPUT,
            ARG_VERBOSE,
        ),
        "Adds up the manifests of the artifacts in the store. Steps that failed, or whose artifacts were removed, are "
        "not counted.",
    ),
    command(
        "airflow_hops.extensions.quotas.cli.commands.quotas",
        "List what the team and its DAGs used of their quotas",
        (STORE_CONNECTION, ARG_OUTPUT, ARG_VERBOSE),
        "Adds up the manifests of the artifacts in the store: hours of the last 30 days, and the size of all.",
    ),
)

"""Commands of quotas, costs and garbage collection."""

from __future__ import annotations

from airflow_hops.cli.arguments import ARG_OUTPUT, ARG_VERBOSE, STORE_CONNECTION, CLICommand, command, flag, option

COMMANDS: tuple[CLICommand, ...] = (
    command(
        "airflow_hops.extensions.governance.cli.quotas.costs",
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
        "airflow_hops.extensions.governance.cli.quotas.quotas",
        "List what the team and its DAGs used of their quotas",
        (STORE_CONNECTION, ARG_OUTPUT, ARG_VERBOSE),
        "Adds up the manifests of the artifacts in the store: hours of the last 30 days, and the size of all.",
    ),
    command(
        "airflow_hops.extensions.governance.cli.garbage.gc",
        "List the artifacts, finished or not, captured requests and MLflow runs that nothing needs, or remove them",
        (
            flag("--delete", "Remove them (default: only list them)"),
            option("--keep-days", "Keep what is younger, in days (default: 30)", type=float, default=30.0),
            option("--keep-runs", "Keep so many newest runs of each DAG (default: 10)", type=int, default=10),
            option("--keep-versions", "Keep so many former champions of each model (default: 3)", type=int, default=3),
            flag("--unknown-runs", "Also remove artifacts of runs that this Airflow does not know"),
            flag("--kept", "List what is kept, each with the reason, instead"),
            STORE_CONNECTION,
            ARG_OUTPUT,
            ARG_VERBOSE,
        ),
        "Keeps everything that a champion, a challenger, a former champion, a frozen schema, the newest decision of a "
        "retraining monitor, an active run or a run that the options keep needs, down to the raw snapshot.",
    ),
)

"""Commands of the feature store."""

from __future__ import annotations

from airflow_hops.cli.arguments import OWNERS_ARGUMENTS, CLICommand, GroupCommand, command

COMMANDS: tuple[CLICommand, ...] = (
    GroupCommand(
        name="features",
        help="The feature store",
        subcommands=(
            command(
                "airflow_hops.extensions.feature_store.cli.features.owners",
                "Name the DAGs that may change the definitions of a Feast project, or list the owners",
                OWNERS_ARGUMENTS,
                "The DAG that first applies the definitions of a project owns them, as <project>@<registry>. Others "
                "may use the features, but are refused if they would change a definition.",
            ),
        ),
    ),
)

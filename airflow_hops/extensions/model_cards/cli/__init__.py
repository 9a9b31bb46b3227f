"""Command of model cards."""

from __future__ import annotations

from airflow_hops.cli.arguments import ARG_VERBOSE, STORE_CONNECTION, CLICommand, command, option

COMMANDS: tuple[CLICommand, ...] = (
    command(
        "airflow_hops.extensions.model_cards.cli.card.card",
        "Export the card of a model's version: data, training, evaluation, rollout, labels, drift",
        (
            option("model", "Name of the model"),
            option("version", "Number of the version", type=int),
            STORE_CONNECTION,
            ARG_VERBOSE,
        ),
        "Prints the card in Markdown from the current store, for readers who may see all of it.",
    ),
)

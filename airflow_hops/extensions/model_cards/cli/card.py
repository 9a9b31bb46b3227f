"""``airflow hops card``: the card of a model's version."""

from __future__ import annotations

import sys
from argparse import Namespace
from datetime import UTC, datetime

from airflow_hops.airflow_internals.cli import suppress_logs_and_warning
from airflow_hops.core.errors import ModelNotFound
from airflow_hops.core.models.model_records import read_record
from airflow_hops.extensions.model_cards.core.model_card import model_card
from airflow_hops.extensions.model_cards.core.model_sources import VersionSources
from airflow_hops.runner.runtime import RuntimeHook


@suppress_logs_and_warning
def card(args: Namespace) -> None:
    """Prints a model card."""
    store = RuntimeHook(args.hops_conn_id).store
    deployed = read_record(store, args.model).versions()
    if args.version not in deployed:
        known = ", ".join(map(str, deployed)) or "none"
        raise ModelNotFound(args.model, args.version).with_text(
            f"model {args.model!r} has no version {args.version} that was deployed; versions: {known}"
        )
    sources = VersionSources(store, args.model, args.version)
    sys.stdout.write(model_card(sources, lambda dag_id: None, datetime.now(UTC)))

"""``airflow hops card``: the card of a model's version, from the store alone."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

from airflow.utils.cli import suppress_logs_and_warning

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.hooks.runtime import RuntimeHook
from airflow_hops.reports.kept_cards import card_from_store, find_kept_card, read_kept_card
from airflow_hops.reports.markdown import markdown


@suppress_logs_and_warning
def card(args: Namespace) -> None:
    """Writes a card to a file, or prints it."""
    store = RuntimeHook(args.hops_conn_id).store
    if args.kept:
        problems: list[str] = []
        kept_card = find_kept_card(store, args.model, args.version, problems)
        if kept_card is None:
            none = f"no card of version {args.version} of model {args.model!r} was kept; leave out --kept"
            raise BadInput("\n".join([none, *problems]))
        sys.stderr.writelines(f"{problem}\n" for problem in problems)
        text = read_kept_card(store, kept_card, args.format)
    else:
        made = card_from_store(store, args.model, args.version)
        text = made.html() if args.format == "html" else markdown(made)
    if args.output is None:
        sys.stdout.write(text)
    else:
        Path(args.output).write_text(text, encoding="utf-8")

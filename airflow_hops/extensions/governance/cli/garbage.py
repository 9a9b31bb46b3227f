"""Collects garbage in the places of a connection."""

from __future__ import annotations

import sys
from argparse import Namespace
from functools import partial

from rich.filesize import decimal
from rich.progress import track
from sqlalchemy import select

from airflow_hops.airflow_internals.cli import AirflowConsole, suppress_logs_and_warning
from airflow_hops.airflow_internals.database import DagRun, State, create_session
from airflow_hops.cli.terminal import progress_console
from airflow_hops.extensions.governance.core.rule import RetentionRule
from airflow_hops.extensions.governance.runner.retention import garbage_collection
from airflow_hops.runner.runtime import RuntimeHook


@suppress_logs_and_warning
def gc(args: Namespace) -> None:
    """Lists unneeded artifacts, and removes them with ``--delete``."""
    rule = RetentionRule(args.keep_days, args.keep_runs, args.keep_versions, args.unknown_runs)

    def is_active(dag_id: str, run_id: str) -> bool | None:
        with create_session() as session:
            states = select(DagRun.state).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id)
            state = session.scalar(states)
            return None if state is None else state in State.unfinished_dr_states

    progress = partial(track, console=progress_console())
    collection = garbage_collection(RuntimeHook(args.hops_conn_id), rule, is_active, progress)
    plan = collection.remove() if args.delete else collection.plan()
    if args.kept:
        rows = [{"artifact": uri, "kept because": reason} for uri, reason in sorted(plan.kept.items())]
    else:
        rows = [
            {
                "artifact": uri,
                "kind": removal.kind,
                "created": removal.created_at.isoformat(timespec="seconds"),
                "bytes": str(removal.size_bytes),
                "reason": removal.reason,
            }
            for uri, removal in plan.removals.items()
        ]
    if rows:
        AirflowConsole().print_as(rows, output=args.output)
    size = decimal(sum(removal.size_bytes for removal in plan.removals.values()))
    what = "removed" if args.delete else "can be removed (add --delete to remove them)"
    print(f"{len(plan.removals)} items, {size}, {what}", file=sys.stderr)
    print(f"{len(plan.kept)} items, {decimal(plan.size_bytes)}, are kept", file=sys.stderr)

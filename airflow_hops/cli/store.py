"""``airflow hops store``: checks the artifacts of a store, and removes those that nothing needs."""

from __future__ import annotations

import sys
from argparse import Namespace
from functools import cache

from airflow.cli.simple_table import AirflowConsole
from airflow.models.dagrun import DagRun
from airflow.utils.cli import suppress_logs_and_warning
from airflow.utils.session import create_session
from airflow.utils.state import State
from rich.console import Console
from rich.filesize import decimal
from rich.progress import track
from sqlalchemy import select

from airflow_hops.core.contract.artifacts import MANIFEST_NAME, BadInput, HopsError
from airflow_hops.core.store.integrity import Damage
from airflow_hops.core.store.retention import RetentionRule, plan_removals, remove_unneeded
from airflow_hops.hooks.runtime import RuntimeHook


@suppress_logs_and_warning
def verify(args: Namespace) -> None:
    """Reads all files of the artifacts, lists damaged or additional ones, and exits with 1 if there are any."""
    store = RuntimeHook(args.hops_conn_id).store
    place = args.prefix or store.root
    place = place.rstrip("/") if "://" in place else store.uri(*place.strip("/").split("/"))
    artifacts = store.artifacts(place)
    if not artifacts:
        raise BadInput(f"{place}: no artifact found")
    count, damages = 0, list[Damage]()
    inner: set[str] = set()  # manifests that are data of another artifact
    for uri in track(artifacts, "Verifying", console=Console(stderr=True)):
        if f"{uri}/{MANIFEST_NAME}" in inner:
            continue
        count += 1
        try:
            manifest = store.manifest(uri)
            inner.update(f"{uri}/{entry.path}" for entry in manifest.files if entry.path.endswith(f"/{MANIFEST_NAME}"))
            damages += store.damages(uri, manifest)
        except HopsError as error:
            damages.append(Damage(uri, MANIFEST_NAME, "a manifest", str(error)))
    damaged = len({damage.uri for damage in damages})
    summary = f"{count} artifacts in {place}: {damaged or 'none'} damaged"
    if not damages:
        print(summary, file=sys.stderr)
        return
    rows = [
        {"artifact": of.uri, "file": of.path, "expected": of.expected or "nothing", "found": of.found or "nothing"}
        for of in damages
    ]
    AirflowConsole().print_as(rows, output=args.output)
    print(summary, file=sys.stderr)
    print("To recreate a damaged artifact, clear the task that made it, with its downstream tasks.", file=sys.stderr)
    raise SystemExit(1)


@suppress_logs_and_warning
def gc(args: Namespace) -> None:
    """Lists the artifacts that nothing needs, and removes them with ``--delete``."""
    store = RuntimeHook(args.hops_conn_id).store
    rule = RetentionRule(args.keep_days, args.keep_runs, args.keep_versions)

    @cache
    def is_active(dag_id: str, run_id: str) -> bool:
        with create_session() as session:
            states = select(DagRun.state).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id)
            return session.scalar(states) in State.unfinished_dr_states

    plan = (remove_unneeded if args.delete else plan_removals)(store, rule, is_active)
    if args.kept:
        rows = [{"artifact": uri, "kept because": reason} for uri, reason in sorted(plan.kept.items())]
    else:
        rows = [
            {
                "artifact": uri,
                "kind": artifact.kind,
                "created": artifact.created_at.isoformat(timespec="seconds"),
                "bytes": str(artifact.size_bytes),
                "reason": f"older than {rule.keep_days:g} days, not in the newest {rule.keep_runs} runs, not needed",
            }
            for uri, artifact in plan.removals.items()
        ]
    if rows:
        AirflowConsole().print_as(rows, output=args.output)
    size = decimal(sum(artifact.size_bytes for artifact in plan.removals.values()))
    what = "removed" if args.delete else "can be removed (add --delete to remove them)"
    print(f"{len(plan.removals)} artifacts, {size}, {what}", file=sys.stderr)
    print(f"{len(plan.kept)} artifacts, {decimal(plan.size_bytes)}, are kept", file=sys.stderr)

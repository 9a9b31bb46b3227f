"""``airflow hops store``: checks the artifacts of a store, and removes unneeded ones."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial

from rich.filesize import decimal
from rich.progress import track
from sqlalchemy import select

from airflow_hops.airflow_internals.cli import AirflowConsole, suppress_logs_and_warning
from airflow_hops.airflow_internals.database import DagRun, State, create_session
from airflow_hops.cli.terminal import progress_console
from airflow_hops.core.artifacts.artifact import MANIFEST_NAME
from airflow_hops.core.errors import BadInput, ConnectionFieldError, HopsError
from airflow_hops.core.quotas.limits import Used
from airflow_hops.core.quotas.usage import inner_manifests, read_manifests, sum_usage
from airflow_hops.core.retention.rule import RetentionRule
from airflow_hops.core.store.integrity import Damage
from airflow_hops.core.times import as_utc
from airflow_hops.runner.retention import garbage_collection
from airflow_hops.runner.runtime import RuntimeHook


@suppress_logs_and_warning
def verify(args: Namespace) -> None:
    """Reads all files of the artifacts, lists damaged or additional ones, and exits with 1 if there are any."""
    store = RuntimeHook(args.hops_conn_id).store
    place = store.place(args.prefix or store.root)
    artifacts = store.artifacts(place)
    if not artifacts:
        raise BadInput(f"{place}: no artifact found")
    count, damages = 0, list[Damage]()
    inner: set[str] = set()
    for uri in track(artifacts, "Verifying", console=progress_console()):
        if f"{uri}/{MANIFEST_NAME}" in inner:
            continue
        count += 1
        try:
            manifest = store.manifest(uri)
            inner |= inner_manifests(uri, manifest)
            damages += store.damages(uri, manifest)
        except HopsError as error:
            damages.append(Damage(uri, MANIFEST_NAME, "a manifest", str(error)))
    damaged = len({damage.uri for damage in damages})
    summary = f"{count} artifacts in {place}: {damaged or 'none'} damaged"
    if not damages:
        print(summary, file=sys.stderr)
        return
    rows = [
        {
            "artifact": each.uri,
            "file": each.path,
            "expected": each.expected or "nothing",
            "found": each.found or "nothing",
        }
        for each in damages
    ]
    AirflowConsole().print_as(rows, output=args.output)
    print(summary, file=sys.stderr)
    print("To recreate a damaged artifact, clear the task that made it, with its downstream tasks.", file=sys.stderr)
    raise SystemExit(1)


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


@suppress_logs_and_warning
def costs(args: Namespace) -> None:
    """Sums the cost of steps, and the size of their artifacts, by DAG, task, kind or month."""
    store = RuntimeHook(args.hops_conn_id).store
    place = store.uri(args.dag_id) if args.dag_id else store.root
    since = datetime.now(UTC) - timedelta(days=args.days) if args.days is not None else None
    sums, problems, uris = dict[str, list[float]](), list[str](), store.artifacts(place)
    manifests = read_manifests(store, uris, problems)
    for manifest in track(manifests, "Reading", len(uris), console=progress_console()):
        if since is not None and as_utc(manifest.created_at) < since:
            continue
        by, cost = manifest.producer, manifest.cost
        names = {"dag": by.dag_id, "task": f"{by.dag_id}.{by.task_id}", "kind": manifest.kind}
        amounts = sums.setdefault(names.get(args.by, manifest.created_at[:7]), [0, 0, 0, 0])
        size = sum(file.size_bytes for file in manifest.files)
        for number, value in enumerate((1, cost.get("core_s", 0.0), cost.get("gpu_s", 0.0), size)):
            amounts[number] += value
    _print_problems(problems)
    if not sums:
        raise BadInput(f"{place}: no artifact found")
    ordered = sorted(sums.items()) if args.by == "month" else sorted(sums.items(), key=lambda each: -each[1][1])
    total = [sum(column) for column in zip(*sums.values(), strict=True)]
    rows = []
    for name, (count, core_s, gpu_s, size) in [*ordered, ("total", total)]:
        row = {args.by: name, "artifacts": f"{count:.0f}", "core hours": f"{core_s / 3600:.3f}"}
        row |= {"GPU hours": f"{gpu_s / 3600:.3f}", "GiB": f"{size / 2**30:.3f}"}
        rows.append(row)
    AirflowConsole().print_as(rows, output=args.output)


@suppress_logs_and_warning
def quotas(args: Namespace) -> None:
    """Lists what the team and each DAG used of their quotas, the most first."""
    hook, problems = RuntimeHook(args.hops_conn_id), list[str]()
    quotas = hook.settings.quotas
    if quotas is None:
        raise ConnectionFieldError("quotas", conn_id=args.hops_conn_id).with_text(
            f"connection {args.hops_conn_id!r} has no quotas; set its field 'quotas'"
        )
    used = sum_usage(hook.store, problems)
    _print_problems(problems)
    names = sorted({*used, *quotas.dags})
    shares = quotas.team.shares(sum(used.values(), Used()), None)
    shares += [share for name in names for share in quotas.of(name).shares(used.get(name, Used()), name)]
    rows = [
        {
            "of": "the team" if each.dag_id is None else f"DAG {each.dag_id}",
            "limit": each.name,
            "used": each.amount,
            "of at most": f"{each.limit:,}",
            "percent": f"{each.percent:.1f}",
        }
        for each in sorted(shares, key=lambda share: -share.percent)
    ]
    AirflowConsole().print_as(rows, output=args.output)
    if quotas.contact:
        print(f"{quotas.contact} may raise them", file=sys.stderr)


def _print_problems(problems: Sequence[str]) -> None:
    for problem in problems:
        print(f"Not counted: {problem}", file=sys.stderr)

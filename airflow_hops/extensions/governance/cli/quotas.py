"""``airflow hops costs`` and ``quotas``: what steps used."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from rich.progress import track

from airflow_hops.airflow_internals.cli import AirflowConsole, suppress_logs_and_warning
from airflow_hops.cli.terminal import progress_console
from airflow_hops.core.errors import BadInput, ConnectionFieldError
from airflow_hops.core.times import as_utc
from airflow_hops.extensions.governance.core.quota_limits import Used
from airflow_hops.extensions.governance.core.quota_use import read_manifests, sum_usage
from airflow_hops.extensions.governance.runner.quota_gate import quotas_of
from airflow_hops.runner.runtime import RuntimeHook


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
    quotas = quotas_of(hook)
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

"""``airflow hops doctor``: says what is there, what is not, and what to do."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import asdict

from airflow.cli.simple_table import AirflowConsole
from airflow.utils.cli import suppress_logs_and_warning
from rich.markup import escape
from rich.table import Table

from airflow_hops.cli.checks import run_checks

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "bold red"}


@suppress_logs_and_warning
def doctor(args: Namespace) -> None:
    """Runs the checks and shows them.

    Raises:
        SystemExit: a check failed (exit code 1).
    """
    console = AirflowConsole()
    checks = list(run_checks(args.hops_conn_id, args.spark_conn_id))
    if args.output == "table":
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in ("check", "", "found", "what to do"):
            table.add_column(column, overflow="fold")
        for check in checks:
            status = f"[{_COLOURS[check.status]}]{check.status}[/]"
            table.add_row(check.name, status, escape(check.found), escape(check.advice))
        console.print(table)
    else:
        console.print_as([asdict(check) for check in checks], output=args.output)
    failed = [check.name for check in checks if check.status == "fail"]
    if failed:
        raise SystemExit(f"{len(failed)} of {len(checks)} checks failed: {', '.join(failed)}")

"""``airflow hops backtest``: evaluates retraining policies on past data."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import re
import sys
from argparse import Namespace
from datetime import timedelta
from pathlib import Path

from rich.console import Console
from rich.table import Table

from airflow_hops.airflow_internals.cli import suppress_logs_and_warning
from airflow_hops.airflow_internals.tasks import conf
from airflow_hops.core.errors import HopsError, InvalidArgument
from airflow_hops.core.metrics import Interval
from airflow_hops.extensions.replay.core.backtest import POLICY_FILE, BacktestReport
from airflow_hops.extensions.replay.runner.backtest.candidates import Candidates, champion_properties
from airflow_hops.extensions.replay.runner.backtest.plan import BacktestPlan, moment, named_policies
from airflow_hops.extensions.replay.runner.backtest.run import run_backtest
from airflow_hops.runner.runtime import RuntimeHook

_LONGEST = timedelta(days=36_525)
_UNITS = {"w": "weeks", "d": "days", "h": "hours", "m": "minutes", "s": "seconds"}


@suppress_logs_and_warning
def backtest(args: Namespace) -> None:
    """Back-tests retraining policies and prints the results of each."""
    hook = RuntimeHook(args.hops_conn_id)
    code_paths = args.code_path or [str(Path(conf.get("core", "dags_folder")).expanduser().absolute())]
    plan = BacktestPlan(
        args.model,
        moment("--from", args.start),
        moment("--to", args.end),
        named_policies(args.policy, champion_properties(hook, args.model), code_paths),
        every=_duration("--every", args.every),
        first=_duration("--first", args.first) if args.first else None,
        label_delays=[_duration("--label-delay", each) for each in args.label_delay or ["0d"]],
        price=args.price,
        jobs=args.jobs,
    )
    if args.output:
        Path(args.output).mkdir(parents=True, exist_ok=True)  # fails early if it cannot be created
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user of a container may have no name
        user = str(os.getuid())
    candidates = Candidates(hook, plan, _say)
    try:
        uri, report = run_backtest(hook.store, plan, candidates, {"user": user}, _say)
    except KeyboardInterrupt:
        _say("Interrupted. Trained candidates are stored: the same command continues from there.")
        raise
    if args.json:
        print(json.dumps({"uri": uri, **report.to_dict()}))
    else:
        _print(report)
        print(f"Report: {uri}")
    if args.output:
        place = uri.rpartition("/")[0]
        try:
            for name in hook.store.names(place):
                (Path(args.output) / name).write_text(hook.store.read_text(f"{place}/{name}"))
            if POLICY_FILE not in hook.store.names(place):
                (Path(args.output) / POLICY_FILE).unlink(missing_ok=True)  # left by an earlier back-test
        except (HopsError, OSError) as error:
            raise SystemExit(f"--output: {error}") from None


def _duration(name: str, text: str) -> timedelta:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([wdhms])", text)
    result = timedelta.max
    with contextlib.suppress(OverflowError):
        result = timedelta(**{_UNITS[match[2]]: float(match[1])}) if match else result
    if result > _LONGEST:
        raise InvalidArgument(name, text, ", expected a duration like 7d, 12h or 2w, of at most 100 years")
    return result


def _print(report: BacktestReport) -> None:
    gpus = any(each.gpu_hours for each in report.policies)
    better = "less" if report.lower_is_better else "more"
    table = Table(title=f"{report.model_name}: {report.metric} ({better} is better)", title_justify="left")
    table.add_column("policy")
    columns = ["average", "better than never", "trainings", "served", "false alarms", "core h"]
    for name in [*columns, *["GPU h"] * gpus, "regret"]:
        table.add_column(name, justify="right")
    for each in (*report.policies, *([report.best] if report.best else [])):
        is_chosen = each.name == report.chosen
        better = _interval(each.better, sign="+") if each.retrainings else ""
        served = sum(retraining.promoted for retraining in each.retrainings)
        row = [f"{'* ' * is_chosen}{each.name}", _interval(each.average), better, len(each.retrainings), served]
        row += [each.false_alarms, f"{each.core_hours:.3f}", *[f"{each.gpu_hours:.3f}"] * gpus]
        row.append(f"{each.regret:.4f}")
        table.add_row(*map(str, row), style="bold" if is_chosen else None)
    Console().print(table)
    for note in report.notes:
        _say(note)
    print(f"{report.trained} of {len(report.candidates)} candidates trained in {report.wall_s / 60:.1f} min")
    print(f"Chosen at a price of {report.price:g} for a training: {report.chosen}")


def _interval(interval: Interval, sign: str = "") -> str:
    value, low, high = (round(each, 4) + 0.0 for each in interval)  # no -0.0000
    return f"{value:{sign}.4f} ({low:{sign}.4f} to {high:{sign}.4f})"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)

"""``airflow hops rehearse``: what a model's monitor would find of planted faults."""

from __future__ import annotations

import json
import re
import shutil
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from airflow_hops.airflow_internals.cli import suppress_logs_and_warning
from airflow_hops.cli.terminal import print_warning, progress_console
from airflow_hops.core.artifacts.artifact import Artifact, Producer
from airflow_hops.core.errors import BadInput, InvalidArgument, StepFailed
from airflow_hops.core.models.model_record import read_record
from airflow_hops.core.monitor_reports import monitoring_reports
from airflow_hops.core.processes.files import staged
from airflow_hops.core.retraining.policy import RetrainingPolicy
from airflow_hops.core.steps.protocol import Line, Output, StepSpec
from airflow_hops.core.times import now, sortable
from airflow_hops.extensions.rehearsal.core.rehearsal import REHEARSAL, Rehearsal, RehearsalOptions
from airflow_hops.extensions.rehearsal.core.requirements import check_requirements, duration, failures, row_of
from airflow_hops.extensions.rehearsal.operators import list_rehearsal, monitor_options
from airflow_hops.runner.runtime import RuntimeHook

_LENGTH = re.compile(r"(\d+(?:\.\d+)?)([hdw])")
_UNITS_S = {"h": 3_600.0, "d": 86_400.0, "w": 7 * 86_400.0}
_HEAD = ("feature", "fault", "smallest change found", "after", "called", "retrains", "slips through, at most")
_NARROW, _SHOWN = 60, 30


@suppress_logs_and_warning
def rehearse(args: Namespace) -> None:
    """Rehearses a monitor, prints what it would find, and fails if a requirement does not hold."""
    require = [*args.require, *([f"false alarms: {args.false_alarms}"] if args.false_alarms else [])]
    check_requirements(require)
    options = RehearsalOptions(
        args.model,
        skew=None if args.skew is None else monitor_options(_json(args.skew)),
        policy=args.policy and RetrainingPolicy.from_dict(_json(args.policy), args.policy).to_dict(),
        every_s=args.every and _seconds(args.every),
        tries=args.tries,
        features=args.feature or None,
        rows=args.rows,
    )
    hook = RuntimeHook(args.hops_conn_id)
    artifact, producer = _run(hook, options)
    report = list_rehearsal(hook.store, artifact, producer)
    if args.output:
        with staged(Path(args.output).expanduser()) as staging:
            staging.write_text(json.dumps(report.to_dict(), indent=1) + "\n", encoding="utf-8")
    for line in lines_of(report, shutil.get_terminal_size((110, 24)).columns):
        print(line)
    print(f"\nReport: {artifact.uri}; also on the page Skew of {producer.dag_id!r}")
    if failed := failures(report, require):
        raise SystemExit("\n".join(["", "Required, but it does not hold:", *(f"  {each}" for each in failed)]))


def lines_of(report: Rehearsal, width: int) -> Iterator[str]:
    """Yields the lines of a report for a terminal.

    Args:
        report: The report.
        width: Columns of the terminal.
    """
    low, high = (100 * each for each in report.false_alarms[1:])
    kind = "captured requests" if report.rows == "captured" else "held-out training rows"
    yield (
        f"{report.model_name} version {report.version}: {len(report.windows)} windows of {kind}, each "
        f"{duration(report.every_s)}; {100 * report.false_alarms[0]:.3g}% of them are not stable without a fault "
        f"({low:.2g}% to {high:.2g}%)"
    )
    for feature in report.features:
        if feature.state != "compared":
            yield f"\n{feature.name} is {feature.state}: {feature.because}"
            if feature.advice:
                yield f"  {feature.advice}"
    yield ""
    rows = [_HEAD, *(row_of(fault, report) for fault in report.faults[:_SHOWN])]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    if sum(widths) + 2 * len(widths) <= max(width, _NARROW):
        yield from (
            "  ".join(cell.ljust(size) for cell, size in zip(row, widths, strict=True)).rstrip() for row in rows
        )
    else:  # one below the other, so that nothing is cut
        for row in rows[1:]:
            yield f"{row[0]}: {row[2]}"
            yield "  " + "; ".join(f"{name} {cell}" for name, cell in zip(_HEAD[3:], row[3:], strict=True) if cell)
    if len(report.faults) > _SHOWN:
        yield f"… and {len(report.faults) - _SHOWN} more, which move predictions by less: in the report"
    for note in report.notes:
        yield f"\nNote: {note}"


def _run(hook: RuntimeHook, options: RehearsalOptions) -> tuple[Artifact, Producer]:
    """Runs the step as of a DAG that the model's users know, by which the pages tell who may read the report."""
    store = hook.store
    champion = read_record(store, options.model_name).champion
    newest = next(monitoring_reports(store, options.model_name, "skew"), None)
    made = newest.uri if newest is not None else champion.model.uri if champion is not None else ""
    producer = Producer(store.dag_of(made) or "rehearse", f"rehearse__{sortable(now())}", REHEARSAL)
    output = Output(store.address(producer, REHEARSAL), REHEARSAL)
    entry = "airflow_hops.extensions.rehearsal.ml.stage:run"
    spec = StepSpec(step="rehearse", entry=entry, params=options.to_dict(), output=output, producer=producer)
    console, is_terminal = progress_console(), sys.stderr.isatty()
    with console.status("starting") if is_terminal else nullcontext() as status:

        def show(line: Line) -> None:
            print_warning(line)
            if status is not None and line.progress is not None:
                status.update(f"{100 * line.progress:.0f}% {line.text}")

        try:
            return Artifact.from_dict(hook.run(spec, cache=False, on_line=show).value), producer
        except StepFailed as error:
            raise SystemExit(str(error).removeprefix("step 'rehearse': ")) from None


def _json(file: str) -> Any:
    try:
        return json.loads(Path(file).expanduser().read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(f"{file}: not a JSON file: {error}") from error


def _seconds(text: str) -> float:
    match = _LENGTH.fullmatch(text.strip())
    if match is None:
        raise InvalidArgument("--every", text, ", expected a number of hours, days or weeks, such as 6h, 1d or 1w")
    return float(match[1]) * _UNITS_S[match[2]]

"""A back-test as a report: the policies beside each other, their metric over time, and what they retrained for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, Response

from airflow_hops.core.contract.backtest import PolicyOutcome
from airflow_hops.core.contract.performance import Interval
from airflow_hops.core.contract.retraining.situation import as_utc
from airflow_hops.reports.page import Chart, Report, Section, Table, cell
from airflow_hops.web.access import READS_ARTIFACTS
from airflow_hops.web.answers import send_report
from airflow_hops.web.models.backtests import FoundBacktest

router = APIRouter(prefix="/api/dags/{dag_id}/models/{model}/backtests", tags=["reports"])
_COLUMNS = ("", "Average", "Better than never", "Trainings", "False alarms", "Core hours", "GPU hours", "Regret")


@router.get("/{backtest}/report.html", response_class=HTMLResponse, dependencies=[READS_ARTIFACTS])
def report_backtest(found: FoundBacktest) -> Response:
    """A back-test: its policies, their metric over time, their retrainings; one HTML file to keep or send."""
    report = found.report
    outcomes = [*report.policies, *([report.best] if report.best else [])]
    facts = {
        "History": f"{report.start[:10]} to {report.end[:10]}",
        "Periods": f"{len(report.ticks)}, {cell(sum(report.rows))} rows",
        "Metric": f"{report.metric}, {'lower' if report.lower_is_better else 'higher'} is better",
        "Price of a training": report.price,
        "Chosen at this price": report.chosen,
        "Candidates": f"{len(report.candidates)}, {report.trained} of them trained for this report",
        "Seconds": report.wall_s,
    }
    lines = {each.name: _points(report.ticks, each.values) for each in outcomes}
    retrained = [
        (each.name, of.at, "promoted" if of.promoted else "rejected", _in_words(of.gain), of.reason, list(of.gate))
        for each in outcomes
        for of in each.retrainings
    ]
    sections = [
        Section("Back-test", [Table.of(facts), *report.notes]),
        Section("Policies", [Table([_row(each) for each in outcomes], _COLUMNS)]),
        Section("Over time", [Chart(lines, f"{report.metric} by days since the first period's end")]),
        Section("Retrainings", [Table(retrained, ("", "At", "", "Gain", "Reason", "Gate"))] if retrained else []),
    ]
    title = f"{report.model_name} back-test {found.id}"
    return send_report(title, Report(title, f"Model of DAG {report.dag_id}", sections).html())


def _row(of: PolicyOutcome) -> tuple[Any, ...]:
    counts = (len(of.retrainings), of.false_alarms, of.core_hours, of.gpu_hours)
    return (of.name, _in_words(of.average), _in_words(of.better), *counts, of.regret)


def _in_words(of: Interval | None) -> str | None:
    return of and f"{cell(of[0])} ({cell(of[1])} to {cell(of[2])})"


def _points(ticks: Sequence[str], values: Sequence[float | None]) -> list[tuple[float, float]]:
    days = [as_utc(tick).timestamp() / 86_400 for tick in ticks]
    return [(day - days[0], value) for day, value in zip(days, values, strict=True) if value is not None]

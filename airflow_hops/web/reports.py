"""Reports that compare training runs, and reports of skew checks."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse, Response

from airflow_hops.airflow_internals.api_server import GetUserDep
from airflow_hops.reports.page import Chart, Image, Report, Section, Table
from airflow_hops.web.access import READS_ARTIFACTS, READS_RUNS
from airflow_hops.web.answers import send_report
from airflow_hops.web.artifacts.lookup import TaskArtifact
from airflow_hops.web.models.notes import is_own_tag
from airflow_hops.web.runs.trainings import TrainingRunDetail, get_training_run, list_curves
from airflow_hops.web.skew.report import describe_comparison, expect_skew, read_report

router = APIRouter(prefix="/api/dags/{dag_id}", tags=["reports"])
_MOST_CHARTS = 24
RUN_IDS = Annotated[list[Annotated[str, Query(pattern=r"^[0-9a-f]{32}$")]], Query(min_length=1, max_length=8)]


@router.get("/reports/runs", response_class=HTMLResponse, dependencies=[READS_RUNS, READS_ARTIFACTS])
def report_training_runs(user: GetUserDep, dag_id: str, run: RUN_IDS) -> Response:
    """Downloads a comparison of training runs as one HTML file: parameters, metrics, curves, data."""
    details = [get_training_run(user, dag_id, run_id) for run_id in dict.fromkeys(run)]
    names = _names(details)
    title = names[0] if len(names) == 1 else f"{dag_id} {len(names)} runs"
    return send_report(title, Report(title, "Training runs", _run_sections(dag_id, details, names)).html())


@router.get("/runs/{run_id}/artifacts/{task_id}/{instance}/{kind}/skew/report.html", response_class=HTMLResponse)
def report_skew(found: TaskArtifact, dag_id: str, run_id: str) -> Response:
    """Downloads a skew check as one HTML file: verdict, drifted features and causes, all features."""
    expect_skew(found)
    skew = describe_comparison(read_report(found.store, found.artifact))
    facts = {
        "Verdict": skew.verdict,
        "Compared with": skew.reference,
        "Rows of the training data": skew.rows_reference,
        "Rows of requests": skew.rows_current,
        "Rows that it takes": skew.min_rows,
        "Significance level": skew.alpha,
        "Mean prediction, training data": skew.prediction_reference,
        "Mean prediction, requests": skew.prediction_current,
        "Drifted": [each.name for each in skew.features if each.drifted],
        "On one side only": skew.unmatched,
    }
    columns = ["Feature", "Drifted", "Change", "Cause", "Effect"]
    columns += ["Measure", "Score", "Threshold", "p", "Missing before", "now"]
    rows = [
        (
            *(each.name, each.drifted, each.summary),
            ": ".join(filter(None, ((each.cause or "").replace("_", " "), each.detail))),
            *(each.effect, (each.measure or "").replace("_", " "), each.score, each.threshold, each.p_value),
            *(each.missing_reference, each.missing_current),
        )
        for each in skew.features
    ]
    sections = [Section("Summary", [Table.of(facts), *skew.notes]), Section("Features", [Table(rows, columns)])]
    if skew.row_skew is not None:
        compared = skew.row_skew
        differ = [(of.name, of.differ, of.mismatch, of.training_only, of.serving_only) for of in compared.features]
        columns = ["Feature", "Differ", "Other value", "Training only", "Serving only"]
        facts = {"Joined by": compared.identifiers, "Pairs": compared.pairs, "Pairs that differ": compared.skewed_pairs}
        sections.append(Section("Same rows in training and serving", [Table.of(facts), Table(differ, columns)]))
    if found.has("report.svg"):
        picture = base64.b64encode(found.read_text("report.svg").encode()).decode()
        caption = "Features that drifted: training data grey, requests orange"
        image = Image(f"data:image/svg+xml;base64,{picture}", caption)
        sections.insert(1, Section("Histograms", [image]))
    title = f"{dag_id} skew {run_id}"
    return send_report(title, Report(title, "Skew check", sections).html())


def _names(runs: Sequence[TrainingRunDetail]) -> list[str]:
    """Returns the runs' names; equal names get the beginning of the run id."""
    names = [run.name or run.run_id for run in runs]
    return [
        f"{name} {run.run_id[:6]}" if names.count(name) > 1 else name for name, run in zip(names, runs, strict=True)
    ]


def _run_sections(dag_id: str, runs: Sequence[TrainingRunDetail], names: Sequence[str]) -> list[Section]:
    def table(rows: dict[str, list[Any]]) -> Table:
        return Table([(name, *values) for name, values in rows.items()], ["", *names])

    facts: dict[str, list[Any]] = {
        "Id": [run.run_id for run in runs],
        "MLflow's id": [run.mlflow_run_id for run in runs],
        "Status": [run.status for run in runs],
        "Started": [datetime.fromtimestamp(run.start_time / 1000, UTC) for run in runs],
        "Seconds": [run.end_time and round((run.end_time - run.start_time) / 1000) for run in runs],
        "DAG run": [run.dag_run_id for run in runs],
        "Model versions": [[f"{each.name} v{each.version}" for each in run.versions] for run in runs],
        "Note": [run.note for run in runs],
        "Tags": [{name: value for name, value in run.tags.items() if is_own_tag(name)} for run in runs],
    }
    params = {name: [run.params.get(name) for run in runs] for name in sorted({n for run in runs for n in run.params})}
    metrics = {
        name: [run.metrics.get(name) for run in runs] for name in sorted({n for run in runs for n in run.metrics})
    }
    differ = {name: values for name, values in params.items() if len(set(values)) > 1}
    same = {name: values for name, values in params.items() if name not in differ}
    data = [
        (name, each.context, each.name, each.rows)
        for name, run in zip(names, runs, strict=True)
        for each in run.datasets
    ]
    return [
        Section("Runs", [table({name: values for name, values in facts.items() if any(values)})]),
        Section("Metrics", [table(metrics)] if metrics else []),
        Section("Parameters that differ", [table(differ)] if differ else []),
        Section("Parameters" if not differ else "Parameters with the same value", [table(same)] if same else []),
        Section("Data", [Table(data, ["Run", "Use", "Data set", "Rows"])] if data else []),
        Section("Curves", _curves(dag_id, runs, names)),
    ]


def _curves(dag_id: str, runs: Sequence[TrainingRunDetail], names: Sequence[str]) -> list[Chart | str]:
    by_metric: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for name, run in zip(names, runs, strict=True):
        many = [metric for metric, figures in run.figures.items() if figures.count > 1]
        for curve in list_curves(dag_id, run.run_id, many) if many else ():
            values = [(float(x), y) for x, y in zip(curve.steps, curve.values, strict=True) if y is not None]
            by_metric.setdefault(curve.metric, {})[name] = values
    charts: list[Chart | str] = [Chart(lines, f"{metric} by step") for metric, lines in sorted(by_metric.items())]
    left = len(charts) - _MOST_CHARTS
    return (
        charts if left <= 0 else [*charts[:_MOST_CHARTS], f"{left} more metrics have curves, which are not shown here."]
    )

"""The demo's summary: what went through each stage, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

from airflow_hops.core.store import ArtifactStore
from demo.services import Stack


@dataclass
class Facts:
    """The observations of the demo: tasks by id for each DAG run, the client's totals by period, versions' figures.

    Attributes:
        store: The artifact store.
        first: The first training.
        cheaper: The training of a single epoch.
        checks: The monitor's runs, in time order.
        retraining: What the monitor asked for.
        canary: The period that the canary was asked about; empty where none was.
        replays: Totals by period.
        later: Figures of both versions on the canary's period.
        serving: What the model server says of itself.
    """

    store: ArtifactStore
    first: dict[str, Any] = field(default_factory=dict)
    cheaper: dict[str, Any] = field(default_factory=dict)
    checks: list[dict[str, Any]] = field(default_factory=list)
    retraining: dict[str, Any] = field(default_factory=dict)
    canary: str = ""
    replays: dict[str, Any] = field(default_factory=dict)
    later: dict[str, Any] = field(default_factory=dict)
    serving: dict[str, Any] = field(default_factory=dict)

    def read_serving(self, stack: Stack) -> None:
        """Asks the model server what it serves."""
        answer = httpx.get(f"http://127.0.0.1:{stack.rest_port}/v1/stats", timeout=30, trust_env=False)
        self.serving = answer.raise_for_status().json()

    @property
    def deployed(self) -> dict[str, dict[str, Any]]:
        """The trainings whose models were deployed, by their versions, the first one first."""
        found = ((tasks, (tasks.get("deploy") or {}).get("value")) for tasks in (self.first, self.retraining))
        return {str(value["properties"]["version"]): tasks for tasks, value in found if value}

    @property
    def runs(self) -> list[tuple[str, dict[str, Any]]]:
        """The DAG runs by what they were for, in time order."""
        checks = [(f"monitoring {number}", tasks) for number, tasks in enumerate(self.checks, start=1)]
        runs = [("first training", self.first), ("one epoch", self.cheaper), *checks, ("retraining", self.retraining)]
        return [(name, tasks) for name, tasks in runs if tasks]


def story(facts: Facts) -> list[str]:
    """Tells the story, a line for each decision."""
    first, cheaper = (
        read_report(facts.store, tasks["evaluate"]["value"], "evaluation.json")
        for tasks in (facts.first, facts.cheaper)
    )
    aucs = [f"{report['splits']['eval']['candidate']['auc']:.3f}" for report in (first, cheaper)]
    told = "Blessed" if cheaper["blessed"] else "Refused"
    old, *new = facts.deployed
    lines = [
        f"Served: version {old}, trained on January to March, AUC {aucs[0]} on held-out flights",
        f"{told}: a cheaper candidate, trained for one epoch, AUC {aucs[1]} on the same flights",
        _drift(facts),
    ]
    if new:
        decision = facts.retraining["rollout"]["value"]["properties"]["decision"].capitalize()
        old_auc, new_auc = (f"{facts.later[version]['auc']:.3f}" for version in (old, new[0]))
        compared = f"AUC {new_auc} on the flights of {facts.canary}, where version {old} has {old_auc}"
        lines.append(f"{decision}: version {new[0]}, {compared}")
    elif facts.retraining:
        lines.append(f"Refused: what the retraining has learnt; version {old} stays")
    return lines


def _drift(facts: Facts) -> str:
    reports = [read_report(facts.store, check["skew"]["value"], "report.json") for check in facts.checks]
    name = next(iter(reports[-1]["drifted"]), "temp")
    moved = ", ".join(f"{report['features'][name]['score']:.3g}" for report in reports)
    allowed = f"{reports[-1]['features'][name]['threshold']:.3g} allowed"
    asked = "a retraining was asked for" if facts.retraining else "no retraining was asked for"
    return f"{reports[-1]['verdict'].capitalize()}: {name} by {moved} from period to period ({allowed}); {asked}"


def print_tables(facts: Facts, console: Console) -> None:
    """Prints the tables."""
    console.print(stages(facts.runs))
    console.print(_anomalies(facts))
    for tasks in facts.checks:
        if tasks["skew"]["value"]:
            console.print(_skew(facts.store, tasks["skew"]["value"]))
    console.print(_evaluation(facts))
    console.print(_versions(facts))
    decision = read_report(facts.store, (facts.retraining.get("rollout") or {}).get("value"), "rollout.json")
    if decision:
        console.print(f"Rollout of version {decision['version']}: {decision['decision']}")
        for reason in decision["reasons"]:
            console.print(f"  {reason}")


def stages(runs: list[tuple[str, dict[str, Any]]]) -> Table:
    """Rows and seconds of each task of some runs."""
    table = Table(title="Rows and seconds of each stage", title_justify="left")
    for column in ("run", "stage", "state"):
        table.add_column(column)
    for column in ("rows in", "out", "rejected", "seconds", "start-up", "work"):
        table.add_column(column, justify="right")
    table.add_column("why rejected")
    for run, tasks in runs:
        for task_id, task in tasks.items():
            value = task["value"] if isinstance(task["value"], Mapping) else {}
            rows = value.get("rows", {})
            seconds = value.get("seconds", {})
            cached = " (cached)" if value.get("cached") else ""
            common = [
                f"{task['seconds']:.1f}",
                f"{seconds['start_up']:.1f}" if seconds else "",
                f"{seconds['work']:.1f}" if seconds else "",
            ]
            if not rows:
                table.add_row(run, task_id, task["state"] + cached, "", "", "", *common, "")
            for number, (name, counts) in enumerate(rows.items()):
                first = number == 0
                table.add_row(
                    run if first else "",
                    f"{task_id}: {name}" if first else f"  {name}",
                    task["state"] + cached if first else "",
                    f"{counts['rows_in']:,}",
                    f"{counts['rows_out']:,}",
                    f"{sum(counts['rejected'].values()):,}",
                    *(common if first else ["", "", ""]),
                    ", ".join(f"{reason} {count:,}" for reason, count in counts["rejected"].items() if count),
                )
            run = ""
    return table


def _anomalies(facts: Facts) -> Table:
    table = Table("run", "split", "feature", "severity", "anomaly", title="Anomalies", title_justify="left")
    for run, tasks in facts.runs:
        if "validate" not in tasks:
            continue
        found = read_report(facts.store, tasks["validate"]["value"], "anomalies.json") or {}
        rows = found.get("anomalies", [])
        for row in rows:
            table.add_row(run, *(str(row.get(name, "")) for name in ("split", "feature", "severity", "description")))
        if not rows:
            table.add_row(run, "", "", "", "none")
    return table


def _skew(store: ArtifactStore, artifact: Mapping[str, Any]) -> Table:
    report = read_report(store, artifact, "report.json") or {}
    rows = artifact["rows"]["captured"]["rows_in"]
    until = artifact["properties"].get("window_end")
    table = Table(
        title=f"Training-serving skew: {report.get('verdict')} ({rows:,} captured rows, data until {until})",
        title_justify="left",
    )
    for column in ("feature", "measure"):
        table.add_column(column)
    for column in ("score", "threshold", "p", "missing then", "missing now", "effect"):
        table.add_column(column, justify="right")
    table.add_column("drifted")
    features = report.get("features", {})
    for name, row in sorted(features.items(), key=lambda item: -_ratio(item[1])):
        table.add_row(
            name,
            str(row.get("measure") or ""),
            *(
                "" if row.get(field) is None else format(row[field], form)
                for field, form in (
                    ("score", ".4f"),
                    ("threshold", ".2f"),
                    ("p_value", ".1e"),
                    ("missing_reference", ".4f"),
                    ("missing_current", ".4f"),
                    ("effect", ".4f"),
                )
            ),
            f"[red]{row.get('cause')}[/red]" if row.get("drifted") else "no",
        )
    return table


def _ratio(row: Mapping[str, Any]) -> float:
    return float(row.get("score") or 0) / float(row.get("threshold") or 1)


def _evaluation(facts: Facts) -> Table:
    table = Table("version", "where", title="Evaluation", title_justify="left")
    for column in ("rows", "AUC", "log loss", "accuracy", "late share"):
        table.add_column(column, justify="right")
    versions = {id(tasks): version for version, tasks in facts.deployed.items()}
    for tasks in (facts.first, facts.cheaper, facts.retraining):
        version = versions.get(id(tasks), "refused")
        evaluation = read_report(facts.store, (tasks.get("evaluate") or {}).get("value"), "evaluation.json")
        for split, figures in (evaluation or {}).get("splits", {}).items():
            table.add_row(version, f"split {split}, at its evaluation", *_figures(figures["candidate"]))
            if figures.get("champion"):
                champion = evaluation["champion"]["version"]
                table.add_row(
                    f"({champion})", f"split {split}, the champion on the same rows", *_figures(figures["champion"])
                )
        for reason in (evaluation or {}).get("reasons", []):
            table.add_row("", f"[dim]{reason}[/dim]", "", "", "", "", "")
    for version, figures in facts.later.items():
        table.add_row(f"[bold]{version}[/bold]", f"[bold]same later flights, {facts.canary}[/bold]", *_figures(figures))
    return table


def _figures(figures: Mapping[str, Any]) -> list[str]:
    def show(name: str, pattern: str) -> str:
        return "" if figures.get(name) is None else pattern.format(figures[name])

    return [
        show("rows", "{:,}"),
        show("auc", "{:.4f}"),
        show("log_loss", "{:.4f}"),
        show("accuracy", "{:.4f}"),
        show("mean_label", "{:.3f}"),
    ]


def _versions(facts: Facts) -> Table:
    table = Table(title="What serves", title_justify="left")
    table.add_column("version")
    for column in ("traffic %", "requests", "rows", "errors", "p50 ms", "p99 ms"):
        table.add_column(column, justify="right")
    for model in facts.serving.get("models", {}).values():
        for version, row in model.get("versions", {}).items():
            table.add_row(
                version,
                *(
                    ""
                    if row.get(name) is None
                    else f"{row[name]:,.4g}"
                    if isinstance(row[name], float)
                    else f"{row[name]:,}"
                    for name in ("traffic_percent", "requests", "rows", "errors", "latency_ms_p50", "latency_ms_p99")
                ),
            )
    return table


def read_report(store: ArtifactStore, artifact: Any, name: str) -> Any:
    """A JSON file of an artifact; None where there is none."""
    try:
        return store.read_json(f"{artifact['uri']}/{name}") if artifact else None
    except FileNotFoundError:
        return None

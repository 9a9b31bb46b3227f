"""Evaluations as sections of a report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_hops.core.contract.evaluation import EvaluationReport, Figures
from airflow_hops.core.contract.metrics import Interval
from airflow_hops.reports.page import Chart, Section, Table

_NOT_FIGURES = ("rows", "weight")
_CLASSES = 50

Blocks = list[Any]


def evaluation_sections(evaluation: EvaluationReport) -> list[Section]:
    """Returns a section for each split, with slices, classes and calibration, and one for each further label."""
    sections = []
    for name, split in evaluation.splits.items():
        blocks: Blocks = [_figures(split)]
        for feature, slices in (split.slices or {}).items():
            rows = [(each.value, *_compared(each, evaluation.metric)) for each in slices]
            columns = [feature, "Rows", evaluation.metric, "Champion", "Gain", "95% interval"]
            blocks.append(Table(rows, columns, f"By {feature}"))
        blocks += _by_class(split.candidate)
        if calibration := split.candidate.get("calibration"):
            points = [(bin["predicted"], bin["observed"]) for bin in calibration]
            blocks.append(Chart({"observed": points}, "Calibration: observed against predicted", diagonal=True))
        sections.append(Section(f"Evaluation on {name}", blocks))
    for label, of in (evaluation.more_labels or {}).items():
        tables = [_figures(split, f"On {name}") for name, split in of.splits.items()]
        sections.append(Section(f"Evaluation of {label}", tables))
    return sections


def _figures(split: Figures, caption: str = "") -> Table:
    def figure(figures: Mapping[str, Any] | None, name: str) -> Any:
        value, low, high = ((figures or {}).get(f"{name}{end}") for end in ("", "_low", "_high"))
        return value if low is None or high is None or value is None else with_interval((value, low, high))

    names = [
        name
        for name, value in split.candidate.items()
        if isinstance(value, int | float) and name not in _NOT_FIGURES and not name.endswith(("_low", "_high"))
    ]
    rows = [("rows", split.rows, split.rows if split.champion else None)]
    rows += [(name, figure(split.candidate, name), figure(split.champion, name)) for name in names]
    return Table(rows, ["Figure (95% interval)", "This version", "Champion at the time"], caption)


def with_interval(interval: Interval) -> str:
    """Formats a value with its 95% interval."""
    value, low, high = interval
    return f"{value:.4g} ({low:.4g} to {high:.4g})"


def _compared(of: Figures, metric: str) -> tuple[Any, ...]:
    gain = of.gain
    within = f"{gain.low:.4g} to {gain.high:.4g}" if gain and gain.low is not None and gain.high is not None else None
    champion = (of.champion or {}).get(metric)
    return of.rows, of.candidate.get(metric), champion, gain.difference if gain else None, within


def _by_class(figures: Mapping[str, Any]) -> Blocks:
    classes = figures.get("classes") or []
    if not classes:
        return []
    columns = [name for name, value in classes[0].items() if isinstance(value, str | int | float)]
    left = len(classes) - _CLASSES
    caption = f"By class, without {left} more" if left > 0 else "By class"
    tables: Blocks = [
        Table([tuple(each.get(name) for name in columns) for each in classes[:_CLASSES]], columns, caption)
    ]
    confusion = figures.get("confusion") or []
    if confusion and left <= 0:
        names = [str(each.get("name")) for each in classes]
        counted = [(name, *row) for name, row in zip(names, confusion, strict=False)]
        tables.append(Table(counted, ["Is, said to be", *names], "Confusion matrix, in rows"))
    return tables

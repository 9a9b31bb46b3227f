"""Evaluations in a model card."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_hops.core.evaluation import EvaluationReport, Figures
from airflow_hops.extensions.governance.core.cards.markdown import table

_NOT_FIGURES = ("rows", "weight")


def evaluation_sections(evaluation: EvaluationReport) -> dict[str, list[str]]:
    """Returns a section for each split, with its slices, and one for each further label, by title."""
    sections = {}
    for name, split in evaluation.splits.items():
        blocks = [_figures(split)]
        for feature, slices in (split.slices or {}).items():
            rows = [(each.value, *_compared(each, evaluation.metric)) for each in slices]
            columns = [feature, "Rows", evaluation.metric, "Champion", "Gain", "95% interval"]
            blocks.append(table(rows, columns, f"By {feature}"))
        sections[f"Evaluation on {name}"] = blocks
    for label, figures in (evaluation.more_labels or {}).items():
        sections[f"Evaluation of {label}"] = [_figures(split, f"On {name}") for name, split in figures.splits.items()]
    return sections


def worse_slices(evaluation: EvaluationReport) -> list[str]:
    """Returns a sentence for each feature with slices in which the champion of that time is better beyond chance."""
    results = []
    for name, split in evaluation.splits.items():
        for feature, slices in (split.slices or {}).items():
            worse = [each.value for each in slices if each.gain and each.gain.high is not None and each.gain.high < 0]
            if worse:
                values = ", ".join(map(str, worse))
                results.append(
                    f"On {name}, worse than the champion at the time beyond chance where {feature} is {values}."
                )
    return results


def _with_interval(value: float, low: float, high: float) -> str:
    return f"{value:.4g} ({low:.4g} to {high:.4g})"


def _figures(split: Figures, caption: str = "") -> str:
    def figure(figures: Mapping[str, Any] | None, name: str) -> Any:
        value, low, high = ((figures or {}).get(f"{name}{end}") for end in ("", "_low", "_high"))
        return value if low is None or high is None or value is None else _with_interval(value, low, high)

    names = [
        name
        for name, value in split.candidate.items()
        if isinstance(value, int | float) and name not in _NOT_FIGURES and not name.endswith(("_low", "_high"))
    ]
    rows = [("rows", split.rows, split.rows if split.champion else None)]
    rows += [(name, figure(split.candidate, name), figure(split.champion, name)) for name in names]
    return table(rows, ["Figure (95% interval)", "This version", "Champion at the time"], caption)


def _compared(figures: Figures, metric: str) -> tuple[Any, ...]:
    gain = figures.gain
    within = f"{gain.low:.4g} to {gain.high:.4g}" if gain and gain.low is not None and gain.high is not None else None
    champion = (figures.champion or {}).get(metric)
    return figures.rows, figures.candidate.get(metric), champion, gain.difference if gain else None, within

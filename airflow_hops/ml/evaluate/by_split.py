"""Computes figures of models on the splits of examples, for one label."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from airflow_hops.core.artifacts.target import REGRESSION, Problem, Target
from airflow_hops.core.errors import BadInput
from airflow_hops.ml.features.predictions import check_predictions
from airflow_hops.ml.metrics.class_names import CANDIDATE, CHAMPION, ClassNames
from airflow_hops.ml.metrics.judging import Judge, Scores
from airflow_hops.ml.metrics.scoring import ScoredModel, score

NOT_READ = (
    "to compare it, have prepare() return what the champion takes (the model need not use it); to deploy without a "
    "comparison, choose Replace champion on the page Models, or use: airflow hops models replace"
)


class SameLabel(BadInput):
    """All labels of the first split are equal."""


def figures_by_split(
    models: Mapping[str, ScoredModel],
    names: ClassNames,
    judge: Judge,
    files: Mapping[str, Sequence[Path]],
    target: Target,
    slices: Sequence[str],
    progress: Callable[[float, str], None] = lambda share, text: None,
) -> tuple[dict[str, Scores], list[str], dict[str, str]]:
    """Scores the rows of each split and computes the figures.

    A champion that cannot read the rows, or does not answer with numbers, has no figures.

    Args:
        models: The candidate, and the champion if one exists.
        names: Classes of the models and of the examples.
        judge: Computes the figures.
        files: Parquet files of examples by split; the labels of the first split must differ.
        target: Label, and the column of weights.
        slices: Columns that define slices.
        progress: Gets the finished share and a message.

    Returns:
        Figures by split; notes on rows that were not compared with the champion; and why the
        champion has no figures, by split.

    Raises:
        SameLabel: all labels of the first split are equal.
        BadInput: a split has no rows, a column is missing or mistyped, or the candidate's outputs are not predictions.
    """
    figures: dict[str, Scores] = {}
    reasons, unscored = [], {}
    for number, (split, paths) in enumerate(files.items()):
        scored = score(
            models,
            paths,
            target.label,
            classes=names.count,
            weight=target.weight,
            slices=slices,
            split=split,
            optional=[CHAMPION],
        )
        if CHAMPION in scored.unscored:
            why = scored.unscored[CHAMPION].rpartition(".parquet: ")[2].partition("; the columns are")[0]
            unscored[split] = f"the champion cannot score its rows: {why}; {NOT_READ}"
        if not len(scored.labels):
            raise BadInput(f"split {split!r}: no rows to evaluate on; leave it out of splits, or look at prepare()")
        if number == 0:
            _check_labels(scored.labels, split, target.label, judge.problem)
        for name, predictions in scored.predictions.items():
            try:
                output = f"split {split!r}: the {name} model's {models[name].output}"
                check_predictions(predictions, models[name].problem, output)
            except BadInput as error:
                if name == CANDIDATE:
                    raise
                reasons.append(f"{error}; its figures mean little")
        aligned = names.align(scored, f"split {split!r}")
        if aligned.compared is not None and (left_out := int((~aligned.compared).sum())):
            unknown = ", ".join(map(repr, names.new))
            reasons.append(f"{split}: {left_out} rows of {unknown}, which the champion does not know, are not compared")
        figures[split] = judge.describe(aligned)
        progress((number + 1) / len(files), f"scored {len(scored.labels)} rows of {split}")
    return figures, reasons, unscored


def _check_labels(labels: np.ndarray, split: str, label: str, problem: Problem) -> None:
    if np.ptp(labels) == 0:
        needs = "labels that differ" if problem == REGRESSION else "both classes"
        raise SameLabel(
            f"split {split!r}: label {label!r} is {labels[0]:g} in all {len(labels)} rows; an evaluation needs {needs}"
            ": widen the window, or look at how prepare() derives the label"
        )

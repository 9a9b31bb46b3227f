"""Metrics of a classifier of several classes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from airflow_hops.ml.metrics.binary_metrics import SMALLEST
from airflow_hops.ml.metrics.metrics import (
    Array,
    Estimate,
    Metrics,
    area_under_roc,
    calibration,
    estimate,
    even_weights,
    total_weight,
    values_and_intervals,
)

HIGHER_IS_BETTER = {
    "log_loss": False, "accuracy": True, "balanced_accuracy": True, "macro_f1": True, "weighted_f1": True,
    "auc": True, "worst_auc": True, "brier": False,
}  # fmt: skip
"""The metrics by which two models can be compared, and in which direction they improve."""

MAX_CONFUSION_CLASSES = 100
"""Up to so many classes the confusion matrix is kept, and the AUC taken, which sorts the rows once for each class."""


_BOUNDS = {
    "log_loss": (0.0, math.inf), "brier": (0.0, math.inf), "accuracy": (0.0, 1.0), "auc": (0.0, 1.0),
    "worst_auc": (0.0, 1.0),
}  # fmt: skip
_OF_ROWS = ("log_loss", "brier", "accuracy")
OF_CHOICES = ("balanced_accuracy", "macro_f1", "weighted_f1")
"""The metrics of the likeliest classes, which are no means over rows."""


@dataclass(frozen=True)
class ClassFigures:
    """Figures of one class.

    Attributes:
        name: Its name.
        rows: Rows that are of this class.
        recall: Share of them that is found: the accuracy within the class; None without rows.
        precision: Share of the rows said to be of this class that is; None if none is said to be.
        f1: Harmonic mean of both; None if no row is, or is said to be, of this class.
    """

    name: str
    rows: int
    recall: float | None
    precision: float | None
    f1: float | None = None


@dataclass(frozen=True, kw_only=True)
class ClassMetrics(Metrics):
    """Figures of one model of several classes on some rows.

    Attributes:
        accuracy: Share of rows whose likeliest class is theirs; with Wilson's interval.
        balanced_accuracy: Mean recall of the classes that have rows.
        macro_f1: Mean F1 of the classes that have rows, or are said to have.
        weighted_f1: Mean F1 of the classes, by their rows.
        auc: Mean over classes of the area under the ROC curve of one against the rest, of the classes that some rows
            are of, and some not; None if there is none, or more than 100 classes.
        worst_auc: The lowest of these areas: that of the class which the model tells from the others least.
        log_loss: Mean negative log-likelihood of the class, in nats.
        brier: Mean squared distance of the probabilities from the class's, summed over classes.
        classes: Figures by class.
        confusion: By class, how many of its rows are said to be of each; empty beyond 100 classes, and for a slice.
    """

    accuracy: float | None = None
    balanced_accuracy: float | None = None
    macro_f1: float | None = None
    weighted_f1: float | None = None
    auc: float | None = None
    worst_auc: float | None = None
    log_loss: float | None = None
    brier: float | None = None
    classes: tuple[ClassFigures, ...] = ()
    confusion: tuple[tuple[int, ...], ...] = ()


def class_metrics(
    labels: Array,
    probabilities: Array,
    names: Sequence[str] | None = None,
    weights: Array | None = None,
    *,
    detailed: bool = True,
) -> ClassMetrics:
    """The figures of a model.

    Args:
        labels: Numbers of the classes, shape ``[rows]``.
        probabilities: Of each class, shape ``[rows, classes]``.
        names: Of the classes; None for their numbers.
        weights: Of the rows.
        detailed: Whether confusion matrix and calibration (of the likeliest class) are wanted.
    """
    rows, classes = probabilities.shape
    if not rows:
        return ClassMetrics(rows=0, reason="no rows")
    chosen = probabilities.argmax(axis=1)
    estimates = {name: class_estimate(name, labels, probabilities, weights) for name in _OF_ROWS}
    values, intervals = values_and_intervals({**estimates, **_areas(labels, probabilities, weights)}, _BOUNDS, weights)
    choices: dict[str, Any] = {name: of_choices(name, labels, chosen, classes, weights) for name in OF_CHOICES}
    counts = np.bincount(labels * classes + chosen, minlength=classes**2).reshape(classes, classes)
    reason = None
    if "auc" not in values:
        only = names[labels[0]] if names else labels[0]
        reason = f"all {rows} labels are {only}; the AUC needs two classes"
        if classes > MAX_CONFUSION_CLASSES:
            reason = f"there are {classes} classes; the AUC is of {MAX_CONFUSION_CLASSES} at most"
    return ClassMetrics(
        rows=rows,
        weight=total_weight(weights),
        **values,
        **choices,
        classes=_by_class(labels, chosen, names or range(classes), weights),
        confusion=tuple(map(tuple, counts.tolist())) if detailed and classes <= MAX_CONFUSION_CLASSES else (),
        intervals=intervals,
        calibration=calibration(probabilities.max(axis=1), chosen == labels, weights) if detailed else (),
        reason=reason,
    )


def class_estimate(metric: str, labels: Array, probabilities: Array, weights: Array | None) -> Estimate | None:
    """A figure of a model by its name, but those of :data:`OF_CHOICES`; None for an AUC that is not defined."""
    if metric in ("auc", "worst_auc"):
        return _areas(labels, probabilities, weights).get(metric)
    if metric == "accuracy":
        return estimate(probabilities.argmax(axis=1) == labels, weights)
    p, rows = probabilities.astype(np.float64), np.arange(len(labels))
    if metric == "log_loss":
        return estimate(-np.log(np.clip(p[rows, labels], SMALLEST, 1.0)), weights)
    p[rows, labels] -= 1.0
    return estimate(np.square(p).sum(axis=1), weights)


def _areas(labels: Array, probabilities: Array, weights: Array | None) -> dict[str, Estimate]:
    """Mean and lowest AUC of a class against the rest; none beyond 100 classes."""
    rows, classes = probabilities.shape
    counts = np.bincount(labels, minlength=classes)
    there = np.flatnonzero((counts > 0) & (counts < rows))
    if classes > MAX_CONFUSION_CLASSES or not len(there):
        return {}
    total, influence, worst = 0.0, np.zeros(rows), Estimate(math.inf, np.zeros(rows))
    for number in there:
        area = area_under_roc(labels == number, probabilities[:, number], weights)
        total, influence = total + area.value, influence + area.influence
        worst = min(worst, area, key=lambda each: each.value)
    return {"auc": Estimate(total / len(there), influence / len(there)), "worst_auc": worst}


def of_choices(metric: str, labels: Array, chosen: Array, classes: int, weights: Array | None) -> float:
    """A figure of :data:`OF_CHOICES`, of the likeliest classes ``[rows]``."""
    of_class, said, right = _shares(labels, chosen, classes, weights)
    if metric == "balanced_accuracy":
        there = of_class > 0
        return float((right[there] / of_class[there]).mean())
    there = of_class + said > 0
    f1 = 2 * right[there] / (of_class + said)[there]
    return float(f1.mean() if metric == "macro_f1" else np.average(f1, weights=of_class[there]))


def _shares(labels: Array, chosen: Array, classes: int, weights: Array | None) -> tuple[Array, Array, Array]:
    """Returns for each class the weight of its rows, of those predicted as it, and of those that are both."""
    w = even_weights(weights, len(labels))
    of_class, said = (np.bincount(of, w, classes) for of in (labels, chosen))
    return of_class, said, np.bincount(labels, w * (chosen == labels), classes)


def _by_class(labels: Array, chosen: Array, names: Sequence[Any], weights: Array | None) -> tuple[ClassFigures, ...]:
    of_class, said, right = _shares(labels, chosen, len(names), weights)
    rows = np.bincount(labels, minlength=len(names)).tolist()
    with np.errstate(invalid="ignore"):
        shares = np.stack([right / of_class, right / said, 2 * right / (of_class + said)], axis=1).tolist()
    return tuple(
        ClassFigures(str(name), count, *(None if math.isnan(share) else share for share in each))
        for name, count, each in zip(names, rows, shares, strict=True)
    )

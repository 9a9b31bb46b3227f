"""Metrics of a classifier of several classes, and the paired comparison of two on the same rows. NumPy alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from airflow_hops.core.contract.evaluation import Difference
from airflow_hops.ml.metrics.binary_metrics import SMALLEST
from airflow_hops.ml.metrics.metrics import (
    Array,
    Metrics,
    area_under_roc,
    calibration,
    difference,
    error_of_mean,
    even_weights,
    interval,
    paired_difference,
    resampled_difference,
    spread,
    total_weight,
    wilson,
)

HIGHER_IS_BETTER = {
    "log_loss": False, "accuracy": True, "balanced_accuracy": True, "macro_f1": True, "weighted_f1": True,
    "auc": True, "worst_auc": True, "brier": False,
}  # fmt: skip
"""The metrics by which two models can be compared, and in which direction they improve."""

MAX_CONFUSION_CLASSES = 100
"""Up to so many classes the confusion matrix is kept, and the AUC taken, which sorts the rows once for each class."""


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
    right = (chosen == labels).astype(np.float64)
    accuracy = float(np.average(right, weights=weights))
    scores = {name: row_scores(name, labels, probabilities) for name in ("log_loss", "brier")}
    means = {name: -float(np.average(of, weights=weights)) for name, of in scores.items()}
    intervals = {name: interval(means[name], error_of_mean(of, weights), 0.0) for name, of in scores.items()}
    w = even_weights(weights, rows)
    intervals["accuracy"] = wilson(accuracy, float(w.sum() ** 2 / np.square(w).sum()))
    ranked = _area_under_roc(labels, probabilities, weights)
    for name, (area, influence) in (ranked or {}).items():
        intervals[name] = interval(area, spread(influence), 0.0, 1.0)
    choices = {name: _of_choices(name, labels, chosen, classes, weights) for name in _OF_CHOICES}
    figures = _by_class(labels, chosen, classes, names, weights)
    counts = np.bincount(labels * classes + chosen, minlength=classes**2).reshape(classes, classes)
    return ClassMetrics(
        rows=rows,
        weight=total_weight(weights),
        accuracy=accuracy,
        balanced_accuracy=choices["balanced_accuracy"],
        macro_f1=choices["macro_f1"],
        weighted_f1=choices["weighted_f1"],
        auc=ranked["auc"][0] if ranked else None,
        worst_auc=ranked["worst_auc"][0] if ranked else None,
        log_loss=means["log_loss"],
        brier=means["brier"],
        classes=figures,
        confusion=tuple(map(tuple, counts.tolist())) if detailed and classes <= MAX_CONFUSION_CLASSES else (),
        intervals=intervals,
        calibration=calibration(probabilities.max(axis=1), right, weights) if detailed else (),
        reason=None if ranked else _why_no_auc(labels, classes, names),
    )


def compare_classifiers(
    metric: str, labels: Array, candidate: Array, champion: Array, weights: Array | None = None
) -> Difference | None:
    """A candidate's gain over a champion on the same rows, with its 95% interval.

    The interval is that of the mean of paired differences; for the AUC DeLong's, over all classes; for F1 and balanced
    accuracy that of resampled rows.

    Args:
        metric: One of :data:`HIGHER_IS_BETTER`.
        labels: Numbers of the classes, shape ``[rows]``.
        candidate: Its probabilities, shape ``[rows, classes]``.
        champion: Likewise.
        weights: Of the rows.

    Returns:
        None if the metric is not defined: no rows, or no AUC.
    """
    if not len(labels):
        return None
    if metric in ("auc", "worst_auc"):
        ours, others = (_area_under_roc(labels, p, weights) for p in (candidate, champion))
        if ours is None or others is None:
            return None
        (mine, moved), (theirs, moved_theirs) = ours[metric], others[metric]
        return difference(metric, mine - theirs, spread(moved - moved_theirs))
    if metric in _OF_CHOICES:
        classes = candidate.shape[1]
        return resampled_difference(
            metric,
            lambda y, ours, others, w: (
                _of_choices(metric, y, ours, classes, w) - _of_choices(metric, y, others, classes, w)
            ),
            labels,
            candidate.argmax(axis=1),
            champion.argmax(axis=1),
            weights,
        )
    gains = row_scores(metric, labels, candidate) - row_scores(metric, labels, champion)
    return paired_difference(metric, gains, weights)


_OF_CHOICES = ("balanced_accuracy", "macro_f1", "weighted_f1")


def row_scores(metric: str, labels: Array, probabilities: Array) -> Array:
    """A score for each row, more being better, whose mean is the metric but for its sign."""
    rows = np.arange(len(labels))
    scores: Array
    if metric == "accuracy":
        scores = (probabilities.argmax(axis=1) == labels).astype(np.float64)
        return scores
    p = probabilities.astype(np.float64)
    if metric == "log_loss":
        scores = np.log(np.clip(p[rows, labels], SMALLEST, 1.0))
    else:
        p[rows, labels] -= 1.0
        scores = -np.square(p).sum(axis=1)
    return scores


def _shares(labels: Array, chosen: Array, classes: int, weights: Array | None) -> tuple[Array, Array, Array]:
    """Returns for each class the weight of its rows, of those predicted as it, and of those that are both."""
    w = even_weights(weights, len(labels))
    of_class, said = (np.bincount(of, w, classes) for of in (labels, chosen))
    return of_class, said, np.bincount(labels, w * (chosen == labels), classes)


def _of_choices(metric: str, labels: Array, chosen: Array, classes: int, weights: Array | None) -> float:
    of_class, said, right = _shares(labels, chosen, classes, weights)
    if metric == "balanced_accuracy":
        there = of_class > 0
        return float((right[there] / of_class[there]).mean())
    there = of_class + said > 0
    f1 = 2 * right[there] / (of_class + said)[there]
    return float(f1.mean() if metric == "macro_f1" else np.average(f1, weights=of_class[there]))


def _by_class(
    labels: Array, chosen: Array, classes: int, names: Sequence[str] | None, weights: Array | None
) -> tuple[ClassFigures, ...]:
    of_class, said, right = _shares(labels, chosen, classes, weights)
    rows = np.bincount(labels, minlength=classes)

    def share(number: int, of: float, twice: int = 1) -> float | None:
        return float(twice * right[number] / of) if of else None

    return tuple(
        ClassFigures(
            name=str(names[number] if names else number),
            rows=int(rows[number]),
            recall=share(number, of_class[number]),
            precision=share(number, said[number]),
            f1=share(number, of_class[number] + said[number], 2),
        )
        for number in range(classes)
    )


def _area_under_roc(
    labels: Array, probabilities: Array, weights: Array | None
) -> dict[str, tuple[float, Array]] | None:
    """Returns mean and lowest AUC of one class against the rest, each with the influence of each row."""
    rows, classes = probabilities.shape
    counts = np.bincount(labels, minlength=classes)
    there = np.flatnonzero((counts > 0) & (counts < rows))
    if classes > MAX_CONFUSION_CLASSES or not len(there):
        return None
    total, influence, worst = 0.0, np.zeros(rows), (math.inf, np.zeros(rows))
    for number in there:
        auc, moved = area_under_roc(labels == number, probabilities[:, number], weights)
        total, influence = total + auc, influence + moved
        worst = min(worst, (auc, moved), key=lambda of: of[0])
    return {"auc": (total / len(there), influence / len(there)), "worst_auc": worst}


def _why_no_auc(labels: Array, classes: int, names: Sequence[str] | None) -> str:
    if classes > MAX_CONFUSION_CLASSES:
        return f"there are {classes} classes; the AUC is of {MAX_CONFUSION_CLASSES} at most"
    only = names[labels[0]] if names else labels[0]
    return f"all {len(labels)} labels are {only}; the AUC needs two classes"

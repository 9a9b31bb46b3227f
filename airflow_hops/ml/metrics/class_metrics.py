"""Metrics of a classifier of several classes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from airflow_hops.ml.metrics.binary_metrics import SMALLEST
from airflow_hops.ml.metrics.metrics import (
    Array,
    Estimate,
    Metrics,
    Sample,
    area_interval,
    area_under_roc,
    calibration,
    estimate,
    even_weights,
    paired_difference,
    total_weight,
    values_and_intervals,
)

MAX_CONFUSION_CLASSES = 100
"""Largest number of classes with a confusion matrix and an AUC, which sorts the rows once for each class."""


_BOUNDS = {
    "log_loss": (0.0, math.inf), "brier": (0.0, math.inf), "accuracy": (0.0, 1.0), "auc": (0.0, 1.0),
    "worst_auc": (0.0, 1.0), "balanced_accuracy": (0.0, 1.0), "macro_f1": (0.0, 1.0), "weighted_f1": (0.0, 1.0),
}  # fmt: skip
_OF_ROWS = ("log_loss", "brier", "accuracy")
_OF_CHOICES = ("balanced_accuracy", "macro_f1", "weighted_f1")
"""Metrics of the likeliest classes, which are not means over rows."""


@dataclass(frozen=True)
class ClassFigures:
    """Figures of one class.

    Attributes:
        recall: Share of the class's rows that is predicted as this class; None without rows.
        precision: Share of the rows predicted as this class that belongs to it; None if there are no such rows.
        f1: Harmonic mean of both; None without rows and predictions of this class.
        auc: Area under the ROC curve of this class against the rest; None without rows of both, or beyond 100 classes.
        auc_low: Lower end of its 95% interval.
        auc_high: Upper end.
    """

    name: str
    rows: int
    recall: float | None
    precision: float | None
    f1: float | None = None
    auc: float | None = None
    auc_low: float | None = None
    auc_high: float | None = None


@dataclass(frozen=True, kw_only=True)
class ClassMetrics(Metrics):
    """Figures of a model of several classes on some rows.

    Attributes:
        accuracy: Share of rows whose likeliest class is correct, with Wilson's interval.
        balanced_accuracy: Mean recall of the classes that have rows.
        macro_f1: Mean F1 of the classes that have rows or predictions.
        weighted_f1: Mean F1 of the classes, weighted by their rows.
        auc: Mean area under the ROC curve of one class against the rest, over classes that have some, but not all rows;
            None if there is none, or with more than 100 classes.
        worst_auc: Lowest of these areas, with its class's interval. A minimum looks at every class's interval.
        log_loss: Mean negative log-likelihood of the class, in nats.
        brier: Mean squared distance of the probabilities from the true class, summed over classes.
        classes: Figures by class.
        confusion: Counts of predicted classes by true class; empty beyond 100 classes, and for a slice.
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
    copies: Array | None = None,
    detailed: bool = True,
) -> ClassMetrics:
    """Computes the figures of a model.

    Args:
        labels: Class numbers, ``[rows]``.
        probabilities: Probabilities of the classes, ``[rows, classes]``.
        names: Class names; None for their numbers.
        weights: Weights of the rows.
        copies: Equal numbers for rows that are copies of each other; None if there are none.
        detailed: Whether to include confusion matrix, calibration (of the likeliest class) and gain over a constant.
    """
    rows, classes = probabilities.shape
    if not rows:
        return ClassMetrics(rows=0, reason="no rows")
    chosen, sample = probabilities.argmax(axis=1), Sample(weights, labels, copies)
    estimates = {name: class_estimate(name, labels, probabilities, weights) for name in (*_OF_ROWS, *_OF_CHOICES)}
    areas, areas_by_class = _areas(labels, probabilities, sample)
    values, intervals = values_and_intervals({**estimates, **areas}, _BOUNDS, sample)
    if areas_by_class:
        intervals["worst_auc"] = min(areas_by_class.values())[1:]
    counts = np.bincount(labels * classes + chosen, minlength=classes**2).reshape(classes, classes)
    reason = over_constant = None
    if detailed and np.ptp(labels):
        shares = np.bincount(labels, even_weights(weights, rows), classes) / even_weights(weights, rows).sum()
        likely = probabilities[np.arange(rows), labels]
        mine, theirs = (_log_loss(each, weights) for each in (likely, shares[labels]))
        over_constant = paired_difference("log_loss", mine, theirs, -1.0, sample)
    if "auc" not in values:
        only = names[labels[0]] if names else labels[0]
        reason = f"all {rows} labels are {only}; the AUC needs two classes"
        if classes > MAX_CONFUSION_CLASSES:
            reason = f"there are {classes} classes; the AUC is computed for at most {MAX_CONFUSION_CLASSES}"
    return ClassMetrics(
        rows=rows,
        weight=total_weight(weights),
        **values,
        classes=_by_class(labels, chosen, names or range(classes), weights, areas_by_class),
        confusion=tuple(map(tuple, counts.tolist())) if detailed and classes <= MAX_CONFUSION_CLASSES else (),
        intervals=intervals,
        over_constant=over_constant,
        calibration=calibration(probabilities.max(axis=1), chosen == labels, weights) if detailed else (),
        reason=reason,
    )


def class_estimate(metric: str, labels: Array, probabilities: Array, weights: Array | None) -> Estimate | None:
    """Computes a figure by name; None for an AUC that is not defined."""
    if metric in _OF_CHOICES:
        return _of_choices(metric, labels, probabilities.argmax(axis=1), probabilities.shape[1], weights)
    if metric in ("auc", "worst_auc"):
        return _areas(labels, probabilities, Sample(weights))[0].get(metric)
    if metric == "accuracy":
        return estimate(probabilities.argmax(axis=1) == labels, weights)
    p, rows = probabilities.astype(np.float64), np.arange(len(labels))
    if metric == "log_loss":
        return _log_loss(p[rows, labels], weights)
    p[rows, labels] -= 1.0
    return estimate(np.square(p).sum(axis=1), weights)


def _log_loss(likely: Array, weights: Array | None) -> Estimate:
    """Computes the log loss from the probabilities of the rows' classes."""
    return estimate(-np.log(np.clip(likely.astype(np.float64), SMALLEST, 1.0)), weights)


def _areas(
    labels: Array, probabilities: Array, sample: Sample
) -> tuple[dict[str, Estimate], dict[int, tuple[float, float, float]]]:
    """Computes mean and lowest AUC of a class against the rest, and that of each class with the ends of its interval.

    Classes without rows, or with all rows, have none; nor has any beyond 100 classes.
    """
    rows, classes = probabilities.shape
    if classes > MAX_CONFUSION_CLASSES:
        return {}, {}
    counts = np.bincount(labels, minlength=classes)
    by_class, influence, parts = {}, np.zeros(rows), np.zeros(rows)
    worst = Estimate(math.inf, influence)
    for number in np.flatnonzero((counts > 0) & (counts < rows)).tolist():
        of_class = labels == number
        area = area_under_roc(of_class, probabilities[:, number], sample.weights)
        sides = (sample.effective_rows(side) for side in (of_class, ~of_class))
        by_class[number] = (area.value, *area_interval(area.value, *sides))
        assert area.parts is not None
        influence, parts = influence + area.influence, parts + area.parts
        worst = min(worst, area, key=lambda each: each.value)
    if not (count := len(by_class)):
        return {}, {}
    mean = Estimate(sum(area for area, *_ in by_class.values()) / count, influence / count, parts / count)
    return {"auc": mean, "worst_auc": worst}, by_class


def _of_choices(metric: str, labels: Array, chosen: Array, classes: int, weights: Array | None) -> Estimate:
    """Computes a figure of :data:`_OF_CHOICES` from the likeliest classes ``[rows]``, by the delta method.

    Each is a weighted mean over classes of the weight of right rows, divided by that of the class's rows or, for F1,
    by the mean of it and that of the rows predicted as the class.
    """
    of_class, predicted, right = _shares(labels, chosen, classes, weights)
    is_f1, w = metric != "balanced_accuracy", even_weights(weights, len(labels))
    sizes = (of_class + predicted) / 2 if is_f1 else of_class
    class_weights = of_class if metric == "weighted_f1" else (sizes > 0).astype(float)
    class_weights = class_weights / class_weights.sum()
    divisors = np.where(sizes > 0, sizes, 1.0)
    scores, factors = right / divisors, class_weights / divisors
    parts, losses, value = w * (chosen == labels) * factors[labels], factors * scores, float(class_weights @ scores)
    influence = parts - w * ((losses[labels] + losses[chosen]) / 2 if is_f1 else losses[labels])
    if metric == "weighted_f1":
        influence += w / w.sum() * (scores[labels] - value)
    return Estimate(value, influence, parts)


def _shares(labels: Array, chosen: Array, classes: int, weights: Array | None) -> tuple[Array, Array, Array]:
    """Returns for each class the weight of its rows, of those predicted as it, and of those that are both."""
    w = even_weights(weights, len(labels))
    of_class, predicted = (np.bincount(column, w, classes) for column in (labels, chosen))
    return of_class, predicted, np.bincount(labels, w * (chosen == labels), classes)


def _by_class(
    labels: Array,
    chosen: Array,
    names: Sequence[object],
    weights: Array | None,
    areas: Mapping[int, tuple[float, float, float]],
) -> tuple[ClassFigures, ...]:
    of_class, predicted, right = _shares(labels, chosen, len(names), weights)
    rows = np.bincount(labels, minlength=len(names)).tolist()
    with np.errstate(invalid="ignore"):
        shares = np.stack([right / of_class, right / predicted, 2 * right / (of_class + predicted)], axis=1).tolist()
    return tuple(
        ClassFigures(str(name), count, *(None if math.isnan(share) else share for share in each), *areas.get(n, ()))
        for n, (name, count, each) in enumerate(zip(names, rows, shares, strict=True))
    )

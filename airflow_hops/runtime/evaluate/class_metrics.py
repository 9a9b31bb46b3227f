"""Metrics of a classifier of several classes, and the paired comparison of two on the same rows. NumPy alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from airflow_hops.contract.evaluation import Difference
from airflow_hops.runtime.evaluate.binary_metrics import paired_difference

METRICS = ("accuracy", "log_loss", "brier")
"""The metrics by which two models of several classes can be compared."""

MAX_CONFUSION_CLASSES = 100
"""Up to so many classes the confusion matrix is kept."""

_Z_95 = 1.959963984540054
_SMALLEST = 1e-7


@dataclass(frozen=True)
class ClassFigures:
    """Figures of one class.

    Attributes:
        name: Its name.
        rows: Rows that are of this class.
        recall: Share of them that is found: the accuracy within the class; None without rows.
        precision: Share of the rows said to be of this class that is; None where none is said to be.
    """

    name: str
    rows: int
    recall: float | None
    precision: float | None


@dataclass(frozen=True)
class ClassMetrics:
    """Figures of one model of several classes on some rows.

    Attributes:
        rows: Number of rows.
        accuracy: Share of rows whose likeliest class is theirs; None without rows.
        accuracy_low: Lower end of its 95% interval (E. B. Wilson, "Probable inference, the law of
            succession, and statistical inference", Journal of the American Statistical Association 22, 1927).
        accuracy_high: Upper end.
        balanced_accuracy: Mean recall of the classes that have rows.
        log_loss: Mean negative log-likelihood of the class, in nats.
        brier: Mean squared distance of the probabilities from the class's, summed over classes.
        classes: Figures by class.
        confusion: By class, how many of its rows are said to be of each; empty beyond 100 classes.
        reason: Why figures are None, or None.
    """

    rows: int
    accuracy: float | None
    accuracy_low: float | None
    accuracy_high: float | None
    balanced_accuracy: float | None
    log_loss: float | None
    brier: float | None
    classes: tuple[ClassFigures, ...] = ()
    confusion: tuple[tuple[int, ...], ...] = ()
    reason: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The JSON value."""
        return asdict(self)


def class_metrics(
    labels: np.ndarray[Any, Any], probabilities: np.ndarray[Any, Any], names: Sequence[str] | None = None
) -> ClassMetrics:
    """The figures of a model.

    Args:
        labels: Numbers of the classes, shape ``[rows]``.
        probabilities: Of each class, shape ``[rows, classes]``.
        names: Of the classes; None for their numbers.
    """
    rows, classes = probabilities.shape
    if not rows:
        return ClassMetrics(0, None, None, None, None, None, None, reason="no rows")
    chosen = probabilities.argmax(axis=1)
    confusion = np.bincount(labels * classes + chosen, minlength=classes * classes).reshape(classes, classes)
    right, of_class, said = np.diag(confusion), confusion.sum(axis=1), confusion.sum(axis=0)
    figures = tuple(
        ClassFigures(
            name=str(names[number] if names else number),
            rows=int(of_class[number]),
            recall=float(right[number] / of_class[number]) if of_class[number] else None,
            precision=float(right[number] / said[number]) if said[number] else None,
        )
        for number in range(classes)
    )
    recalls = [found.recall for found in figures if found.recall is not None]
    low, high = _wilson(int(right.sum()), rows)
    return ClassMetrics(
        rows=rows,
        accuracy=float(right.sum() / rows),
        accuracy_low=low,
        accuracy_high=high,
        balanced_accuracy=float(np.mean(recalls)),
        log_loss=-float(_row_scores("log_loss", labels, probabilities).mean()),
        brier=-float(_row_scores("brier", labels, probabilities).mean()),
        classes=figures,
        confusion=tuple(map(tuple, confusion.tolist())) if classes <= MAX_CONFUSION_CLASSES else (),
    )


def compare_classifiers(
    metric: str,
    labels: np.ndarray[Any, Any],
    candidate: np.ndarray[Any, Any],
    champion: np.ndarray[Any, Any],
) -> Difference | None:
    """A candidate's gain over a champion on the same rows, with the 95% interval of the mean of paired differences.

    Args:
        metric: One of :data:`METRICS`.
        labels: Numbers of the classes, shape ``[rows]``.
        candidate: Its probabilities, shape ``[rows, classes]``.
        champion: Likewise.

    Returns:
        None without rows.
    """
    if not len(labels):
        return None
    return paired_difference(metric, _row_scores(metric, labels, candidate) - _row_scores(metric, labels, champion))


def _row_scores(metric: str, labels: np.ndarray[Any, Any], probabilities: np.ndarray[Any, Any]) -> Any:
    """A score for each row, more being better, whose mean is the metric but for its sign."""
    rows = np.arange(len(labels))
    if metric == "accuracy":
        return (probabilities.argmax(axis=1) == labels).astype(np.float64)
    p: Any = probabilities.astype(np.float64)
    if metric == "log_loss":
        return np.log(np.clip(p[rows, labels], _SMALLEST, 1.0))
    p[rows, labels] -= 1.0
    return -np.square(p).sum(axis=1)


def _wilson(right: int, rows: int) -> tuple[float, float]:
    share, z2 = right / rows, _Z_95**2
    middle = (share + z2 / (2 * rows)) / (1 + z2 / rows)
    half = _Z_95 / (1 + z2 / rows) * math.sqrt(share * (1 - share) / rows + z2 / (4 * rows**2))
    return max(0.0, middle - half), min(1.0, middle + half)

"""Judges models by the metrics of their problem: figures of scored rows, and the gain over a champion."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from airflow_hops.core import metrics
from airflow_hops.core.artifacts.target import BINARY, MULTICLASS, REGRESSION, Problem
from airflow_hops.core.evaluation import Difference, Figures
from airflow_hops.ml.metrics import binary_metrics, class_metrics, regression_metrics
from airflow_hops.ml.metrics.class_names import CANDIDATE, CHAMPION
from airflow_hops.ml.metrics.custom_metrics import CustomMetric, values_of
from airflow_hops.ml.metrics.metrics import Array, Estimate, Metrics, Sample, paired_difference, resampled_difference
from airflow_hops.ml.metrics.scoring import ScoredRows

log = logging.getLogger(__name__)

MAX_SLICE_VALUES = 100
"""Largest number of values of a slicing column, the most frequent first."""


@dataclass(frozen=True)
class Scores:
    """Figures of the models on some rows.

    Attributes:
        champion: None without a champion, as ``gain``.
        value: For a slice: the value of its rows.
        slices: For all rows: by column, those of the rows with each of its values, the most frequent first.
    """

    rows: int
    candidate: Metrics
    champion: Metrics | None
    gain: Difference | None
    value: str | None = None
    slices: Mapping[str, tuple[Scores, ...]] | None = None

    def report(self) -> Figures:
        """Returns the record of these figures."""
        champion = None if self.champion is None else self.champion.to_dict()
        slices = None if self.slices is None else {name: _reports(each) for name, each in self.slices.items()}
        return Figures(self.rows, self.candidate.to_dict(), champion, self.gain, self.value, slices)


def _reports(scores: Iterable[Scores]) -> tuple[Figures, ...]:
    return tuple(each.report() for each in scores)


@dataclass(frozen=True)
class ProblemMetrics:
    """Metrics of a problem.

    Attributes:
        higher_is_better: Metrics by which two models can be compared; true if higher values are better.
        minimum: Default minimum of a candidate's figures.
        estimate: Computes a figure by name from labels, predictions and weights; None if it is not defined.
        resampled: Figures that are not means over rows, by name.
        relative: Figures in the label's units: their tolerance is a share of the champion's figure.
    """

    figures: type[Metrics]
    higher_is_better: Mapping[str, bool]
    minimum: Mapping[str, float]
    estimate: Callable[[str, Array, Array, Array | None], Estimate | None]
    resampled: Mapping[str, Callable[[Array, Array, Array], float]] = field(default_factory=dict)
    relative: Collection[str] = ()

    @property
    def metric(self) -> str:
        """Returns the default metric to compare models by."""
        return next(iter(self.higher_is_better))


METRICS: Mapping[Problem, ProblemMetrics] = {
    BINARY: ProblemMetrics(
        binary_metrics.BinaryMetrics,
        metrics.METRICS[BINARY],
        {"auc": 0.6},
        binary_metrics.binary_estimate,
        {"average_precision": binary_metrics.average_precision},
    ),
    MULTICLASS: ProblemMetrics(
        class_metrics.ClassMetrics,
        metrics.METRICS[MULTICLASS],
        {"auc": 0.6},
        class_metrics.class_estimate,
    ),
    REGRESSION: ProblemMetrics(
        regression_metrics.RegressionMetrics,
        metrics.METRICS[REGRESSION],
        {"r2": 0.0},
        regression_metrics.regression_estimate,
        {"median_absolute_error": regression_metrics.median_absolute_error},
        regression_metrics.IN_LABELS_UNITS,
    ),
}


@dataclass(frozen=True)
class Judge:
    """Rules by which models are judged.

    Attributes:
        metric: Metric by which a candidate is compared with a champion.
        classes: Class names, if there are several.
        custom: User-defined metrics by name.
    """

    problem: Problem
    metric: str
    classes: Sequence[str] | None = None
    custom: Mapping[str, CustomMetric] = field(default_factory=dict)

    def figures(
        self,
        labels: Array,
        predictions: Array,
        weights: Array | None,
        *,
        copies: Array | None = None,
        detailed: bool = True,
    ) -> Metrics:
        """Computes the figures of a model on some rows; ``copies`` has equal numbers for copies of a row."""
        result: Metrics
        options: dict[str, Any] = {"copies": copies, "detailed": detailed}
        if self.problem == MULTICLASS:
            result = class_metrics.class_metrics(labels, predictions, self.classes, weights, **options)
        elif self.problem == REGRESSION:
            result = regression_metrics.regression_metrics(labels, predictions, weights, **options)
        else:
            result = binary_metrics.binary_metrics(labels, predictions, weights, **options)
        return replace(result, custom=values_of(self.custom, labels, predictions, weights)) if self.custom else result

    def gain(
        self,
        labels: Array,
        candidate: Array,
        champion: Array,
        weights: Array | None,
        copies: Array | None = None,
    ) -> Difference | None:
        """Computes a candidate's gain over a champion on the same rows, with its 95% interval.

        The interval comes from paired influences of the rows (DeLong's for the AUC), or from resampled rows if a metric
        is not a mean over rows, or user-defined. None if the metric is not defined, and for two classes if one has no
        row: what the models are worth for it is not known.
        """
        metrics, metric = METRICS[self.problem], self.metric
        if not len(labels) or (self.problem == BINARY and np.ptp(labels) == 0):
            return None
        sample = Sample(weights, None if self.problem == REGRESSION else labels, copies)
        own = self.custom.get(metric)
        sign = 1.0 if (own.higher_is_better if own else metrics.higher_is_better[metric]) else -1.0
        function = own.value if own else metrics.resampled.get(metric)
        if function is not None:
            sample = replace(sample, classes=labels if self.problem == BINARY else None)
            result = resampled_difference(metric, function, labels, candidate, champion, sample, sign)
            return result if math.isfinite(result.low) else None
        mine, theirs = (metrics.estimate(metric, labels, p, weights) for p in (candidate, champion))
        return None if mine is None or theirs is None else paired_difference(metric, mine, theirs, sign, sample)

    def describe(self, rows: ScoredRows) -> Scores:
        """Computes figures of scored rows, overall and by slice."""
        sliced = {}
        for column, values in rows.slices.items():
            result, counts = np.unique(values, return_counts=True)
            order = np.argsort(-counts, kind="stable")
            if len(order) > MAX_SLICE_VALUES:
                log.warning(
                    "slice %r has %d values; the %d most frequent are evaluated, %d rows are left out",
                    column, len(order), MAX_SLICE_VALUES, int(counts[order[MAX_SLICE_VALUES:]].sum()),
                )  # fmt: skip
            sliced[column] = tuple(
                self._scores(rows, values == result[index], detailed=False, value=str(result[index]))
                for index in order[:MAX_SLICE_VALUES]
            )
        return self._scores(rows, np.ones(len(rows.labels), bool), detailed=True, slices=sliced)

    def _scores(self, rows: ScoredRows, chosen: Array, *, detailed: bool, **place: Any) -> Scores:
        def figures(name: str, chosen: Array) -> Metrics:
            labels, predictions = rows.labels[chosen], rows.predictions[name][chosen]
            sample = Sample(rows.weights, copies=rows.copies).where(chosen)
            return self.figures(labels, predictions, sample.weights, copies=sample.copies, detailed=detailed)

        champion = gain = None
        if CHAMPION in rows.predictions:
            both = chosen if rows.compared is None else chosen & rows.compared
            champion = figures(CHAMPION, both)
            mine, theirs = (rows.predictions[name][both] for name in (CANDIDATE, CHAMPION))
            sample = Sample(rows.weights, copies=rows.copies).where(both)
            gain = self.gain(rows.labels[both], mine, theirs, sample.weights, sample.copies)
        return Scores(int(chosen.sum()), figures(CANDIDATE, chosen), champion, gain, **place)

"""Compares the losses of a canary and of the stable version, on rows whose labels became known."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import stats

from airflow_hops.core.artifacts.target import BINARY, MULTICLASS, Problem
from airflow_hops.core.rollout.decision import NOT_JUDGED, CanaryFinding
from airflow_hops.core.rollout.plan import Limits
from airflow_hops.ml.metrics.metrics import area_under_roc
from airflow_hops.ml.rollout.comparisons import verdict_of

_BINS = 64
"""Maximum number of different values in a permutation test."""

_MOST_DRAWS = 400_000
"""Maximum draws of a permutation test; it needs some four divided by the significance."""


@dataclass(frozen=True)
class LabelledAnswers:
    """Predictions with known labels.

    Attributes:
        predictions: [rows], the probability of label 1, or a value; if multiclass, the probability of each class,
            [rows, classes].
        labels: [rows]; class numbers if multiclass.
        problem: Problem of the output. None if its name is unknown: it is a probability if all labels are 0 or 1 and
            all predictions between 0 and 1.
        unknown: Number of labels left out because they are not a class of both versions.
        requests: [rows], number of each row's request; None if each row is a request.
        steps: [rows], number of the step in which it was answered; None if all are of one step.
    """

    predictions: np.ndarray
    labels: np.ndarray
    problem: Problem | None = None
    unknown: int = 0
    requests: np.ndarray | None = None
    steps: np.ndarray | None = None

    def only(self, rows: np.ndarray) -> LabelledAnswers:
        """Selects rows."""
        requests, steps = (values if values is None else values[rows] for values in (self.requests, self.steps))
        return replace(
            self, predictions=self.predictions[rows], labels=self.labels[rows], requests=requests, steps=steps
        )

    @property
    def finite(self) -> LabelledAnswers:
        """The rows whose predictions are finite; the mean loss of others is not defined."""
        return self.only(np.isfinite(self.predictions).all(axis=tuple(range(1, self.predictions.ndim))))

    @property
    def step_numbers(self) -> np.ndarray:
        """Number of each row's step."""
        return np.zeros(len(self.labels), np.int64) if self.steps is None else self.steps

    @property
    def units(self) -> np.ndarray:
        """Number of each row's request."""
        return np.arange(len(self.labels)) if self.requests is None else self.requests

    @property
    def is_binary(self) -> bool:
        """Whether the labels are 0 or 1 and the predictions probabilities."""
        if self.problem is not None:
            return self.problem == BINARY
        within = np.logical_and(self.predictions >= 0, self.predictions <= 1)
        return bool(np.isin(self.labels, (0, 1)).all() and within.all())

    @property
    def log_losses(self) -> np.ndarray:
        """Negative logarithm of the probability of each row's label, in nats."""
        if self.predictions.ndim == 2:
            probability = self.predictions[np.arange(len(self.labels)), self.labels.astype(np.int64)]
        else:
            probability = np.where(self.labels == 1, self.predictions, 1 - self.predictions)
        losses: np.ndarray = -np.log(np.clip(probability, 1e-7, 1.0))
        return losses

    @property
    def accuracy(self) -> float:
        """Share of rows whose most probable class is their label."""
        chosen = self.predictions.argmax(axis=1) if self.predictions.ndim == 2 else self.predictions >= 0.5
        return float((chosen == self.labels).mean())


def compare_labels(
    canary: LabelledAnswers, stable: LabelledAnswers, output: str, limits: Limits, significance: float
) -> CanaryFinding:
    """Tests whether the canary's mean loss on labelled rows is worse.

    The loss is the log loss for two or more classes, and the absolute error for a regression. It is worse if both
    Welch's test and a permutation test say so: Welch's alone, which takes means for normally distributed, ends too many
    canaries where few rows have most of the loss, as those of a rare class do. Rows whose prediction is NaN or infinite
    are left out, and so are steps without labels of both versions, since the labels of different times may differ.
    """
    read = canary.labels.size + stable.labels.size
    canary, stable = canary.finite, stable.finite
    not_finite = read - canary.labels.size - stable.labels.size
    common = np.intersect1d(canary.step_numbers, stable.step_numbers)
    ours_in, theirs_in = (rows.only(np.isin(rows.step_numbers, common)) for rows in (canary, stable))
    unknown = canary.unknown + stable.unknown
    left_out = f"; {unknown} labels are not a class that both versions know, and are left out" if unknown else ""
    left_out += f"; rows left out because their prediction is NaN or infinite: {not_finite}" if not_finite else ""
    if min(ours_in.labels.size, theirs_in.labels.size) < limits.min_labels:
        text = f"{canary.labels.size} labelled rows of the canary, {stable.labels.size} of the stable version"
        text += f", {limits.min_labels} needed in the same steps{left_out}"
        return CanaryFinding("labels", NOT_JUDGED, text, {"output": output})
    canary, stable = ours_in, theirs_in
    binary = canary.is_binary and stable.is_binary
    classes = binary or canary.problem == MULTICLASS
    ours, theirs = (rows.log_losses if classes else np.abs(rows.predictions - rows.labels) for rows in (canary, stable))
    tolerated = 1 + limits.max_loss_increase
    mine, others = excess_by_request(canary, ours, stable, tolerated * theirs)
    p_value = welch_greater(mine, others)
    if p_value <= significance:
        draws = min(math.ceil(4 / significance), _MOST_DRAWS)
        chance = permutation_greater(mine, others, draws)
        p_value = max(p_value, chance if chance > 4 / draws else 0.0)
    loss = "log loss" if classes else "mean absolute error"
    numbers: dict[str, Any] = {
        "output": output,
        "canary_rows": ours.size,
        "stable_rows": theirs.size,
        "canary_requests": mine.size,
        "stable_requests": others.size,
        "loss": loss,
        "canary_loss": float(ours.mean()),
        "stable_loss": float(theirs.mean()),
        "p_value": p_value,
        "max_loss_increase": limits.max_loss_increase,
        "significance": significance,
    }
    for name, rows in (("canary", canary), ("stable", stable)):
        if classes:
            numbers[f"{name}_accuracy"] = rows.accuracy
        if binary:
            positive = rows.labels > 0.5
            both = positive.any() and not positive.all()
            numbers[f"{name}_auc"] = area_under_roc(positive, rows.predictions, None).value if both else None
    text = (
        f"{loss} of {output!r} is {ours.mean():.4g} on {ours.size} labelled rows in {mine.size} requests, "
        f"{theirs.mean():.4g} on {theirs.size} in {others.size} at the stable version (p = {p_value:.2g}){left_out}"
    )
    beyond = mine.mean > others.mean
    return CanaryFinding("labels", verdict_of(beyond, p_value <= significance), text, numbers)


@dataclass(frozen=True)
class Excess:
    """Excess of each request's loss over the mean loss of both versions in its step.

    Attributes:
        values: [requests], the sum over the request's rows.
        steps: [requests], the number of its step.
        rows: Number of all rows.
    """

    values: np.ndarray
    steps: np.ndarray
    rows: int

    @property
    def size(self) -> int:
        """Number of requests."""
        return len(self.values)

    @property
    def mean(self) -> float:
        """Mean of the rows."""
        return float(self.values.sum() / self.rows)

    @property
    def variance(self) -> float:
        """Variance of the mean, by request; infinite for a single one."""
        if self.size < 2:
            return math.inf
        return float(self.values.var(ddof=1) * self.size / self.rows**2)


def excess_by_request(
    canary: LabelledAnswers, ours: np.ndarray, stable: LabelledAnswers, theirs: np.ndarray
) -> tuple[Excess, Excess]:
    """Returns the excess of the losses ``ours`` and ``theirs`` of two versions' rows."""
    steps = np.concatenate([canary.step_numbers, stable.step_numbers])
    losses = np.concatenate([ours, theirs])
    step_numbers = np.unique(steps, return_inverse=True)[1]
    losses = losses - (np.bincount(step_numbers, losses) / np.bincount(step_numbers))[step_numbers]

    def of(rows: LabelledAnswers, values: np.ndarray) -> Excess:
        _, first, requests = np.unique(rows.units, return_index=True, return_inverse=True)
        return Excess(np.bincount(requests, values), rows.step_numbers[first], len(values))

    return of(canary, losses[: len(ours)]), of(stable, losses[len(ours) :])


def welch_greater(first: Excess, second: Excess) -> float:
    """P-value of the hypothesis that the first mean is at most the second (Welch's test)."""
    variance = first.variance + second.variance
    if not 0 < variance < math.inf:
        return float(first.mean <= second.mean or variance == math.inf)
    freedom = variance**2 / sum(each.variance**2 / (each.size - 1) for each in (first, second))
    return float(stats.t.sf((first.mean - second.mean) / math.sqrt(variance), freedom))


def permutation_greater(first: Excess, second: Excess, draws: int) -> float:
    """P-value of the hypothesis that requests were assigned to the versions regardless of their loss.

    The sum of the first's values is compared with those of random assignments within each step. The test is exact with
    any number of draws, which are always the same. Values are rounded to the mean of their bin, so that the number of
    requests does not matter. Source: Phipson, B. and Smyth, G. K. (2010), Permutation p-values should never be zero.
    """
    random, observed, sums = np.random.default_rng(0), 0.0, np.zeros(draws)
    for step in np.unique(first.steps):
        ours, theirs = (each.values[each.steps == step] for each in (first, second))
        pooled = np.concatenate([ours, theirs])
        edges = np.concatenate(
            [np.quantile(pooled, np.linspace(0, 1, _BINS // 2)), np.linspace(pooled.min(), pooled.max(), _BINS // 2)]
        )
        bins = np.unique(np.searchsorted(np.unique(edges), pooled), return_inverse=True)[1]
        counts = np.bincount(bins)
        means = np.bincount(bins, pooled) / counts
        observed += means[bins[: len(ours)]].sum()
        for part in np.array_split(sums, math.ceil(draws / 10_000)):
            part += random.multivariate_hypergeometric(counts, len(ours), len(part), method="marginals") @ means
    tolerance = 1e-9 * max(1.0, abs(observed))
    return float((1 + (sums >= observed - tolerance).sum()) / (1 + draws))

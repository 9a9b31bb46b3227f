"""Compares the losses of a canary and of the stable version, on rows whose labels became known."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import stats

from airflow_hops.core.artifacts.target import BINARY, MULTICLASS, Problem
from airflow_hops.core.rollout.decision import CanaryFinding
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
        requests: [rows], number of each row's request.
        steps: [rows], number of the step in which it was answered.
    """

    predictions: np.ndarray
    labels: np.ndarray
    problem: Problem | None
    unknown: int
    requests: np.ndarray
    steps: np.ndarray

    def only(self, rows: np.ndarray) -> LabelledAnswers:
        """Selects rows."""
        columns = ("predictions", "labels", "requests", "steps")
        return replace(self, **{name: getattr(self, name)[rows] for name in columns})

    def by_request(self, values: np.ndarray) -> np.ndarray:
        """Sums values of the rows of each request."""
        return np.bincount(np.unique(self.requests, return_inverse=True)[1], values)

    @property
    def steps_by_request(self) -> np.ndarray:
        """[requests], number of the step."""
        return self.steps[np.unique(self.requests, return_index=True)[1]]

    @property
    def finite(self) -> LabelledAnswers:
        """The rows whose predictions are finite; the mean loss of others is not defined."""
        return self.only(np.isfinite(self.predictions).all(axis=tuple(range(1, self.predictions.ndim))))

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


NOTHING = LabelledAnswers(np.empty(0), np.empty(0), None, 0, np.empty(0, np.int64), np.empty(0, np.int64))


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
    common = np.intersect1d(canary.steps, stable.steps)
    ours_in, theirs_in = (rows.only(np.isin(rows.steps, common)) for rows in (canary, stable))
    unknown = canary.unknown + stable.unknown
    left_out = f"; {unknown} labels are not a class that both versions know, and are left out" if unknown else ""
    left_out += f"; rows left out because their prediction is NaN or infinite: {not_finite}" if not_finite else ""
    if min(ours_in.labels.size, theirs_in.labels.size) < limits.min_labels:
        text = f"{canary.labels.size} labelled rows of the canary, {stable.labels.size} of the stable version"
        text += f", {limits.min_labels} needed in the same steps{left_out}"
        return CanaryFinding("labels", limits.unjudged_labels, text, {"output": output})
    canary, stable = ours_in, theirs_in
    binary = canary.is_binary and stable.is_binary
    classes = binary or canary.problem == MULTICLASS
    ours, theirs = (rows.log_losses if classes else np.abs(rows.predictions - rows.labels) for rows in (canary, stable))
    tolerated = 1 + limits.max_loss_increase
    mine, others = excess_by_request(canary, ours, stable, tolerated * theirs)
    p_value = welch_greater(mine, others)
    if p_value <= significance:
        draws = min(math.ceil(4 / significance), _MOST_DRAWS)
        chance = permutation_greater(mine, canary.steps_by_request, others, stable.steps_by_request, draws)
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
    beyond = bool(mine.mean() > others.mean())
    return CanaryFinding("labels", verdict_of(beyond, p_value <= significance), text, numbers)


def excess_by_request(
    canary: LabelledAnswers, ours: np.ndarray, stable: LabelledAnswers, theirs: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns by how much each request's loss exceeds that of as many mean rows of both versions in its step.

    Args:
        canary: Rows of the canary.
        ours: Their losses.
        stable: Rows of the stable version.
        theirs: Their losses.
    """
    steps, losses = np.concatenate([canary.steps, stable.steps]), np.concatenate([ours, theirs])
    steps = np.unique(steps, return_inverse=True)[1]
    losses = losses - (np.bincount(steps, losses) / np.bincount(steps))[steps]
    return canary.by_request(losses[: len(ours)]), stable.by_request(losses[len(ours) :])


def welch_greater(first: np.ndarray, second: np.ndarray) -> float:
    """P-value of the hypothesis that the first mean is at most the second (Welch's test); 1 for a single value."""
    if min(len(first), len(second)) < 2:
        return 1.0
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # values that are all the same
        p_value = float(stats.ttest_ind(first, second, equal_var=False, alternative="greater").pvalue)
    return p_value if math.isfinite(p_value) else float(first.mean() <= second.mean())


def permutation_greater(
    first: np.ndarray, first_steps: np.ndarray, second: np.ndarray, second_steps: np.ndarray, draws: int
) -> float:
    """P-value of the hypothesis that requests were assigned to the versions regardless of their values.

    The sum of the first's values is compared with those of random assignments within each step. The test is exact with
    any number of draws, which are always the same. Values are rounded to the mean of their bin, so that the number of
    requests does not matter. Source: Phipson, B. and Smyth, G. K. (2010), Permutation p-values should never be zero.
    """
    random, observed, sums = np.random.default_rng(0), 0.0, np.zeros(draws)
    for step in np.unique(first_steps):
        ours = first[first_steps == step]
        pooled = np.concatenate([ours, second[second_steps == step]])
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

"""Compares the predictions of a canary with those of the stable version."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from airflow_hops.core.rollout.decision import BAD, DOUBT, OK, CanaryFinding
from airflow_hops.core.rollout.plan import Limits
from airflow_hops.ml.metrics.metrics import Sample
from airflow_hops.ml.rollout.comparisons import OFTEN, compare_shares, verdict_of

PREDICTIONS_ROWS = 20
"""Minimum rows for a comparison of predictions."""


@dataclass(frozen=True)
class Answers:
    """Predictions of one version.

    Attributes:
        values: [rows] or, if multiclass, [rows, classes].
        requests: Number of each row's request.
    """

    values: np.ndarray
    requests: np.ndarray

    @property
    def is_finite(self) -> np.ndarray:
        """Whether each row has neither NaN nor infinity."""
        finite: np.ndarray = np.isfinite(self.values).all(axis=tuple(range(1, self.values.ndim)))
        return finite

    @property
    def requests_not_finite(self) -> int:
        """Number of requests with NaN or infinity in a row."""
        return len(np.unique(self.requests[~self.is_finite]))

    @property
    def size(self) -> int:
        """Number of requests."""
        return len(np.unique(self.requests))

    @property
    def effective_size(self) -> float:
        """Number of requests, less if some have more rows than others (Kish)."""
        return Sample(copies=self.requests).effective_rows(np.ones(len(self.requests)))

    def only(self, rows: np.ndarray) -> Answers:
        """Selects rows."""
        return Answers(self.values[rows], self.requests[rows])


def compare_predictions(
    canary: Answers,
    stable: Answers,
    output: str,
    limits: Limits,
    significance: float,
    classes: Sequence[str] | None = None,
) -> CanaryFinding:
    """Tests for invalid predictions, for predictions that are all the same, and for a too distant distribution.

    Each test gets a third of the significance. Requests with NaN or infinity must not be more frequent than the stable
    version's (Fisher's exact test). Predictions that are all the same, while the stable version's differ, are tested by
    the probability that a random assignment of the requests gives the canary only equal answers. A different
    distribution is recorded (two-sample Kolmogorov–Smirnov), but does not decide by itself, since a better model
    predicts differently, unless its distance exceeds ``max_prediction_distance`` by more than chance explains. If
    multiclass, it is the greatest distance over the classes' probabilities; its p-value is multiplied by their number.

    Args:
        canary: The canary's predictions.
        stable: The stable version's, of the same classes.
        output: Name of the output.
        limits: Tolerated differences.
        significance: Significance of this comparison.
        classes: Names of the classes if multiclass; None for their numbers.
    """
    rows, significance = len(canary.values), significance / 3
    numbers: dict[str, Any] = {
        "output": output,
        "canary_rows": rows,
        "canary_requests": canary.size,
        "stable_rows": len(stable.values),
        "stable_requests": stable.size,
    }
    if rows < PREDICTIONS_ROWS:
        text = f"{rows} captured rows of the canary, {PREDICTIONS_ROWS} needed"
        return CanaryFinding("predictions", limits.unjudged_predictions, text, numbers)
    if not canary.is_finite.all():
        pair = (canary.requests_not_finite, canary.size), (stable.requests_not_finite, stable.size)
        tested = compare_shares("not_finite", *pair, limits, significance)
        text = (
            f"{output!r} is NaN or infinite in {tested['canary_not_finite']} of {canary.size} requests, in "
            f"{tested['stable_not_finite']} of {stable.size} at the stable version (p = {tested['p_value']:.2g})"
        )
        verdict = verdict_of(tested["increase"] > 0, tested["p_value"] <= significance)
        if verdict == BAD or (verdict == DOUBT and tested["p_value"] <= OFTEN):
            return CanaryFinding("predictions", verdict, text, numbers | tested)
    canary, stable = canary.only(canary.is_finite), stable.only(stable.is_finite)
    several = canary.values.ndim == 2
    # Without captured rows, the number of a version's classes is unknown.
    width = math.prod(canary.values.shape[1:])
    ours, theirs = (v.reshape(len(v), -1) if len(v) else np.empty((0, width)) for v in (canary.values, stable.values))
    if not width or theirs.shape[1] != width:
        text = f"{output!r} has {width} values a row, and {theirs.shape[1]} at the stable version"
        text = text if width else f"{output!r} has no class that both versions know"
        return CanaryFinding("predictions", limits.unjudged_predictions, text, numbers)
    if len(ours) and not np.ptp(ours, axis=0).any() and len(theirs) and np.ptp(theirs, axis=0).any():
        p_value = chance_of_equal_answers(ours, canary.requests, theirs, stable.requests)
        first = ", ".join(f"{value:.6g}" for value in ours[0])
        text = f"{output!r} is {first} in all {len(ours)} rows; the stable version's values differ (p = {p_value:.2g})"
        if p_value <= max(significance, OFTEN):
            verdict = verdict_of(True, p_value <= significance)
            return CanaryFinding("predictions", verdict, text, numbers | {"p_value": p_value})
    for version, values in (("canary", ours), ("stable version", theirs)):
        if len(values) < PREDICTIONS_ROWS:
            text = f"{len(values)} captured rows of the {version}, {PREDICTIONS_ROWS} needed"
            return CanaryFinding("predictions", limits.unjudged_predictions, text, numbers)
    distances = [float(stats.ks_2samp(ours[:, n], theirs[:, n], method="asymp").statistic) for n in range(width)]
    farthest = int(np.argmax(distances))
    distance, sizes = distances[farthest], (canary.effective_size, stable.effective_size)
    p_value = min(1.0, width * float(stats.kstwo.sf(distance, max(1, round(sizes[0] * sizes[1] / sum(sizes))))))
    mine, others = ours[:, farthest], theirs[:, farthest]
    name = str(classes[farthest] if classes else farthest)
    numbers |= {
        **({"class": name} if several else {}),
        "canary_mean": float(mine.mean()),
        "canary_std": float(mine.std()),
        "stable_mean": float(others.mean()),
        "stable_std": float(others.std()),
        "ks_statistic": distance,
        "ks_p_value": p_value,
    }
    text = (
        f"{output!r}{f' of class {name!r}' if several else ''} has mean {mine.mean():.4g} in {canary.size} requests, "
        f"{others.mean():.4g} in {stable.size} at the stable version; Kolmogorov–Smirnov {distance:.3f} "
        f"(p = {p_value:.2g})"
    )
    if limits.max_prediction_distance is None:
        return CanaryFinding("predictions", OK, f"{text}, for the record", numbers)
    margin = distance_margin(*sizes, significance / width)
    limit = limits.max_prediction_distance
    numbers |= {"max_prediction_distance": limit, "margin": margin, "significance": significance}
    return CanaryFinding(
        "predictions",
        verdict_of(distance > limit, distance - margin > limit),
        f"{text}, tolerated {limit:g}, chance explains {margin:.3f}",
        numbers,
    )


def distance_margin(size: float, other_size: float, significance: float) -> float:
    """Bound on how much the Kolmogorov–Smirnov distance of two samples exceeds that of their distributions.

    It is exceeded with at most the probability ``significance``. Source: Massart, P. (1990), The tight constant in the
    Dvoretzky–Kiefer–Wolfowitz inequality; applied to each sample, with half of the significance each.
    """
    return math.sqrt(math.log(4 / significance) / (2 * size)) + math.sqrt(math.log(4 / significance) / (2 * other_size))


def chance_of_equal_answers(
    ours: np.ndarray, our_requests: np.ndarray, theirs: np.ndarray, their_requests: np.ndarray
) -> float:
    """Probability that a random assignment of the requests gives one version only rows of the same value.

    It is the sum over the values of which this is at most as probable as of the observed one.

    Args:
        ours: [rows, width], all the same.
        our_requests: Number of each row's request.
        theirs: [rows, width] of the other version.
        their_requests: Number of each row's request.
    """
    answers = np.unique(np.concatenate([ours, theirs]), axis=0, return_inverse=True)[1].reshape(-1)
    requests = np.concatenate([our_requests, their_requests + our_requests.max() + 1])
    pairs = np.unique(np.stack([requests, answers]), axis=1)
    numbers, first, kinds = np.unique(pairs[0], return_index=True, return_counts=True)
    with_one = np.bincount(pairs[1, first[kinds == 1]])
    size = len(np.unique(our_requests))
    chances = stats.hypergeom.sf(size - 1, len(numbers), with_one, size)
    return float(chances[chances <= chances[answers[0]] * (1 + 1e-9)].sum())

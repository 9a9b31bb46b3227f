"""Compares a canary with the stable version: errors, refusals, latency, predictions and labels.

Each comparison returns a finding with its numbers, and whether it is a reason to roll back, to wait for more requests,
or neither. A difference above its limit counts if its p-value is at most the significance; otherwise it may be chance,
and only causes doubt.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import stats

from airflow_hops.core.artifacts.target import BINARY, MULTICLASS, Problem
from airflow_hops.core.rollout.counts import Counts
from airflow_hops.core.rollout.decision import BAD, DOUBT, NOT_JUDGED, OK, CanaryFinding, FindingVerdict
from airflow_hops.core.rollout.plan import Limits
from airflow_hops.ml.metrics.metrics import area_under_roc

PREDICTIONS_ROWS = 20
"""Minimum rows for a comparison of predictions."""

_OFTEN = 0.05
"""A greater p-value does not delay the decision: most clients make some mistakes."""


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
    """

    predictions: np.ndarray
    labels: np.ndarray
    problem: Problem | None = None
    unknown: int = 0

    @property
    def finite(self) -> LabelledAnswers:
        """The rows whose predictions are finite; the mean loss of others is not defined."""
        is_finite = np.isfinite(self.predictions).all(axis=tuple(range(1, self.predictions.ndim)))
        return replace(self, predictions=self.predictions[is_finite], labels=self.labels[is_finite])

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


def compare_errors(canary: Counts, stable: Counts, limits: Limits, significance: float) -> CanaryFinding:
    """Tests whether the canary fails more often: Fisher's exact test of two proportions, one-sided.

    Requests refused because of the client's mistake are left out, since no version could fail them. If the stable
    version accepted no request, the canary's share is tested against the limit (exact binomial test).
    """
    shares = (canary.errors, canary.accepted), (stable.errors, stable.accepted)
    numbers = _compare_shares("errors", *shares, limits, significance)
    increase, p_value = numbers["increase"], numbers["p_value"]
    if not canary.requests:
        return CanaryFinding("errors", NOT_JUDGED, "the canary was not asked", numbers)
    if not canary.accepted:
        return CanaryFinding(
            "errors", DOUBT, f"all {canary.requests} requests were refused because of errors in the requests", numbers
        )
    rates = f"{canary.errors} of {canary.accepted} requests failed, {stable.errors} of {stable.accepted} at the stable"
    verdict = _verdict(increase > limits.max_error_increase, p_value <= significance)
    return CanaryFinding("errors", verdict, f"{rates} version (p = {p_value:.2g})", numbers)


def compare_refusals(canary: Counts, stable: Counts, limits: Limits, significance: float) -> CanaryFinding:
    """Tests whether the canary refuses more requests as the client's mistake (Fisher's exact test).

    Clients make mistakes with any version, so a difference that may be chance does not delay the decision. A
    significant difference means that the canary expects other inputs. If the stable version had no requests, a share of
    refusals above the limit (exact binomial test) causes doubt.
    """
    shares = (canary.client_errors, canary.requests), (stable.client_errors, stable.requests)
    numbers = _compare_shares("client_errors", *shares, limits, significance)
    increase, p_value = numbers["increase"], numbers["p_value"]
    if not canary.requests:
        return CanaryFinding("refusals", NOT_JUDGED, "the canary was not asked", numbers)
    text = (
        f"{canary.client_errors} of {canary.requests} requests refused because of errors in the requests, "
        f"{stable.client_errors} of {stable.requests} at the stable version (p = {p_value:.2g})"
    )
    if p_value > max(significance, _OFTEN):
        return CanaryFinding("refusals", OK, text, numbers)
    verdict = _verdict(increase > limits.max_error_increase, bool(stable.requests) and p_value <= significance)
    return CanaryFinding("refusals", verdict, text, numbers)


def compare_latency(canary: Counts, stable: Counts, limits: Limits, significance: float) -> list[CanaryFinding]:
    """Tests median and 99th percentile against a limit from the stable version's, without assuming a distribution.

    The limit is the stable quantile times ``max_latency_ratio``, or plus ``latency_tolerance_ms`` if that is more.
    Half of the significance bounds the stable quantile from above by an order statistic. The other half is for the
    exact binomial test of how many of the canary's latencies exceed the resulting limit.
    """
    return [
        _compare_quantile(name, quantile, canary, stable, limits, significance)
        for name, quantile in (("latency_p50", 0.5), ("latency_p99", 0.99))
    ]


def _compare_quantile(
    name: str, quantile: float, canary: Counts, stable: Counts, limits: Limits, significance: float
) -> CanaryFinding:
    ours, theirs = canary.latency.quantile_ms(quantile), stable.latency.quantile_ms(quantile)
    if ours is None or theirs is None:
        return CanaryFinding(name, NOT_JUDGED, "no latencies of both versions")

    def limit_ms(latency_ms: float) -> float:
        return max(latency_ms * limits.max_latency_ratio, latency_ms + limits.latency_tolerance_ms)

    numbers: dict[str, Any] = {
        "canary_ms": ours,
        "stable_ms": theirs,
        "ratio": ours / max(theirs, 1e-6),
        "max_latency_ratio": limits.max_latency_ratio,
        "latency_tolerance_ms": limits.latency_tolerance_ms,
        "significance": significance,
    }
    text = f"{ours:.3g} ms, {theirs:.3g} ms at the stable version"
    rank = quantile_bound_rank(stable.latency.total, quantile, significance / 2)
    # Also not judged if the canary has too few requests for a significant result, even if all exceed the limit.
    size = canary.latency.total
    if rank is None or binomial_at_least(size, size, 1 - quantile) > significance / 2:
        text += f" (too few requests to judge, {size} and {stable.latency.total})"
        return CanaryFinding(name, NOT_JUDGED, text, numbers)
    bound_ms = limit_ms(stable.latency.bucket_at(rank)[1])
    beyond = canary.latency.above(bound_ms)
    p_value = binomial_at_least(beyond, size, 1 - quantile)
    numbers |= {"limit_ms": bound_ms, "canary_beyond_limit": beyond, "p_value": p_value}
    verdict = _verdict(ours > limit_ms(theirs), p_value <= significance / 2)
    return CanaryFinding(
        name, verdict, f"{text} ({beyond} of {size} beyond {bound_ms:.3g} ms, p = {p_value:.2g})", numbers
    )


def compare_predictions(
    canary: np.ndarray,
    stable: np.ndarray,
    output: str,
    limits: Limits,
    significance: float,
    classes: Sequence[str] | None = None,
) -> CanaryFinding:
    """Finds invalid predictions, and a distribution too far from the stable version's.

    Non-finite values are bad, as are constant ones if the stable version's vary. A different distribution is recorded
    (two-sample Kolmogorov–Smirnov), but does not decide by itself, since a better model predicts differently, unless
    its distance exceeds ``max_prediction_distance`` by more than chance explains. If multiclass, it is the greatest
    distance over the classes' probabilities; its p-value is multiplied by their number.

    Args:
        canary: The canary's predictions, [rows] or [rows, classes].
        stable: The stable version's, of the same classes.
        output: Name of the output.
        limits: Tolerated differences.
        significance: Significance of this comparison.
        classes: Names of the classes if multiclass; None for their numbers.
    """
    rows = len(canary)
    numbers: dict[str, Any] = {"output": output, "canary_rows": rows, "stable_rows": len(stable)}
    if rows < PREDICTIONS_ROWS:
        text = f"{rows} captured rows of the canary, {PREDICTIONS_ROWS} needed"
        return CanaryFinding("predictions", limits.unjudged_predictions, text, numbers)
    finite = np.isfinite(canary)
    if not finite.all():
        numbers["not_finite"] = int((~finite).sum())
        text = f"{numbers['not_finite']} of {canary.size} values of {output!r} are NaN or infinite"
        return CanaryFinding("predictions", BAD, text, numbers)
    several = canary.ndim == 2
    # Without captured rows, the number of the stable version's classes is unknown.
    ours, theirs = (v.reshape(len(v), -1) if len(v) else np.empty((0, canary.size // rows)) for v in (canary, stable))
    if theirs.shape[1] != ours.shape[1]:
        text = f"{output!r} has {ours.shape[1]} values a row, and {theirs.shape[1]} at the stable version"
        return CanaryFinding("predictions", NOT_JUDGED, text, numbers)
    theirs = theirs[np.isfinite(theirs).all(axis=1)]
    constant = bool((np.ptp(ours, axis=0) == 0).all())
    first = ", ".join(f"{value:.6g}" for value in ours[0])
    same = f"{output!r} is {first} in all {rows} rows"
    if not several:
        numbers |= {"canary_mean": float(ours.mean()), "canary_std": float(ours.std())}
    if len(theirs) < PREDICTIONS_ROWS:
        if constant:
            return CanaryFinding("predictions", BAD, same, numbers)
        text = f"{len(theirs)} captured rows of the stable version, {PREDICTIONS_ROWS} needed"
        return CanaryFinding("predictions", limits.unjudged_predictions, text, numbers)
    width = ours.shape[1]
    tests = [stats.ks_2samp(ours[:, number], theirs[:, number], method="asymp") for number in range(width)]
    farthest = int(np.argmax([test.statistic for test in tests]))
    distance, p_value = float(tests[farthest].statistic), min(1.0, width * float(tests[farthest].pvalue))
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
    if constant and np.ptp(theirs, axis=0).any():
        return CanaryFinding("predictions", BAD, f"{same}; the stable version's values differ", numbers)
    text = (
        f"{output!r}{f' of class {name!r}' if several else ''} has mean {mine.mean():.4g}, {others.mean():.4g} at the "
        f"stable version; Kolmogorov–Smirnov {distance:.3f} (p = {p_value:.2g})"
    )
    if limits.max_prediction_distance is None:
        return CanaryFinding("predictions", OK, f"{text}, for the record", numbers)
    margin = distance_margin(rows, len(theirs), significance / width)
    limit = limits.max_prediction_distance
    numbers |= {"max_prediction_distance": limit, "margin": margin, "significance": significance}
    return CanaryFinding(
        "predictions",
        _verdict(distance > limit, distance - margin > limit),
        f"{text}, tolerated {limit:g}, chance explains {margin:.3f}",
        numbers,
    )


def compare_labels(
    canary: LabelledAnswers, stable: LabelledAnswers, output: str, limits: Limits, significance: float
) -> CanaryFinding:
    """Tests whether the canary's mean loss on labelled rows is worse (Welch's test).

    The loss is the log loss for two or more classes, and the absolute error for a regression. Rows whose prediction is
    NaN or infinite are left out.
    """
    read = canary.labels.size + stable.labels.size
    canary, stable = canary.finite, stable.finite
    not_finite = read - canary.labels.size - stable.labels.size
    numbers: dict[str, Any] = {
        "output": output,
        "canary_rows": int(canary.labels.size),
        "stable_rows": int(stable.labels.size),
    }
    fewest = min(canary.labels.size, stable.labels.size)
    unknown = canary.unknown + stable.unknown
    left_out = f"; {unknown} labels are not a class that both versions know, and are left out" if unknown else ""
    left_out += f"; rows left out because their prediction is NaN or infinite: {not_finite}" if not_finite else ""
    if fewest < limits.min_labels:
        result = f"{canary.labels.size} labelled rows of the canary, {stable.labels.size} of the stable version"
        return CanaryFinding("labels", NOT_JUDGED, f"{result}, {limits.min_labels} needed{left_out}", numbers)
    binary = canary.is_binary and stable.is_binary
    classes = binary or canary.problem == MULTICLASS
    ours, theirs = (rows.log_losses if classes else np.abs(rows.predictions - rows.labels) for rows in (canary, stable))
    tolerated = 1 + limits.max_loss_increase
    p_value = welch_greater(ours, theirs, tolerated)
    loss = "log loss" if classes else "mean absolute error"
    numbers |= {
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
        f"{loss} of {output!r} is {ours.mean():.4g} on {ours.size} labelled rows, {theirs.mean():.4g} on {theirs.size} "
        f"at the stable version (p = {p_value:.2g}){left_out}"
    )
    beyond = bool(ours.mean() > tolerated * theirs.mean())
    return CanaryFinding("labels", _verdict(beyond, p_value <= significance), text, numbers)


def binomial_at_least(hits: int, trials: int, rate: float) -> float:
    """Probability of at least ``hits`` in ``trials`` at a rate (exact binomial test, one-sided)."""
    return float(stats.binom.sf(hits - 1, trials, rate))


def quantile_bound_rank(size: int, quantile: float, significance: float) -> int | None:
    """Rank (from 1) of the lowest order statistic that is below a quantile with at most probability ``significance``.

    None with too few observations. Source: Conover, W. J., Practical Nonparametric Statistics, 3rd edition
    (1999), 3.2, confidence intervals for a quantile.
    """
    if not size:
        return None
    rank = int(stats.binom.isf(significance, size, quantile)) + 1
    return rank if rank <= size else None


def distance_margin(size: int, other_size: int, significance: float) -> float:
    """Bound on how much the Kolmogorov–Smirnov distance of two samples exceeds that of their distributions.

    It is exceeded with at most the probability ``significance``. Source: Massart, P. (1990), The tight constant in the
    Dvoretzky–Kiefer–Wolfowitz inequality; applied to each sample, with half of the significance each.
    """
    return math.sqrt(math.log(4 / significance) / (2 * size)) + math.sqrt(math.log(4 / significance) / (2 * other_size))


def welch_greater(first: np.ndarray, second: np.ndarray, ratio: float) -> float:
    """P-value of the hypothesis that the first sample's mean is at most ``ratio`` times the second's (Welch's test)."""
    both = [(values.mean(), values.std(ddof=1), values.size) for values in (first, ratio * second)]
    with np.errstate(all="ignore"):
        p_value = float(stats.ttest_ind_from_stats(*both[0], *both[1], equal_var=False, alternative="greater").pvalue)
    return p_value if math.isfinite(p_value) else float(both[0][0] <= both[1][0])


def _compare_shares(
    what: str, canary: tuple[int, int], stable: tuple[int, int], limits: Limits, significance: float
) -> dict[str, Any]:
    """Formats two shares of requests, each given as the count of ``what`` and the count of all.

    The p-value is Fisher's exact test's; without stable requests, that of a binomial test against the limit.
    """
    (ours, of_ours), (theirs, of_theirs) = canary, stable
    if of_theirs:
        table = [[ours, of_ours - ours], [theirs, of_theirs - theirs]]
        p_value = float(stats.fisher_exact(table, alternative="greater").pvalue)
    else:
        p_value = binomial_at_least(ours, of_ours, limits.max_error_increase)
    return {
        f"canary_{what}": ours,
        "canary_requests": of_ours,
        f"stable_{what}": theirs,
        "stable_requests": of_theirs,
        "increase": ours / max(of_ours, 1) - theirs / max(of_theirs, 1),
        "p_value": p_value,
        "max_error_increase": limits.max_error_increase,
        "significance": significance,
    }


def _verdict(beyond: bool, beyond_chance: bool) -> FindingVerdict:
    if not beyond:
        return OK
    return BAD if beyond_chance else DOUBT

"""The tests behind a rollout's comparisons. None assumes a distribution, but for the large-sample one of means."""

from __future__ import annotations

import math

import numpy as np
from scipy import special


def fisher_exact_greater(hits: int, trials: int, other_hits: int, other_trials: int) -> float:
    """Probability of at least ``hits`` in the first group, were both groups' rates the same (margins fixed).

    Fisher, R. A. (1922), On the interpretation of χ² from contingency tables, and the calculation of P.
    """
    total, total_hits = trials + other_trials, hits + other_hits
    if not trials or not other_trials or not total_hits:
        return 1.0
    logs = [
        _log_choose(total_hits, k) + _log_choose(total - total_hits, trials - k) - _log_choose(total, trials)
        for k in range(hits, min(trials, total_hits) + 1)
        if trials - k <= total - total_hits
    ]
    return min(1.0, math.fsum(math.exp(value) for value in logs))


def binomial_at_least(hits: int, trials: int, rate: float) -> float:
    """Probability of at least ``hits`` in ``trials`` of a rate (exact binomial test, one-sided)."""
    return 1.0 if hits <= 0 else float(special.bdtrc(hits - 1, trials, rate))


def quantile_bound_rank(size: int, quantile: float, significance: float) -> int | None:
    """Rank of the order statistic that is below a quantile with at most the probability ``significance``.

    Args:
        size: Observations.
        quantile: Which quantile, 0 to 1.
        significance: One minus the confidence of the bound.

    Returns:
        The smallest such rank, from 1; None where there are too few observations for any.

    Source: Conover, W. J., Practical Nonparametric Statistics, 3rd edition (1999), 3.2, confidence intervals for a
    quantile.
    """
    if not size or binomial_at_least(size, size, quantile) > significance:
        return None
    low, high = 1, size
    while low < high:
        middle = (low + high) // 2
        if binomial_at_least(middle, size, quantile) <= significance:
            high = middle
        else:
            low = middle + 1
    return low


def kolmogorov_smirnov(first: np.ndarray, second: np.ndarray) -> tuple[float, float]:
    """The two-sample statistic and its asymptotic p-value.

    Press et al., Numerical Recipes, 3rd edition, 14.3.3 (Stephens's correction for small samples).
    """
    first, second = np.sort(first), np.sort(second)
    values = np.concatenate([first, second])
    below_first = np.searchsorted(first, values, side="right") / first.size
    below_second = np.searchsorted(second, values, side="right") / second.size
    statistic = float(np.abs(below_first - below_second).max())
    effective = math.sqrt(first.size * second.size / (first.size + second.size))
    scaled = (effective + 0.12 + 0.11 / effective) * statistic
    if scaled < 0.2:  # the series does not converge there; the probability is 1 to twelve digits
        return statistic, 1.0
    terms = [2 * (-1) ** (k - 1) * math.exp(-2 * (k * scaled) ** 2) for k in range(1, 101)]
    return statistic, min(1.0, max(0.0, math.fsum(terms)))


def distance_margin(size: int, other_size: int, significance: float) -> float:
    """By how much the Kolmogorov–Smirnov distance of two samples can exceed that of their distributions.

    It does so with at most the probability ``significance``.

    Source: Massart, P. (1990), The tight constant in the Dvoretzky–Kiefer–Wolfowitz inequality; once for each sample,
    each with half of the significance.
    """
    return math.sqrt(math.log(4 / significance) / (2 * size)) + math.sqrt(math.log(4 / significance) / (2 * other_size))


def welch_greater(first: np.ndarray, second: np.ndarray, ratio: float) -> float:
    """P-value of: the first sample's mean is at most ``ratio`` times the second's.

    Source: Welch, B. L. (1938), The significance of the difference between two means when the population variances are
    unequal; against the normal distribution, so for samples of some dozens or more.
    """
    difference = float(first.mean() - ratio * second.mean())
    spread = math.sqrt(float(first.var(ddof=1)) / first.size + ratio**2 * float(second.var(ddof=1)) / second.size)
    if spread == 0:
        return 0.0 if difference > 0 else 1.0
    return float(special.ndtr(-difference / spread))


def area_under_roc(scores: np.ndarray, labels: np.ndarray) -> float | None:
    """Share of the pairs of a positive and a negative row that are scored in order; None without both."""
    positives = labels > 0.5
    if positives.all() or not positives.any():
        return None
    ordered = np.sort(scores)
    ranks = (np.searchsorted(ordered, scores, "left") + np.searchsorted(ordered, scores, "right") + 1) / 2
    count = int(positives.sum())
    return float((ranks[positives].sum() - count * (count + 1) / 2) / (count * (labels.size - count)))


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)

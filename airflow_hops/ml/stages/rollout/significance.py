"""The tests behind a rollout's comparisons. None assumes a distribution, but for the large-sample one of means."""

from __future__ import annotations

import math

import numpy as np
from scipy import special, stats


def fisher_exact_greater(hits: int, trials: int, other_hits: int, other_trials: int) -> float:
    """Probability of at least ``hits`` in the first group, were both groups' rates the same (margins fixed).

    Fisher, R. A. (1922), On the interpretation of χ² from contingency tables, and the calculation of P.
    """
    table = [[hits, trials - hits], [other_hits, other_trials - other_hits]]
    return float(stats.fisher_exact(table, alternative="greater").pvalue)


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
        The smallest such rank, from 1; None if there are too few observations for any.

    Source: Conover, W. J., Practical Nonparametric Statistics, 3rd edition (1999), 3.2, confidence intervals for a
    quantile.
    """
    if not size:
        return None
    rank = int(stats.binom.isf(significance, size, quantile)) + 1
    return rank if rank <= size else None


def distance_margin(size: int, other_size: int, significance: float) -> float:
    """Returns how much the Kolmogorov–Smirnov distance of two samples can exceed that of their distributions.

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
    positive, negative = scores[positives], scores[~positives]
    return float(stats.mannwhitneyu(positive, negative, method="asymptotic").statistic / positive.size / negative.size)

"""Probability of a score if nothing has changed.

A score depends on the sizes of both samples: half of all windows of 100 rows score above what would be a large change
of 100,000. Each score is therefore compared with those of simulated pairs of samples of the same sizes, both drawn from
one population.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy import special, stats

from airflow_hops.ml.monitoring.skew.distribution import Array, Numbers, Values, Vectors
from airflow_hops.ml.monitoring.skew.measures import (
    CATEGORICAL,
    NUMERIC,
    OF_FEW,
    aligned_counts,
    l_infinity,
    least_distance,
    rough,
)
from airflow_hops.ml.monitoring.skew.population import pool_numbers
from airflow_hops.ml.monitoring.skew.vectors import MEASURE, KernelMatrix
from airflow_hops.ml.statistics.frequent_numbers import RESOLUTION

DRAWS = 2000
"""Simulated pairs of samples if the p-value matters."""
FIRST_DRAWS = 200
"""Simulated pairs that suffice for a feature that is clearly unchanged, or clearly changed."""

_BESIDES = 0.1
"""Part of the bound on false alarms that is left to the exact tests."""
_TESTED, _LEAST_Z = 5, 3.0
"""Limits of the exact tests of single values: their number, and how many standard deviations a value has moved."""
_TAIL = 0.025
_SURE = 1e-6


@dataclass(frozen=True)
class Judgement:
    """Score, and its probability without a change.

    Attributes:
        null: Scores of simulated pairs, ascending; empty if the score does not matter.
        at_least: Lower bound of the p-value; 0 if there is none.
        p_besides: p-value of the exact tests: of the single value whose share moved most and, for numbers, of the
            Kolmogorov-Smirnov distance, which shows what a measure of ten buckets does not.
    """

    measure: str
    score: float
    null: Array
    at_least: float = 0.0
    p_besides: float = 1.0

    @property
    def p_value(self) -> float:
        """p-value of the measure or of the exact tests, whichever is smaller.

        They divide the bound on false alarms between them (weighted Bonferroni). The exact tests need little of it:
        their p-values are tiny if they find something.
        """
        return min(1.0, self._p_of_score / (1 - _BESIDES), self.p_besides / _BESIDES)

    @property
    def _p_of_score(self) -> float:
        """Share of unchanged pairs of samples that score as high.

        Beyond the simulated scores an exponential tail through the highest of them is used. It is conservative for
        scores that fall off faster, as sums of squares and distances of shares do (Knijnenburg and others, "Fewer
        permutations, more accurate P-values", 2009).
        """
        if not len(self.null):
            return 1.0
        above = len(self.null) - int(np.searchsorted(self.null, self.score * (1 - 1e-9) - 1e-12))
        counted = max((1 + above) / (1 + len(self.null)), self.at_least)
        start, share, mean_excess = self._tail()
        if above >= 10 or mean_excess <= 0 or self.score <= start:
            return counted
        beyond = min(share * float(np.exp(-(self.score - start) / mean_excess)), 11 / (1 + len(self.null)))
        return max(beyond, self.at_least, 1e-12)

    def critical_score(self, p: float) -> float:
        """Returns the score that unchanged samples exceed with probability ``p``."""
        if p * len(self.null) >= 10:
            return float(np.quantile(self.null, 1 - p))
        start, share, mean_excess = self._tail()
        return start + mean_excess * max(0.0, float(np.log(share / p)))

    def _tail(self) -> tuple[float, float, float]:
        """Returns the start of the null's tail, its share, and the mean excess of its scores."""
        highest = max(20, round(_TAIL * len(self.null)))
        start, share = float(self.null[-highest - 1]), highest / len(self.null)
        # Scores of small windows take few values, and a tail's may all be equal: then use the slope before it.
        before = (start - float(np.median(self.null))) / float(np.log(0.5 / share))
        return start, share, max(before, start / 100, float((self.null[-highest:] - start).mean()))


def judge_numbers(
    reference: Numbers, current: Numbers, measure: str, random: np.random.Generator, *, matters: bool = True
) -> Judgement:
    """Judges a numeric feature by a measure (:data:`~airflow_hops.ml.monitoring.skew.measures.NUMERIC`) or by shares.

    Equally wide buckets begin and end at a sample's extremes, so a single row decides on which side of a bound a
    frequent value lies. A change by such buckets, and any change of a
    :func:`~airflow_hops.ml.monitoring.skew.measures.rough` feature, must therefore also show in the smallest
    Kolmogorov-Smirnov distance that samples with these histograms can have, by the test that holds for any
    distribution.

    Histograms hardly show single values, such as a rare flag or zeros among other numbers, and do not place infinities:
    their shares are tested separately (:func:`value_p_value`).

    If the score does not exceed the fixed threshold (``matters`` is false), only the exact tests are made, which may
    still find a fault.
    """
    if measure == OF_FEW:
        return judge_values(reference.values, current.values, measure, random, matters=matters)
    rows = reference.count * current.count / (reference.count + current.count)
    distance = max(0.0, least_distance(reference, current) - RESOLUTION)
    p_kolmogorov = kolmogorov_p_value(distance, rows)
    p_besides = min(1.0, 2 * p_kolmogorov, 2 * value_p_value(reference.values, current.values))
    is_rough = rough(reference, current)
    if measure == "kolmogorov_smirnov" and is_rough:
        p = (np.arange(DRAWS, 0, -1) - 0.5) / DRAWS
        return Judgement(measure, distance, np.sqrt(-np.log(p / 2) / 2 / rows), p_besides=p_besides)
    doubtful = is_rough or measure == "jensen_shannon" or reference.infinite > 0 or current.infinite > 0
    at_least = p_kolmogorov if doubtful else 0.0
    function = NUMERIC[measure]
    observed = float(function(reference, current)[0])
    if not matters:
        return Judgement(measure, observed, np.zeros(0), p_besides=p_besides)
    population = pool_numbers(reference, current)

    def draw(draws: int) -> Array:
        return function(*(population.sample(like, draws, random, measure) for like in (reference, current)))

    judgement = _judge(measure, observed, draw, at_least)
    return replace(judgement, p_besides=p_besides)


def judge_values(
    reference: Values, current: Values, measure: str, random: np.random.Generator, *, matters: bool = True
) -> Judgement:
    """Judges a string feature by a :data:`~airflow_hops.ml.monitoring.skew.measures.CATEGORICAL` measure, like numbers.

    Statistics list the most frequent values. If values are missing from a list, the L-infinity distance of all values
    is judged instead: a value on one list only counts on the other side as often as it can occur there unlisted, if
    that is nearer.
    """
    counts = _completed(reference, current)
    rest = [max(0.0, sample.total - c.sum()) for sample, c in zip((reference, current), counts, strict=True)]
    pooled = np.append(counts[0] + counts[1], sum(rest))
    shares, rows = pooled / pooled.sum(), [max(1, round(sample.total)) for sample in (reference, current)]
    function = CATEGORICAL[measure]
    if not (reference.complete and current.complete):
        measure, function = "l_infinity", lambda before, now: l_infinity(before, now, unlisted=1)

    def draw(draws: int) -> Array:
        before, now = (random.multinomial(n, shares, draws).astype(np.float64) for n in rows)
        return function(before, now)

    observed = (np.append(c, [[r]], 1) for c, r in zip(counts, rest, strict=True))
    result, p_besides = float(function(*observed)[0]), value_p_value(reference, current)
    if not matters:
        return Judgement(measure, result, np.zeros(0), p_besides=p_besides)
    return replace(_judge(measure, result, draw), p_besides=p_besides)


def value_p_value(reference: Values, current: Values) -> float:
    """Returns the smallest p-value of a value's share by Fisher's exact test, times the number of values (Bonferroni).

    An inexact count is taken as near to the other sample's share as it can be.
    """
    n, m = reference.total, current.total
    tables, z = [], []
    values = dict.fromkeys([*reference.counts, *current.counts])
    for value in values:
        (least, most), (now_least, now_most) = reference.between(value), current.between(value)
        if most / n < now_least / m:
            one, other = most, now_least
        elif now_most / m < least / n:
            one, other = least, now_most
        else:
            continue
        pooled = (one + other) / (n + m)
        tables.append([[round(one), round(n - one)], [round(other), round(m - other)]])
        z.append(abs(one / n - other / m) / (pooled * (1 - pooled) * (1 / n + 1 / m) + 1e-300) ** 0.5)
    # Rare values look more significant by z than by the exact test, so nothing is missed.
    farthest = [at for at in np.argsort(z)[::-1][:_TESTED] if z[at] > _LEAST_Z]
    p = min((float(stats.fisher_exact(tables[at]).pvalue) for at in farthest), default=1.0)
    return min(1.0, p * max(1, len(values)))


def judge_vectors(reference: Vectors, current: Vectors, random: np.random.Generator) -> Judgement:
    """Judges a feature of vectors by their maximum mean discrepancy.

    Unchanged samples are random divisions of all vectors: a permutation test, exact for any distribution and any sizes.
    """
    kernel = KernelMatrix.of(reference, current)
    return _judge(MEASURE, kernel.score(), lambda draws: kernel.permuted(draws, random))


def missing_p_value(reference: tuple[int, int], current: tuple[int, int]) -> float:
    """Returns the p-value of two missing rates by Fisher's exact test, from missing rows and all rows of each side."""
    if not (reference[0] or current[0]):
        return 1.0
    return float(stats.fisher_exact([[missing, rows - missing] for missing, rows in (reference, current)]).pvalue)


def judge_lengths(reference: Numbers, current: Numbers) -> tuple[float, float]:
    """Returns the smallest Kolmogorov-Smirnov distance of two numbers of values per row, and its p-value."""
    distance = max(0.0, least_distance(reference, current) - RESOLUTION)
    rows = reference.count * current.count / (reference.count + current.count)
    return distance, kolmogorov_p_value(distance, rows)


def kolmogorov_p_value(distance: float, rows: float) -> float:
    """Returns the p-value of a Kolmogorov-Smirnov distance of continuous values; for others it is an upper bound.

    ``rows`` is the size of the sample; for two samples, the product of their sizes divided by the sum.
    """
    # Stephens, "Use of the Kolmogorov-Smirnov, Cramér-von Mises and related statistics without extensive tables", 1970.
    return float(special.kolmogorov((rows**0.5 + 0.12 + 0.11 / rows**0.5) * distance))


def _judge(measure: str, score: float, draw: Callable[[int], Array], at_least: float = 0.0) -> Judgement:
    first = draw(FIRST_DRAWS)
    judgement = Judgement(measure, score, np.sort(first), at_least)
    if not _SURE < judgement.p_value < 0.1:
        return judgement
    return Judgement(measure, score, np.sort(np.concatenate([first, draw(DRAWS - FIRST_DRAWS)])), at_least)


def _completed(reference: Values, current: Values) -> tuple[Array, Array]:
    """Returns aligned counts; values that a side does not list count as near to the other side as its list allows."""
    before, now = aligned_counts(reference, current)
    scale = reference.total / current.total
    for sample, counts, likely in ((reference, before, now * scale), (current, now, before / scale)):
        if not sample.complete:
            missing = counts == 0
            counts[missing] = np.minimum(likely[missing], sample.unlisted)
    return before, now

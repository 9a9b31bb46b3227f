"""Distances of two samples, 0 to 1, and their distribution by chance.

A distance is the least share of the rows that would have to change before the difference is gone. It does not depend on
units: outliers, scales and monotone transformations do not change it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, TypeAlias

import numpy as np
from scipy import stats
from scipy.special import betaln, logsumexp

from airflow_hops.ml.distances.sides import Array, Distribution, Kinds, Numbers, Vectors
from airflow_hops.ml.distances.vectors import discrepancies, kernel_of

DISTANCE = "distance"
"""Name of the measure in reports."""

_FIRST_DRAWS, _DRAWS = 200, 2_000
"""Numbers of permutations: for clear and for close decisions."""
_AT_ONCE = 4_000_000
"""Counts that are drawn at once."""
_TAIL, _TINY = 0.025, 1e-12
_FEW_ROWS = 10


@dataclass(frozen=True)
class Ranked:
    """Kolmogorov-Smirnov distance: the largest difference of the two cumulative shares.

    Its distribution under the null hypothesis is known for any population (Kolmogorov 1933, Smirnov 1939); with
    repeated values it is an upper bound. It finds shifts, stretches and other shapes alike, and is the distance itself,
    unlike the statistic of Anderson and Darling, which weighs the tails more, but is not a share of the rows.
    """

    distance: float
    sizes: tuple[int, int]

    @classmethod
    def of(cls, reference: Numbers, current: Numbers) -> Ranked:
        """Compares two samples of numbers."""
        points = np.concatenate([reference.values, current.values])
        return cls(float(np.abs(reference.cdf(points) - current.cdf(points)).max()), (len(reference), len(current)))

    @property
    def _effective(self) -> int:
        return max(1, round(self.sizes[0] * self.sizes[1] / sum(self.sizes)))

    @cached_property
    def p_value(self) -> float:
        """p-value of the two-sided test; below 1e-12 its bound of Massart (1990), which needs no sum over the rows."""
        bound = 2 * math.exp(-2 * self._effective * self.distance**2)
        return bound if bound < _TINY else float(stats.kstwo.sf(self.distance, self._effective))

    def by_chance(self, p: float) -> float:
        """Returns the distance exceeded with probability ``p``."""
        return _by_chance(p, self._effective)


@dataclass(frozen=True)
class Permuted:
    """A distance with the distances of random divisions of all values into samples of the same sizes.

    Attributes:
        distance: The distance; for few kinds, minus the mean of random divisions.
        null: Those of the divisions, ascending.
        least: Smallest possible p-value: if few rows cause the distance, it depends on the number of divisions.
    """

    distance: float
    null: Array
    least: float = 0.0

    @cached_property
    def p_value(self) -> float:
        """Share of the divisions with at least this distance.

        Above all of them, an exponential tail through the largest ones is used, which is conservative for sums of
        shares (Knijnenburg and others, "Fewer permutations, more accurate P-values", 2009).
        """
        above = len(self.null) - int(np.searchsorted(self.null, self.distance - 1e-9))
        counted = (1 + above) / (1 + len(self.null))
        start, share, excess = self._tail
        if above >= 10 or excess <= 0 or self.distance <= start:
            return counted
        return max(min(counted, share * float(np.exp(-(self.distance - start) / excess))), self.least, 1e-300)

    def by_chance(self, p: float) -> float:
        """Returns the distance exceeded with probability ``p``."""
        if p * len(self.null) >= 10:
            return float(np.quantile(self.null, 1 - p))
        start, share, excess = self._tail
        return start + excess * max(0.0, float(np.log(share / p)))

    @cached_property
    def _tail(self) -> tuple[float, float, float]:
        """Start of the null distribution's tail, its share, and the mean excess above the start."""
        highest = max(5, round(_TAIL * len(self.null)))
        start = float(self.null[-highest - 1])
        return start, highest / len(self.null), float((self.null[-highest:] - start).mean())


@dataclass(frozen=True)
class ShareDifference:
    """Difference of a share of rows, by Fisher's exact test."""

    reference: tuple[int, int]
    """Rows that it concerns, and all rows."""
    current: tuple[int, int]
    of: int = 1
    """Number of shares among which this one was chosen, for Bonferroni's correction."""

    @property
    def distance(self) -> float:
        """Difference of the shares."""
        return abs(self.reference[0] / self.reference[1] - self.current[0] / self.current[1])

    @cached_property
    def p_value(self) -> float:
        """p-value of the two-sided test."""
        if not self.distance:
            return 1.0
        (one, n), (other, m) = self.reference, self.current
        both = one + other
        counts = np.arange(max(0, both - m), min(n, both) + 1)
        # Logarithms of the probabilities of all divisions, of which those that are no likelier count.
        logs = -betaln(counts + 1, n - counts + 1) - betaln(both - counts + 1, m - both + counts + 1)
        logs -= logsumexp(logs)
        return min(1.0, self.of * float(np.exp(logs[logs <= logs[one - counts[0]] + 1e-9]).sum()))

    def by_chance(self, p: float) -> float:
        """Returns the distance exceeded with probability ``p``, by a normal approximation."""
        share = (self.reference[0] + self.current[0]) / (self.reference[1] + self.current[1])
        return float(
            stats.norm.isf(p / 2) * (share * (1 - share) * sum(1 / n for _, n in (self.reference, self.current))) ** 0.5
        )


@cache
def _by_chance(p: float, rows: int) -> float:
    """Returns the Kolmogorov-Smirnov distance exceeded with a probability, which is found by trial."""
    return float(stats.kstwo.isf(p, rows))


Comparison: TypeAlias = Ranked | Permuted | ShareDifference
"""A ``distance`` of two samples; its ``p_value``, the probability that two samples of one population, of these sizes,
are at least as far apart; and ``by_chance(p)``, the distance that they exceed with a probability."""


def compare(reference: Distribution, current: Distribution, random: np.random.Generator) -> Comparison:
    """Compares two samples of a feature's values.

    Numbers by their Kolmogorov-Smirnov distance; values of few kinds by half of the sum of the differences of their
    shares (total variation); vectors by the maximum mean discrepancy. The last two are positive by chance; they are
    tested by permutations and reduced by their mean, so that 0 means no difference and 1 the largest.
    """
    if isinstance(reference, Numbers) and isinstance(current, Numbers):
        return Ranked.of(reference, current)
    if isinstance(reference, Kinds) and isinstance(current, Kinds):
        return _kinds(reference, current, random)
    assert isinstance(reference, Vectors) and isinstance(current, Vectors)
    kernel, m = kernel_of(reference, current), len(reference)
    observed = float(discrepancies(kernel, m)[0])
    return _permuted((observed, -np.inf), lambda draws: (discrepancies(kernel, m, draws, random), -np.inf), 0.0)


def most_moved(reference: Kinds | Numbers, current: Kinds | Numbers) -> ShareDifference:
    """Returns the share of the single value that has moved most, by the number of standard deviations.

    It shows a rare value, or a placeholder among many numbers, which the distance of all values does not. Of numbers,
    it is one of those that occur more than once.
    """
    if isinstance(reference, Kinds) and isinstance(current, Kinds):
        old, new = _counts(reference, current)
    else:
        assert isinstance(reference, Numbers) and isinstance(current, Numbers)
        sides = (reference, current)
        repeated = [values[counts > 1] for values, counts in (side.counts for side in sides)]
        values = np.unique(np.concatenate(repeated)) if any(map(len, repeated)) else reference.values[:1]
        old, new = (
            np.searchsorted(side.values, values, "right") - np.searchsorted(side.values, values) for side in sides
        )
    n, m = len(reference), len(current)
    pooled = (old + new) / (n + m)
    deviation = (pooled * (1 - pooled) * (1 / n + 1 / m)) ** 0.5
    most = int(np.argmax(np.abs(old / n - new / m) / np.maximum(deviation, 1e-300)))
    return ShareDifference((int(old[most]), n), (int(new[most]), m), len(old))


def plain_distance(reference: Distribution, current: Distribution) -> float:
    """Returns the distance without a test, not reduced by its mean."""
    if isinstance(reference, Numbers) and isinstance(current, Numbers):
        return Ranked.of(reference, current).distance
    if isinstance(reference, Vectors) and isinstance(current, Vectors):
        return max(0.0, float(discrepancies(kernel_of(reference, current), len(reference))[0]))
    assert isinstance(reference, Kinds) and isinstance(current, Kinds)
    old, new = _counts(reference, current)
    return float(np.abs(old / old.sum() - new / new.sum()).sum() / 2)


def _counts(reference: Kinds, current: Kinds) -> tuple[Array, Array]:
    """Returns how often each value occurs on both sides, numbers ascending."""
    values = list(reference.counts | current.counts)
    if not isinstance(values[0], str | bytes):
        values.sort()
    old, new = (np.array([side.counts.get(value, 0) for value in values]) for side in (reference, current))
    return old, new


def _kinds(reference: Kinds, current: Kinds, random: np.random.Generator) -> Permuted:
    old, new = _counts(reference, current)
    both, n, m = old + new, len(reference), len(current)
    is_text = isinstance(next(iter(current.counts)), str | bytes)

    def apart(drawn: Array) -> tuple[Array, Array]:
        """Returns the total variation, and a part of it that chance hardly moves, which matters near a threshold."""
        moves = (both - drawn) / n - drawn / m
        part = np.abs(moves if is_text else moves.cumsum(axis=-1)).max(axis=-1)
        return np.abs(moves).sum(axis=-1) / 2, part

    # NumPy 1.26: its methods take as long as there are rows, or kinds, of which each takes some thirty times as long.
    method: Any = "count" if 30 * len(both) > n + m else "marginals"

    def draw(draws: int) -> tuple[Array, Array]:
        step = max(1, _AT_ONCE // len(both))
        sizes = [min(step, draws - start) for start in range(0, draws, step)]
        drawn = [apart(random.multivariate_hypergeometric(both, m, size, method=method)) for size in sizes]
        return np.concatenate([each[0] for each in drawn]), np.concatenate([each[1] for each in drawn])

    observed = apart(new)
    least = 1 / (1 + _DRAWS) if observed[0] * min(n, m) < _FEW_ROWS else 0.0
    return _permuted(observed, draw, least, of_chance=True)


def _permuted(observed: tuple[Any, Any], draw: Any, least: float, *, of_chance: bool = False) -> Permuted:
    """Tests the larger of two distances, of which the first is reduced by its mean ``of_chance``."""
    null = draw(_FIRST_DRAWS)
    expected = float(null[0].mean()) if of_chance else 0.0

    def reduced(distances: Any, others: Any) -> Any:
        return np.maximum((distances - expected) / (1 - expected) if expected < 1 else distances * 0, others)

    first = Permuted(float(reduced(*observed)), np.sort(reduced(*null)), least)
    if not 1e-6 < first.p_value < 0.1:
        return first
    return Permuted(first.distance, np.sort(np.append(first.null, reduced(*draw(_DRAWS - _FIRST_DRAWS)))), least)


def other_scores(reference: Distribution | None, current: Distribution | None) -> dict[str, float]:
    """Returns other known measures, which do not affect the decision.

    The population stability index over the reference's deciles, or the values, with half a row added to each; of
    numbers, the Wasserstein distance in their own units, and divided by the reference's standard deviation.
    """
    if isinstance(reference, Numbers) and isinstance(current, Numbers):
        bounds = np.unique(reference.quantiles(np.linspace(0.1, 0.9, 9)))
        counts = [
            np.bincount(np.searchsorted(bounds, s.values), minlength=len(bounds) + 1) for s in (reference, current)
        ]
        scores = {"population_stability_index": _stability_index(*counts)}
        with np.errstate(over="ignore", invalid="ignore"):
            apart, deviation = stats.wasserstein_distance(reference.values, current.values), reference.values.std()
        if np.isfinite([apart, deviation]).all():
            scores["wasserstein"] = float(apart)
            if deviation > 0:
                scores["wasserstein_normalized"] = float(apart / deviation)
    elif isinstance(reference, Kinds) and isinstance(current, Kinds):
        scores = {"population_stability_index": _stability_index(*_counts(reference, current))}
    else:
        return {}
    return {name: round(value, 6) for name, value in scores.items()}


def _stability_index(reference: Array, current: Array) -> float:
    p, q = ((counts + 0.5) / (counts + 0.5).sum() for counts in (reference, current))
    return float(((q - p) * np.log(q / p)).sum())

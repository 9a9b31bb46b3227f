"""The tails of a distribution, of which its histograms say little.

The outermost bucket of a long-tailed feature reaches over most of its range and holds few values, most of them at its
inner end. A generalised Pareto distribution is what the values beyond a high threshold tend to, whatever the
distribution (Pickands, "Statistical inference using extreme order statistics", 1975). Three points fix it: a knot that
a quarter of the values exceed, one half-way to the end, and the sample's extreme value.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from airflow_hops.ml.monitoring.skew.distribution import Array

START = 0.25
"""The share of the values that makes a tail."""
LEAST = 0.7
"""The number of a sample's rows expected above its greatest value's median place in the distribution."""
POINTS = 16
"""Points that cut a tail into cells."""


@dataclass(frozen=True)
class Tail:
    """A generalised Pareto distribution of what lies above ``start``, up to where a sample ends.

    Attributes:
        start: Where the tail begins, in the feature's units.
        share: The share of the values above it.
        scale: Of the Pareto distribution, in the feature's units.
        shape: Of the Pareto distribution: above 0 for heavy tails, below 0 for those that end.
        least: The share above the sample's greatest value.
    """

    start: float
    share: float
    scale: float
    shape: float
    least: float

    def above(self, x: Array) -> Array:
        """The share above ``x``."""
        base = np.maximum(1.0 + self.shape * np.maximum(x - self.start, 0.0) / self.scale, 1e-300)
        return self.share * base ** (-1.0 / self.shape)

    def points(self) -> Array:
        """Points ever farther apart, at which the tail is cut into cells."""
        return self.exceeded_by(np.geomspace(self.share, self.least, POINTS)[1:-1])

    def exceeded_by(self, shares: Array) -> Array:
        """The values that are exceeded by such shares."""
        return self.start + self.scale * ((shares / self.share) ** -self.shape - 1.0) / self.shape


def fit_tail(knots: Array, above: Array, least: float) -> Tail | None:
    """The tail through a knot that a quarter of the values exceed, one half-way, and the end.

    Args:
        knots: Knots in ascending order.
        above: The share above each.
        least: The share above the greatest value of a sample.

    Returns:
        The tail; None if there are too few knots for one.
    """
    inside = np.flatnonzero((above <= START) & (above > least))
    inside = inside[inside < len(knots) - 1]
    if len(inside) < 2:
        return None
    start, end = inside[0], len(knots) - 1
    middle = inside[1:][np.argmin(np.abs(np.log(above[inside[1:]] / np.sqrt(above[start] * least))))]
    part = (knots[middle] - knots[start]) / (knots[end] - knots[start])
    halfway, far = np.log(above[start] / above[middle]), np.log(above[start] / least)
    if not 0 < part < 1 or halfway <= 0:
        return None
    low, high = -4.0, 6.0
    for _ in range(40):
        shape = (low + high) / 2 or 1e-9
        # The heavier the tail, the nearer is the half-way point, seen from the end.
        low, high = (shape, high) if np.expm1(shape * halfway) / np.expm1(shape * far) > part else (low, shape)
    scale = (knots[end] - knots[start]) * shape / np.expm1(shape * far)
    if not 0 < scale < np.inf:
        return None
    return Tail(float(knots[start]), float(above[start]), float(scale), float(shape), least)

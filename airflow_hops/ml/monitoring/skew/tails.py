"""Tails of a distribution, of which its histograms show little.

The outermost bucket of a long-tailed feature covers most of its range and holds few values, most of them at its inner
end. Beyond a high threshold, values of any distribution tend to a generalised Pareto distribution (Pickands,
"Statistical inference using extreme order statistics", 1975). Three points fix it: a knot that a quarter of the values
exceed, one half-way to the end, and the sample's extreme value.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from airflow_hops.ml.monitoring.skew.distribution import Array

START = 0.25
"""Share of the values that belongs to a tail."""
LEAST = 0.7
"""Expected rows of a sample beyond the median position of its largest value."""
POINTS = 16
"""Number of points that cut a tail into cells."""


@dataclass(frozen=True)
class Tail:
    """Generalised Pareto distribution of the values above ``start``, up to a sample's largest value.

    Attributes:
        start: Start of the tail, in the feature's units.
        share: Share of the values above it.
        scale: Scale of the Pareto distribution, in the feature's units.
        shape: Shape of the Pareto distribution: above 0 for heavy tails, below 0 for tails that end.
        least: Share above the sample's largest value.
    """

    start: float
    share: float
    scale: float
    shape: float
    least: float

    def above(self, x: Array) -> Array:
        """Returns the share above ``x``."""
        base = np.maximum(1.0 + self.shape * np.maximum(x - self.start, 0.0) / self.scale, 1e-300)
        return self.share * base ** (-1.0 / self.shape)

    def points(self) -> Array:
        """Returns points at increasing distances, at which the tail is cut into cells."""
        return self.exceeded_by(np.geomspace(self.share, self.least, POINTS)[1:-1])

    def exceeded_by(self, shares: Array) -> Array:
        """Returns the values that such shares exceed."""
        return self.start + self.scale * ((shares / self.share) ** -self.shape - 1.0) / self.shape


def fit_tail(knots: Array, above: Array, least: float) -> Tail | None:
    """Fits a tail through a knot that a quarter of the values exceed, one half-way, and the end; None for few knots.

    Args:
        knots: Knots in ascending order.
        above: Share above each knot.
        least: Share above the largest value of a sample.
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

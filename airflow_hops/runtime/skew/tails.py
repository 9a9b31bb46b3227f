"""The shape of a distribution between and beyond what its histograms say of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from airflow_hops.runtime.skew.distribution import Array

START = 0.25
"""The share of the values that makes a tail."""
LEAST = 0.7
"""Of a sample's rows, how many are expected above its greatest value's median place in the distribution."""
POINTS = 16


def monotone_cubic(knots: Array, values: Array, x: Array) -> Array:
    """Interpolates ascending values without overshooting (Fritsch and Butland, 1984), constant beyond the knots."""
    if len(knots) < 2:
        return np.full_like(x, values[0])
    width, rise = np.diff(knots), np.diff(values)
    slope = rise / width
    w0, w1 = 2 * width[1:] + width[:-1], width[1:] + 2 * width[:-1]
    both = (slope[:-1] > 0) & (slope[1:] > 0)
    inner = np.zeros(len(slope) - 1)
    inner[both] = (w0 + w1)[both] / (w0[both] / slope[:-1][both] + w1[both] / slope[1:][both])
    tangent = np.concatenate([slope[:1], inner, slope[-1:]])
    x = np.clip(x, knots[0], knots[-1])
    index = np.clip(np.searchsorted(knots, x, "right") - 1, 0, len(width) - 1)
    t, h = (x - knots[index]) / width[index], width[index]
    start, end = tangent[index] * h, tangent[index + 1] * h
    bend = rise[index] * (3 - 2 * t) * t**2
    return values[index] + bend + start * t * (1 - t) ** 2 - end * t**2 * (1 - t)


@dataclass(frozen=True)
class Tail:
    """A generalised Pareto distribution of what lies above ``start``, up to where a sample ends."""

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
        least: The share that the greatest value of a sample stands for.
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

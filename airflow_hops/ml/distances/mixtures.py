"""Distributions that are mixtures of two others."""

from __future__ import annotations

import numpy as np

from airflow_hops.ml.distances.sides import Array, Numbers

_APART = 0.4
"""Smallest distance of two distributions at which a mixture and a shift can be distinguished."""
_NOISES, _UNEXPLAINED = 5.0, 0.12
"""Limits of a mixture: its least distance in units of the noise, and the part of it that may stay unexplained."""
PERCENTILES = np.linspace(0.005, 0.995, 199)


def at_points(*sides: Numbers) -> tuple[Array, ...]:
    """Returns each side's cumulative shares at the percentiles of all."""
    points = np.unique(np.concatenate([side.quantiles(PERCENTILES, between=False) for side in sides]))
    return tuple(side.cdf(points) for side in sides)


def mixture(before: Array, now: Array, other: Array, noise: float) -> tuple[float, float]:
    """Returns the share of ``other`` mixed into ``before`` to give ``now``, and the distance left; 0 if none fits.

    ``noise`` is the approximate distance of two samples of one population.
    """
    way, moved = other - before, now - before
    distance = float(np.abs(moved).max())
    if distance < _NOISES * noise or np.abs(way).max() < _APART:
        return 0.0, 0.0
    share = float(np.clip(way @ moved / (way @ way), 0.0, 1.0))
    left = float(np.abs(moved - share * way).max())
    return (share, left) if left < _UNEXPLAINED * distance else (0.0, left)


def of_rows(share: float) -> str:
    """Returns a share of the rows in words, as the end of a sentence; empty for all of them."""
    return "" if share > 0.97 else f", in about {100 * share:.0f}% of the rows"


def noise(reference_rows: float, current_rows: float) -> float:
    """Returns the approximate distance of two samples of one population, of these sizes."""
    return float((1 / reference_rows + 1 / current_rows) ** 0.5)

"""Questions about a feature, each with its own distance and test."""

from __future__ import annotations

import numpy as np

from airflow_hops.ml.distances.causes import as_numbers, unusual
from airflow_hops.ml.distances.measures import Comparison, Ranked, ShareDifference, compare, most_moved, plain_distance
from airflow_hops.ml.distances.sides import Distribution, Feature, Numbers, Vectors

VALUES = "values"
OTHERS = "others"
"""Numbers other than the most frequent one, if that has at least half of the rows."""
SINGLE = "single"
"""The share of the value that has moved most."""
MISSING = "missing"
INFINITE = "infinite"
LENGTHS = "lengths"
"""The numbers of values per row."""


def answers(one: Feature, other: Feature, seed: int) -> dict[str, Comparison]:
    """Compares both sides in each question that applies to a feature."""
    if not (one.rows and other.rows):
        return {}
    answers: dict[str, Comparison] = {MISSING: ShareDifference((one.missing, one.rows), (other.missing, other.rows))}
    if one.infinite or other.infinite:
        answers[INFINITE] = ShareDifference((one.infinite, one.rows), (other.infinite, other.rows))
    if len(one.lengths) and len(other.lengths) and len(np.unique([one.lengths[[0, -1]], other.lengths[[0, -1]]])) > 1:
        answers[LENGTHS] = Ranked.of(Numbers(one.lengths), Numbers(other.lengths))
    if one.distribution is not None and other.distribution is not None:
        answers[VALUES] = compare(one.distribution, other.distribution, np.random.default_rng(seed))
        if not isinstance(one.distribution, Vectors) and not isinstance(other.distribution, Vectors):
            answers[SINGLE] = most_moved(one.distribution, other.distribution)
        if rest := _others(one.distribution, other.distribution):
            answers[OTHERS] = Ranked.of(*rest)
    return answers


def plain_distances(one: Feature, other: Feature) -> dict[str, float]:
    """Returns the distances in each question without tests, not reduced by their means."""
    distances = {MISSING: abs(one.missing / one.rows - other.missing / other.rows)}
    distances[INFINITE] = abs(one.infinite / one.rows - other.infinite / other.rows)
    if len(one.lengths) and len(other.lengths):
        distances[LENGTHS] = Ranked.of(Numbers(one.lengths), Numbers(other.lengths)).distance
    if one.distribution is not None and other.distribution is not None:
        distances[VALUES] = plain_distance(one.distribution, other.distribution)
        if rest := _others(one.distribution, other.distribution):
            distances[OTHERS] = Ranked.of(*rest).distance
    return distances


def _others(one: Distribution, other: Distribution) -> tuple[Numbers, Numbers] | None:
    """Returns both sides' numbers other than the usual one, or None if the question does not apply."""
    old, new = as_numbers(one), as_numbers(other)
    rest = None if old is None or new is None else unusual(old, new)
    return rest if rest and all(rest) else None

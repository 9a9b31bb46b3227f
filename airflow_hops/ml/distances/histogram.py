"""Both sides of a feature on the same buckets, for pictures."""

from __future__ import annotations

import numpy as np

from airflow_hops.ml.distances.causes import as_numbers, in_text
from airflow_hops.ml.distances.sides import Array, Distribution, Kinds, Vectors

BUCKETS = 20
_OUTER = 0.005
"""Share of a side's numbers that the outer buckets hold, at each end."""


def common_histogram(reference: Distribution | None, current: Distribution | None) -> list[list[object]]:
    """Returns shares by bucket: ``[low, high, reference, current]``, or ``[value, reference, current]`` for text.

    Numbers get equally wide buckets; the first and the last also count outliers, so that these do not widen the range;
    integers of a small range get one each; text its most frequent values; vectors their norms.
    """
    if reference is None or current is None:
        return []
    if isinstance(reference, Vectors) and isinstance(current, Vectors):
        return _buckets(np.sort(reference.norms), np.sort(current.norms))
    one, other = as_numbers(reference), as_numbers(current)
    if one is not None and other is not None:
        return _buckets(one.values, other.values)
    if isinstance(reference, Kinds) and isinstance(current, Kinds):
        shares = {v: (reference.share(v), current.share(v)) for v in {**reference.counts, **current.counts}}
        most = sorted(shares, key=lambda value: (-max(shares[value]), value))[:BUCKETS]
        return [[in_text(value), *(round(share, 6) for share in shares[value])] for value in most]
    return []


def _buckets(reference: Array, current: Array) -> list[list[object]]:
    ends = [side[[int(_OUTER * len(side)), len(side) - 1 - int(_OUTER * len(side))]] for side in (reference, current)]
    low, high = float(min(end[0] for end in ends)), float(max(end[1] for end in ends))
    if low == high:
        return [[low, high, 1.0, 1.0]]
    if not np.isfinite(high - low):
        return []
    edges = np.linspace(low, high, BUCKETS + 1)
    shares = [np.histogram(np.clip(side, low, high), edges)[0] / len(side) for side in (reference, current)]
    return [
        [float(cell) for cell in row] for row in np.stack([edges[:-1], edges[1:], *(s.round(6) for s in shares)], 1)
    ]

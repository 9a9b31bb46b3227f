"""Digests of the values that predictions depend on, and their comparison across ranks."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

import numpy as np

from airflow_hops.core.errors import BadInput

Digests = Sequence[tuple[str, str]]
"""Names of values and their SHA-256 (hex)."""
_NAMED = 3

SAME_ON_ALL_RANKS = (
    "ranks that compute such values from their own rows, or draw them, make different models: compute them on one rank "
    "and give them to the others, for example with horovod.tensorflow.broadcast_object, or let the transform compute "
    "them"
)


def digest(*arrays: object) -> str:
    """Returns the SHA-256 (hex) of arrays: their dtypes, shapes and bytes."""
    result = hashlib.sha256()
    for array in map(np.asarray, arrays):
        result.update(f"{array.dtype}{array.shape}".encode())
        result.update(repr(array.tolist()).encode() if array.dtype.kind in "OU" else array.tobytes())
    return result.hexdigest()


def check_equal(by_rank: Sequence[Digests], when: str, advice: str = SAME_ON_ALL_RANKS) -> str:
    """Returns the SHA-256 (hex) of digests that must be equal on all ranks.

    Names may differ, since ranks may number their layers differently.

    Raises:
        BadInput: a value differs; the error names it as rank 0 does.
    """
    counts = [Counter(value for _, value in digests) for digests in by_rank]
    differing = [name for name, value in by_rank[0] if any(count[value] != counts[0][value] for count in counts)]
    if differing or any(count != counts[0] for count in counts):
        names = list(dict.fromkeys(differing)) or ["the number of values"]
        listed = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
        raise BadInput(f"the ranks' models differ {when} in {listed}; {advice}")
    return hashlib.sha256("".join(value for _, value in by_rank[0]).encode()).hexdigest()

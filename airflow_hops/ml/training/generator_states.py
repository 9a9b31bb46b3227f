"""The states of Python's and NumPy's random generators, with further arrays, as bytes that hold no code."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Mapping
from typing import Any

import numpy as np


def save_generators(arrays: Mapping[str, Any]) -> bytes:
    """Returns the states of the generators, and further arrays by name."""
    version, words, gauss = random.getstate()
    _, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    others = {"python": [version, gauss], "numpy": [int(position), int(has_gauss), float(cached)]}
    buffer = io.BytesIO()
    np.savez(
        buffer,
        python=np.array(words, np.uint64),
        numpy=np.asarray(keys),
        others=np.frombuffer(json.dumps(others).encode(), np.uint8),
        **arrays,
    )
    return buffer.getvalue()


def restore_generators(state: bytes) -> dict[str, Any]:
    """Restores the generators from what :func:`save_generators` has returned, and returns the further arrays."""
    with np.load(io.BytesIO(state), allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    others = json.loads(arrays.pop("others").tobytes())
    version, gauss = others["python"]
    random.setstate((version, tuple(int(word) for word in arrays.pop("python")), gauss))
    np.random.set_state(("MT19937", arrays.pop("numpy"), *others["numpy"]))
    return arrays

"""A table on which options of statistics have something to do."""

from __future__ import annotations

from functools import cache

import numpy as np
import pyarrow as pa


@cache
def table() -> pa.Table:
    """Letters, numbers that depend on them, times since the epoch, what is missing, several values, an infinity."""
    random = np.random.default_rng(5)
    letters = random.choice(["a", "b", "c"], 5000)
    numbers = random.normal(size=5000) + (letters == "a")
    seconds = 1_700_000_000 + (numbers * 1000).astype("int64")
    holes = np.where(random.random(5000) < 0.3, np.nan, numbers * 2 + random.normal(size=5000))
    infinite = numbers.copy()
    infinite[7] = np.inf
    return pa.table(
        {
            "letter": pa.array(letters),
            "digit": pa.array(random.integers(0, 4, 5000)),
            "y": pa.array((numbers > 0.5).astype("int64")),
            "number": pa.array(numbers),
            "seconds": pa.array(seconds),
            "holes": pa.array(holes),
            "constant": pa.array([0.1] * 5000),
            "infinite": pa.array(infinite),
            "several": pa.array([[1.0, float(i)][: 1 + i % 2] for i in range(5000)]),
            "photo": pa.array([f"{i}" for i in range(5000)]),
        }
    )

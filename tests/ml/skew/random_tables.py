"""Random tables of columns of many shapes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa


def random_table(rows: int, random: np.random.Generator, shift: float = 0.0) -> pa.Table:
    """Columns of many shapes; ``shift`` moves each of them."""
    mostly_zero = np.where(random.random(rows) < 0.7 - shift / 4, 0.0, random.lognormal(size=rows))
    return pa.table(
        {
            "normal": random.normal(shift, 1, rows),
            "lognormal": random.lognormal(shift, 1.5, rows),
            "small_integers": random.poisson(2 + shift, rows),
            "integers": random.poisson(300 + 17 * shift, rows),
            "mostly_zero": mostly_zero,
            "few_floats": random.choice([1.1, 2.2, 4.4, 8.8, 17.6], rows),
            "three": random.choice(["a", "b", "c"], rows, p=[0.5, 0.3 + shift / 10, 0.2 - shift / 10]),
            "hundred": [f"v{value}" for value in np.minimum(random.zipf(1.5, rows), 100)],
            "thousands": [f"v{value}" for value in random.geometric(0.001, rows)],
        }
    )

"""Statistics of a segment's training rows, which are kept with the fleet and compared with captured rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_hops.extensions.fleet.ml.columns import Columns, ranked

_BINS = 10
_VALUES = 20
"""Values of a category that are counted one by one, the most frequent; the others are counted together."""

Statistics = dict[str, Any]
"""Statistics of a feature, JSON: ``missing``, also infinite, and ``counts``; of numbers ``edges``, between which they
are counted, ``mean``, ``deviation``, ``least`` and ``greatest``; of a category ``values``, with a last count of all
others."""


def statistics_of(table: pa.Table, columns: Columns) -> dict[str, Statistics]:
    """Returns the statistics of a segment's rows by feature.

    The edges of numbers are quantiles of these rows, so that each bin has about as many of them.
    """
    results: dict[str, Statistics] = {}
    for name in columns.features:
        column = table[name].drop_null()
        if columns.types[name] == "string":
            counts = ranked(column.filter(pc.not_equal(column, "")))  # as requests have a missing one
            present, values = sum(counts.values()), list(counts)[:_VALUES]
            own = [counts[value] for value in values]
            own.append(present - sum(own))
            results[name] = {"values": values, "counts": own, "missing": len(table) - present}
            continue
        numbers = column.to_numpy().astype(np.float32)
        numbers = numbers[np.isfinite(numbers)]
        results[name] = {"edges": [], "counts": [len(numbers)], "missing": len(table) - len(numbers)}
        if len(numbers):
            edges = np.unique(np.quantile(numbers, np.arange(1, _BINS) / _BINS, method="lower"))
            means = {"mean": numbers.mean(dtype=np.float64), "deviation": numbers.std(dtype=np.float64)}
            # The shortest texts that are these numbers as float32
            results[name] |= {"edges": [float(str(edge)) for edge in edges], "counts": counted(numbers, edges).tolist()}
            results[name] |= {fact: float(f"{value:.6g}") for fact, value in means.items()}
            results[name] |= {"least": float(str(numbers.min())), "greatest": float(str(numbers.max()))}
    return results


def counted(numbers: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Returns how many numbers there are up to each edge, and above the last one.

    >>> counted(np.array([1.0, 2.0, 3.0]), np.array([2.0]))
    array([2, 1])
    """
    return np.bincount(np.searchsorted(edges, numbers, side="left"), minlength=len(edges) + 1)


def counted_alike(statistics: Mapping[str, Any], values: np.ndarray) -> np.ndarray:
    """Counts other rows' values of a feature as its statistics do; the last count is that of missing values.

    Args:
        statistics: Statistics of the feature.
        values: Floats with NaN for a missing one, or texts, empty or None for a missing one, ``[rows]``.
    """
    if "edges" in statistics:
        single = values.astype(np.float32)
        present = single[np.isfinite(single)]
        counts = counted(present, np.array(statistics["edges"], np.float32))
        return np.append(counts, len(values) - len(present))
    number_of = {value: number for number, value in enumerate(statistics["values"])}
    others = len(number_of)
    numbers = [others + 1 if not value else number_of.get(value, others) for value in values.tolist()]
    return np.bincount(np.array(numbers, np.intp), minlength=others + 2)

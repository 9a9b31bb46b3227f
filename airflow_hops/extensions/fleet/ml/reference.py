"""Statistics of a segment's training rows, which are kept with the fleet and compared with captured rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_hops.extensions.fleet.core.linear import Encoding
from airflow_hops.extensions.fleet.ml.columns import Columns

_BINS = 10
_VALUES = 20
"""Values of a category that are counted one by one, the most frequent; the others are counted together."""

Statistics = dict[str, Any]
"""Statistics of a feature, JSON: ``missing`` and ``counts``; of numbers ``edges``, between which they are counted, and
``mean``; of a category ``values``, and ``unseen``, the share of rows with a value that no column of the matrix has."""


def statistics_of(table: pa.Table, columns: Columns, encoding: Encoding) -> dict[str, Statistics]:
    """Returns the statistics of a segment's rows by feature.

    The edges of numbers are quantiles of these rows, so that each bin has about as many of them.
    """
    known = {each.name: set(each.values) for each in encoding.categories}
    results = {}
    for name in columns.features:
        column, missing = table[name].drop_null(), table[name].null_count
        if columns.types[name] == "string":
            column = column.filter(pc.not_equal(column, ""))  # as requests have a missing one
            missing = len(table) - len(column)
            counts = {each["values"]: each["counts"] for each in pc.value_counts(column).to_pylist()}
            values = sorted(counts, key=lambda value: (-counts[value], value))[:_VALUES]
            unseen = sum(count for value, count in counts.items() if value not in known[name])
            results[name] = {
                "values": values,
                "counts": [*(counts[value] for value in values), len(column) - sum(counts[value] for value in values)],
                "unseen": round(unseen / max(len(column), 1), 6),
                "missing": missing,
            }
            continue
        numbers = column.to_numpy().astype(np.float32)
        present = numbers[~np.isnan(numbers)]
        missing += len(numbers) - len(present)
        edges = (
            np.unique(np.quantile(present, np.arange(1, _BINS) / _BINS, method="lower")) if len(present) else present
        )
        results[name] = {
            "edges": edges.tolist(),
            "counts": counted(present, edges).tolist(),
            "mean": float(present.mean(dtype=np.float64)) if len(present) else None,
            "missing": missing,
        }
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
        present = values[~np.isnan(values)]
        counts = counted(present.astype(np.float32), np.array(statistics["edges"], np.float32))
        return np.append(counts, len(values) - len(present))
    number_of = {value: number for number, value in enumerate(statistics["values"])}
    others = len(number_of)
    numbers = [others + 1 if not value else number_of.get(value, others) for value in values.tolist()]
    return np.bincount(np.array(numbers, np.intp), minlength=others + 2)

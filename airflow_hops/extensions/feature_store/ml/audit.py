"""Comparison of the feature values that were used with those of a point-in-time join, row by row, with causes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

DEFAULT_USED = "default used"
EXPIRED = "expired value"
LATE = "late materialisation"
TIME_TRAVEL = "time travel"
OTHER_CODE = "different code in stream and batch"
CAUSES = (DEFAULT_USED, EXPIRED, LATE, TIME_TRAVEL, OTHER_CODE)

_RELATIVE = 1e-5  # between a float32 that was stored online and the float64 of its source


@dataclass(frozen=True)
class History:
    """All values of a view's features that matter for an audit.

    Attributes:
        rows: The columns of the keys, the features, ``event_at`` and ``created_at`` (UTC timestamps).
        keys: Columns of the keys.
        ttl_s: Age in seconds at which a value expires; None for never.
    """

    rows: pd.DataFrame
    keys: tuple[str, ...]
    ttl_s: float | None


def equal(used: pd.Series, expected: pd.Series) -> np.ndarray:
    """Returns, by position, whether two values are equal: both missing, or equal up to the rounding of float32."""
    both_missing = used.isna().to_numpy() & expected.isna().to_numpy()
    if pd.api.types.is_numeric_dtype(used) and pd.api.types.is_numeric_dtype(expected):
        same = np.isclose(used.to_numpy("float64"), expected.to_numpy("float64"), rtol=_RELATIVE, atol=0)
    else:
        same = np.array([_same(one, other) for one, other in zip(used, expected, strict=True)], bool)
    return np.asarray(both_missing | same)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, list | np.ndarray) or isinstance(other, list | np.ndarray):
        one, other = np.asarray(one, float), np.asarray(other, float)
        return one.shape == other.shape and bool(np.allclose(one, other, rtol=_RELATIVE))
    return bool(one == other)


def find_causes(rows: pd.DataFrame, used: pd.Series, expected: pd.Series, history: History, feature: str) -> pd.Series:
    """Names the cause of each difference.

    Args:
        rows: The rows that differ: the columns of the keys, ``moment`` (UTC timestamp), and ``value_at``, the time of
            the value that was looked up, or missing if it is unknown.
        used: The values that were used; missing where the default was.
        expected: The values of the point-in-time join.
        history: The values of the feature's view.
        feature: The feature.

    Returns:
        One of :data:`CAUSES` for each row.
    """
    causes = pd.Series(OTHER_CODE, index=rows.index, dtype=object)
    defaulted = used.isna() & expected.notna()
    causes[defaulted] = DEFAULT_USED
    rest = rows[~defaulted]
    if rest.empty or history.rows.empty:
        return causes
    numbered = rest.assign(_row=np.arange(len(rest)), _used=used[rest.index])
    candidates = numbered.merge(history.rows, on=list(history.keys), suffixes=("", "_of_history"))
    same = equal(candidates["_used"], candidates[feature]) & candidates["_used"].notna().to_numpy()
    at_time = candidates["value_at"].isna() | (candidates["value_at"] == candidates["event_at"])
    candidates = candidates[same & at_time.to_numpy()]
    moment, event, created = candidates["moment"], candidates["event_at"], candidates["created_at"]
    future = (event > moment) | (created > moment)
    old = moment - event > pd.Timedelta(seconds=history.ttl_s) if history.ttl_s else pd.Series(False, index=event.index)
    names = np.select([future.to_numpy(), old.to_numpy()], [TIME_TRAVEL, EXPIRED], LATE)
    # Of several moments with the same value, the nearest one explains it.
    nearest = (
        candidates.assign(_name=names, _distance=(moment - event).abs())
        .sort_values("_distance")
        .drop_duplicates("_row")
    )
    causes[rest.index[nearest["_row"].to_numpy()]] = nearest["_name"].to_numpy()
    return causes


def more_than(differing: int, rows: int, share: float) -> float:
    """Returns the p-value of a number of differing rows, if at most ``share`` of all differ (exact binomial test)."""
    if not differing:
        return 1.0
    if share <= 0:
        return 0.0

    def log_probability(count: int) -> float:
        ways = math.lgamma(rows + 1) - math.lgamma(count + 1) - math.lgamma(rows - count + 1)
        return ways + count * math.log(share) + (rows - count) * math.log1p(-share)

    return min(1.0, math.fsum(math.exp(log_probability(count)) for count in range(differing, rows + 1)))


def describe(values: pd.Series) -> Mapping[str, float]:
    """Returns the share of missing values and, of numbers, mean and standard deviation."""
    summary = {"missing": float(values.isna().mean()) if len(values) else 0.0}
    if pd.api.types.is_numeric_dtype(values) and values.notna().any():
        summary |= {"mean": float(values.mean()), "std": float(values.std(ddof=0))}
    return summary

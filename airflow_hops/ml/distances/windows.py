"""Windows of the reference: their differences show the normal variation of rows that depend on time.

Windows of one population can differ: a week of winter differs from a year, and from a week of summer. The
current rows are therefore compared with the most similar window of the reference, and that distance with those of the
reference's own windows to the most similar one of the others (a conformal test with the nearest neighbour as its
measure of strangeness; Laxhammar and Falkman, "Conformal prediction for distribution-independent anomaly detection in
streaming vessel data", 2010). If the reference covers a year, only windows of the same season count: a summer's week
that looks like winter has drifted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from airflow_hops.ml.distances.questions import VALUES, plain_distances
from airflow_hops.ml.distances.sides import Array, Feature, alike
from airflow_hops.ml.distances.times import seconds_of, usual_period

MARGIN = 1.5
"""Factor above the largest distance of the reference's own windows from which a distance is drift; where that is large,
half of the way from there to 1, so that a window without any common value is drift.

Of the weeks of ten generated buildings (``benchmarks/drift_power.py``) it calls 0.2% drifted, 1.2 calls 1.9%.
"""
SEASON_DAYS = 28
"""Maximum days between two windows' days of the year for the same season.

Of ten buildings whose consumption rises by a quarter for six weeks, 8 were found, and 2 without seasons.
"""
LEAST_WINDOWS = 4
_LEAST_ROWS, _MOST_WINDOWS = 50, 60
_DAY_S, _YEAR_S = 86_400.0, 365.2425 * 86_400
_BLIND = 0.98


Nearest: TypeAlias = tuple[float, float]
"""Distance to the most similar window of the reference, and the largest distance without drift: that of any window of
the reference, and a margin."""


OwnWindow: TypeAlias = tuple[str, float, float]
"""Column of the rows' times (seconds since the epoch, timestamps, dates, or text in ISO 8601), and start and end of the
current rows' window, seconds since the epoch: the reference is divided into windows that are as long."""


def window_of(sample: pa.Table, time: str) -> OwnWindow:
    """Returns the window of the current rows, given their sample.

    Raises:
        BadInput: the sample lacks the column, or it has no times.
    """
    return time, *_in_period(seconds_of(sample, time))[1:]


def compare_windows(
    window: OwnWindow, reference: pa.Table, current: pa.Table, widths: Mapping[str, int | None]
) -> tuple[dict[str, dict[str, Nearest]], str]:
    """Compares the current rows, and each window of the reference, with the most similar window.

    Args:
        window: That of the current rows.
        reference: Sample of the reference's rows.
        current: Sample of the current rows.
        widths: The features, with the lengths of vectors.

    Returns:
        Distances by feature and question (:mod:`airflow_hops.ml.distances.questions`), empty if there are
        fewer than :data:`LEAST_WINDOWS` windows; and a note on the comparison.

    Raises:
        BadInput: the sample lacks the column, or it has no times.
    """
    time, start_s, end_s = window
    seconds, start, end = _in_period(seconds_of(reference, time))
    length_s = max(end_s - start_s, 1.0)
    number = (seconds - start) // length_s
    numbers, rows = np.unique(number[np.isfinite(number)], return_counts=True)
    full = numbers[rows >= _LEAST_ROWS]
    days, length = length_s / _DAY_S, _in_words(length_s)
    if len(full) < LEAST_WINDOWS:
        return {}, (
            f"The compared rows span {length}, and {len(full) or 'no'} windows of the reference that are as long "
            f"have {_LEAST_ROWS} sampled rows, expected {LEAST_WINDOWS}: changes with the time are not told from "
            "drift; compare longer windows, name the time_feature of requests that have their own times, or raise "
            "sample_rows of StatisticsOperator"
        )
    full = full[np.unique(np.linspace(0, len(full) - 1, _MOST_WINDOWS).astype(int))]
    samples = [*(reference.filter(pa.array(number == each)) for each in full), current]
    middles = np.append(start + (full + 0.5) * length_s, (start_s + end_s) / 2)
    compared, subject = np.ones((len(middles), len(middles)), bool), "the reference"
    seasons = _same_season(middles, days)
    if end - start > _YEAR_S - SEASON_DAYS * _DAY_S and seasons[-1, :-1].any():
        compared, subject = seasons, f"the reference, up to {SEASON_DAYS} days from the same day of the year"
    nearest = {name: _nearest(alike(samples, name, width=width, seed=0), compared) for name, width in widths.items()}
    blind = [name for name, each in nearest.items() if VALUES in each and each[VALUES][1] > _BLIND]
    unseen = f"; {', '.join(blind)}: a window is unlike all others, so that nothing is drift" if blind else ""
    return nearest, (
        f"Compared with the most similar of {compared[-1, :-1].sum()} windows of {length} of {subject}: drift is "
        f"what is {MARGIN} times further away than any of the reference's windows is from the others{unseen}"
    )


def _same_season(middles: Array, days: float) -> Array:
    """Returns whether pairs of windows are of the same season, ``[windows, windows]``, from their middles."""
    apart = np.abs(middles[:, None] - middles) % _YEAR_S
    return np.minimum(apart, _YEAR_S - apart) <= max(SEASON_DAYS, 1.5 * days) * _DAY_S


def _nearest(features: list[Feature], compared: Array) -> dict[str, Nearest]:
    """Compares each window (the current one is last) with the most similar of its ``compared`` windows."""
    apart: dict[str, Any] = {}
    for i, j in np.argwhere(np.triu(compared, 1)):
        for question, distance in plain_distances(features[i], features[j]).items():
            matrix = apart.setdefault(question, np.full((len(features), len(features)), np.nan))
            matrix[i, j] = matrix[j, i] = distance
    nearest = {}
    for question, matrix in apart.items():
        np.fill_diagonal(matrix, np.nan)
        own, current = matrix[:-1, :-1], matrix[-1, :-1]
        known = np.isfinite(own).any(axis=1)
        if known.any() and np.isfinite(current).any():
            farthest = float(np.nanmin(own[known], axis=1).max())
            allowed = min(MARGIN * farthest, (1 + farthest) / 2)
            nearest[question] = float(np.nanmin(current)), allowed
    return nearest


def _in_period(seconds: Array) -> tuple[Array, float, float]:
    """Returns times, NaN for those far from all others, with the first and the last one."""
    start, end = usual_period(*np.unique(seconds[np.isfinite(seconds)], return_counts=True))
    return np.where((seconds >= start) & (seconds <= end), seconds, np.nan), start, end


def _in_words(seconds: float) -> str:
    for unit, size in (("days", _DAY_S), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return "1 second" if seconds == 1 else f"{seconds:.3g} seconds"

"""Distances of the features of two data sets: those of a skew report, or computed from both distributions.

The latter have no p-values: figures have no rows, and a test needs them. A skew task compares rows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import from_json

from airflow_hops.core.skew import REPORT_FILE, SkewTest
from airflow_hops.web.artifacts.feature_pages import FeatureView
from airflow_hops.web.artifacts.lookup import FoundArtifact

_MEASURES = {"num": "kolmogorov_smirnov", "string": "l_infinity"}


def judged_features(found: FoundArtifact) -> Mapping[str, Mapping[str, Any]]:
    """Returns the features of a skew report, each with ``measure``, ``score``, ``scores``, ``p_value`` and others."""
    features: Mapping[str, Mapping[str, Any]] = found.read_json(REPORT_FILE)["features"]
    return features


def compare_views(reference: FeatureView, current: FeatureView, names: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    """Returns ``measure``, ``score``, ``threshold`` and ``drifted`` of features that can be compared.

    The score of numbers is the largest difference of the two cumulative shares, that of strings the largest difference
    of a value's shares. ``drifted`` is None if there are too few rows to judge by a threshold.
    """
    results: dict[str, Mapping[str, Any]] = {}
    is_enough = min(reference.rows, current.rows) >= SkewTest.MIN_ROWS_OF_THRESHOLDS
    for name in names:
        one, other = (from_json(view.detail(name)) for view in (reference, current))
        score = _score(one, other)
        if score is not None:
            drifted = score > SkewTest.threshold if is_enough else None
            measure = _MEASURES[one["kinds"]]
            results[name] = {"measure": measure, "score": score, "threshold": SkewTest.threshold, "drifted": drifted}
    return results


def _score(one: Mapping[str, Any], other: Mapping[str, Any]) -> float | None:
    if one["types"] != other["types"]:
        return None
    if one["curve"] and other["curve"]:
        return _largest_gap(one["curve"], other["curve"])
    if one["kinds"] == "string" and one["values"] and other["values"]:
        return _largest_share(one, other)
    return None


def _largest_gap(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """Returns the largest difference of two distribution functions, which lies at a knot of one of them."""
    sides = [(curve["values"], curve["shares"]) for curve in (one, other)]
    return round(max(_gap_at_knots(*sides), _gap_at_knots(*reversed(sides))), 6)


_Curve = tuple[list[float], list[float]]


def _gap_at_knots(one: _Curve, other: _Curve) -> float:
    """Returns the largest difference at the knots of ``one``; a repeated knot is a jump, with two shares."""
    (values, shares), (knots, heights) = one, other
    last, gap = len(knots), 0.0
    for index, (value, share) in enumerate(zip(values, shares, strict=True)):
        upper = bisect_right(knots, value)
        lower = upper
        while lower and knots[lower - 1] == value:
            lower -= 1
        if lower < upper:  # it has knots here, too: compared on the same side of a jump
            if index == 0 or values[index - 1] != value:
                gap = max(gap, abs(share - heights[lower]))
            if index + 1 == len(values) or values[index + 1] != value:
                gap = max(gap, abs(share - heights[upper - 1]))
        elif 0 < upper < last:
            low = heights[upper - 1]
            part = (value - knots[upper - 1]) / (knots[upper] - knots[upper - 1])
            gap = max(gap, abs(share - low - (heights[upper] - low) * part))
        else:
            gap = max(gap, abs(share - (upper == last)))
    return gap


def _largest_share(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """Returns the largest difference of a value's shares; an unlisted value may have the share of the last listed."""
    sides = []
    for side in (one, other):
        total = sum(count for _, count in side["values"]) + (side["other_values"] or 0)
        shares = {value: count / total for value, count in side["values"]}
        sides.append((shares, min(shares.values()) if side["other_values"] else 0.0))
    (old, least_before), (new, least_after) = sides
    gaps = [
        abs(old[value] - new[value])
        if value in old and value in new
        else max(0.0, old[value] - least_after if value in old else new[value] - least_before)
        for value in {*old, *new}
    ]
    return round(float(max(gaps)), 6)

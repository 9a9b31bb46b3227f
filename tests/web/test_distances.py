"""Distances of distributions, computed from their figures."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from airflow_hops.web.artifacts.distances import compare_views
from airflow_hops.web.artifacts.feature_pages import FeatureView


def view(rows: int = 9000, **figures: Any) -> FeatureView:
    detail = {"kinds": "num", "types": "FLOAT", "curve": None, "values": [], "other_values": 0, **figures}
    return FeatureView(rows, "", {"x": json.dumps(detail)})


def curve(values: Any, shares: Any) -> dict[str, Any]:
    return {"values": list(values), "shares": list(shares)}


def score(one: Any, other: Any) -> float:
    return float(compare_views(view(curve=one), view(curve=other), ["x"])["x"]["score"])


def test_distance_of_numbers_is_the_largest_difference_of_cumulative_shares() -> None:
    random = np.random.default_rng(4)
    grid = np.linspace(-1, 12, 20_001)
    for _ in range(20):
        sides = [np.sort(random.uniform(0, 10, 40)) for _ in range(2)]
        shares = [np.concatenate([[0.0], np.sort(random.uniform(0, 1, 38)), [1.0]]) for _ in range(2)]
        exact = np.abs(np.subtract(*(np.interp(grid, x, f, 0, 1) for x, f in zip(sides, shares, strict=True)))).max()
        distance = score(*(curve(x, f) for x, f in zip(sides, shares, strict=True)))
        assert distance == pytest.approx(exact, abs=0.02) and distance >= exact - 1e-6


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (([0, 0, 1, 1], [0, 0.4, 0.4, 1]), ([0, 0, 1, 1], [0, 0.7, 0.7, 1]), 0.3),
        (([0, 0, 1, 1], [0, 0.4, 0.4, 1]), ([0, 1], [0, 1]), 0.6),
        (([0, 1], [0, 1]), ([2, 3], [0, 1]), 1.0),
        (([5, 5], [0, 1]), ([5, 5], [0, 1]), 0.0),
    ],
)
def test_jumps_are_compared_on_the_same_side(one: Any, other: Any, expected: float) -> None:
    assert score(curve(*one), curve(*other)) == score(curve(*other), curve(*one)) == expected


def test_distance_of_strings_counts_unlisted_values_as_at_most_the_last_listed() -> None:
    strings = {"kinds": "string", "types": "STRING"}
    one = view(values=[["a", 6], ["b", 4]], **strings)
    other = view(values=[["a", 9], ["c", 1]], **strings)
    assert compare_views(one, other, ["x"])["x"] == {
        "measure": "l_infinity", "score": 0.4, "threshold": 0.05, "drifted": True,
    }  # fmt: skip
    ids = [view(values=[[f"{side}{n}", 1] for n in range(5)], other_values=95, **strings) for side in "ab"]
    assert compare_views(*ids, ["x"])["x"]["score"] == 0


def test_few_rows_are_not_judged_and_types_must_agree() -> None:
    step = curve([0, 1], [0, 1])
    few = compare_views(view(100, curve=step), view(curve=step), ["x"])
    assert few["x"]["drifted"] is None
    assert compare_views(view(curve=step), view(curve=step, types="INT"), ["x"]) == {}

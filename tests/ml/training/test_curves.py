"""Curves of a training: bounded, in their shape, continued by a retry."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from airflow_hops.core.training.record import MAX_POINTS
from airflow_hops.ml.tracking.curves import Curves, thinned

POINTS = st.lists(st.tuples(st.integers(0, 50), st.one_of(st.none(), st.floats(-9, 9)), st.just(0)), max_size=60)


@given(points=POINTS, most=st.integers(4, 30))
def test_thinned_curve_has_its_ends_and_extremes(points: list[tuple[int, float | None, int]], most: int) -> None:
    points.sort(key=lambda point: point[0])
    few = thinned(points, most)
    assert len(few) <= max(most, 0) or len(points) <= most
    assert few[:1] == points[:1] and few[-1:] == points[-1:]
    values, few_values = ([value for _, value, _ in each if value is not None] for each in (points, few))
    assert not values or (min(values), max(values)) == (min(few_values), max(few_values))


def test_long_curve_is_bounded_and_its_figures_exact() -> None:
    curves = Curves()
    for step in range(50_000):
        curves.add("loss", step, -7.0 if step == 31_000 else math.exp(-step / 10_000), step)
    curve, figures = curves.content().curves["loss"], curves.figures["loss"]
    assert len(curve.steps) <= MAX_POINTS and sorted(curve.steps) == curve.steps
    assert (figures.count, figures.last.step, figures.min and figures.min.step) == (50_000, 49_999, 31_000)
    assert -7.0 in curve.values and curve.steps[-1] == 49_999


def test_retry_replaces_what_it_repeats() -> None:
    first = Curves()
    for step, value in enumerate([0.9, 0.5, 0.1], start=1):
        first.add("loss", step, value, 0)
    first.add("early", 1, 1.0, 0)
    resumed = Curves(first.content())
    resumed.figures |= first.figures
    resumed.add("loss", 2, 0.4, 9)
    resumed.add("loss", 3, float("nan"), 9)
    curves = resumed.content().curves
    assert (curves["loss"].steps, curves["loss"].values) == ([1, 2, 3], [0.9, 0.4, None])
    figures = resumed.figures["loss"]
    assert (figures.count, figures.min and figures.min.value, figures.last.value) == (3, 0.4, None)
    assert curves["early"].values == [1.0] and resumed.figures["early"].count == 1

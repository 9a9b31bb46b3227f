"""Curves and figures of a training's metrics, of bounded size."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from itertools import groupby

from airflow_hops.core.training.record import MAX_POINTS, MetricFigures, MetricPoint, StoredCurve, TrainingCurves

_ALL_POINTS = 100_000
"""Points of all curves together, so that a training with thousands of metrics has a file of some megabytes."""

Point = tuple[int, float | None, int]
"""Step, value (None if not finite), and time in milliseconds since the epoch."""


class Curves:
    """Curves of a training by metric, which continue those of an earlier try.

    The first value of a metric in this try replaces the earlier values from its step on: those of a resumed training
    before the checkpoint remain.
    """

    def __init__(self, earlier: TrainingCurves | None = None) -> None:
        curves = earlier.curves if earlier else {}
        self._points: dict[str, list[Point]] = {
            name: list(zip(curve.steps, curve.values, curve.times, strict=True)) for name, curve in curves.items()
        }
        self._earlier = set(self._points)
        self.figures: dict[str, MetricFigures] = {}

    def add(self, name: str, step: int, value: float, at_ms: int) -> None:
        """Adds a value of a metric."""
        points = self._points.setdefault(name, [])
        if name in self._earlier:
            self._earlier.discard(name)
            del points[bisect.bisect_left(points, step, key=_step) :]
            self.figures.pop(name, None)
            if points:
                self.figures[name] = figures_of(points)
        point = (step, value if math.isfinite(value) else None, at_ms)
        bisect.insort_right(points, point, key=_step)
        old, alone = self.figures.get(name, MetricFigures(MetricPoint(None, step), count=0)), figures_of([point])
        self.figures[name] = MetricFigures(
            MetricPoint(points[-1][1], points[-1][0]),
            min((each for each in (old.min, alone.min) if each), key=_value, default=None),
            max((each for each in (old.max, alone.max) if each), key=_value, default=None),
            old.count + 1,
        )
        if len(points) > 2 * MAX_POINTS:
            self._points[name] = thinned(points, MAX_POINTS)

    def content(self) -> TrainingCurves:
        """Returns the curves as they are stored."""
        most = max(10, min(MAX_POINTS, _ALL_POINTS // max(1, len(self._points))))
        curves = {}
        for name, points in sorted(self._points.items()):
            steps, values, times = zip(*thinned(points, most), strict=True)
            curves[name] = StoredCurve(list(steps), list(values), list(times))
        return TrainingCurves(curves)


def figures_of(points: Sequence[Point]) -> MetricFigures:
    """Returns the figures of points in the order of their steps."""
    finite = [MetricPoint(value, step) for step, value, _ in points if value is not None]
    return MetricFigures(
        MetricPoint(points[-1][1], points[-1][0]),
        min(finite, key=_value, default=None),
        max(finite, key=_value, default=None),
        len(points),
    )


def thinned(points: Sequence[Point], most: int) -> list[Point]:
    """Returns at most ``most`` points: both ends, and the smallest and largest in each of equally wide stretches."""
    if len(points) <= most:
        return list(points)
    first, width = points[0][0], max(1, points[-1][0] - points[0][0])
    stretches = (most - 2) // 2
    retained = {0, len(points) - 1}
    finite = [(value, index) for index, (_, value, _) in enumerate(points) if value is not None]
    for _, stretch in groupby(
        finite, lambda each: min((points[each[1]][0] - first) * stretches // width, stretches - 1)
    ):
        of_it = list(stretch)
        retained |= {min(of_it)[1], max(of_it)[1]}
    return [points[index] for index in sorted(retained)]


def _step(point: Point) -> int:
    return point[0]


def _value(point: MetricPoint) -> float:
    assert point.value is not None, "only finite values are compared"
    return point.value

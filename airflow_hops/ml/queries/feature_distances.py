"""How far the features of two data sets are apart, in columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from airflow_hops.ml.monitoring.skew.distribution import Curve, Distribution, Numbers, Values, Vectors, distribution
from airflow_hops.ml.monitoring.skew.measures import OF_FEW, every_score, jensen_shannon, score
from airflow_hops.ml.monitoring.skew.vectors import MEASURE
from airflow_hops.ml.schemas.infer import INFINITY_NORM, JENSEN_SHANNON
from airflow_hops.ml.statistics.summary import feature_name

_Pair = tuple[Distribution | None, Distribution | None]


def compare(reference: Any, current: Any, *, judged: Mapping[str, Any], name: str | None) -> dict[str, Any]:
    """The distances of the features that both ``DatasetFeatureStatistics`` have.

    Args:
        reference: One.
        current: The other.
        judged: What a skew report says of some of them, by name.
        name: A feature whose every measure is wanted; None for all features by one.
    """
    others = {feature_name(feature): feature for feature in current.features}
    shared = {
        result: feature
        for feature in reference.features
        if (result := feature_name(feature)) in others and name in (None, result)
    }
    report = ("measure", "score", "threshold", "p_value", "drifted")
    lines = {result: [judged[result][column] for column in report] for result in shared if result in judged}
    sides = {
        name: (distribution(each), distribution(others[name])) for name, each in shared.items() if name not in lines
    }
    lines |= zip(sides, _measured(list(sides.values())), strict=True)
    columns = [list(column) for column in zip(*(lines[result] for result in shared), strict=True)] or [
        [] for _ in report
    ]
    every: dict[str, float] = {}
    if name in shared:
        one, other = distribution(shared[name]), distribution(others[name])
        if type(one) is type(other):
            every = {measure: round(result, 6) for measure, result in every_score(one, other).items()}
    named = dict(zip(("measures", "scores", "thresholds", "p_values", "drifted"), columns, strict=True))
    return {"names": list(shared), **named, "reported": bool(judged), "every": every}


def _measured(pairs: Sequence[_Pair]) -> list[list[Any]]:
    """Measure, score, threshold, p-value and whether the score is above the threshold, of each pair."""
    lines: list[list[Any]] = [[None] * 5 for _ in pairs]
    alike: dict[tuple[int, int], list[int]] = {}
    for at, (reference, current) in enumerate(pairs):
        if isinstance(reference, Numbers) and isinstance(current, Numbers):
            if reference.frequent and reference.frequent.few and current.frequent:
                lines[at] = _line(OF_FEW, score(reference, current, OF_FEW), INFINITY_NORM)
            else:
                alike.setdefault((reference.standard.x.size, current.standard.x.size), []).append(at)
        elif isinstance(reference, Values) and isinstance(current, Values):
            lines[at] = _line("l_infinity", score(reference, current, "l_infinity"), INFINITY_NORM)
        elif isinstance(reference, Vectors) and isinstance(current, Vectors):
            # Whether it is much only a report's p-value tells.
            lines[at] = _line(MEASURE, score(reference, current, MEASURE), None)
    for group in alike.values():
        # One by one takes seconds for thousands of features: those with as many buckets are measured at once.
        curves = [[cast("Numbers", pairs[at][side]).standard for at in group] for side in (0, 1)]
        sides = [
            Curve(*(np.concatenate([getattr(curve, part) for curve in of]) for part in ("x", "f", "infinite")))
            for of in curves
        ]
        for at, result in zip(group, jensen_shannon(*sides), strict=True):
            lines[at] = _line("jensen_shannon", float(result), JENSEN_SHANNON)
    return lines


def _line(measure: str, result: float, threshold: float | None) -> list[Any]:
    result = round(result, 6)
    return [measure, result, threshold, None, threshold is not None and result > threshold]

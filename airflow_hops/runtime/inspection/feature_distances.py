"""How far the features of two data sets are apart, in columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_hops.runtime.schema.infer import INFINITY_NORM, JENSEN_SHANNON
from airflow_hops.runtime.skew.distribution import Numbers, Values, distribution
from airflow_hops.runtime.skew.measures import every_score, score
from airflow_hops.runtime.statistics.summary import feature_name


def compare(reference: Any, current: Any, *, judged: Mapping[str, Any], name: str | None) -> dict[str, Any]:
    """The distances of the features that both ``DatasetFeatureStatistics`` have.

    Args:
        reference: One.
        current: The other.
        judged: What a skew report says of some of them, by name.
        name: A feature whose every measure is wanted; None for all features by one.
    """
    others = {feature_name(feature): feature for feature in current.features}
    columns: dict[str, list[Any]] = {
        column: [] for column in ("names", "measures", "scores", "thresholds", "p_values", "drifted")
    }
    every: dict[str, float] = {}
    for feature in reference.features:
        found = feature_name(feature)
        if found not in others or name not in (None, found):
            continue
        if found in judged:
            said = judged[found]
            line = [said[column] for column in ("measure", "score", "threshold", "p_value", "drifted")]
        else:
            line = _measured(distribution(feature), distribution(others[found]))
        if name is not None:
            every = _every(distribution(feature), distribution(others[found]))
        for column, value in zip(columns.values(), [found, *line], strict=True):
            column.append(value)
    return {**columns, "reported": bool(judged), "every": every}


def _measured(reference: Numbers | Values | None, current: Numbers | Values | None) -> list[Any]:
    """Measure, score, threshold, p-value and whether the score is above the threshold."""
    if type(reference) is not type(current) or reference is None or current is None:
        return [None] * 5
    measure, threshold = (
        ("jensen_shannon", JENSEN_SHANNON) if isinstance(reference, Numbers) else ("l_infinity", INFINITY_NORM)
    )
    found = round(score(reference, current, measure), 6)
    return [measure, found, threshold, None, found > threshold]


def _every(reference: Numbers | Values | None, current: Numbers | Values | None) -> dict[str, float]:
    if type(reference) is not type(current):
        return {}
    return {measure: round(found, 6) for measure, found in every_score(reference, current).items()}

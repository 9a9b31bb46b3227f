"""Comparators of a schema's features: they select features for drift and skew, and set the maximum distance.

A comparator without a threshold of TFDV's measures stands for the distance of
:mod:`airflow_hops.ml.distances.measures`. TFDV has no field for its threshold: another than the default is a tag
of the feature's annotation, ``distance:0.1``, and so is the unit of its numbers, ``unit:km``.
"""

from __future__ import annotations

from typing import Any

from airflow_hops.core.errors import BadInput
from airflow_hops.ml.schema.diff import flat_features

DISTANCE = "distance"
MEASURES = {"infinity_norm": "infinity_norm", "jensen_shannon": "jensen_shannon_divergence"}
"""TFDV's measures: field names of a ``FeatureComparator`` by name."""
_TAG = f"{DISTANCE}:"
_UNIT_TAG = "unit:"


def compare_by_distance(feature: Any, threshold: float, default: float) -> None:
    """Gives a feature of a schema comparators by distance."""
    for comparator in (feature.drift_comparator, feature.skew_comparator):
        comparator.SetInParent()
    tags = [tag for tag in feature.annotation.tag if not tag.startswith(_TAG)]
    if threshold != default:
        tags.append(f"{_TAG}{threshold:g}")
    if tags or feature.annotation.tag:
        del feature.annotation.tag[:]
        feature.annotation.tag.extend(tags)


def distance_of(feature: Any) -> float | None:
    """Returns the threshold of a feature's distance; None for the default.

    Raises:
        BadInput: the tag has no number from 0 to 1.
    """
    for tag in feature.annotation.tag:
        if tag.startswith(_TAG):
            try:
                threshold = float(tag.removeprefix(_TAG))
            except ValueError:
                threshold = -1.0
            if not 0 <= threshold <= 1:
                raise BadInput(f"schema: feature {feature.name!r} has the tag {tag!r}, expected {_TAG}<0 to 1>")
            return threshold
    return None


def unit_of(feature: Any) -> str:
    """Returns the unit of a feature's numbers; empty if the schema does not have it."""
    tags = (tag.removeprefix(_UNIT_TAG).strip() for tag in feature.annotation.tag if tag.startswith(_UNIT_TAG))
    return next(tags, "")


def compared_features(schema: Any, comparator: str) -> dict[str, float | None]:
    """Returns the features with a ``drift`` or ``skew`` comparator, and the thresholds of their distances."""
    return {
        name: distance_of(feature)
        for name, feature in flat_features(schema.feature)
        if feature.HasField(f"{comparator}_comparator")
    }

"""TFDV's own measures, computed from statistics for the features whose comparator has a threshold for them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal, TypeAlias

from airflow_hops.ml.schema.diff import flat_features
from airflow_hops.ml.statistics.summary import feature_name, features_by_name, type_name, vector_width

INFINITY_NORM, JENSEN_SHANNON = 0.05, 0.2
"""Default thresholds of text and of numbers, for statistics without a sample of rows."""

_INFINITY_NORM, _JENSEN_SHANNON = "infinity_norm", "jensen_shannon_divergence"
_FIELDS = (_INFINITY_NORM, _JENSEN_SHANNON, "normalized_abs_difference")
_TYPES_OF_MEASURES = {
    "L_INFTY": "l_infinity",
    "JENSEN_SHANNON_DIVERGENCE": "jensen_shannon",
    "NORMALIZED_ABSOLUTE_DIFFERENCE": "normalized_abs_difference",
}
_TYPES = {"INT": "INT", "FLOAT": "FLOAT", "STRING": "BYTES"}
_EXACT = 2**53
"""Largest number up to which TFDV's histograms, of doubles, tell whole numbers apart."""


Measured: TypeAlias = tuple[str, float, float]
"""TFDV's measure of a feature, its score and the schema's threshold."""


def blind_measures(reference: Any, schema: Any, comparator: Literal["skew", "drift"]) -> dict[str, list[str]]:
    """Returns measures of comparators, by feature, that TFDV does not have for the type of the feature's values.

    TFDV 1.16 gives them the score 0 whatever the values are.

    Args:
        reference: ``DatasetFeatureStatisticsList``.
        schema: The schema.
        comparator: Which comparators of the schema.
    """
    known, blind = features_by_name(reference), {}
    for name, feature in flat_features(schema.feature):
        limits = getattr(feature, f"{comparator}_comparator")
        if name in known and (fields := [field for field in _FIELDS if limits.HasField(field)]):
            blind[name] = [field for field in fields if not _has(field, known[name])]
    return {name: fields for name, fields in blind.items() if fields}


def _has(field: str, feature: Any) -> bool:
    """Returns whether TFDV has a measure of a feature's values."""
    if feature.WhichOneof("stats") == "string_stats":
        return True
    numbers = feature.num_stats
    is_exact = feature.type != feature.INT or max(abs(numbers.min), abs(numbers.max)) < _EXACT
    # TFDV 1.16: would compare the single numbers of vectors.
    return field == _JENSEN_SHANNON and is_exact and vector_width(feature) is None


def measured_by_tfdv(
    reference: Any, current: Any, schema: Any, comparator: Literal["skew", "drift"], unsampled: Collection[str]
) -> dict[str, Measured]:
    """Returns TFDV's measures by feature, if the feature's comparator has a threshold of one that TFDV has for it.

    Of several measures, the one that is furthest above its threshold counts.

    Args:
        reference: ``DatasetFeatureStatisticsList``.
        current: The same of the current rows.
        schema: The schema; None for no comparators.
        comparator: Which comparators of the schema.
        unsampled: Features without a sample of rows, which get TFDV's measures in any case.
    """
    from tensorflow_metadata.proto.v0 import schema_pb2

    chosen = {} if schema is None else dict(flat_features(schema.feature))
    asked, defaults = schema_pb2.Schema(), {"num_stats": _JENSEN_SHANNON, "string_stats": _INFINITY_NORM}
    for name, feature in features_by_name(reference).items():
        limits = getattr(chosen[name], f"{comparator}_comparator") if name in chosen else schema_pb2.FeatureComparator()
        thresholds = {field: getattr(limits, field).threshold for field in _FIELDS if limits.HasField(field)}
        thresholds = {field: threshold for field, threshold in thresholds.items() if _has(field, feature)}
        default = defaults.get(feature.WhichOneof("stats"), "")
        if not thresholds and name in unsampled and default and _has(default, feature):
            thresholds = {default: JENSEN_SHANNON if default == _JENSEN_SHANNON else INFINITY_NORM}
        if thresholds:
            added = asked.feature.add(name=name, type=_TYPES[type_name(feature)])
            for field, threshold in thresholds.items():
                getattr(added.skew_comparator, field).threshold = threshold
    if not asked.feature:
        return {}
    import tensorflow_data_validation as tfdv

    names = {each.name for each in asked.feature}
    info = tfdv.validate_statistics(_of(reference, names), asked, serving_statistics=_of(current, names))
    return {
        each.path.step[0]: max(map(_measured, each.skew_measurements), key=_excess)
        for each in info.drift_skew_info
        if each.skew_measurements
    }


def _measured(value: Any) -> Measured:
    return _TYPES_OF_MEASURES[type(value).Type.Name(value.type)], value.value, value.threshold


def _excess(measured: Measured) -> tuple[bool, float]:
    _, score, threshold = measured
    return score > threshold, score / threshold if threshold else score


def _of(statistics: Any, names: Collection[str]) -> object:
    """Returns the statistics of the whole data set of some features, of nested ones as if they were not."""
    chosen = type(statistics)()
    dataset = chosen.datasets.add(num_examples=statistics.datasets[0].num_examples)
    for each in statistics.datasets[0].features:
        if (name := feature_name(each)) in names:
            dataset.features.add().CopyFrom(each)
            dataset.features[-1].path.step[:] = [name]  # TFDV 1.16: ends the process if the schema has other paths
    return chosen

"""TFDV's own measures, computed from statistics for the features whose comparator has a threshold for them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal, TypeAlias

from airflow_hops.ml.statistics.summary import feature_name, type_name, vector_width

INFINITY_NORM, JENSEN_SHANNON = 0.05, 0.2
"""Default thresholds of text and of numbers, for statistics without a sample of rows."""

_INFINITY_NORM, _JENSEN_SHANNON = "infinity_norm", "jensen_shannon_divergence"
_FIELDS = {
    _INFINITY_NORM: "l_infinity",
    _JENSEN_SHANNON: "jensen_shannon",
    "normalized_abs_difference": "normalized_abs_difference",
}


_TYPES = {"INT": "INT", "FLOAT": "FLOAT", "STRING": "BYTES"}


Measured: TypeAlias = tuple[str, float, float]
"""TFDV's measure of a feature, its score and the schema's threshold."""


def measured_by_tfdv(
    reference: Any, current: Any, schema: Any, comparator: Literal["skew", "drift"], unsampled: Collection[str]
) -> dict[str, Measured]:
    """Returns TFDV's measures by feature, if the feature's comparator has a threshold.

    Args:
        reference: ``DatasetFeatureStatisticsList``.
        current: The same of the current rows.
        schema: The schema; None for no chosen.
        comparator: Which chosen of the schema.
        unsampled: Features without a sample of rows, which get TFDV's measures in any case.
    """
    from tensorflow_metadata.proto.v0 import schema_pb2

    # TFDV would compare the single numbers of vectors.
    known = {feature_name(each): each for each in reference.datasets[0].features if vector_width(each) is None}
    chosen = {} if schema is None else {each.name: getattr(each, f"{comparator}_comparator") for each in schema.feature}
    asked, measures = schema_pb2.Schema(), {}
    for name, feature in known.items():
        fields = [field for field in _FIELDS if name in chosen and chosen[name].HasField(field)]
        kind = feature.WhichOneof("stats")
        if not fields and (name not in unsampled or kind not in ("num_stats", "string_stats")):
            continue
        added = asked.feature.add(name=name, type=_TYPES[type_name(feature)])
        if fields:
            added.skew_comparator.CopyFrom(chosen[name])
        elif kind == "num_stats":
            fields, added.skew_comparator.jensen_shannon_divergence.threshold = [_JENSEN_SHANNON], JENSEN_SHANNON
        else:
            fields, added.skew_comparator.infinity_norm.threshold = [_INFINITY_NORM], INFINITY_NORM
        measures[name] = _FIELDS[fields[0]]
    if not measures:
        return {}
    import tensorflow_data_validation as tfdv

    info = tfdv.validate_statistics(_of(reference, measures), asked, serving_statistics=_of(current, measures))
    return {
        ".".join(each.path.step): (measures[".".join(each.path.step)], value.value, value.threshold)
        for each in info.drift_skew_info
        for value in each.skew_measurements[:1]
    }


def _of(statistics: Any, names: Collection[str]) -> object:
    """Returns the statistics of the whole data set of some features."""
    chosen = type(statistics)()
    dataset = chosen.datasets.add(num_examples=statistics.datasets[0].num_examples)
    dataset.features.extend(each for each in statistics.datasets[0].features if feature_name(each) in names)
    return chosen

"""Finds the evidence of an anomaly in the validated statistics: number of rows, and values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal, TypeAlias

from tensorflow_metadata.proto.v0.schema_pb2 import Feature, StringDomain
from tensorflow_metadata.proto.v0.statistics_pb2 import FeatureNameStatistics

from airflow_hops.core.validation_page import OffendingValue
from airflow_hops.ml.statistics.summary import common_statistics

SHOWN_VALUES = 10
"""Maximum number of listed offending values, most frequent first."""


Evidence: TypeAlias = tuple[int | None, bool, Sequence[OffendingValue], int]
"""Evidence of an anomaly: the affected rows, or None if it does not concern rows (drift) or their number is unknown;
whether the rows were counted, not estimated from a histogram; at most :data:`SHOWN_VALUES` values; and the minimum
number of distinct values."""

NO_EVIDENCE: Evidence = (None, True, (), 0)


def find_evidence(
    kind: str,
    feature: FeatureNameStatistics | None,
    expected: Feature | None,
    domain: StringDomain | None,
    rows: int,
) -> Evidence:
    """Returns the evidence of an anomaly in the statistics of a feature.

    Args:
        kind: TFDV's name of the anomaly's type.
        feature: ``FeatureNameStatistics``; None if the data has no such column.
        expected: The schema's ``Feature``, if any.
        domain: The feature's ``StringDomain``, if any.
        rows: Rows of the data set.
    """
    if feature is None or feature.WhichOneof("stats") is None:
        return rows if kind == "SCHEMA_MISSING_COLUMN" else None, True, (), 0
    find = _FINDERS.get(kind)
    return find(feature, expected, domain, rows) if find else NO_EVIDENCE


def _unexpected_strings(
    feature: FeatureNameStatistics, expected: object, domain: StringDomain | None, rows: int
) -> Evidence:
    if domain is None or feature.WhichOneof("stats") != "string_stats":
        return NO_EVIDENCE
    known = set(domain.value)
    buckets = feature.string_stats.rank_histogram.buckets
    outside = [bucket for bucket in buckets if bucket.label not in known]
    # Statistics list only the most frequent of very many values; others may be in the schema.
    is_exact = len(buckets) >= feature.string_stats.unique
    values = tuple(OffendingValue(b.label, round(b.sample_count)) for b in outside[:SHOWN_VALUES])
    return round(sum(bucket.sample_count for bucket in outside)), is_exact, values, len(outside)


def _missing(feature: FeatureNameStatistics, expected: object, domain: object, rows: int) -> Evidence:
    return max(0, rows - int(common_statistics(feature).num_non_missing)), True, (), 0


def _present(feature: FeatureNameStatistics, expected: object, domain: object, rows: int) -> Evidence:
    """Returns all rows that have the feature, for a new column or another type."""
    count = int(common_statistics(feature).num_non_missing)
    if feature.WhichOneof("stats") == "string_stats":
        buckets = feature.string_stats.rank_histogram.buckets
        values = [OffendingValue(bucket.label, round(bucket.sample_count)) for bucket in buckets[:SHOWN_VALUES]]
        return count, True, values, max(int(feature.string_stats.unique), len(values))
    if feature.WhichOneof("stats") == "num_stats" and count:
        ends = dict.fromkeys((feature.num_stats.min, feature.num_stats.max))
        return count, True, [OffendingValue(f"{end:.7g}", None) for end in ends], len(ends)
    return count, True, (), 0


def _outside_bound(
    side: Literal["min", "max"], feature: FeatureNameStatistics, expected: Feature | None, domain: object, rows: int
) -> Evidence:
    """Returns the extreme value, and the estimated rows beyond a bound, with values evenly spread in their buckets."""
    field = expected.WhichOneof("domain_info") if expected is not None else None
    bounds = getattr(expected, field) if field in ("int_domain", "float_domain") else None
    if bounds is None or feature.WhichOneof("stats") != "num_stats" or not bounds.HasField(side):
        return NO_EVIDENCE
    extreme, bound = getattr(feature.num_stats, side), getattr(bounds, side)
    start, end = (-math.inf, bound) if side == "min" else (bound, math.inf)
    buckets = [b for one in feature.num_stats.histograms if one.type == one.STANDARD for b in one.buckets]
    count = sum(bucket.sample_count * _share(bucket.low_value, bucket.high_value, start, end) for bucket in buckets)
    return max(1, round(count)), False, [OffendingValue(f"{extreme:.7g}", None)], 1


def _nan(feature: FeatureNameStatistics, expected: object, domain: object, rows: int) -> Evidence:
    standard = [one for one in feature.num_stats.histograms if one.type == one.STANDARD]
    count = int(sum(one.num_nan for one in standard))
    return count, True, [OffendingValue("NaN", count)], 1


def _share(low: float, high: float, start: float, end: float) -> float:
    """Returns the share of a bucket that lies in a range."""
    if not math.isfinite(low) or not math.isfinite(high) or high <= low:
        return float(start < high <= end) if math.isinf(end) else float(start <= low < end)
    return max(0.0, min(high, end) - max(low, start)) / (high - low)


_FINDERS: Mapping[str, Callable[[FeatureNameStatistics, Feature | None, StringDomain | None, int], Evidence]] = {
    "ENUM_TYPE_UNEXPECTED_STRING_VALUES": _unexpected_strings,
    "FEATURE_TYPE_LOW_FRACTION_PRESENT": _missing,
    "FEATURE_TYPE_LOW_NUMBER_PRESENT": _missing,
    "FEATURE_TYPE_NOT_PRESENT": _missing,
    "SCHEMA_NEW_COLUMN": _present,
    "UNEXPECTED_DATA_TYPE": _present,
    "CUSTOM_VALIDATION": _present,
    "INT_TYPE_SMALL_INT": partial(_outside_bound, "min"),
    "FLOAT_TYPE_SMALL_FLOAT": partial(_outside_bound, "min"),
    "INT_TYPE_BIG_INT": partial(_outside_bound, "max"),
    "FLOAT_TYPE_BIG_FLOAT": partial(_outside_bound, "max"),
    "FLOAT_TYPE_HAS_NAN": _nan,
}


def from_quarantine(texts: Sequence[tuple[str, int]], rows: int, distinct: int) -> Evidence:
    """Returns the evidence of one violated rule in quarantined rows.

    Args:
        texts: Reasons without feature and kind, with the number of rows, most frequent first.
        rows: Rows that violate the rule.
        distinct: Number of distinct reasons.
    """
    # A reason is a value, a comma and the expectation; without a value there is no comma.
    named = [(text.rpartition(", ")[0], count) for text, count in texts[:SHOWN_VALUES]]
    values = [OffendingValue(value, count) for value, count in named if value not in ("", "missing")]
    return rows, True, values, distinct if values else 0

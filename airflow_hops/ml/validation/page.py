"""Contents of the page of a validation: anomalies with their evidence in the statistics, and rows in quarantine."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias

import pyarrow as pa
from tensorflow_metadata.proto.v0 import anomalies_pb2, schema_pb2, statistics_pb2
from tensorflow_metadata.proto.v0.schema_pb2 import Feature, StringDomain
from tensorflow_metadata.proto.v0.statistics_pb2 import FeatureNameStatistics

from airflow_hops.core.validation_page import (
    AnomalyEntry,
    AnomalyReason,
    MeasuredDistance,
    OffendingValue,
    QuarantinedRows,
    QuarantineReason,
    Severity,
)
from airflow_hops.ml.readers import scan
from airflow_hops.ml.statistics.summary import common_statistics, features_by_name
from airflow_hops.ml.validation.quarantine import REASONS
from airflow_hops.ml.validation.validate import anomalous_feature

SHOWN_VALUES = 10
"""Maximum number of listed offending values, most frequent first."""


Evidence: TypeAlias = tuple[int | None, bool, Sequence[OffendingValue], int]
"""Evidence of an anomaly: the affected rows, or None if it does not concern rows (drift) or their number is unknown;
whether the rows were counted, not estimated from a histogram; at most :data:`SHOWN_VALUES` values; and the minimum
number of distinct values."""

NO_EVIDENCE: Evidence = (None, True, (), 0)

MAX_ROWS = 1_000
MAX_VALUES = 100_000
"""Rows, and rows by columns, of a split's quarantine that are shown."""
_ROWS_OF_RULE = 50
"""Rows that are shown of each violated rule at least, before others."""
_MAX_CHARACTERS = 200


def anomaly_entries(
    anomalies: anomalies_pb2.Anomalies,
    split: str,
    statistics: statistics_pb2.DatasetFeatureStatisticsList,
    schema: schema_pb2.Schema,
    texts: Mapping[str, Sequence[tuple[str, int]]],
    counts: Mapping[str, Mapping[str, int]],
) -> Iterator[AnomalyEntry]:
    """Yields the anomalies of a split with evidence from its quarantine, which counts rows, or from its statistics.

    Args:
        anomalies: ``Anomalies`` of the split.
        split: Name of the split.
        statistics: ``DatasetFeatureStatisticsList`` of the split.
        schema: ``Schema`` that it was validated against.
        texts: Reasons of its rows in quarantine, as from :func:`read_quarantine`.
        counts: Quarantined rows by feature and kind of anomaly.
    """
    total, features = int(statistics.datasets[0].num_examples), features_by_name(statistics)
    domains = {domain.name: domain for domain in schema.string_domain}
    known = {feature.name: feature for feature in schema.feature}

    def described(feature: str, reason: anomalies_pb2.AnomalyInfo.Reason) -> AnomalyReason:
        kind = anomalies_pb2.AnomalyInfo.Type.Name(reason.type)
        if quarantined := counts.get(feature, {}).get(kind, 0):
            of_kind = texts.get(f"{feature}: {kind}", [])
            evidence = from_quarantine(of_kind, quarantined, len(of_kind))
        else:
            expected, domain = known.get(feature), None
            if expected is not None:
                named = domains.get(expected.domain)
                domain = expected.string_domain if expected.HasField("string_domain") else named
            evidence = find_evidence(kind, features.get(feature), expected, domain, total)
        rows, is_exact, values, count = evidence
        shown = [replace(each, value=_cut(each.value)) for each in values]
        summary, description = reason.short_description, reason.description.strip()
        return AnomalyReason(kind, summary, description, rows, is_exact, shown, count, quarantined)

    for feature, info in _infos(anomalies):
        severity: Severity = "error" if info.severity == info.ERROR else "warning"
        yield AnomalyEntry(split, feature, severity, [described(feature, reason) for reason in info.reason])


def _infos(report: anomalies_pb2.Anomalies) -> Iterator[tuple[str, anomalies_pb2.AnomalyInfo]]:
    for key, info in sorted(report.anomaly_info.items()):
        yield anomalous_feature(key, info), info
    if report.HasField("dataset_anomaly_info"):
        yield "", report.dataset_anomaly_info


def measured_distances(report: anomalies_pb2.Anomalies, split: str) -> Iterator[MeasuredDistance]:
    """Yields the distances in an ``Anomalies`` message, of drift and of skew."""
    for info in report.drift_skew_info:
        for measured in (*info.drift_measurements, *info.skew_measurements):
            kind = type(measured).Type.Name(measured.type)
            yield MeasuredDistance(split, ".".join(info.path.step), kind, measured.value, measured.threshold)


def read_quarantine(folder: Path) -> tuple[QuarantinedRows | None, dict[str, list[tuple[str, int]]]]:
    """Reads a split's rows in quarantine.

    Returns:
        The first rows, with those of each violated rule; None if there are none. The reasons by ``<feature>: <kind>``
        with their numbers of rows, the most frequent first.
    """
    files = sorted(folder.glob("*.parquet")) if folder.is_dir() else []
    if not files:
        return None, {}
    columns = scan.schema(files[0]).names
    limit = min(MAX_ROWS, max(1, MAX_VALUES // len(columns)))
    seen, counted, total, parts, chosen = Counter[str](), Counter[str](), 0, list[pa.RecordBatch](), 0
    for batch in (batch for file in files for batch in scan.batches(file)):
        wanted = list[int]()
        for row, reasons in enumerate(batch.column(REASONS).to_pylist()):
            rules = {_split_reason(reason)[0] for reason in reasons}
            is_rare = any(seen[rule] < _ROWS_OF_RULE for rule in rules)
            seen.update(rules)
            counted.update(reasons)
            if is_rare or chosen + len(wanted) < limit // 2:
                wanted.append(row)
        wanted = wanted[: limit - chosen]
        chosen += len(wanted)
        total += batch.num_rows
        parts.append(batch.take(pa.array(wanted, pa.int64())))
    rows = pa.Table.from_batches(parts)
    names = [name for name in columns if name != REASONS]
    values = [[_shown(value) for value in rows.column(name).to_pylist()] for name in names]
    texts: dict[str, list[tuple[str, int]]] = {}
    for reason, count in counted.most_common():
        rule, text = _split_reason(reason)
        texts.setdefault(rule, []).append((text, count))
    shown = QuarantinedRows(
        columns=names,
        rows=[list(row) for row in zip(*values, strict=True)],
        reasons=[list(map(_reason, texts)) for texts in rows.column(REASONS).to_pylist()],
        total=total,
        listed=chosen,
    )
    return shown, texts


def _split_reason(reason: str) -> tuple[str, str]:
    """Splits a reason into ``<feature>: <KIND>`` and the rest; a name may contain colons, a kind is in capitals."""
    parts = reason.split(": ")
    index = next((i for i in range(1, len(parts) - 1) if parts[i].isupper() and parts[i].replace("_", "").isalpha()), 1)
    return ": ".join(parts[: index + 1]), ": ".join(parts[index + 1 :])


def _reason(reason: str) -> QuarantineReason:
    rule, text = _split_reason(reason)
    feature, _, kind = rule.rpartition(": ")
    return QuarantineReason(feature, kind, text)


def _shown(value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, bytes):
        value = value.decode(errors="backslashreplace")
    return _cut(value if isinstance(value, str) else f"{value:.7g}" if isinstance(value, float) else str(value))


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}…"


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

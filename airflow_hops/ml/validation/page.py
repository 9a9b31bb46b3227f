"""Contents of the page of a validation: anomalies with their evidence, and rows in quarantine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from tensorflow_metadata.proto.v0 import anomalies_pb2, schema_pb2, statistics_pb2

from airflow_hops.core.validation_page import (
    AnomalyEntry,
    AnomalyReason,
    MeasuredDistance,
    QuarantinedRows,
    QuarantineReason,
    Severity,
)
from airflow_hops.ml.readers import scan
from airflow_hops.ml.statistics.summary import features_by_name
from airflow_hops.ml.validation.evidence import find_evidence, from_quarantine
from airflow_hops.ml.validation.quarantine import REASONS
from airflow_hops.ml.validation.validate import anomalous_feature

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

"""Anomalies of a validation with their rows, its quarantine, and checks of edited schemas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as parquet
from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import anomalies_pb2

from airflow_hops.core.contract.artifacts import Artifact, BadInput, read_json
from airflow_hops.core.contract.properties import StatisticsProperties
from airflow_hops.ml.queries.place import Place
from airflow_hops.ml.queries.schemas import compare
from airflow_hops.ml.schemas import TRAINING
from airflow_hops.ml.schemas.files import parse_schema
from airflow_hops.ml.stages.validation.evidence import Evidence, find_evidence, from_quarantine
from airflow_hops.ml.stages.validation.quarantine import REASONS
from airflow_hops.ml.stages.validation.validate import Anomaly, anomalous_feature, list_anomalies, validate_statistics
from airflow_hops.ml.statistics.files import STATISTICS_FILE, load_statistics
from airflow_hops.ml.statistics.summary import features_by_name

__all__ = ["anomalies", "check", "quarantine"]
_MAX_ROWS = 200
_MAX_CHARACTERS = 200


def anomalies(place: Place, params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the anomalies of all splits, with their reasons and the data concerned.

    Args:
        place: Store of the artifacts.
        params: ``artifact``, of kind ``anomalies``; ``statistics``, the validated artifact, or null if it may not be
            read or is gone; ``schema``, the protobuf text that it was validated against, or null.

    Returns:
        ``anomalies``, errors first: ``split``, ``feature`` (empty for the data set), ``severity``, and ``reasons``:
        ``type``, ``summary`` and ``description`` in TFDV's words, ``rows`` (or null), ``is_exact``, ``values``
        (``value``, ``rows``), ``values_count``, ``quarantined``, rows in quarantine for it. ``measures``, drift and
        skew that TFDV measured: ``split``, ``feature``, ``measure``, ``value``, ``threshold``.
    """
    folder = place.folder(params["artifact"])
    report = read_json(folder / "anomalies.json")
    results: list[dict[str, Any]] = []
    measures: list[dict[str, Any]] = []
    for split, rows in report["rows"].items():
        reports = text_format.Parse((folder / f"{split}.pbtxt").read_text(encoding="utf-8"), anomalies_pb2.Anomalies())
        evidence = _Evidence(place, params, folder, split, rows, report["quarantined"].get(split, {}))
        for feature, info in _infos(reports):
            severity = "error" if info.severity == info.ERROR else "warning"
            reasons = [evidence.reason(feature, reason) for reason in info.reason]
            results.append({"split": split, "feature": feature, "severity": severity, "reasons": reasons})
        measures += _measures(reports, split)
    return {"anomalies": sorted(results, key=lambda anomaly: anomaly["severity"] != "error"), "measures": measures}


def quarantine(place: Place, params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns rows that violate the schema, in the order of the source.

    Args:
        place: Store of the artifact.
        params: ``artifact``, of kind ``anomalies``; ``split``; ``reason``, a feature and TFDV's name of an anomaly
            separated by a blank, as rejected rows are counted, or null for all rows; ``limit``, at most 200;
            ``offset``.

    Returns:
        ``columns``; ``rows``, a list of texts or null for each; ``reasons``, by row: ``feature``, ``type``, ``text``;
        ``total``, rows in quarantine, and ``matching``, those with the reason.

    Raises:
        BadInput: the split has no rows in quarantine.
    """
    folder = place.folder(params["artifact"])
    files = _quarantine_files(folder, params["split"])
    if not files:
        raise BadInput(f"split is {params['split']!r}, and no row of it is in quarantine")
    groups = row_groups(files)
    total = sum(group.rows for group in groups)
    rows: Any = np.arange(total)
    if params.get("reason"):
        feature, _, kind = params["reason"].rpartition(" ")
        reasons = rows_at(groups, rows, [REASONS]).column(REASONS).combine_chunks()
        meant = pc.starts_with(reasons.flatten(), f"{feature}: {kind}: ")
        rows = np.unique(pc.list_parent_indices(reasons).filter(meant).to_numpy(zero_copy_only=False))
    part = rows_at(groups, rows[params["offset"] :][: min(params["limit"], _MAX_ROWS)])
    names = [name for name in part.column_names if name != REASONS]
    columns = [[_shown(value) for value in part.column(name).to_pylist()] for name in names]
    return {
        "columns": names,
        "rows": [list(row) for row in zip(*columns, strict=True)],
        "reasons": [list(map(_reason, texts)) for texts in part.column(REASONS).to_pylist()],
        "total": total,
        "matching": len(rows),
    }


def check(place: Place, params: Mapping[str, Any]) -> dict[str, Any]:
    """Parses a schema, compares it with the one in force, and validates the statistics of a validation against it.

    Args:
        place: Store of the artifacts.
        params: ``text`` and ``source``; ``before`` and ``before_source``, the schema in force; ``artifact``, of kind
            ``anomalies``; ``statistics``, the validated artifact, and ``previous``, that of the previous span, or null.

    Returns:
        ``changes``, as :func:`~airflow_hops.ml.queries.schemas.compare`; ``features``, names of the schema's;
        ``anomalies`` that would remain: ``split``, ``feature``, ``severity``, ``summary``; null without statistics.

    Raises:
        BadInput: the text does not parse, or has no feature.
    """
    schema = parse_schema(params["text"], params["source"])
    if not schema.feature:
        raise BadInput(f"{params['source']}: no feature in it, expected a schema of the pipeline's examples")
    sides = {"after": params["text"], "after_source": params["source"]}
    changes = compare(place, {**{name: params[name] for name in ("before", "before_source")}, **sides})
    names = [feature.name for feature in schema.feature]
    if not params["statistics"]:
        return {"changes": changes, "features": names, "anomalies": None}
    report = read_json(place.folder(params["artifact"]) / "anomalies.json")
    of = StatisticsProperties.of(Artifact.from_dict(params["statistics"]))
    folder = place.folder(params["statistics"])
    earlier = place.folder(params["previous"]) if params["previous"] else None
    results: list[Anomaly] = []
    for split in report["rows"]:
        previous = earlier / split / STATISTICS_FILE if earlier else None
        validated = validate_statistics(
            load_statistics(folder / split / STATISTICS_FILE),
            schema,
            environment=report.get("environment", TRAINING),
            previous=load_statistics(previous) if previous and previous.exists() else None,
            target=None if of.label is None else of.target,
        )
        results += list_anomalies(validated, split)
    named = ("split", "feature", "severity", "summary")
    anomalies = [{name: getattr(anomaly, name) for name in named} for anomaly in results]
    return {"changes": changes, "features": names, "anomalies": anomalies}


class _Evidence:
    """Evidence for anomalies in a split: its quarantine, which counts rows, or its statistics."""

    def __init__(
        self,
        place: Place,
        params: Mapping[str, Any],
        folder: Path,
        split: str,
        rows: int,
        counts: Mapping[str, Mapping[str, int]],
    ) -> None:
        self._rows, self._counts = rows, counts
        self._texts = _reason_texts(folder, split) if counts else {}
        self._features: Mapping[str, Any] = {}
        self._expected: Mapping[str, Any] = {}
        self._domains: Mapping[str, Any] = {}
        if params["statistics"]:
            path = place.folder(params["statistics"]) / split / STATISTICS_FILE
            self._features = features_by_name(load_statistics(path))
        if params["schema"]:
            schema = parse_schema(params["schema"], "the schema")
            self._expected = {feature.name: feature for feature in schema.feature}
            self._domains = {domain.name: domain for domain in schema.string_domain}

    def reason(self, feature: str, reason: Any) -> dict[str, Any]:
        kind = anomalies_pb2.AnomalyInfo.Type.Name(reason.type)
        quarantined = self._counts.get(feature, {}).get(kind, 0)
        if quarantined:
            texts = self._texts.get(f"{feature}: {kind}", [])
            evidence = from_quarantine(texts, quarantined, len(texts))
        elif self._features:
            expected = self._expected.get(feature)
            domain = None
            if expected is not None:
                named = self._domains.get(expected.domain)
                domain = expected.string_domain if expected.HasField("string_domain") else named
            evidence = find_evidence(kind, self._features.get(feature), expected, domain, self._rows)
        else:
            evidence = Evidence()
        values = [{"value": _cut(each.value), "rows": each.rows} for each in evidence.values]
        return {
            "type": kind,
            "summary": reason.short_description,
            "description": reason.description.strip(),
            **asdict(evidence),
            "values": values,
            "quarantined": quarantined,
        }


def _infos(report: Any) -> Iterator[tuple[str, Any]]:
    for key, info in sorted(report.anomaly_info.items()):
        yield anomalous_feature(key, info), info
    if report.HasField("dataset_anomaly_info"):
        yield "", report.dataset_anomaly_info


def _measures(report: Any, split: str) -> Iterator[dict[str, Any]]:
    for info in report.drift_skew_info:
        for measured in (*info.drift_measurements, *info.skew_measurements):
            yield {
                "split": split,
                "feature": ".".join(info.path.step),
                "measure": type(measured).Type.Name(measured.type),
                "value": measured.value,
                "threshold": measured.threshold,
            }


def _quarantine_files(folder: Path, split: str) -> list[Path]:
    place = folder / "quarantine"
    names = [each.name for each in place.iterdir()] if place.is_dir() else []
    return sorted((place / split).glob("*.parquet")) if split in names else []


def _reason_texts(folder: Path, split: str) -> dict[str, list[tuple[str, int]]]:
    """Returns the reasons by ``<feature>: <kind>``, with their numbers of rows, the most frequent first."""
    files = _quarantine_files(folder, split)
    if not files:
        return {}
    groups = row_groups(files)
    reasons = rows_at(groups, np.arange(sum(group.rows for group in groups)), [REASONS]).column(REASONS)
    counted = pc.value_counts(reasons.combine_chunks().flatten()).to_pylist()
    texts: dict[str, list[tuple[str, int]]] = {}
    for each in sorted(counted, key=lambda each: -each["counts"]):
        rule, text = _split_reason(each["values"])
        texts.setdefault(rule, []).append((text, each["counts"]))
    return texts


def _split_reason(reason: str) -> tuple[str, str]:
    """Splits a reason into ``<feature>: <KIND>`` and the rest; a name may contain colons, a kind is in capitals."""
    parts = reason.split(": ")
    at = next((i for i in range(1, len(parts) - 1) if parts[i].isupper() and parts[i].replace("_", "").isalpha()), 1)
    return ": ".join(parts[: at + 1]), ": ".join(parts[at + 1 :])


def _reason(reason: str) -> dict[str, str]:
    rule, text = _split_reason(reason)
    feature, _, kind = rule.rpartition(": ")
    return {"feature": feature, "type": kind, "text": text}


def _shown(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, bytes):
        value = value.decode(errors="backslashreplace")
    return _cut(value if isinstance(value, str) else f"{value:.7g}" if isinstance(value, float) else str(value))


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}…"


@dataclass(frozen=True)
class RowGroup:
    """Row group of a file; ``index`` is -1 if the file has no row groups and no rows."""

    path: Path
    index: int
    rows: int

    def read(self, columns: Sequence[str] | None) -> Any:
        """Reads its rows as a table; all columns if None."""
        file = parquet.ParquetFile(self.path)
        return file.read(columns=columns) if self.index < 0 else file.read_row_group(self.index, columns=columns)


def row_groups(paths: Sequence[Path]) -> list[RowGroup]:
    """Returns the row groups of some files in order; an empty one if the files have no rows."""
    results = []
    for path in paths:
        footer = parquet.read_metadata(path)
        results += [RowGroup(path, index, footer.row_group(index).num_rows) for index in range(footer.num_row_groups)]
    return results or [RowGroup(paths[0], -1, 0)]


def rows_at(groups: Sequence[RowGroup], places: Any, columns: Sequence[str] | None = None) -> Any:
    """Returns a table of some rows.

    Args:
        groups: Row groups, at least one.
        places: Ascending integers, ``[rows]``: 0 is the first row of the first group.
        columns: Names of the columns; None for all.
    """
    tables: list[Any] = []
    first = 0
    for group in groups:
        mine = places[(places >= first) & (places < first + group.rows)] - first
        first += group.rows
        if len(mine) or not tables:
            tables.append(group.read(columns).take(pa.array(mine, pa.int64())))
    return pa.concat_tables(tables, promote=True)

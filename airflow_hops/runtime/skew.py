"""Training-serving skew: the rows that the model server captured against the statistics of the training data."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from airflow_hops.artifacts import Artifact, BadInput, RowCounts
from airflow_hops.runtime import tfdv_extension
from airflow_hops.runtime.captured_rows import (
    CapturedSpan,
    Cursor,
    captured_files,
    check_columns,
    read_features,
    read_span,
)
from airflow_hops.runtime.context import StepContext
from airflow_hops.runtime.model_record import read_record
from airflow_hops.runtime.schema import SCHEMA_FILE, infer_schema, load_schema
from airflow_hops.runtime.statistics import STATISTICS_FILE, generate_statistics, load_statistics
from airflow_hops.runtime.statistics_summary import common_statistics, feature_name, histogram, type_name

log = logging.getLogger(__name__)

REPORT_FILE = "report.json"
REPORT_PROTO = "report.pb"
MIN_ROWS = 5000
"""Windows below this size score above the default thresholds by chance: of 2,000 unchanged flights one in twenty does,
of 1,000 one in three, of 5,000 none of 30."""

Verdict = Literal["stable", "drift", "pipeline_fault", "insufficient"]


@dataclass(frozen=True)
class FeatureSkew:
    """How far a feature has moved.

    Attributes:
        measure: "l_infinity" (strings: greatest difference of a value's share) or "jensen_shannon" (numbers:
            divergence of the histograms), both as TFDV defines them, 0 to 1, of the values that are there.
        score: The measure's value; None where one side has no value.
        threshold: The schema's.
        drifted: Whether the score is above the threshold.
        missing_reference: Share of the reference's rows in which the feature is missing.
        missing_current: The same of the current rows.
        histogram_reference: Buckets of the reference: ``[low, high, count]`` or ``[value, count]``.
        histogram_current: Buckets of the current rows.
    """

    measure: str
    score: float | None
    threshold: float
    drifted: bool
    missing_reference: float
    missing_current: float
    histogram_reference: list[list[Any]] = field(default_factory=list)
    histogram_current: list[list[Any]] = field(default_factory=list)


@dataclass(frozen=True)
class SkewReport:
    """What came of a comparison.

    Attributes:
        verdict: "insufficient" when there are too few rows to say; "pipeline_fault" when a feature has lost all its
            values, which is no change of the world and nothing to learn from; "drift" when a feature has drifted;
            "stable" otherwise.
        drifted: Names of the drifted features, the most moved first (score by threshold).
        lost: Names of the features that have values in the reference, and none now.
        features: Every compared feature by name.
        rows_reference: Rows of the reference.
        rows_current: Rows that were compared with it.
        min_rows: Rows that it takes for a verdict.
    """

    verdict: Verdict
    drifted: tuple[str, ...]
    features: Mapping[str, FeatureSkew]
    rows_reference: int
    rows_current: int
    min_rows: int
    lost: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The JSON value."""
        return asdict(self)


def detect_skew(reference: Any, current: Any, *, schema: Any = None, min_rows: int = MIN_ROWS) -> SkewReport:
    """Compares two distributions feature by feature, with TFDV's measures and the schema's skew comparators.

    Missing values are no part of a score; their shares stand beside it.

    Args:
        reference: ``DatasetFeatureStatisticsList``, a ``.pb`` file of one, or a source as
            :func:`~airflow_hops.runtime.statistics.generate_statistics` takes.
        current: The same, of the rows in question.
        schema: ``Schema``, whose ``skew_comparator`` fields say which features are compared and to what threshold;
            None for one inferred from the reference.
        min_rows: Rows of ``current`` below which the verdict is "insufficient".

    Raises:
        BadInput: a feature is of another type in ``current``, or missing from it.
    """
    reference, current = _statistics(reference), _statistics(current)
    schema = schema if schema is not None else infer_schema(reference)
    before, after = _features(reference), _features(current)
    rows_before, rows_after = (int(s.datasets[0].num_examples) for s in (reference, current))
    compared = {f.name: f for f in schema.feature if f.HasField("skew_comparator") and f.name in before}
    for name in compared:
        if name not in after:
            raise BadInput(f"feature {name!r} is not among the current rows; there are {', '.join(sorted(after))}")
        types = type_name(before[name]), type_name(after[name])
        # A feature without a value has no type of its own.
        if types[0] != types[1] and common_statistics(after[name]).num_non_missing:
            raise BadInput(f"feature {name!r} is {types[1]} in the current rows, but {types[0]} in the reference")
    anomalies = tfdv_extension.validate_statistics(reference, schema, serving=current)
    scores = {
        ".".join(info.path.step): float(measurement.value)
        for info in anomalies.drift_skew_info
        for measurement in info.skew_measurements
    }
    features = {
        name: _compare(feature, before[name], after[name], scores.get(name), rows_before, rows_after)
        for name, feature in compared.items()
    }
    moved = [name for name, skew in features.items() if skew.drifted]
    lost = tuple(n for n, skew in features.items() if skew.missing_reference < 1 and skew.missing_current == 1)
    moved.sort(key=lambda name: -_excess(features[name]))
    verdict: Verdict = "pipeline_fault" if lost else "drift" if moved else "stable"
    if rows_after < min_rows:
        verdict = "insufficient"
    return SkewReport(verdict, tuple(moved), features, rows_before, rows_after, min_rows, lost)


def run(
    context: StepContext,
    *,
    model_name: str,
    min_rows: int = MIN_ROWS,
    time_feature: str | None = None,
) -> Artifact:
    """The step: compares what was captured since last time with the data that the champion was trained on.

    The cursor moves only once there were enough rows for a verdict, and the artifact is committed: too few rows wait
    for the next run.

    Args:
        context: The step's context; service ``serving_capture_path``.
        model_name: The served model.
        min_rows: Rows that it takes for a verdict.
        time_feature: The feature that holds the row's own time, seconds since the epoch, or None.

    Raises:
        BadInput: nothing serves, its statistics are gone, or captured rows do not have its features.
    """
    if min_rows < 1:
        raise BadInput(f"min_rows is {min_rows}, expected at least 1")
    capture_path = context.spec.services.get("serving_capture_path")
    if not capture_path:
        raise BadInput(
            "the connection's field 'serving_capture_path' is empty; expected the folder given to the model server as "
            "--capture_base_path"
        )
    champion = read_record(context.store, model_name).champion
    if champion is None or not champion.statistics or not champion.schema:
        raise BadInput(f"no champion of model {model_name!r} with statistics and schema; deploy one first")
    stored = context.store.manifest(champion.statistics).reference(champion.statistics)
    trained_on = champion.model.properties.get("statistics_fingerprint")
    if trained_on not in (None, stored.fingerprint):
        raise BadInput(
            f"{champion.statistics}: these are not the statistics that version {champion.version} of {model_name!r} "
            f"was trained on (fingerprint {stored.fingerprint[:12]}…, expected {trained_on[:12]}…): their task was run "
            "anew since. Deploy a model that was trained on them"
        )
    reference = load_statistics(context.store.local(stored) / "train" / STATISTICS_FILE)
    schema_artifact = context.store.accept_edit(champion.schema, SCHEMA_FILE)
    schema = load_schema(context.store.local(schema_artifact) / SCHEMA_FILE)
    _keep_comparators(schema, champion.model.properties.get("features"))
    expected = {
        feature.name: type_name(found)
        for feature in schema.feature
        for found in [_features(reference).get(feature.name)]
        if feature.HasField("skew_comparator") and found is not None
    }

    files = captured_files(Path(capture_path), model_name)
    cursor = Cursor(context.store, context.spec.producer)
    window = cursor.window(files)
    files = [path for path in files if window.holds(path.name)]
    check_columns(files, expected, time_feature)
    span = read_span(files, time_feature)
    log.info("%d captured rows in %d files, %s by version", span.rows, len(files), dict(span.versions or {}))
    current = None
    if span.rows < min_rows:
        rows = int(reference.datasets[0].num_examples)
        report = SkewReport("insufficient", (), {}, rows, span.rows, min_rows)
    else:
        current = generate_statistics(read_features(files, list(expected)))
        report = detect_skew(reference, current, schema=schema, min_rows=min_rows)
    _log(report)
    origin = {
        "model": model_name,
        "version": champion.version,
        "statistics": stored.uri,
        "schema": champion.schema,
        "fingerprint": stored.fingerprint,
    }
    artifact = _write(context, report, span, origin, reference, current)
    if report.verdict != "insufficient":
        cursor.done(window)
    return artifact


def _write(
    context: StepContext,
    report: SkewReport,
    span: CapturedSpan,
    origin: Mapping[str, Any],
    reference: Any,
    current: Any,
) -> Artifact:
    facts = {
        "captured_from": span.captured_from,
        "captured_until": span.captured_until,
        "window_end": span.window_end,
        "versions": dict(span.versions or {}),
    }
    with context.output() as writer:
        value = {**report.to_dict(), "reference": dict(origin), **facts}
        (writer.path / REPORT_FILE).write_text(json.dumps(value, indent=1))
        (writer.path / REPORT_PROTO).write_bytes(_both(reference, current).SerializeToString(deterministic=True))
        return writer.commit(
            rows={"captured": RowCounts(span.rows, span.rows)},
            metrics={
                "rows_reference": report.rows_reference,
                "rows_current": report.rows_current,
                "drifted": len(report.drifted),
            },
            properties={
                "verdict": report.verdict,
                "drifted": list(report.drifted),
                "lost": list(report.lost),
                "reference": dict(origin),
                **facts,
                "min_rows": report.min_rows,
                "scores": {name: [skew.score, skew.threshold] for name, skew in report.features.items()},
            },
        )


def _both(reference: Any, current: Any) -> Any:
    """Both statistics in one list, as ``tfdv.visualize_statistics`` shows them side by side."""
    both = type(reference)()
    for name, statistics in (("reference", reference), ("current", current)):
        if statistics is not None:
            both.datasets.add().CopyFrom(statistics.datasets[0])
            both.datasets[-1].name = name
    return both


def _statistics(source: Any) -> Any:
    if type(source).__name__ == "DatasetFeatureStatisticsList":
        return source
    if isinstance(source, str | Path) and Path(source).suffix == ".pb":
        return load_statistics(Path(source))
    return generate_statistics(source)


def _features(statistics: Any) -> dict[str, Any]:
    return {feature_name(feature): feature for feature in statistics.datasets[0].features}


def _compare(expected: Any, before: Any, after: Any, score: float | None, rows_before: int, rows_after: int) -> Any:
    comparator = expected.skew_comparator
    numeric = comparator.HasField("jensen_shannon_divergence")
    threshold = (comparator.jensen_shannon_divergence if numeric else comparator.infinity_norm).threshold
    if not (common_statistics(before).num_non_missing and common_statistics(after).num_non_missing):
        score = None
    return FeatureSkew(
        measure="jensen_shannon" if numeric else "l_infinity",
        score=None if score is None else round(score, 6),
        threshold=threshold,
        drifted=score is not None and score > threshold,
        missing_reference=_missing(before, rows_before),
        missing_current=_missing(after, rows_after),
        histogram_reference=histogram(before),
        histogram_current=histogram(after),
    )


def _missing(feature: Any, rows: int) -> float:
    return round(1.0 - common_statistics(feature).num_non_missing / rows, 6) if rows else 0.0


def _excess(skew: FeatureSkew) -> float:
    return (skew.score or 0.0) / skew.threshold if skew.threshold else float("inf")


def _keep_comparators(schema: Any, features: Any) -> None:
    """Drops the comparators of features that the model does not take: the server never sees them."""
    for feature in schema.feature:
        if features and feature.name not in features:
            feature.ClearField("skew_comparator")


def _log(report: SkewReport) -> None:
    for name, skew in sorted(report.features.items(), key=lambda item: -_excess(item[1])):
        level = logging.WARNING if skew.drifted else logging.INFO
        score = "none" if skew.score is None else f"{skew.score:.4f}"
        log.log(
            level,
            "%-26s %-14s %s (threshold %g), missing %.1f%% -> %.1f%%",
            name, skew.measure, score, skew.threshold, 100 * skew.missing_reference, 100 * skew.missing_current,
        )  # fmt: skip
    if report.lost:
        log.warning("Every value is missing now: %s; see to what feeds the model", ", ".join(report.lost))
    log.info("Verdict: %s (%d rows, %d needed)", report.verdict, report.rows_current, report.min_rows)

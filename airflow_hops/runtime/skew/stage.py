"""The step of the skew stage: the rows that the model server captured against the training data of the champion."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_hops.artifacts import Artifact, BadInput, RowCounts
from airflow_hops.runtime.context import StepContext
from airflow_hops.runtime.model_record import read_record
from airflow_hops.runtime.schema import SCHEMA_FILE, load_schema
from airflow_hops.runtime.skew.captured_rows import (
    CapturedSpan,
    Cursor,
    captured_files,
    check_columns,
    read_features,
    read_span,
)
from airflow_hops.runtime.skew.detect import MIN_ROWS, detect_skew
from airflow_hops.runtime.skew.report import SkewReport
from airflow_hops.runtime.statistics import STATISTICS_FILE, generate_statistics, load_statistics
from airflow_hops.runtime.statistics.summary import features_by_name, type_name

log = logging.getLogger(__name__)

REPORT_FILE = "report.json"
REPORT_PROTO = "report.pb"


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
        for found in [features_by_name(reference).get(feature.name)]
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


def _keep_comparators(schema: Any, features: Any) -> None:
    """Drops the comparators of features that the model does not take: the server never sees them."""
    for feature in schema.feature:
        if features and feature.name not in features:
            feature.ClearField("skew_comparator")


def _log(report: SkewReport) -> None:
    for name, skew in sorted(report.features.items(), key=lambda item: -item[1].excess):
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

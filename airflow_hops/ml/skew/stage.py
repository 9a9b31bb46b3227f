"""Compares served rows with the champion's training data, or one span of data with another."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import Any

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.skew import HISTOGRAMS_FILE, INSUFFICIENT, REPORT_FILE, STABLE, SkewOptions
from airflow_hops.ml.distances.sides import Side
from airflow_hops.ml.skew.compare import Compared, compare_rows, compare_spans
from airflow_hops.ml.skew.fetch import fetch
from airflow_hops.ml.skew.plan import one_run, plan_run
from airflow_hops.ml.spark.pools import cluster_pool
from airflow_hops.ml.statistics.pages import write_page
from airflow_hops.ml.step.context import StepContext

log = logging.getLogger(__name__)

REPORT_PROTO = "report.pb"


def run(context: StepContext, **options: Any) -> Artifact:
    """Compares captured rows with the champion's training data, or one statistics artifact with another.

    Args:
        context: With ``model_name``, a step with the service ``serving_capture_path`` or the input ``captured``, a
            snapshot of captured rows, and the optional input ``examples``, rows to compare with instead of the
            champion's training data. Otherwise, one with the inputs ``reference`` and ``current``, and the optional
            input ``schema`` with drift comparators.
        options: Fields of :class:`airflow_hops.core.skew.SkewOptions`.

    Raises:
        BadInput: no version serves, its statistics were deleted, or captured rows lack its features; or an input is not
            statistics with that split.
        HopsError: the model server does not answer, Spark failed, or another run of the task goes on for too long.
    """
    values = SkewOptions(**options)
    if values.model_name is None:
        compared = compare_spans(context, replace(values, comparator="drift"))
        log_comparison(compared)
        return write_comparison(context, compared)
    pool = cluster_pool(context)
    with one_run(context):
        plan = plan_run(context, values)
        fetched = fetch(context, plan, values, pool)
        examples = context.input("examples") if context.has_input("examples") else None
        compared = compare_rows(plan.trained, fetched, values, examples)
        log_comparison(compared)
        artifact = write_comparison(context, compared)
        if compared.current is not None:  # too few rows wait for the next run
            plan.window.commit()
    return artifact


def log_comparison(compared: Compared) -> None:
    """Logs the verdict, what drifted, and what was not compared."""
    report = compared.report
    for line in str(report).splitlines():
        log.log(logging.INFO if report.verdict in (STABLE, INSUFFICIENT) else logging.WARNING, "%s", line)
    if compared.attribution:
        for name, effect in list(compared.attribution.effects.items())[:5]:
            signed = "" if effect.effect_signed is None else f" ({effect.effect_signed:+.4g})"
            log.info("%s moves a prediction by %.4g on average%s", name, effect.effect, signed)
    if compared.prediction:
        log.info("Predictions: distance %s of %s allowed", compared.prediction.score, compared.prediction.threshold)
    if compared.row_skew:
        for line in str(compared.row_skew).splitlines():
            log.log(logging.WARNING if compared.row_skew.skewed else logging.INFO, "%s", line)
    for note in compared.notes:
        log.warning("%s", note)


def write_comparison(context: StepContext, compared: Compared) -> Artifact:
    """Writes the artifact ``skew``."""
    report, attribution, rows = compared.report, compared.attribution, compared.row_skew
    value = {
        **report.to_dict(),
        "reference": compared.origin.to_dict(),
        **compared.facts,
        "prediction": compared.prediction.to_dict() if compared.prediction else None,
        "attribution": attribution.to_dict() if attribution else None,
        "row_skew": rows.to_dict() if rows else None,
        "notes": list(compared.notes),
    }
    histograms = [figures.pop("common_histogram") for figures in value["features"].values()]
    origin = Artifact(compared.origin.statistics, "statistics", compared.origin.fingerprint)
    with context.output(reference=origin) as writer:
        (writer.path / REPORT_FILE).write_text(json.dumps(value, indent=1, allow_nan=False))
        lines = "".join(f"{json.dumps(buckets, allow_nan=False)}\n" for buckets in histograms)
        (writer.path / HISTOGRAMS_FILE).write_text(lines)
        both = _both(compared.reference, compared.current)
        (writer.path / REPORT_PROTO).write_bytes(both.SerializeToString(deterministic=True))
        for dataset in both.datasets:
            write_page(writer.path / dataset.name, type(both)(datasets=[dataset]))
        return writer.commit(
            rows=compared.rows,
            metrics={
                "rows_reference": report.rows_reference,
                "rows_current": report.rows_current,
                "drifted": len(report.drifted),
                **({"skewed_rows": rows.skewed_pairs, "joined_rows": rows.pairs} if rows else {}),
            },
            properties=compared.properties.to_dict(),
        )


def _both(reference: Side, current: Side | None) -> Any:
    """Joins both statistics in one list, which ``tfdv.visualize_statistics`` shows side by side."""
    both = type(reference.statistics)()
    for name, side in (("reference", reference), ("current", current)):
        if side is not None:
            both.datasets.add().CopyFrom(side.statistics.datasets[0])
            both.datasets[-1].name = name
    return both

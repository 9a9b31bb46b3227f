"""Compares served rows with the champion's training data, or one span of data with another."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import Any

from airflow_hops.core.contract.artifacts import Artifact, BadInput, RowCounts
from airflow_hops.core.contract.properties import StatisticsProperties
from airflow_hops.core.contract.skew import INSUFFICIENT, STABLE, SkewOptions, SkewReference
from airflow_hops.ml.monitoring.skew.captured import compare_captured
from airflow_hops.ml.monitoring.skew.detect import compare_statistics
from airflow_hops.ml.monitoring.skew.picture import draw
from airflow_hops.ml.monitoring.skew.report import Compared
from airflow_hops.ml.schemas import SCHEMA_FILE, load_schema
from airflow_hops.ml.spark.tasks import cluster_pool
from airflow_hops.ml.statistics import STATISTICS_FILE, load_statistics
from airflow_hops.ml.statistics.vectors import drop_samples
from airflow_hops.ml.step.context import StepContext

log = logging.getLogger(__name__)

REPORT_FILE = "report.json"
REPORT_PROTO = "report.pb"
REPORT_PICTURE = "report.svg"


def run(context: StepContext, **options: Any) -> Artifact:
    """Compares captured rows with the champion's training data, or one statistics artifact with another.

    Args:
        context: With ``model_name``, a step with the service ``serving_capture_path`` or the input ``captured``, a
            snapshot of captured rows, and the optional input ``examples``, rows to compare with instead of the
            champion's training data. Otherwise, one with the inputs ``reference`` and ``current``, and the optional
            input ``schema`` with drift comparators.
        options: Fields of :class:`airflow_hops.core.contract.skew.SkewOptions`.

    Raises:
        BadInput: no version serves, its statistics are gone, or captured rows lack its features; or an input is not
            statistics with that split.
        HopsError: the model server does not answer, or Spark failed.
    """
    values = SkewOptions(**options)
    if values.model_name is None:
        compared = _compare_spans(context, replace(values, comparator="drift"))
    else:
        compared = compare_captured(context, values.model_name, values, cluster_pool(context))
    report = compared.report
    for line in str(report).splitlines():
        log.log(logging.INFO if report.verdict in (STABLE, INSUFFICIENT) else logging.WARNING, "%s", line)
    if compared.attribution:
        for name, effect in list(compared.attribution.effects.items())[:5]:
            signed = "" if effect.effect_signed is None else f" ({effect.effect_signed:+.4g})"
            log.info("%s moves a prediction by %.4g on average%s", name, effect.effect, signed)
    if compared.row_skew:
        for line in str(compared.row_skew).splitlines():
            log.log(logging.WARNING if compared.row_skew.skewed else logging.INFO, "%s", line)
    for note in compared.notes:
        log.warning("%s", note)
    artifact = _write(context, compared)
    compared.done()
    return artifact


def _compare_spans(context: StepContext, options: SkewOptions) -> Compared:
    """Compares the statistics of two spans, except features that say nothing about a change."""
    sides = {role: context.input(role) for role in ("reference", "current")}
    of = {role: StatisticsProperties.of(artifact) for role, artifact in sides.items()}
    aside, notes = set[str | None](), []
    before, now = ({t.label: t for t in each.target.all} if each.label else {} for each in of.values())
    for label in {**before, **now}:
        names = [each[label].classes if label in each else None for each in (before, now)]
        if names[0] != names[1]:
            aside.add(label)
            listed = "; ".join(", ".join(each or ("no names",)) for each in names)
            notes.append(f"The label {label!r} was not compared: its numbers stand for other classes ({listed})")
    statistics = {role: _statistics(context, role, options.split, aside) for role in sides}
    schema, schema_uri = None, None
    if context.has_input("schema"):
        schema_uri = context.input("schema").uri
        schema = load_schema(context.local("schema") / SCHEMA_FILE)
    report = compare_statistics(statistics["reference"], statistics["current"], schema, options)
    windows = {role: each.window for role, each in of.items()}
    reference = sides["reference"]
    rows = int(statistics["current"].datasets[0].num_examples)
    return Compared(
        report=report,
        reference=statistics["reference"],
        current=statistics["current"],
        origin=SkewReference(reference.uri, reference.fingerprint, schema_uri),
        facts={
            "current": sides["current"].uri,
            "split": options.split,
            "windows": windows,
            "window_end": (windows["current"] or (None, None))[1],
        },
        rows={"current": RowCounts(rows, rows)},
        notes=tuple(notes),
    )


def _statistics(context: StepContext, role: str, split: str, aside: set[str | None]) -> Any:
    artifact = context.input(role)
    if artifact.kind != "statistics":
        raise BadInput(f"input {role!r} ({artifact.uri}) is {artifact.kind!r}, expected statistics")
    path = context.local(role) / split / STATISTICS_FILE
    if not path.is_file():
        splits = ", ".join(StatisticsProperties.of(artifact).splits)
        raise BadInput(f"{artifact.uri}: there are no statistics of split {split!r}; there are {splits}")
    statistics = load_statistics(path)
    # Times and keys always differ between spans, and weights are not data: they do not indicate a change.
    of = StatisticsProperties.of(artifact)
    aside = aside | {of.time, of.key, of.weight}
    dataset = statistics.datasets[0]
    features = [feature for feature in dataset.features if ".".join(feature.path.step) not in aside]
    del dataset.features[:]
    dataset.features.extend(features)
    return statistics


def _write(context: StepContext, compared: Compared) -> Artifact:
    report, attribution, rows = compared.report, compared.attribution, compared.row_skew
    features = {name: replace(skew, effect=compared.effects.get(name)) for name, skew in report.features.items()}
    value = {
        **replace(report, features=features).to_dict(),
        "reference": compared.origin.to_dict(),
        **compared.facts,
        "attribution": attribution.to_dict() if attribution else None,
        "row_skew": rows.to_dict() if rows else None,
        "notes": list(compared.notes),
    }
    with context.output() as writer:
        (writer.path / REPORT_FILE).write_text(json.dumps(value, indent=1, allow_nan=False))
        both = _both(compared.reference, compared.current)
        (writer.path / REPORT_PROTO).write_bytes(both.SerializeToString(deterministic=True))
        (writer.path / REPORT_PICTURE).write_text(draw(report))
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


def _both(reference: Any, current: Any) -> Any:
    """Joins both statistics in one list, which ``tfdv.visualize_statistics`` shows side by side."""
    both = type(reference)()
    for name, statistics in (("reference", reference), ("current", current)):
        if statistics is not None:
            both.datasets.add().CopyFrom(statistics.datasets[0])
            both.datasets[-1].name = name
            drop_samples(both.datasets[-1])
    return both

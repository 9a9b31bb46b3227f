"""Validates examples as a step, also against the champion's training data and an earlier span."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Literal

import orjson
from tensorflow_metadata.proto.v0 import anomalies_pb2, schema_pb2

from airflow_hops.core.artifacts.artifact import Artifact, RowCounts
from airflow_hops.core.artifacts.properties import AnomaliesProperties, StatisticsProperties
from airflow_hops.core.errors import ArtifactNotFound, BadInput
from airflow_hops.core.json_fields import JsonFields
from airflow_hops.core.schema.changes import compare_aspects
from airflow_hops.core.schema.page import PROPOSED_CHANGES, PROPOSED_PAGE
from airflow_hops.core.skew import INSUFFICIENT, SkewTest
from airflow_hops.core.validation_page import (
    VALIDATION_PAGE,
    AnomalyEntry,
    MeasuredDistance,
    ValidationContents,
    quarantine_page,
)
from airflow_hops.ml.distances.detect import comparable_features, compare_sides, side_of
from airflow_hops.ml.distances.sides import Side
from airflow_hops.ml.distances.tfdv_measures import blind_measures
from airflow_hops.ml.schema import SCHEMA_FILE, TRAINING, load_schema, to_text
from airflow_hops.ml.schema.comparators import compared_features
from airflow_hops.ml.schema.diff import flat_features
from airflow_hops.ml.schema.pages import describe_page
from airflow_hops.ml.statistics import STATISTICS_FILE
from airflow_hops.ml.step.context import StepContext
from airflow_hops.ml.validation.page import anomaly_entries, measured_distances, read_quarantine
from airflow_hops.ml.validation.proposal import PROPOSAL_FILE, PROPOSED_FILE, SchemaProposal, propose, to_markdown
from airflow_hops.ml.validation.quarantine import RowSplit, split_anomalous
from airflow_hops.ml.validation.validate import (
    FEW,
    Anomaly,
    add_reason,
    list_anomalies,
    relax,
    summarize,
    validate_statistics,
)
from airflow_hops.ml.validation.validate import to_text as anomalies_to_text

_COMPARATOR: Literal["drift"] = "drift"
DRIFT_KIND = "COMPARATOR_L_INFTY_HIGH"
"""TFDV's type of the anomalies: the distance is the largest difference of shares."""

CHAMPION_KIND = "CUSTOM_VALIDATION"
"""TFDV's type of the anomalies."""

log = logging.getLogger(__name__)

ANOMALIES_FILE = "anomalies.json"
QUARANTINE = "quarantine"
_FEW_ANOMALIES = 20
"""Maximum anomalies in the artifact's properties, for a task's log; the artifact's file has them all."""


def run(
    context: StepContext,
    *,
    splits: Sequence[str] | None = None,
    environment: str = TRAINING,
    split_anomalous: bool = False,
    champion: str | None = None,
    not_compared: str | None = None,
) -> Artifact:
    """Validates the splits, and reports anomalies for the caller to decide on; proposes a schema that accepts them.

    Parameters are those of ``ValidateExamplesOperator``. Inputs are ``statistics`` and ``schema``, and optionally
    ``previous``, the statistics of an earlier span, ``examples``, the source of the statistics, and ``champion``, the
    statistics of a model's training data. The parameter ``champion`` describes that model, or ``not_compared`` says why
    the splits are not compared with it, although they should be.
    """
    statistics, folder = context.input("statistics"), context.local("statistics")
    schema = load_schema(context.local("schema") / SCHEMA_FILE)
    facts = StatisticsProperties.of(statistics)
    target = None if facts.label is None else facts.target
    names = list(splits or facts.splits or sorted(p.name for p in folder.iterdir() if p.is_dir()))
    sides = {split: side_of(folder / split / STATISTICS_FILE) for split in names}
    current = {split: side.statistics for split, side in sides.items()}
    previous = _previous(context, names)
    earlier = {split: side.statistics for split, side in previous.items()}
    with context.output() as writer:
        rows = {split: int(results.datasets[0].num_examples) for split, results in current.items()}
        counts = {split: RowCounts(counted, counted) for split, counted in rows.items()}
        row_splits: dict[str, RowSplit] = {}
        good: Artifact | None = None
        if split_anomalous:
            # For a sample, the statistics' rows_in counts the rows that it was drawn from.
            seen = {
                split: statistics.rows[split].rows_in if split in statistics.rows else rows[split] for split in names
            }
            good, row_splits = _split_examples(context, schema, environment, seen, writer.path / QUARANTINE)
            counts = {split: split_rows.counts for split, split_rows in row_splits.items()}
        results: list[Anomaly] = []
        drift: dict[str, dict[str, float]] = {}
        compared: dict[str, str | None] = {}
        reported: list[Anomaly] = []
        entries, measures = list[AnomalyEntry](), list[MeasuredDistance]()
        for split in names:
            anomalies = validate_statistics(
                current[split], schema, environment=environment, previous=earlier.get(split), target=target
            )
            if split in previous:
                add_drift(anomalies, previous[split], sides[split], schema)
            if split in row_splits:
                relax(anomalies, row_splits[split].by_feature, FEW * row_splits[split].rows)
            drifted: list[Anomaly] = []
            if champion is not None:
                labels = [each.label for each in target.all] if target else []
                trained_on = _trained_on(context, split)
                compared[split], drifted = compare_with_champion(
                    anomalies, sides[split], trained_on, schema, labels, champion, split
                )
            results += list_anomalies(anomalies, split)
            for each in drifted:
                add_reason(anomalies, each.feature, each.types[0], each.summary, each.description, "warning")
            reported += drifted
            (writer.path / f"{split}.pbtxt").write_text(anomalies_to_text(anomalies), encoding="utf-8")
            drift[split] = _drift(anomalies)
            by_feature = row_splits[split].by_feature if split in row_splits else {}
            quarantined, texts = read_quarantine(writer.path / QUARANTINE / split)
            entries += anomaly_entries(anomalies, split, current[split], schema, texts, by_feature)
            measures += measured_distances(anomalies, split)
            if quarantined is not None:
                _write_json(writer.path / quarantine_page(split), quarantined)
        if not_compared is not None:
            summary = "Not compared with the champion's training data"
            reported.append(Anomaly(", ".join(names), "", "warning", (), summary, not_compared))
        reports = {s: summarize(anomaly for anomaly in results if anomaly.severity == s) for s in ("error", "warning")}
        for severity, sentences in reports.items():
            for sentence in sentences:
                log.log(logging.ERROR if severity == "error" else logging.WARNING, "%s", sentence)
        for sentence in summarize(reported):
            log.warning("%s", sentence)
        proposal = None
        if results:
            proposal = propose(schema, current, environment=environment, previous=earlier, target=target)
        if proposal is not None:
            (writer.path / PROPOSAL_FILE).write_text(to_markdown(results, proposal), encoding="utf-8")
            if proposal.schema is not None:
                (writer.path / PROPOSED_FILE).write_text(to_text(proposal.schema), encoding="utf-8")
                old, new = describe_page(schema), describe_page(proposal.schema)
                _write_json(writer.path / PROPOSED_PAGE, new)
                _write_json(writer.path / PROPOSED_CHANGES, compare_aspects(old.aspects, new.aspects))
        report = {
            **_severities(results),
            "anomalies": [asdict(anomaly) for anomaly in [*results, *reported]],
            "drift": drift,
            "champion": {"compared_with": champion, "verdicts": compared},
            "environment": environment,
            "rows": rows,
            "proposed": proposal.difference.to_dict() if proposal and proposal.difference else None,
            "quarantined": {split: split_rows.by_feature for split, split_rows in row_splits.items()},
        }
        entries.sort(key=lambda entry: entry.severity != "error")
        _write_json(writer.path / VALIDATION_PAGE, ValidationContents(entries, measures))
        (writer.path / ANOMALIES_FILE).write_text(json.dumps(report, indent=1), encoding="utf-8")
        properties = AnomaliesProperties(
            splits=tuple(names),
            errors=tuple(reports["error"][:_FEW_ANOMALIES]),
            warnings=tuple(reports["warning"][:_FEW_ANOMALIES]),
            drift=tuple(summarize(reported)[:_FEW_ANOMALIES]),
            proposed_features=_features(proposal),
            examples=good.to_dict() if good else None,
        )
        anomalous = {anomaly.feature for anomaly in results}
        moved = {anomaly.feature for anomaly in reported if anomaly.feature} - anomalous
        metrics: dict[str, float] = {
            **_severities(results),
            "anomalous_features": len(anomalous),
            "drifted_features": len(moved),
        }
        if row_splits:
            metrics["quarantined"] = sum(split_rows.counts.rows_rejected for split_rows in row_splits.values())
        return writer.commit(rows=counts, metrics=metrics, properties=properties.to_dict())


def _write_json(path: Path, content: JsonFields) -> None:
    path.write_bytes(orjson.dumps(content.to_dict()))


def _previous(context: StepContext, splits: Sequence[str]) -> dict[str, Side]:
    """Returns the earlier span of the splits that it has."""
    if not context.has_input("previous"):
        return {}
    paths = {split: context.local("previous") / split / STATISTICS_FILE for split in splits}
    return {split: side_of(path) for split, path in paths.items() if path.exists()}


def _trained_on(context: StepContext, split: str) -> Side:
    """Returns the champion's training data.

    It is that of its ``train``, as in the skew monitor, or without ``train``, of the same split. A short split such as
    ``newest`` is not a reference: two fortnights of different seasons can differ by the factor between two units.
    """
    folder = context.local("champion")
    paths = [folder / name / STATISTICS_FILE for name in ("train", split)]
    path = next((path for path in paths if path.exists()), None)
    if path is None:
        raise BadInput(f"{context.input('champion').uri}: no statistics of 'train', nor of the split {split!r}")
    return side_of(path)


def _split_examples(
    context: StepContext, schema: object, environment: str, rows: Mapping[str, int], quarantine: Path
) -> tuple[Artifact, dict[str, RowSplit]]:
    """Separates the rows of the examples, and publishes the good ones."""
    examples, folder = context.input("examples"), context.local("examples")
    uri = context.store.address(context.spec.producer, "examples")
    row_splits: dict[str, RowSplit] = {}
    inputs = {role: context.inputs(role) for role in ("examples", "schema")}
    with context.store.create(uri, "examples", context.spec.producer, inputs=inputs) as writer:
        for number, (split, counted) in enumerate(rows.items()):
            if not (folder / split).is_dir():
                raise ArtifactNotFound(f"{examples.uri}/{split}").with_text(
                    f"{examples.uri}: there is no split {split!r}, of which there are statistics"
                )
            context.progress(number / len(rows), f"rows of {split}")
            row_splits[split] = result = split_anomalous(
                folder / split, schema, writer.path / split, quarantine / split, environment=environment
            )
            if result.rows != counted:
                raise BadInput(
                    f"{examples.uri}: split {split!r} has {result.rows} rows, and its statistics are of {counted}; "
                    "pass the examples that the statistics were computed from"
                )
            rejected = result.counts.rows_rejected
            log.info("%s: %d of %d rows to quarantine %s", split, rejected, result.rows, result.rejected or "")
        good = writer.commit(
            rows={split: result.counts for split, result in row_splits.items()},
            properties={**examples.properties, "splits": list(rows)},
        )
    return good, row_splits


def _drift(anomalies: anomalies_pb2.Anomalies) -> dict[str, float]:
    return {
        ".".join(info.path.step): round(measurement.value, 6)
        for info in anomalies.drift_skew_info
        for measurement in info.drift_measurements
    }


def _severities(result: Sequence[Anomaly]) -> dict[str, int]:
    return {f"{name}s": sum(anomaly.severity == name for anomaly in result) for name in ("error", "warning")}


def _features(proposal: SchemaProposal | None) -> tuple[str, ...] | None:
    """Returns names of the proposed schema's features; None without a proposed schema."""
    if proposal is None or proposal.schema is None:
        return None
    return tuple(feature.name for feature in proposal.schema.feature)


def compare_with_champion(
    anomalies: anomalies_pb2.Anomalies,
    current: Side,
    trained_on: Side,
    schema: schema_pb2.Schema,
    labels: Collection[str],
    champion: str,
    split: str,
) -> tuple[str | None, list[Anomaly]]:
    """Adds differences that look like a pipeline fault to the anomalies, as errors.

    Drift is not an error: the world changes, and the evaluation shows whether the model suffers.

    Args:
        anomalies: ``Anomalies`` of the statistics, which get the faults.
        current: Statistics and sample of a split.
        trained_on: The same of the champion's training data.
        schema: ``Schema``, whose drift comparators select features and thresholds.
        labels: Names of the labels, which are compared, too.
        champion: Description of the champion.
        split: Name of the split.

    Returns:
        Verdict and drift; the verdict is None without a common feature, or with too few rows.
    """
    comparable = _comparable(schema, set(comparable_features(trained_on, current)), labels)
    if not comparable.feature:
        return None, []
    report = compare_sides(trained_on, current, comparable, SkewTest(comparator="drift"))
    if report.verdict == INSUFFICIENT:
        log.info("Split %s is not compared with the training data of %s: %s", split, champion, report)
        return None, []
    drift = []
    for name in report.drifted:
        skew = report.features[name]
        cause = f"{str(skew.cause).replace('_', ' ')}{f' ({skew.detail})' if skew.detail else ''}"
        if skew.fault:
            summary = f"Looks like a pipeline fault: {cause}"
            description = (
                f"Its values differ from the training data of {champion} as if its source were broken: {cause}. "
                "Correct the source and run again; if the change is meant, validate once without model_name."
            )
            add_reason(anomalies, name, CHAMPION_KIND, summary, description)
        else:
            score = "" if skew.score is None else f", {skew.measure.replace('_', ' ')} {skew.score:.3g}"
            summary = f" ({skew.summary})" if skew.summary else ""
            description = f"Its values differ from the training data of {champion}: {cause}{score}{summary}."
            drift.append(
                Anomaly(split, name, "warning", (CHAMPION_KIND,), "Drift since the champion was trained", description)
            )
    return report.verdict, drift


def _comparable(schema: schema_pb2.Schema, shared: Collection[str], labels: Collection[str]) -> schema_pb2.Schema:
    """Returns the schema of the comparable features and labels; the rest is anomalous or new."""
    comparable = type(schema)()
    for feature in schema.feature:
        if feature.name in shared and (feature.name in labels or feature.HasField("drift_comparator")):
            comparable.feature.add().CopyFrom(feature)
            comparable.feature[-1].drift_comparator.SetInParent()
    return comparable


def add_drift(anomalies: anomalies_pb2.Anomalies, previous: Side, current: Side, schema: schema_pb2.Schema) -> None:
    """Adds the distances from an earlier span to ``Anomalies``, and a warning of each feature that has drifted.

    Args:
        anomalies: ``Anomalies`` of the current statistics.
        previous: The earlier span.
        current: The current one.
        schema: ``Schema``, whose drift comparators select the features.
    """
    blind = blind_measures(previous.statistics, schema, _COMPARATOR)
    known = [each for each in anomalies.drift_skew_info if ".".join(each.path.step) not in blind]
    del anomalies.drift_skew_info[:]
    anomalies.drift_skew_info.extend(known)
    by_tfdv = {".".join(info.path.step) for info in known if info.drift_measurements}
    shared = set(comparable_features(previous, current)) - by_tfdv
    by_distance = type(schema)()
    for name, feature in flat_features(schema.feature):
        if name in shared:
            by_distance.feature.add().CopyFrom(feature)
            by_distance.feature[-1].name = name
    if not compared_features(by_distance, _COMPARATOR):
        return
    report = compare_sides(previous, current, by_distance, SkewTest(comparator=_COMPARATOR))
    for note in report.notes:
        log.warning("%s", note)
    for name, skew in report.features.items():
        if skew.score is None or skew.threshold is None:
            continue
        info = anomalies.drift_skew_info.add()
        info.path.step.append(name)
        measurement = info.drift_measurements.add(value=skew.score, threshold=skew.threshold)
        measurement.type = measurement.L_INFTY
        if skew.drifted:
            summary = "High distance between current and previous"
            add_reason(anomalies, name, DRIFT_KIND, summary, f"{summary}: {skew.score:.3g}; {skew.summary}.", "warning")

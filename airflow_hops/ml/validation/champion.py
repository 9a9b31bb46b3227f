"""Compares new examples with the champion's training data, with the tests of the skew monitor."""

from __future__ import annotations

import logging
from collections.abc import Collection

from tensorflow_metadata.proto.v0 import anomalies_pb2, schema_pb2

from airflow_hops.core.distances import INSUFFICIENT, SkewTest
from airflow_hops.ml.distances.detect import comparable_features, compare_sides
from airflow_hops.ml.distances.sides import Side
from airflow_hops.ml.validation.validate import Anomaly, add_reason

log = logging.getLogger(__name__)

KIND = "CUSTOM_VALIDATION"
"""TFDV's type of the anomalies."""


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
            add_reason(anomalies, name, KIND, summary, description)
        else:
            score = "" if skew.score is None else f", {skew.measure.replace('_', ' ')} {skew.score:.3g}"
            summary = f" ({skew.summary})" if skew.summary else ""
            description = f"Its values differ from the training data of {champion}: {cause}{score}{summary}."
            drift.append(Anomaly(split, name, "warning", (KIND,), "Drift since the champion was trained", description))
    return report.verdict, drift


def _comparable(schema: schema_pb2.Schema, shared: Collection[str], labels: Collection[str]) -> schema_pb2.Schema:
    """Returns the schema of the comparable features and labels; the rest is anomalous or new."""
    comparable = type(schema)()
    for feature in schema.feature:
        if feature.name in shared and (feature.name in labels or feature.HasField("drift_comparator")):
            comparable.feature.add().CopyFrom(feature)
            comparable.feature[-1].drift_comparator.SetInParent()
    return comparable

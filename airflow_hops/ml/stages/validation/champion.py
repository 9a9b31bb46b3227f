"""Compares new examples with the champion's training data, with the tests of the skew monitor."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any

from airflow_hops.core.contract.skew import INSUFFICIENT, SkewTest
from airflow_hops.ml.monitoring.skew.detect import compare_statistics
from airflow_hops.ml.schemas.infer import INFINITY_NORM, JENSEN_SHANNON
from airflow_hops.ml.stages.validation.validate import Anomaly, add_reason
from airflow_hops.ml.statistics.frequent_numbers import has_few_numbers
from airflow_hops.ml.statistics.summary import features_by_name
from airflow_hops.ml.statistics.vectors import sampled_vectors, vector_width

log = logging.getLogger(__name__)

KIND = "CUSTOM_VALIDATION"
"""TFDV's type of the anomalies."""


def compare_with_champion(
    anomalies: Any, statistics: Any, trained_on: Any, schema: Any, labels: Collection[str], champion: str, split: str
) -> tuple[str | None, list[Anomaly]]:
    """Adds differences that look like a pipeline fault to the anomalies, as errors.

    Drift is not an error: the world changes, and the evaluation shows whether the model suffers.

    Args:
        anomalies: ``Anomalies`` of the statistics, which get the faults.
        statistics: ``DatasetFeatureStatisticsList`` of a split.
        trained_on: The same of the champion's training data.
        schema: ``Schema``, whose drift comparators select features and thresholds.
        labels: Names of the labels, which are compared, too.
        champion: Description of the champion.
        split: Name of the split.

    Returns:
        Verdict and drift; the verdict is None if there is no common feature, or too few rows.
    """
    comparable = _comparable(schema, features_by_name(trained_on), features_by_name(statistics), labels)
    if not comparable.feature:
        return None, []
    report = compare_statistics(trained_on, statistics, comparable, SkewTest(comparator="drift"))
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
            description = f"Its values differ from the training data of {champion}: {cause}{score}."
            drift.append(Anomaly(split, name, "warning", (KIND,), "Drift since the champion was trained", description))
    return report.verdict, drift


def _comparable(schema: Any, before: Any, now: Any, labels: Collection[str]) -> Any:
    """Returns the schema of the comparable features; others are anomalous anyway, or new."""
    comparable = type(schema)()
    for feature in schema.feature:
        name = feature.name
        if name not in before or name not in now or _kind(before[name]) != _kind(now[name]):
            continue
        copy = comparable.feature.add()
        copy.CopyFrom(feature)
        if name not in labels or copy.HasField("drift_comparator"):
            continue
        if before[name].WhichOneof("stats") == "num_stats" and not has_few_numbers(before[name]):
            copy.drift_comparator.jensen_shannon_divergence.threshold = JENSEN_SHANNON
        else:
            copy.drift_comparator.infinity_norm.threshold = INFINITY_NORM
    for index in reversed(range(len(comparable.feature))):
        if not comparable.feature[index].HasField("drift_comparator"):
            del comparable.feature[index]
    return comparable


def _kind(feature: Any) -> tuple[Any, ...]:
    return (feature.type, feature.WhichOneof("stats"), vector_width(feature), sampled_vectors(feature) is None)

"""Drift from an earlier span, for features that a schema compares by a distance that TFDV lacks."""

from __future__ import annotations

import logging
from typing import Literal

from tensorflow_metadata.proto.v0 import anomalies_pb2, schema_pb2

from airflow_hops.core.distances import SkewTest
from airflow_hops.ml.distances.detect import comparable_features, compare_sides
from airflow_hops.ml.distances.sides import Side
from airflow_hops.ml.distances.tfdv_measures import blind_measures
from airflow_hops.ml.schema.comparators import compared_features
from airflow_hops.ml.schema.diff import flat_features
from airflow_hops.ml.validation.validate import add_reason

log = logging.getLogger(__name__)

_COMPARATOR: Literal["drift"] = "drift"
KIND = "COMPARATOR_L_INFTY_HIGH"
"""TFDV's type of the anomalies: the distance is the largest difference of shares."""


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
            add_reason(anomalies, name, KIND, summary, f"{summary}: {skew.score:.3g}; {skew.summary}.", "warning")

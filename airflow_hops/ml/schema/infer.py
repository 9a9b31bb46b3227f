"""Infers a schema from the statistics of the training split."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from airflow_hops.core.artifacts.target import REGRESSION
from airflow_hops.core.errors import BadInput, InvalidArgument
from airflow_hops.core.names import check_known
from airflow_hops.core.skew import SkewTest
from airflow_hops.ml.schema.comparators import DISTANCE, MEASURES, compare_by_distance
from airflow_hops.ml.statistics.summary import common_statistics, feature_name, vector_width

TRAINING = "TRAINING"
SERVING = "SERVING"
MAX_DOMAIN_VALUES = 200
PRESENCE_TOLERANCE = 0.1
_CLASS_TAG = "class:"
_COMPARABLE = ("num_stats", "string_stats")


def infer_schema(
    statistics: Any,
    *,
    label: str | None = None,
    key: str | None = None,
    time: str | None = None,
    weight: str | None = None,
    classes: Sequence[str] | None = None,
    problem: str | None = None,
    more_labels: Mapping[str, Mapping[str, Any]] | None = None,
    distance: float = SkewTest.threshold,
    comparators: Mapping[str, Mapping[str, float]] | None = None,
    environments: Mapping[str, Collection[str]] | None = None,
) -> Any:
    """Infers a schema with TFDV, and adds further properties.

    In addition to ``tfdv.infer_schema``, it sets the share of rows in which an optional feature must be present;
    environments, by default TRAINING and SERVING (without labels and weight); drift and skew comparators of every
    feature except labels, key, time and weight; 0 and 1 as the only values of a label
    with no others; and the names of the labels' classes.

    Args:
        statistics: ``DatasetFeatureStatisticsList`` of the training split.
        label: Name of the label column.
        key: Name of the key column.
        time: Name of the time column.
        weight: Name of the column of the rows' weights.
        classes: Names of the label's classes, in the order of their numbers.
        problem: The kind of problem, if known: the label of a ``regression`` gets no domain.
        more_labels: ``classes`` and ``problem`` of further labels, by name, if any.
        distance: Threshold of the comparators: the least share of the rows that would have to change, 0 to 1
            (:mod:`airflow_hops.ml.distances.measures`).
        comparators: Thresholds of single features by measure, ``{"temp": {"distance": 0.1}}``, instead of the default;
            a feature without a measure has no comparator. "infinity_norm" (of strings) and "jensen_shannon" are TFDV's
            measures, which TFDV computes from histograms.
        environments: The schema's environments, each with the features that it lacks; None for TRAINING with all
            features, and SERVING without labels and weight.

    Returns:
        ``tensorflow_metadata.proto.v0.schema_pb2.Schema``.

    Raises:
        BadInput: a named feature is not in the statistics, a threshold is outside 0 to 1, or a measure is unknown or
            not defined for the feature's type.
    """
    import tensorflow_data_validation as tfdv

    comparators = comparators or {}
    labels = {} if label is None else {label: (classes, problem)}
    labels |= {name: (facts.get("classes"), facts.get("problem")) for name, facts in (more_labels or {}).items()}
    if environments is None:
        environments = {TRAINING: (), SERVING: (*labels, *(() if weight is None else (weight,)))}
    _check_values(distance, comparators, environments)
    features = {feature_name(feature): feature for feature in statistics.datasets[0].features}
    _check_known("label", labels, features)
    _check_known("weight", () if weight is None else (weight,), features)
    _check_known("comparators: feature", comparators, features)
    for environment, absent in environments.items():
        _check_known(f"environments[{environment!r}]: feature", absent, features)
    schema = tfdv.infer_schema(statistics, infer_feature_shape=False, max_string_domain_size=MAX_DOMAIN_VALUES)
    schema.default_environment.extend(environments)
    rows = statistics.datasets[0].num_examples
    for feature in schema.feature:
        result = features[feature.name]
        present = common_statistics(result).num_non_missing / rows if rows else 0.0
        if 0 < present < 1:
            feature.presence.min_fraction = round(max(0.0, present - PRESENCE_TOLERANCE), 4)
        feature.not_in_environment.extend(name for name, absent in environments.items() if feature.name in absent)
        if feature.name in labels:
            names, asks_for = labels[feature.name]
            if names is not None:
                set_classes(feature, names)
            elif asks_for != REGRESSION and _holds_0_and_1_at_the_ends(result):
                domain = feature.int_domain if result.type == result.INT else feature.float_domain
                domain.min, domain.max = 0, 1
        elif feature.name not in (key, time, weight, *comparators) and result.WhichOneof("stats") in _COMPARABLE:
            compare_by_distance(feature, distance, SkewTest.threshold)
        _add_comparators(feature, result, comparators.get(feature.name, {}))
    return schema


def _holds_0_and_1_at_the_ends(result: Any) -> bool:
    return result.WhichOneof("stats") == "num_stats" and {result.num_stats.min, result.num_stats.max} <= {0.0, 1.0}


def set_classes(feature: Any, classes: Sequence[str]) -> None:
    """Writes the names of the classes into the label's feature of a schema.

    TFDV has no field for them: they are tags of the feature's annotation, in the order of their numbers.
    """
    others = [tag for tag in feature.annotation.tag if not tag.startswith(_CLASS_TAG)]
    del feature.annotation.tag[:]
    feature.annotation.tag.extend([*others, *(f"{_CLASS_TAG}{name}" for name in classes)])
    feature.int_domain.min, feature.int_domain.max = 0, len(classes) - 1


def classes_of(schema: Any, label: str) -> tuple[str, ...] | None:
    """Returns the names of the label's classes; None if the schema does not have them."""
    tags = [tag for feature in schema.feature if feature.name == label for tag in feature.annotation.tag]
    return tuple(tag.removeprefix(_CLASS_TAG) for tag in tags if tag.startswith(_CLASS_TAG)) or None


def _check_values(distance: Any, comparators: Any, environments: Any) -> None:
    """Checks arguments, which may have any type because they come from JSON."""
    thresholds = {"distance": distance}
    for what, values in (("comparators", comparators), ("environments", environments)):
        if not isinstance(values, Mapping):
            raise InvalidArgument(what, values, ", expected a mapping")
    for name, measures in comparators.items():
        if not isinstance(measures, Mapping):
            raise BadInput(f"comparators[{name!r}] is {measures!r}, expected thresholds by measure")
        thresholds |= {f"comparators[{name!r}][{measure!r}]": value for measure, value in measures.items()}
    for name, value in thresholds.items():
        if not isinstance(value, int | float) or not 0 <= value <= 1:
            raise InvalidArgument(name, value, ", expected 0 to 1")
    for name, absent in environments.items():
        if not name or isinstance(absent, str) or not isinstance(absent, Collection):
            raise BadInput(f"environments[{name!r}] is {absent!r}, expected a name with the list of absent features")


def _check_known(what: str, names: Collection[str], features: Collection[str]) -> None:
    for name in names:
        if name not in features:
            raise BadInput(f"{what} {name!r} is not in the statistics; there are {', '.join(sorted(features))}")


def _add_comparators(feature: Any, result: Any, thresholds: Mapping[str, float]) -> None:
    for measure, threshold in thresholds.items():
        where = f"comparators[{feature.name!r}]"
        if measure == DISTANCE:
            compare_by_distance(feature, threshold, SkewTest.threshold)
            continue
        check_known(f"{where}: measure", measure, (DISTANCE, *MEASURES))
        if measure == "infinity_norm" and result.WhichOneof("stats") != "string_stats":
            raise BadInput(f"{where}: TFDV has infinity_norm only for strings; expected distance for a number")
        if vector_width(result):
            raise BadInput(f"{where}: TFDV has no measure of vectors; expected distance")
        for comparator in (feature.drift_comparator, feature.skew_comparator):
            getattr(comparator, MEASURES[measure]).threshold = threshold

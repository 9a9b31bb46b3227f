"""Validates statistics against a schema with TFDV, with severities that decide whether to continue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import anomalies_pb2, schema_pb2, statistics_pb2

from airflow_hops.core.artifacts.target import REGRESSION, Target
from airflow_hops.ml.schema import TRAINING, classes_of
from airflow_hops.ml.schema.anomalies import find_anomalies, known_environment
from airflow_hops.ml.statistics.summary import common_statistics, features_by_name

FEW = 0.05
"""Share of the rows up to which unexpected values or missing values are a warning; beyond it they are an error."""

WARNING_TYPES = frozenset(
    {
        # The data has something new, and the schema still applies to the rest.
        "SCHEMA_NEW_COLUMN",
        "SEMANTIC_DOMAIN_UPDATE",
        # Drift; the evaluation shows whether the model suffers.
        "COMPARATOR_L_INFTY_HIGH",
        "COMPARATOR_JENSEN_SHANNON_DIVERGENCE_HIGH",
        "COMPARATOR_NORMALIZED_ABSOLUTE_DIFFERENCE_HIGH",
        "COMPARATOR_LOW_NUM_EXAMPLES",
        "COMPARATOR_HIGH_NUM_EXAMPLES",
        "DATASET_HIGH_NUM_EXAMPLES",
        "FEATURE_TYPE_HIGH_UNIQUE",
        "FEATURE_TYPE_LOW_UNIQUE",
    }
)
"""TFDV's anomaly types that are always warnings."""

FEW_TYPES = frozenset({"ENUM_TYPE_UNEXPECTED_STRING_VALUES", "FEATURE_TYPE_LOW_FRACTION_PRESENT"})
"""Anomaly types that are warnings if few rows have them. All other types are errors."""

_NAMED = 20
"""Maximum features listed in a sentence about the same anomaly."""

Severity = Literal["error", "warning"]


@dataclass(frozen=True)
class Anomaly:
    """Anomaly of one feature in one split.

    Attributes:
        feature: Name of the feature; empty for the whole data set.
        types: TFDV's names of the reasons.
        summary: TFDV's short description.
        description: TFDV's description.

    Example:
        >>> import pyarrow as pa
        >>> from airflow_hops import generate_statistics, infer_schema, list_anomalies, validate_statistics
        >>> schema = infer_schema(generate_statistics(pa.table({"carrier": ["AA", "DL"] * 500})))
        >>> current = generate_statistics(pa.table({"carrier": ["AA", "ZZ"] * 500}))
        >>> [anomaly.feature for anomaly in list_anomalies(validate_statistics(current, schema), "current")]
        ['carrier']
    """

    split: str
    feature: str
    severity: Severity
    types: tuple[str, ...]
    summary: str
    description: str

    def __str__(self) -> str:
        return summarize([self])[0]


def validate_statistics(
    statistics: statistics_pb2.DatasetFeatureStatisticsList,
    schema: schema_pb2.Schema,
    *,
    environment: str = TRAINING,
    previous: statistics_pb2.DatasetFeatureStatisticsList | None = None,
    target: Target | None = None,
) -> anomalies_pb2.Anomalies:
    """Validates statistics with TFDV, and sets severities that decide whether to continue.

    TFDV reports nearly everything as an error. Here a value outside its domain and a missing value are warnings if at
    most :data:`FEW` of the rows have one; new columns and drift are warnings; the rest are errors. A label with a
    single value, and one whose classes differ from the schema's, are errors that TFDV does not detect.

    Args:
        statistics: ``DatasetFeatureStatisticsList`` of the rows to validate.
        schema: ``Schema``.
        environment: One of the schema's environments; ignored if it has none.
        previous: Statistics of an earlier span, for TFDV's measures in the schema's drift comparators.
        target: The labels, which must have two values, and their classes, which must be the schema's.

    Returns:
        ``Anomalies``, whose ``severity`` fields are as described.
    """
    environment = known_environment(schema, environment)
    anomalies = find_anomalies(statistics, schema, environment=environment, previous=previous)
    features = features_by_name(statistics)
    rows = statistics.datasets[0].num_examples
    labels = {each.label: each for each in target.all} if target else {}
    for key, info in anomalies.anomaly_info.items():
        name = anomalous_feature(key, info)
        severe = any(_is_error(reason, name, features.get(name), schema, rows) for reason in info.reason)
        info.severity = info.ERROR if severe or name in labels else info.WARNING
    if anomalies.HasField("dataset_anomaly_info"):
        info = anomalies.dataset_anomaly_info
        severe = any(_is_error(reason, "", None, schema, rows) for reason in info.reason)
        info.severity = info.ERROR if severe else info.WARNING
    for label, each in labels.items():
        result = features.get(label)
        if result is not None and result.WhichOneof("stats") == "num_stats":
            _check_label(anomalies, each, result.num_stats, classes_of(schema, label))
    _check_texts(anomalies, features, schema)
    return anomalies


def relax(anomalies: anomalies_pb2.Anomalies, quarantined: Mapping[str, Mapping[str, int]], few_rows: float) -> None:
    """Turns errors of few rows into warnings after the rows were quarantined.

    Args:
        anomalies: ``Anomalies`` of a split, whose severities are changed.
        quarantined: Its quarantined rows by feature and kind of anomaly.
        few_rows: Maximum number of rows for a warning.
    """
    for key, info in anomalies.anomaly_info.items():
        kinds = quarantined.get(anomalous_feature(key, info), {})
        counts = [kinds.get(anomalies_pb2.AnomalyInfo.Type.Name(reason.type), 0) for reason in info.reason]
        if counts and all(0 < count <= few_rows for count in counts):
            info.severity = info.WARNING


def list_anomalies(anomalies: anomalies_pb2.Anomalies, split: str) -> list[Anomaly]:
    """Returns the anomalies as plain values, errors first."""

    def anomaly(feature: str, info: anomalies_pb2.AnomalyInfo) -> Anomaly:
        return Anomaly(
            split=split,
            feature=feature,
            severity="error" if info.severity == info.ERROR else "warning",
            types=tuple(anomalies_pb2.AnomalyInfo.Type.Name(reason.type) for reason in info.reason),
            summary=info.short_description,
            description=info.description.strip(),
        )

    results = [anomaly(anomalous_feature(key, info), info) for key, info in sorted(anomalies.anomaly_info.items())]
    if anomalies.HasField("dataset_anomaly_info"):
        results.append(anomaly("", anomalies.dataset_anomaly_info))
    return sorted(results, key=lambda anomaly: anomaly.severity != "error")


def summarize(anomalies: Iterable[Anomaly]) -> list[str]:
    """Describes the anomalies in sentences; those that differ only in split and feature share one."""
    alike: dict[tuple[str, str, str, bool], list[Anomaly]] = {}
    for anomaly in anomalies:
        key = (anomaly.severity, anomaly.summary, anomaly.description, bool(anomaly.feature))
        alike.setdefault(key, []).append(anomaly)
    return [
        f"{severity} in {_named('split', [each.split for each in result])}, "
        + (_named("feature", [each.feature for each in result]) if of_features else "the data set")
        + f": {summary}: {description}"
        for (severity, summary, description, of_features), result in alike.items()
    ]


def _named(kind: str, names: Iterable[str]) -> str:
    """Formats names as ``feature 'a'``, or ``3 features ('a', 'b', 'c')``."""
    unique = list(dict.fromkeys(names))
    if len(unique) == 1:
        return f"{kind} {unique[0]!r}"
    shown = ", ".join(map(repr, unique[:_NAMED]))
    return f"{len(unique)} {kind}s ({shown}{', …' if len(unique) > _NAMED else ''})"


def anomalous_feature(key: str, info: anomalies_pb2.AnomalyInfo) -> str:
    """Returns the feature's name of a TFDV anomaly, whose key quotes names with a dot."""
    return ".".join(info.path.step) or key


def to_text(anomalies: anomalies_pb2.Anomalies) -> str:
    """Returns the anomalies as protobuf text, without the copy of the schema."""
    bare = type(anomalies)()
    bare.CopyFrom(anomalies)
    bare.ClearField("baseline")
    return str(text_format.MessageToString(bare))


def _is_error(
    reason: anomalies_pb2.AnomalyInfo.Reason,
    name: str,
    feature: statistics_pb2.FeatureNameStatistics | None,
    schema: schema_pb2.Schema,
    rows: float,
) -> bool:
    kind = anomalies_pb2.AnomalyInfo.Type.Name(reason.type)
    if kind in WARNING_TYPES:
        return False
    if kind not in FEW_TYPES or feature is None or not rows:
        return True
    (expected,) = [f for f in schema.feature if f.name == name] or (None,)
    if expected is None:
        return True
    if kind == "FEATURE_TYPE_LOW_FRACTION_PRESENT":
        present = common_statistics(feature).num_non_missing / rows
        return bool(expected.presence.min_fraction - present > FEW)
    return _outside_domain(feature, expected, schema) > FEW


def _outside_domain(
    feature: statistics_pb2.FeatureNameStatistics, expected: schema_pb2.Feature, schema: schema_pb2.Schema
) -> float:
    """Returns the share of values that are not in the feature's domain."""
    domain = _domain_of(expected, schema)
    if domain is None or feature.WhichOneof("stats") != "string_stats":
        return 1.0
    values = set(domain.value)
    buckets = feature.string_stats.rank_histogram.buckets
    total = common_statistics(feature).num_non_missing
    listed = sum(bucket.sample_count for bucket in buckets if bucket.label in values)
    return 1.0 - listed / total if total else 0.0


def _check_label(
    anomalies: anomalies_pb2.Anomalies,
    target: Target,
    numbers: statistics_pb2.NumericStatistics,
    known: tuple[str, ...] | None,
) -> None:
    rows = numbers.common_stats.num_non_missing
    if rows and numbers.min == numbers.max:
        expected = "both 0 and 1" if target.classes is None else f"two or more of {_listed(target.classes)}"
        expected = "numbers that differ" if target.problem == REGRESSION else expected
        value = f"{numbers.min:g}" if target.classes is None else target.class_name(int(numbers.min))
        add_reason(
            anomalies,
            target.label,
            "CUSTOM_VALIDATION",
            "Label has one value" if target.problem == REGRESSION else "Label has one class",
            f"All {rows} rows have the label {value}; expected {expected}. Choose a wider window, or another split.",
        )
    if known is not None and target.classes != known:
        result = (
            "no names of classes" if target.classes is None else f"the classes {_listed(target.classes)}, in this order"
        )
        add_reason(
            anomalies,
            target.label,
            "CUSTOM_VALIDATION",
            "Label has other classes",
            f"The label has {result}; the schema has {_listed(known)}. A number stands for another class then: name "
            "the classes in PrepareOperator(classes=[...]), or approve the change of the schema.",
        )


def _check_texts(
    anomalies: anomalies_pb2.Anomalies,
    features: Mapping[str, statistics_pb2.FeatureNameStatistics],
    schema: schema_pb2.Schema,
) -> None:
    """Adds an anomaly for each column whose texts are all empty, which TFDV counts as values."""
    expected = {
        each.name for each in schema.feature if each.presence.min_fraction > FEW and not _has_empty_text(each, schema)
    }
    for name, feature in features.items():
        values = common_statistics(feature).num_non_missing
        empty = sum(
            bucket.sample_count for bucket in feature.string_stats.rank_histogram.buckets if not bucket.label.strip()
        )
        if 0 < values <= empty:
            add_reason(
                anomalies,
                name,
                "CUSTOM_VALIDATION",
                "Column has empty texts alone",
                f"All {values} values are empty texts. If they stand for missing values, have them written as such.",
                "error" if name in expected else "warning",
            )


def _has_empty_text(feature: schema_pb2.Feature, schema: schema_pb2.Schema) -> bool:
    if feature.HasField("bool_domain"):  # TFDV's for a column of one or two texts
        return not f"{feature.bool_domain.true_value}{feature.bool_domain.false_value}".strip()
    domain = _domain_of(feature, schema)
    return domain is not None and any(not value.strip() for value in domain.value)


def _domain_of(feature: schema_pb2.Feature, schema: schema_pb2.Schema) -> schema_pb2.StringDomain | None:
    domains = {domain.name: domain for domain in schema.string_domain}
    return feature.string_domain if feature.HasField("string_domain") else domains.get(feature.domain)


def _listed(classes: tuple[str, ...]) -> str:
    more = f" and {len(classes) - _NAMED} more" if len(classes) > _NAMED else ""
    return ", ".join(map(repr, classes[:_NAMED])) + more


def add_reason(
    anomalies: anomalies_pb2.Anomalies,
    feature: str,
    kind: str,
    summary: str,
    description: str,
    severity: Severity = "error",
) -> None:
    """Adds a reason to a feature's anomaly, and raises its severity to at least the given one."""
    keys = [key for key, info in anomalies.anomaly_info.items() if anomalous_feature(key, info) == feature]
    info = anomalies.anomaly_info[keys[0] if keys else feature]
    reason = info.reason.add()
    reason.type = anomalies_pb2.AnomalyInfo.Type.Value(kind)
    reason.short_description, reason.description = summary, description
    info.severity = max(info.severity, info.ERROR if severity == "error" else info.WARNING)
    info.short_description = reason.short_description if len(info.reason) == 1 else "Multiple errors"
    info.description = f"{info.description} {reason.description}".strip()

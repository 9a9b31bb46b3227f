"""Proposes a schema for changed data: the smallest change to the current schema that makes the data valid."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from airflow_hops.core.errors import BadInput
from airflow_hops.ml.schema.anomalies import find_anomalies, known_environment
from airflow_hops.ml.schema.infer import MAX_DOMAIN_VALUES, TRAINING, infer_schema
from airflow_hops.ml.statistics.summary import feature_name

_NUMBERS = ("INT", "FLOAT")
_COMPARATORS = ("drift_comparator", "skew_comparator")


def propose_schema(schema: Any, statistics: Any, *, environment: str = TRAINING) -> object:
    """Returns the smallest change to a schema under which TFDV finds no anomalies in the statistics.

    The changes are those of ``tfdv.update_schema``: a domain gains values, a bound moves, the required share of present
    values decreases, a new column becomes a feature, a missing one is deprecated. There are four exceptions:

    - A feature with another type gets that type; TFDV would deprecate it.
    - A new column gets the comparators of ``infer_schema``.
    - Anomalies in an environment other than TRAINING change the schema only for that environment: a missing column is
      declared absent from it, a new one belongs only to it.
    - If the data set has fewer or more rows than the schema allows, the bound moves.

    The rest is unchanged: environments, comparators, annotations, the order of domains, features without
    anomalies. Comments of a ``schema.pbtxt`` are not part of a ``Schema``, so the proposal lacks them.

    Args:
        schema: The current ``Schema``.
        statistics: ``DatasetFeatureStatisticsList`` of the new data; only the first data set is used.
        environment: One of the schema's environments; ignored if it has none.

    Returns:
        A new ``Schema``, equal to the current one if there are no anomalies.

    Raises:
        BadInput: the schema does not have the environment, the statistics have no rows, or no change removes an
            anomaly.
    """
    environment = known_environment(schema, environment)
    if not statistics.datasets[0].num_examples:
        raise BadInput("the statistics are of no rows; a schema cannot be proposed from them")
    proposed = type(schema)()
    proposed.CopyFrom(schema)
    anomalies = _anomalies(proposed, statistics, environment)
    # A change may reveal further anomalies: values are only validated once the type is right.
    for _ in range(4):
        if not anomalies:
            return proposed
        proposed = _changed(proposed, statistics, environment, anomalies)
        anomalies = _anomalies(proposed, statistics, environment)
    if anomalies:
        left = "; ".join(f"{name or 'the data set'}: {info.description}" for name, info in anomalies.items())
        raise BadInput(f"no change to the schema makes these statistics valid: {left}")
    return proposed


def _anomalies(schema: object, statistics: object, environment: str) -> dict[str, Any]:
    """Returns the anomalies by feature, sorted by name; those of the data set are under the empty name."""
    result = find_anomalies(statistics, schema, environment=environment)
    anomalies = {name: result.anomaly_info[name] for name in sorted(result.anomaly_info)}
    if result.HasField("dataset_anomaly_info"):
        anomalies[""] = result.dataset_anomaly_info
    return anomalies


def _changed(schema: Any, statistics: Any, environment: str, anomalies: dict[str, Any]) -> object:
    import tensorflow_data_validation as tfdv

    updated = tfdv.update_schema(schema, statistics, max_string_domain_size=MAX_DOMAIN_VALUES)
    inferred = infer_schema(statistics)
    features = {feature_name(feature): feature for feature in statistics.datasets[0].features}
    old, fresh = _by_name(schema), _by_name(inferred)
    # Nested features are changed with their outermost feature.
    touched = {info.path.step[0] if info.path.step else name for name, info in anomalies.items()}
    for index, feature in reversed(list(enumerate(updated.feature))):
        name = feature.name
        if name not in touched:
            # No anomaly in this environment.
            if name in old:
                feature.CopyFrom(old[name])
            else:
                del updated.feature[index]
        elif name not in old:
            _add_column(feature, fresh[name], environment)
        elif name in features and _type_changed(old[name], fresh.get(name)):
            feature.CopyFrom(_retyped(old[name], fresh[name]))
            _adopt_domain(updated, inferred, feature)
        elif name not in features and environment not in ("", TRAINING):
            feature.CopyFrom(old[name])
            if environment in feature.in_environment:
                feature.in_environment.remove(environment)
            feature.not_in_environment.append(environment)
        elif name in features and environment:
            # Declares that the feature is present in the environment.
            if environment in feature.not_in_environment:
                feature.not_in_environment.remove(environment)
            elif feature.in_environment and environment not in feature.in_environment:
                feature.in_environment.append(environment)
    _drop_domains(updated, schema)
    if "" in anomalies:
        constraints = updated.dataset_constraints
        rows = statistics.datasets[0].num_examples
        if constraints.HasField("min_examples_count"):
            constraints.min_examples_count = min(constraints.min_examples_count, rows)
        if constraints.HasField("max_examples_count"):
            constraints.max_examples_count = max(constraints.max_examples_count, rows)
    return updated


def _by_name(schema: Any) -> dict[str, object]:
    return {feature.name: feature for feature in schema.feature}


def _type_changed(old: Any, fresh: Any) -> bool:
    """Returns whether statistics show another type, which they cannot if all values are missing."""
    return fresh is not None and fresh.type != old.type and fresh.presence.min_count > 0


def _add_column(feature: Any, fresh: Any, environment: str) -> None:
    for name in _COMPARATORS:
        if fresh.HasField(name):
            getattr(feature, name).CopyFrom(getattr(fresh, name))
    if environment not in ("", TRAINING):
        feature.in_environment.append(environment)


def _retyped(old: Any, fresh: Any) -> object:
    """Returns the feature with the new type, and all old settings that are valid for it."""
    feature = type(old)()
    feature.CopyFrom(old)
    feature.type = fresh.type
    names = old.DESCRIPTOR.fields_by_name["type"].enum_type.values_by_number
    if {names[old.type].name, names[fresh.type].name} == set(_NUMBERS):
        _convert_bounds(old, feature)
        return feature
    domain = feature.WhichOneof("domain_info")
    if domain:
        feature.ClearField(domain)
    feature.ClearField("distribution_constraints")
    for name in _COMPARATORS:
        if feature.HasField(name):
            getattr(feature, name).CopyFrom(getattr(fresh, name))
    if fresh.domain:
        feature.domain = fresh.domain
    return feature


def _convert_bounds(old: Any, feature: Any) -> None:
    """Converts a range of numbers to a domain of the other type."""
    low: Callable[[float], float]
    high: Callable[[float], float]
    if old.HasField("int_domain"):
        bounds, domain, low, high, limit = old.int_domain, feature.float_domain, float, float, math.inf
    elif old.HasField("float_domain"):
        # Larger bounds are outside the range of 64-bit integers.
        bounds, domain, low, high, limit = old.float_domain, feature.int_domain, math.ceil, math.floor, 2.0**63
    else:
        return
    if bounds.HasField("min") and abs(bounds.min) < limit:
        domain.min = low(bounds.min)
    if bounds.HasField("max") and abs(bounds.max) < limit:
        domain.max = high(bounds.max)
    domain.SetInParent()


def _adopt_domain(updated: Any, inferred: Any, feature: Any) -> None:
    """Adds the inferred string domain of a feature that has become text, under an unused name."""
    if not feature.domain:
        return
    taken = {domain.name for domain in updated.string_domain}
    name = feature.domain
    while name in taken:
        name += "_"
    (values,) = [domain for domain in inferred.string_domain if domain.name == feature.domain]
    updated.string_domain.add(name=name, value=values.value)
    feature.domain = name


def _drop_domains(updated: Any, schema: Any) -> None:
    """Drops the domains of features that are no longer text, and of new columns that were not added."""
    still, domains = _domains_in_use(updated), _domains_in_use(schema)
    known = {domain.name for domain in schema.string_domain}
    for index, domain in reversed(list(enumerate(updated.string_domain))):
        if domain.name not in still and (domain.name in domains or domain.name not in known):
            del updated.string_domain[index]


def _domains_in_use(schema: Any) -> set[str]:
    waiting, used = list(schema.feature), set()
    while waiting:
        feature = waiting.pop()
        used.add(feature.domain)
        waiting += feature.struct_domain.feature
    return used

"""Makes TFDV's validation fast for many features. TFDV is imported inside functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from tensorflow_metadata.proto.v0 import anomalies_pb2

from airflow_hops.core.errors import BadInput

_AT_ONCE = 100


def known_environment(schema: Any, environment: str) -> str:
    """Returns an environment of a schema, or "" if the schema has none; raises ``BadInput`` if it has only others."""
    known = list(schema.default_environment)
    if known and environment not in known:
        raise BadInput(f"environment {environment!r} is not in the schema; there are {', '.join(known)}")
    return environment if known else ""


def find_anomalies(
    statistics: Any, schema: Any, *, environment: str = "", previous: object = None, serving: object = None
) -> Any:
    """Calls ``tfdv.validate_statistics`` for statistics with one data set, in chunks of features.

    TFDV searches all features for each feature, so chunks are faster.

    Args:
        statistics: ``DatasetFeatureStatisticsList``.
        schema: ``Schema``.
        environment: One of the schema's environments, or "".
        previous: Statistics of an earlier span, for ``drift_comparator``.
        serving: Statistics of served rows, for ``skew_comparator``.

    Returns:
        ``tensorflow_metadata.proto.v0.anomalies_pb2.Anomalies``.
    """
    names = list(dict.fromkeys([f.name for f in schema.feature] + [_name(f) for f in statistics.datasets[0].features]))
    related = (schema.sparse_feature, schema.weighted_feature, schema.tensor_representation_group)
    if len(names) <= _AT_ONCE or any(map(len, related)):
        return _validate(statistics, schema, environment, previous, serving)
    sides = (statistics, previous, serving)
    by_name: list[dict[str, list[object]]] = [{}, {}, {}]
    for side, known in zip(sides, by_name, strict=True):
        for feature in side.datasets[0].features if side is not None else ():
            known.setdefault(_name(feature), []).append(feature)
    expected, domains = {f.name: f for f in schema.feature}, {domain.name: domain for domain in schema.string_domain}
    rest = type(schema)()
    rest.CopyFrom(schema)
    rest.ClearField("feature")
    rest.ClearField("string_domain")
    result = anomalies_pb2.Anomalies()
    for start in range(0, len(names), _AT_ONCE):
        some = names[start : start + _AT_ONCE]
        part = type(schema)()
        part.CopyFrom(rest)
        part.feature.extend(expected[name] for name in some if name in expected)
        used = {domain for feature in part.feature for domain in _domains(feature)}
        part.string_domain.extend(domains[name] for name in used if name in domains)
        parts = [
            None if side is None else _of_features(side, chain.from_iterable(known.get(name, ()) for name in some))
            for side, known in zip(sides, by_name, strict=True)
        ]
        result.MergeFrom(_validate(parts[0], part, environment, parts[1], parts[2]))
        # Anomalies of the whole data set need to be found only once.
        rest.ClearField("dataset_constraints")
    result.baseline.CopyFrom(schema)
    return result


def _name(feature: Any) -> str:
    return str(feature.path.step[0] if feature.path.step else feature.name)


def _domains(feature: Any) -> Iterator[str]:
    yield feature.domain
    for inner in feature.struct_domain.feature:
        yield from _domains(inner)


def _of_features(statistics: Any, features: Iterable[object]) -> object:
    part = type(statistics)()
    dataset = part.datasets.add()
    for field, value in statistics.datasets[0].ListFields():
        if field.name in ("name", "num_examples", "weighted_num_examples"):
            setattr(dataset, field.name, value)
    dataset.features.extend(features)
    return part


def _validate(statistics: object, schema: object, environment: str, previous: object, serving: object) -> object:
    import tensorflow_data_validation as tfdv

    return tfdv.validate_statistics(
        statistics, schema, environment or None, previous_statistics=previous, serving_statistics=serving
    )

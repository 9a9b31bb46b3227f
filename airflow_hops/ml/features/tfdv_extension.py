"""TFDV's native inference and validation without its package's imports.

Both are C++ in one extension module that takes and returns serialized protos. Importing it through its package costs
seconds (TensorFlow, Beam); loaded by itself, under its own name, it costs milliseconds. Where the package is imported
already, or is imported later, the interpreter finds the one module that there is.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.machinery import PathFinder
from itertools import chain
from pathlib import Path
from typing import Any

from tensorflow_metadata.proto.v0 import anomalies_pb2, schema_pb2

_AT_ONCE = 100
_NAME = "tensorflow_data_validation.pywrap.tensorflow_data_validation_extension"

log = logging.getLogger(__name__)


def infer_schema(statistics: Any, *, max_string_domain_size: int = 100, infer_feature_shape: bool = False) -> Any:
    """``tfdv.infer_schema`` of statistics with one data set.

    Returns:
        ``tensorflow_metadata.proto.v0.schema_pb2.Schema``.
    """
    serialized = statistics.datasets[0].SerializeToString()
    text = _validation().InferSchema(serialized, max_string_domain_size, infer_feature_shape)
    schema = schema_pb2.Schema()
    schema.ParseFromString(text)
    return schema


def update_schema(schema: Any, statistics: Any, *, max_string_domain_size: int = 100) -> Any:
    """``tfdv.update_schema``: the schema, changed where statistics with one data set have an anomaly.

    Returns:
        ``Schema``.
    """
    text = _validation().UpdateSchema(
        schema.SerializeToString(), statistics.datasets[0].SerializeToString(), max_string_domain_size
    )
    updated = type(schema)()
    updated.ParseFromString(text)
    return updated


def validate_statistics(
    statistics: Any, schema: Any, *, environment: str = "", previous: Any = None, serving: Any = None
) -> Any:
    """``tfdv.validate_statistics`` of statistics with one data set.

    TFDV looks for each feature among all of them, so many features are validated some at a time.

    Args:
        statistics: ``DatasetFeatureStatisticsList``.
        schema: ``Schema``.
        environment: One of the schema's environments, or nothing.
        previous: Statistics of an earlier span, against which ``drift_comparator`` is held.
        serving: Statistics of served rows, against which ``skew_comparator`` is held.

    Returns:
        ``tensorflow_metadata.proto.v0.anomalies_pb2.Anomalies``.
    """
    names = list(dict.fromkeys([f.name for f in schema.feature] + [_name(f) for f in statistics.datasets[0].features]))
    related = (schema.sparse_feature, schema.weighted_feature, schema.tensor_representation_group)
    if len(names) <= _AT_ONCE or any(map(len, related)):
        return _validate(statistics, schema, environment, previous, serving)
    sides = (statistics, previous, serving)
    by_name: list[dict[str, list[Any]]] = [{}, {}, {}]
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
        # What is anomalous in the data set as a whole needs to be found only once.
        rest.ClearField("dataset_constraints")
    result.baseline.CopyFrom(schema)
    return result


def _name(feature: Any) -> str:
    return str(feature.path.step[0] if feature.path.step else feature.name)


def _domains(feature: Any) -> Iterator[str]:
    yield feature.domain
    for inner in feature.struct_domain.feature:
        yield from _domains(inner)


def _of_features(statistics: Any, features: Iterable[Any]) -> Any:
    part = type(statistics)()
    dataset = part.datasets.add()
    for field, value in statistics.datasets[0].ListFields():
        if field.name in ("name", "num_examples", "weighted_num_examples"):
            setattr(dataset, field.name, value)
    dataset.features.extend(features)
    return part


def _validate(statistics: Any, schema: Any, environment: str, previous: Any, serving: Any) -> Any:
    def serialized(other: Any) -> bytes:
        return b"" if other is None else bytes(other.datasets[0].SerializeToString())

    text = _validation().ValidateFeatureStatistics(
        serialized(statistics),
        schema.SerializeToString(),
        environment.encode(),
        serialized(previous),
        serialized(serving),
        b"",  # statistics of an earlier version of the same span
        b"",  # features that a model needs
        b"",  # ValidationConfig
        False,  # regions in which the schemas differ
    )
    anomalies = anomalies_pb2.Anomalies()
    anomalies.ParseFromString(text)
    return anomalies


@cache
def _validation() -> Any:
    module = sys.modules.get(_NAME) or _load_alone() or importlib.import_module(_NAME)
    return module.validation


def _load_alone() -> Any:
    package = PathFinder.find_spec("tensorflow_data_validation")
    if package is None or not package.submodule_search_locations or "tensorflow_data_validation" in sys.modules:
        return None
    path = Path(package.submodule_search_locations[0]) / "pywrap" / "tensorflow_data_validation_extension.so"
    spec = importlib.util.spec_from_file_location(_NAME, path)
    if not path.exists() or spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    # Registered before it runs, as the import system does: loaded a second time it would be torn down twice.
    sys.modules[_NAME] = module
    spec.loader.exec_module(module)
    return module

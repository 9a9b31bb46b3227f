"""TFDV's options from JSON, as a DAG states them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from airflow_hops.core.contract.artifacts import BadInput


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _is_list_of(value: Any, is_one: Callable[[Any], bool]) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and len(value) > 0 and all(map(is_one, value))


def _is_names(value: Any) -> bool:
    return _is_list_of(value, _is_name)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_count(value: Any, least: int = 1) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_rate(value: Any) -> bool:
    return _is_number(value) and 0 < value <= 1


def _is_slice_value(value: Any) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool)


def _is_pair(value: Any) -> bool:
    return _is_names(value) and len(value) == 2 and value[0] != value[1]


_Check = tuple[Callable[[Any], bool], str]

_NAME: _Check = (_is_name, "the name of a feature")
_NAMES: _Check = (_is_names, "a list of names of features")
_COUNT: _Check = (_is_count, "a whole number of at least 1")
_RATE: _Check = (_is_rate, "a number above 0 and at most 1")

_CHECKS: dict[str, _Check] = {
    "cross_features": (
        lambda value: value is True or _is_list_of(value, _is_pair),
        "a list of pairs of features, or true for all pairs of numeric features",
    ),
    "epsilon": (lambda value: _is_number(value) and 0 < value < 1, "a number above 0 and below 1"),
    "features": _NAMES,
    "frequency_threshold": _COUNT,
    "label_feature": _NAME,
    "lift": (lambda value: isinstance(value, Mapping), "a mapping"),
    "num_histogram_buckets": _COUNT,
    "num_quantiles_histogram_buckets": _COUNT,
    "num_rank_histogram_buckets": _COUNT,
    "num_top_values": _COUNT,
    "num_values_histogram_buckets": (lambda value: _is_count(value, 2), "a whole number of at least 2"),
    "per_feature_weight_override": (
        lambda value: isinstance(value, Mapping) and all(map(_is_name, itertools.chain(value, value.values()))),
        "a mapping from features to the features that weigh them",
    ),
    "sample_rate": _RATE,
    "semantic_domains": (lambda value: isinstance(value, bool), "true or false"),
    "semantic_domains_sample_rate": _RATE,
    "slice_by": (
        lambda value: _is_list_of(value, lambda one: _is_name(one) or _is_names(one)),
        "a list of features, or of lists of features for slices by several at once",
    ),
    "slice_values": (
        lambda value: isinstance(value, Mapping)
        and len(value) > 0
        and all(_is_name(name) and _is_list_of(some, _is_slice_value) for name, some in value.items()),
        "a mapping from features to lists of strings or whole numbers",
    ),
    "weight_feature": _NAME,
    "weighted_frequency_threshold": (lambda value: _is_number(value) and value > 0, "a number above 0"),
}  # fmt: skip

_LIFT_CHECKS: dict[str, _Check] = {
    "bottom_k_per_y": _COUNT,
    "features": _NAMES,
    "min_x_count": (lambda value: _is_number(value) and value >= 0, "a number of at least 0"),
    "top_k_per_y": _COUNT,
    "y_boundaries": (lambda value: _is_list_of(value, _is_number), "a list of numbers"),
}

_AS_IN_TFDV = (
    "epsilon", "frequency_threshold", "num_histogram_buckets", "num_quantiles_histogram_buckets",
    "num_rank_histogram_buckets", "num_top_values", "num_values_histogram_buckets", "sample_rate", "weight_feature",
    "weighted_frequency_threshold",
)  # fmt: skip

_RENAMED = {
    "semantic_domains": "enable_semantic_domain_stats",
    "semantic_domains_sample_rate": "semantic_domain_stats_sample_rate",
}


def options_from(value: Mapping[str, Any] | None, *, schema: Any = None) -> Any:
    """TFDV's options from what JSON can say.

    Each key is optional; those that are not told of here mean what ``tensorflow_data_validation.StatsOptions`` says.

    - ``slice_by``: features whose values make slices; a list of features within it makes slices by all of them at
      once. Sliced by the label, they are the distributions given the label.
    - ``slice_values``: values of features to make slices of, all others being left out.
    - ``label_feature``: adds the lift of every categorical feature to this label's values: the strings, and what the
      schema calls a category.
    - ``lift``: a mapping with any of ``features`` (instead of all categorical ones), ``y_boundaries`` (buckets of a
      numeric label), ``min_x_count`` (a value must be in more examples than that), ``top_k_per_y`` and
      ``bottom_k_per_y`` (values of the highest and the lowest lift to keep).
    - ``cross_features``: pairs of numeric features, or true for all of them: covariance and correlation.
    - ``features``: compute statistics of these alone.
    - ``semantic_domains``: look for images, natural language and times in strings; on a sample of the batches, with
      ``semantic_domains_sample_rate``.

    Args:
        value: The options; None for TFDV's defaults.
        schema: A ``Schema``, from which TFDV takes which features are categories.

    Returns:
        ``tensorflow_data_validation.StatsOptions``.

    Raises:
        BadInput: a key is unknown, or a value is not what is expected of it.
    """
    _check("options", value or {}, _CHECKS)
    values = dict(value or {})
    _check("options.lift", values.get("lift", {}), _LIFT_CHECKS)
    if "lift" in values and "label_feature" not in values:
        raise BadInput("options.lift is given without options.label_feature, whose lift it is")
    if "semantic_domains_sample_rate" in values and not values.get("semantic_domains"):
        raise BadInput("options.semantic_domains_sample_rate is given without options.semantic_domains")
    if "features" in values:
        for name, used in _used_features(values):
            if used not in values["features"]:
                raise BadInput(f"options.features has no {used!r}, which options.{name} needs; add it")
    import tensorflow_data_validation as tfdv

    arguments = {name: values[name] for name in _AS_IN_TFDV if name in values}
    arguments |= {argument: values[name] for name, argument in _RENAMED.items() if name in values}
    if "features" in values:
        arguments["feature_allowlist"] = list(values["features"])
    if "per_feature_weight_override" in values:
        overrides = values["per_feature_weight_override"]
        arguments["per_feature_weight_override"] = {tfdv.FeaturePath([name]): by for name, by in overrides.items()}
    options = tfdv.StatsOptions(schema=schema, use_sketch_based_topk_uniques=True, **arguments, **_slicing(values))
    generators = _lift(values, schema, options)
    if "cross_features" in values:
        from airflow_hops.ml.statistics.cross_features import CrossFeatureGenerator

        pairs = [tuple(pair) for pair in values["cross_features"]] if _names_pairs(values) else None
        generators.append(CrossFeatureGenerator(pairs))
    options.generators = generators or None
    return options


def _check(where: str, value: Any, checks: Mapping[str, _Check]) -> None:
    if not isinstance(value, Mapping):
        raise BadInput(f"{where} is {value!r}, expected a mapping")
    for name, result in value.items():
        if name not in checks:
            raise BadInput(f"{where} has {name!r}, expected some of {', '.join(checks)}")
        is_right, expected = checks[name]
        if not is_right(result):
            raise BadInput(f"{where}.{name} is {result!r}, expected {expected}")


def _used_features(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Which option names which feature."""
    lists: dict[str, Iterable[str]] = {
        "weight_feature": filter(None, [values.get("weight_feature")]),
        "label_feature": filter(None, [values.get("label_feature")]),
        "lift.features": values.get("lift", {}).get("features", ()),
        "per_feature_weight_override": values.get("per_feature_weight_override", {}).values(),
        "slice_by": itertools.chain(*_slices(values)),
        "slice_values": values.get("slice_values", ()),
        "cross_features": itertools.chain(*values["cross_features"]) if _names_pairs(values) else (),
    }
    for name, features in lists.items():
        for feature in features:
            yield name, feature


def _names_pairs(values: Mapping[str, Any]) -> bool:
    return isinstance(values.get("cross_features"), Sequence)


def _slices(values: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The features of each way to slice."""
    slices = [(one,) if isinstance(one, str) else tuple(one) for one in values.get("slice_by", ())]
    sliced = set(itertools.chain(*slices))
    return slices + [(name,) for name in values.get("slice_values", ()) if name not in sliced]


def _slicing(arguments: Mapping[str, Any]) -> dict[str, Any]:
    slices = _slices(arguments)
    if not slices:
        return {}
    from tensorflow_data_validation.utils import slicing_util
    from tfx_bsl.public.proto import slicing_spec_pb2

    values = arguments.get("slice_values", {})
    if values:
        # TFDV looks for a SlicingConfig's values, which are text, among bytes; as bytes it finds them, numbers too.
        wanted = {name: [str(value).encode() for value in some] for name, some in values.items()}
        functions = [slicing_util.get_feature_value_slicer({n: wanted.get(n) for n in names}) for names in slices]
        return {"experimental_slice_functions": functions}
    specs = [slicing_spec_pb2.SlicingSpec(feature_keys=names) for names in slices]
    return {"slicing_config": slicing_spec_pb2.SlicingConfig(slicing_specs=specs)}


def _lift(values: Mapping[str, Any], schema: Any, options: Any) -> list[Any]:
    if "label_feature" not in values:
        return []
    from tensorflow_data_validation.types import FeaturePath
    from tensorflow_data_validation.utils import schema_util

    from airflow_hops.ml.statistics.lift import LiftGenerator

    label, lift = FeaturePath([values["label_feature"]]), values.get("lift", {})
    features = [FeaturePath([name]) for name in lift["features"]] if "features" in lift else None
    if schema is not None:
        if label not in {path for path, _ in schema_util.get_all_leaf_features(schema)}:
            raise BadInput(f"options.label_feature is {values['label_feature']!r}, which is not in the schema")
        if features is None:
            features = sorted(schema_util.get_categorical_features(schema) - {label})
    return [
        LiftGenerator(
            label,
            features=features,
            boundaries=lift.get("y_boundaries"),
            min_count=lift.get("min_x_count", 0),
            top_values=lift.get("top_k_per_y"),
            bottom_values=lift.get("bottom_k_per_y"),
            weights=options.example_weight_map,
        )
    ]

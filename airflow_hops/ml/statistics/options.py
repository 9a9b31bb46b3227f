"""Parses TFDV's options from JSON, as in a DAG."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from airflow_hops.core.contract.artifacts import BadInput

_Name = Annotated[str, Field(min_length=1)]
_Names = Annotated[Sequence[_Name], Field(min_length=1)]
_Pairs = Annotated[Sequence[Annotated[Sequence[_Name], Field(min_length=2, max_length=2)]], Field(min_length=1)]
_NAME, _NAMES = "the name of a feature", "a list of names of features"
_COUNT, _RATE = "a whole number of at least 1", "a number above 0 and at most 1"


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class _Options(_Model):
    """Options, with the expected value as description (for errors) and TFDV's name as alias."""

    cross_features: Literal[True] | _Pairs | None = Field(
        None, description="a list of pairs of features, or true for all pairs of numeric features"
    )
    features: _Names | None = Field(None, description=_NAMES, serialization_alias="feature_allowlist")
    frequency_threshold: int | None = Field(None, ge=1, description=_COUNT)
    label_feature: _Name | None = Field(None, description=_NAME)
    lift: Mapping[str, Any] | None = Field(None, description="a mapping")
    num_histogram_buckets: int | None = Field(None, ge=1, description=_COUNT)
    num_quantiles_histogram_buckets: int | None = Field(None, ge=1, description=_COUNT)
    num_rank_histogram_buckets: int | None = Field(None, ge=1, description=_COUNT)
    num_top_values: int | None = Field(None, ge=1, description=_COUNT)
    num_values_histogram_buckets: int | None = Field(None, ge=2, description="a whole number of at least 2")
    per_feature_weight_override: Mapping[_Name, _Name] | None = Field(
        None, description="a mapping from features to the features that weigh them"
    )
    sample_rate: float | None = Field(None, gt=0, le=1, description=_RATE)
    semantic_domains: bool | None = Field(
        None, description="true or false", serialization_alias="enable_semantic_domain_stats"
    )
    slice_by: Annotated[Sequence[_Name | _Names], Field(min_length=1)] | None = Field(
        None, description="a list of features, or of lists of features for slices by several at once"
    )
    slice_values: (
        Annotated[Mapping[_Name, Annotated[Sequence[str | int], Field(min_length=1)]], Field(min_length=1)] | None
    ) = Field(None, description="a mapping from features to lists of strings or whole numbers")
    weight_feature: _Name | None = Field(None, description=_NAME)
    weighted_frequency_threshold: float | None = Field(None, gt=0, description="a number above 0")


class _LiftOptions(_Model):
    bottom_k_per_y: int | None = Field(None, ge=1, description=_COUNT)
    features: _Names | None = Field(None, description=_NAMES)
    min_x_count: float = Field(0, ge=0, description="a number of at least 0")
    top_k_per_y: int | None = Field(None, ge=1, description=_COUNT)
    y_boundaries: Annotated[Sequence[float], Field(min_length=1)] | None = Field(None, description="a list of numbers")


_AnyModel = TypeVar("_AnyModel", bound=_Model)

# Not arguments of TFDV, or converted separately.
_NOT_ARGUMENTS = {
    "cross_features", "label_feature", "lift", "per_feature_weight_override", "slice_by", "slice_values",
}  # fmt: skip


def options_from(value: Mapping[str, Any] | None, *, schema: Any = None) -> Any:
    """Returns TFDV's options for JSON options.

    Each key is optional; those not described here are as in ``tensorflow_data_validation.StatsOptions``.

    - ``slice_by``: features whose values make slices; a nested list of features makes slices by their combinations.
      Slices by the label show the distributions given the label.
    - ``slice_values``: values of features to make slices of; other values make none.
    - ``label_feature``: adds the lift of every categorical feature (strings, and the schema's categories) for this
      label's values.
    - ``lift``: a mapping with any of ``features`` (instead of all categorical ones), ``y_boundaries`` (buckets of a
      numeric label), ``min_x_count`` (minimum number of examples with a value, exclusive), ``top_k_per_y`` and
      ``bottom_k_per_y`` (number of values with the highest and the lowest lift).
    - ``cross_features``: pairs of numeric features, or true for all pairs: covariance and correlation.
    - ``features``: compute statistics of these features only.
    - ``semantic_domains``: detect images, natural language and times in strings.

    Args:
        value: The options; None for TFDV's defaults.
        schema: A ``Schema``, which defines the categorical features.

    Returns:
        ``tensorflow_data_validation.StatsOptions``.

    Raises:
        BadInput: a key is unknown, or a value is not as expected.
    """
    settings = _read("options", _Options, value or {})
    lift = _read("options.lift", _LiftOptions, settings.lift or {})
    for first, *others in settings.cross_features if isinstance(settings.cross_features, Sequence) else ():
        if first in others:
            raise BadInput(
                f"options.cross_features is {settings.cross_features!r}, expected "
                f"{_Options.model_fields['cross_features'].description}"
            )
    if settings.lift is not None and settings.label_feature is None:
        raise BadInput("options.lift is given without options.label_feature; lift is that of a label's values")
    if settings.features is not None:
        for name, used in _used_features(settings, lift):
            if used not in settings.features:
                raise BadInput(f"options.features has no {used!r}, which options.{name} needs; add it")
    import tensorflow_data_validation as tfdv

    arguments = settings.model_dump(exclude=_NOT_ARGUMENTS, exclude_none=True, by_alias=True)
    if settings.per_feature_weight_override is not None:
        overrides = settings.per_feature_weight_override.items()
        arguments["per_feature_weight_override"] = {tfdv.FeaturePath([name]): by for name, by in overrides}
    options = tfdv.StatsOptions(schema=schema, use_sketch_based_topk_uniques=True, **arguments, **_slicing(settings))
    generators = [] if settings.label_feature is None else [_lift(settings.label_feature, lift, schema, options)]
    if settings.cross_features is not None:
        from airflow_hops.ml.statistics.cross_features import CrossFeatureGenerator

        pairs = None if settings.cross_features is True else [(one, other) for one, other in settings.cross_features]
        generators.append(CrossFeatureGenerator(pairs))
    options.generators = generators or None
    return options


def _read(where: str, kind: type[_AnyModel], value: Any) -> _AnyModel:
    """Validates options; the error names the first wrong option and its expected value."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        wrong = error.errors()[0]
    if not wrong["loc"]:
        raise BadInput(f"{where} is {value!r}, expected a mapping")
    name = str(wrong["loc"][0])
    if name not in kind.model_fields:
        raise BadInput(f"{where} has {name!r}, expected some of {', '.join(kind.model_fields)}")
    raise BadInput(f"{where}.{name} is {value[name]!r}, expected {kind.model_fields[name].description}")


def _used_features(settings: _Options, lift: _LiftOptions) -> Iterator[tuple[str, str]]:
    """Yields pairs of an option and a feature that it names."""
    pairs = settings.cross_features if isinstance(settings.cross_features, Sequence) else ()
    lists: dict[str, Iterable[str]] = {
        "weight_feature": filter(None, [settings.weight_feature]),
        "label_feature": filter(None, [settings.label_feature]),
        "lift.features": lift.features or (),
        "per_feature_weight_override": (settings.per_feature_weight_override or {}).values(),
        "slice_by": itertools.chain(*_slices(settings)),
        "slice_values": settings.slice_values or (),
        "cross_features": itertools.chain(*pairs),
    }
    for name, features in lists.items():
        for feature in features:
            yield name, feature


def _slices(settings: _Options) -> list[tuple[str, ...]]:
    """Returns the features of each kind of slice."""
    slices = [(one,) if isinstance(one, str) else tuple(one) for one in settings.slice_by or ()]
    sliced = set(itertools.chain(*slices))
    return slices + [(name,) for name in settings.slice_values or () if name not in sliced]


def _slicing(settings: _Options) -> dict[str, Any]:
    slices = _slices(settings)
    if not slices:
        return {}
    from tensorflow_data_validation.utils import slicing_util
    from tfx_bsl.public.proto import slicing_spec_pb2

    if settings.slice_values is not None:
        # TFDV does not match the text values of a SlicingConfig with features' bytes; a slicer with bytes does.
        wanted = {name: [str(value).encode() for value in some] for name, some in settings.slice_values.items()}
        functions = [slicing_util.get_feature_value_slicer({n: wanted.get(n) for n in names}) for names in slices]
        return {"experimental_slice_functions": functions}
    specs = [slicing_spec_pb2.SlicingSpec(feature_keys=names) for names in slices]
    return {"slicing_config": slicing_spec_pb2.SlicingConfig(slicing_specs=specs)}


def _lift(label_feature: str, lift: _LiftOptions, schema: Any, options: Any) -> Any:
    from tensorflow_data_validation.types import FeaturePath
    from tensorflow_data_validation.utils import schema_util

    from airflow_hops.ml.statistics.lift import LiftGenerator

    label = FeaturePath([label_feature])
    features = None if lift.features is None else [FeaturePath([name]) for name in lift.features]
    if schema is not None:
        if label not in {path for path, _ in schema_util.get_all_leaf_features(schema)}:
            raise BadInput(f"options.label_feature is {label_feature!r}, which is not in the schema")
        if features is None:
            features = sorted(schema_util.get_categorical_features(schema) - {label})
    return LiftGenerator(
        label,
        features=features,
        boundaries=lift.y_boundaries,
        min_count=lift.min_x_count,
        top_values=lift.top_k_per_y,
        bottom_values=lift.bottom_k_per_y,
        weights=options.example_weight_map,
    )

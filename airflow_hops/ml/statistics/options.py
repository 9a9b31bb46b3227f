"""Parses TFDV's options from JSON, as in a DAG."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from airflow_hops.core.errors import BadInput, InvalidArgument

_Name = Annotated[str, Field(min_length=1)]
_Names = Annotated[Sequence[_Name], Field(min_length=1)]
_NAME, _NAMES = "the name of a feature", "a list of names of features"
_COUNT, _RATE = "a whole number of at least 1", "a number above 0 and at most 1"


class _Options(BaseModel):
    """Options, with the expected value as description (for errors) and TFDV's name as alias."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    features: _Names | None = Field(None, description=_NAMES, serialization_alias="feature_allowlist")
    frequency_threshold: int | None = Field(None, ge=1, description=_COUNT)
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


# Not arguments of TFDV, or converted separately.
_NOT_ARGUMENTS = {"per_feature_weight_override", "slice_by", "slice_values"}


def options_from(value: Mapping[str, object] | None, *, schema: object = None) -> object:
    """Returns TFDV's options for JSON options.

    Each key is optional; those not described here are as in ``tensorflow_data_validation.StatsOptions``.

    - ``slice_by``: features whose values make slices; a nested list of features makes slices by their combinations.
      Slices by the label show the distributions given the label.
    - ``slice_values``: values of features to make slices of; other values make none.
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
    settings = _settings(value or {})
    for name, used in _used_features(settings):
        if settings.features is not None and used not in settings.features:
            raise BadInput(f"options.features has no {used!r}, which options.{name} needs; add it")
    import tensorflow_data_validation as tfdv

    arguments = settings.model_dump(exclude=_NOT_ARGUMENTS, exclude_none=True, by_alias=True)
    if settings.per_feature_weight_override is not None:
        overrides = settings.per_feature_weight_override.items()
        arguments["per_feature_weight_override"] = {tfdv.FeaturePath([name]): by for name, by in overrides}
    return tfdv.StatsOptions(schema=schema, use_sketch_based_topk_uniques=True, **arguments, **_slicing(settings))


def _settings(value: Any) -> _Options:
    """Validates options; the error names the first wrong option and its expected value."""
    try:
        return _Options.model_validate(value)
    except ValidationError as error:
        wrong = error.errors()[0]
    if not wrong["loc"]:
        raise InvalidArgument("options", value, ", expected a mapping")
    name, known = str(wrong["loc"][0]), _Options.model_fields
    if name not in known:
        raise BadInput(f"options has {name!r}, expected some of {', '.join(known)}")
    raise BadInput(f"options.{name} is {value[name]!r}, expected {known[name].description}")


def _used_features(settings: _Options) -> Iterator[tuple[str, str]]:
    """Yields pairs of an option and a feature that it names."""
    lists: dict[str, Iterable[str]] = {
        "weight_feature": filter(None, [settings.weight_feature]),
        "per_feature_weight_override": (settings.per_feature_weight_override or {}).values(),
        "slice_by": itertools.chain(*_slices(settings)),
        "slice_values": settings.slice_values or (),
    }
    for name, features in lists.items():
        for feature in features:
            yield name, feature


def _slices(settings: _Options) -> list[tuple[str, ...]]:
    """Returns the features of each kind of slice."""
    slices = [(one,) if isinstance(one, str) else tuple(one) for one in settings.slice_by or ()]
    sliced = set(itertools.chain(*slices))
    return slices + [(name,) for name in settings.slice_values or () if name not in sliced]


def _slicing(settings: _Options) -> dict[str, object]:
    slices = _slices(settings)
    if not slices:
        return {}
    from tensorflow_data_validation.utils import slicing_util
    from tfx_bsl.public.proto import slicing_spec_pb2

    if settings.slice_values is not None:
        # TFDV 1.16: does not match the text values of a SlicingConfig with features' bytes; a slicer with bytes does.
        wanted = {name: [str(value).encode() for value in some] for name, some in settings.slice_values.items()}
        functions = [slicing_util.get_feature_value_slicer({n: wanted.get(n) for n in names}) for names in slices]
        return {"experimental_slice_functions": functions}
    specs = [slicing_spec_pb2.SlicingSpec(feature_keys=names) for names in slices]
    return {"slicing_config": slicing_spec_pb2.SlicingConfig(slicing_specs=specs)}

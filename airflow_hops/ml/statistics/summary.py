"""Summarizes TFDV statistics as a small JSON value, for people and pages."""

from __future__ import annotations

import math
from typing import Any

TOP_VALUES = 20
"""Number of most frequent values listed per string feature."""

QUANTILES = 10
"""Maximum number of equally filled buckets listed per numeric feature."""

MAX_TEXT = 100
"""Maximum characters of a value; longer ones are cut and end in an ellipsis."""

MAX_FULL_FEATURES = 200
"""Maximum number of features for which distributions are listed; with more, only figures are listed."""

MAX_SLICES = 50
"""Maximum number of slices listed; also limited by :data:`MAX_SLICE_FEATURES`."""

MAX_SLICE_FEATURES = 2_000
"""Maximum number of features in all slices together."""


def summarize(statistics: Any) -> dict[str, Any]:
    """Returns the JSON twin of a ``DatasetFeatureStatisticsList``, in strict JSON (infinities and NaN are text).

    Returns:
        ``rows`` (and ``weighted_rows``), and ``features`` by name (steps of a nested one joined by dots), each with
        ``type`` (INT, FLOAT, STRING, BYTES, STRUCT), ``count`` (rows that have it), ``missing``, and if they apply
        ``nan``, ``infinite``, ``values_per_row`` (min, mean, max) and ``weighted`` (the same by weights);

        - numbers also ``mean``, ``std``, ``min``, ``max``, ``median``, ``zeros``, ``quantiles`` (boundaries of ten
          equally filled buckets) and ``histogram`` (``[low, high, count]`` of equally wide buckets);
        - strings also ``unique``, ``average_length`` and ``top_values`` (``[value, count]``);
        - ``custom``: results of other generators, such as the semantic domain.

        ``slices``, the largest first: by key ``rows`` and ``features``, with only figures and
        most frequent values. The number of items left out of a list is in ``..._left_out``.
    """
    whole, *slices = statistics.datasets
    summary: dict[str, Any] = {"rows": int(whole.num_examples)}
    if whole.weighted_num_examples:
        summary["weighted_rows"] = _json(whole.weighted_num_examples)
    full, rows = len(whole.features) <= MAX_FULL_FEATURES, summary["rows"]
    summary["features"] = {feature_name(feature): _feature(feature, rows, full) for feature in whole.features}
    if slices:
        report = min(MAX_SLICES, max(1, MAX_SLICE_FEATURES // max(1, len(whole.features))))
        summary["slices"] = {}
        for dataset in sorted(slices, key=lambda dataset: (-dataset.num_examples, dataset.name))[:report]:
            rows = int(dataset.num_examples)
            features = {feature_name(feature): _feature(feature, rows, full=False) for feature in dataset.features}
            summary["slices"].setdefault(_text(dataset.name), {"rows": rows, "features": features})
        summary |= _left_out("slices", len(slices) - len(summary["slices"]))
    return summary


def feature_name(feature: Any) -> str:
    """Returns the name of a feature, with the steps of a path joined by dots."""
    return feature.name or ".".join(feature.path.step)


def features_by_name(statistics: Any) -> dict[str, Any]:
    """Returns the features of a ``DatasetFeatureStatisticsList``'s first data set by name."""
    return {feature_name(feature): feature for feature in statistics.datasets[0].features}


def common_statistics(feature: Any) -> Any:
    """Returns the ``CommonStatistics`` of a feature of any type."""
    return getattr(feature, feature.WhichOneof("stats")).common_stats


def type_name(feature: Any) -> str:
    """Returns INT, FLOAT, STRING, BYTES or STRUCT."""
    return str(type(feature).Type.Name(feature.type))


def vector_width(feature: Any) -> int | None:
    """Returns the length of a feature's vectors of numbers; None if it is not a feature of vectors."""
    common = feature.num_stats.common_stats
    if feature.type != type(feature).FLOAT or not common.num_non_missing:
        return None
    least, most = common.min_num_values, common.max_num_values
    return int(most) if least == most > 1 else None


def _feature(feature: Any, rows: int, full: bool) -> dict[str, Any]:
    kind = feature.WhichOneof("stats")
    summary: dict[str, Any] = {"type": type_name(feature)}
    if kind is None:
        return summary | _custom(feature)
    common = common_statistics(feature)
    present = int(common.num_non_missing)
    # Missing values of a nested feature are counted among the values of its parent.
    nested = len(feature.path.step) > 1
    summary |= {"count": present, "missing": int(common.num_missing) if nested else max(0, rows - present)}
    if present and (common.min_num_values, common.max_num_values) != (1, 1):
        summary["values_per_row"] = {
            "min": int(common.min_num_values), "mean": _json(common.avg_num_values), "max": int(common.max_num_values),
        }  # fmt: skip
    if kind == "num_stats" and present:
        summary |= _number(feature, full)
    elif kind == "string_stats":
        string = feature.string_stats
        summary["unique"], summary["average_length"] = int(string.unique), round(string.avg_length, 3)
        summary["top_values"] = _ranked(string.rank_histogram, TOP_VALUES if full else TOP_VALUES // 4)
        if string.invalid_utf8_count:
            summary["not_utf8"] = int(string.invalid_utf8_count)
    elif kind == "bytes_stats":
        summary |= {
            "unique": int(feature.bytes_stats.unique), "average_length": _json(feature.bytes_stats.avg_num_bytes),
        }  # fmt: skip
    if full:
        summary |= _weighted(feature, kind) | _custom(feature)
    return summary


def _number(feature: Any, full: bool) -> dict[str, Any]:
    number = feature.num_stats
    summary: dict[str, Any] = {
        "mean": _json(number.mean), "std": _json(number.std_dev), "min": _json(number.min), "max": _json(number.max),
        "median": _json(number.median), "zeros": int(number.num_zeros),
    }  # fmt: skip
    standard = [one for one in number.histograms if one.type == one.STANDARD]
    nan = sum(one.num_nan for one in standard)
    infinite = sum(b.sample_count for one in standard for b in one.buckets if math.isinf(b.low_value + b.high_value))
    summary |= {name: int(count) for name, count in (("nan", nan), ("infinite", infinite)) if count}
    if full:
        buckets = [b for one in number.histograms if one.type == one.QUANTILES for b in one.buckets]
        bounds = [_json(b.low_value) for b in buckets] + [_json(b.high_value) for b in buckets[-1:]]
        summary["quantiles"] = bounds if len(buckets) % QUANTILES else bounds[:: max(1, len(buckets) // QUANTILES)]
        summary["histogram"] = [_bucket(b) for one in standard for b in one.buckets]
    return summary


def _bucket(bucket: Any) -> list[object]:
    return [_json(bucket.low_value), _json(bucket.high_value), _json(bucket.sample_count)]


def _ranked(ranks: Any, most: int) -> list[list[Any]]:
    return [[_text(bucket.label), _json(bucket.sample_count)] for bucket in ranks.buckets[:most]]


def _weighted(feature: Any, kind: str) -> dict[str, Any]:
    common = common_statistics(feature)
    if not common.HasField("weighted_common_stats"):
        return {}
    weighted: dict[str, Any] = {
        "count": _json(common.weighted_common_stats.num_non_missing),
        "missing": _json(common.weighted_common_stats.num_missing),
    }
    if kind == "num_stats":
        number = feature.num_stats.weighted_numeric_stats
        weighted |= {"mean": _json(number.mean), "std": _json(number.std_dev), "median": _json(number.median)}
    elif kind == "string_stats":
        weighted["top_values"] = _ranked(feature.string_stats.weighted_string_stats.rank_histogram, TOP_VALUES // 4)
    return {"weighted": weighted}


def _custom(feature: Any) -> dict[str, object]:
    """Returns the values of custom generators."""
    custom: dict[str, Any] = {}
    for one in feature.custom_stats:
        kind = one.WhichOneof("val")
        if kind == "num":
            custom[one.name] = _json(one.num)
        elif kind == "str":
            custom[one.name] = _text(one.str)
        elif kind == "rank_histogram":
            custom[one.name] = _ranked(one.rank_histogram, TOP_VALUES)
        elif kind == "histogram":
            custom[one.name] = [_bucket(b) for b in one.histogram.buckets]
    return {"custom": custom} if custom else {}


def _left_out(name: str, count: int) -> dict[str, int]:
    return {f"{name}_left_out": count} if count > 0 else {}


def _text(value: str) -> str:
    return value if len(value) <= MAX_TEXT else value[: MAX_TEXT - 1] + "…"


def _json(value: float) -> float | str:
    """Rounds to ten significant digits; infinities and NaN, which JSON lacks, become text."""
    return float(f"{value:.10g}") if math.isfinite(value) else str(value)

"""TFDV statistics as a small JSON value, for people and pages."""

from __future__ import annotations

import math
from typing import Any

TOP_VALUES = 20
"""The most frequent values that are listed of a string feature."""


def summarize(statistics: Any) -> dict[str, Any]:
    """The JSON twin of a ``DatasetFeatureStatisticsList`` with one data set.

    Returns:
        ``rows``, and ``features``: by name, ``type`` (INT, FLOAT, STRING), ``count`` (values that are there) and
        ``missing``; of a number ``mean``, ``std``, ``min``, ``max``, ``median``, ``zeros``, ``quantiles`` (boundaries
        of equally filled buckets) and ``histogram`` (``[low, high, count]`` of equally wide buckets); of a string
        ``unique``, ``average_length`` and ``top_values`` (``[value, count]``).
    """
    dataset = statistics.datasets[0]
    return {
        "rows": int(dataset.num_examples),
        "features": {
            feature_name(feature): _summarize_feature(feature, int(dataset.num_examples))
            for feature in dataset.features
        },
    }


def feature_name(feature: Any) -> str:
    """The name of a feature; steps of a path are joined by a dot."""
    return feature.name or ".".join(feature.path.step)


def features_by_name(statistics: Any) -> dict[str, Any]:
    """The features of a ``DatasetFeatureStatisticsList``'s first data set by name."""
    return {feature_name(feature): feature for feature in statistics.datasets[0].features}


def common_statistics(feature: Any) -> Any:
    """The ``CommonStatistics`` of a feature, whatever its type."""
    return getattr(feature, feature.WhichOneof("stats")).common_stats


def type_name(feature: Any) -> str:
    """INT, FLOAT, STRING, BYTES or STRUCT."""
    return str(type(feature).Type.Name(feature.type))


def histogram(feature: Any) -> list[list[Any]]:
    """The distribution: ``[low, high, count]`` of a number's buckets, ``[value, count]`` of a string's values."""
    if feature.WhichOneof("stats") == "num_stats":
        return [
            [_json(bucket.low_value), _json(bucket.high_value), bucket.sample_count]
            for histogram in feature.num_stats.histograms
            if histogram.type == histogram.STANDARD
            for bucket in histogram.buckets
        ]
    if feature.WhichOneof("stats") == "string_stats":
        buckets = feature.string_stats.rank_histogram.buckets[:TOP_VALUES]
        return [[bucket.label, bucket.sample_count] for bucket in buckets]
    return []


def _summarize_feature(feature: Any, rows: int) -> dict[str, Any]:
    common = common_statistics(feature)
    summary: dict[str, Any] = {
        "type": type_name(feature),
        "count": int(common.num_non_missing),
        "missing": max(0, rows - int(common.num_non_missing)),
    }
    if feature.WhichOneof("stats") == "num_stats":
        number = feature.num_stats
        if common.num_non_missing:
            quantiles = [
                bucket
                for histogram in number.histograms
                if histogram.type == histogram.QUANTILES
                for bucket in histogram.buckets
            ]
            summary |= {
                "mean": _json(number.mean),
                "std": _json(number.std_dev),
                "min": _json(number.min),
                "max": _json(number.max),
                "median": _json(number.median),
                "zeros": int(number.num_zeros),
                "quantiles": [_json(b.low_value) for b in quantiles] + [_json(b.high_value) for b in quantiles[-1:]],
                "histogram": histogram(feature),
            }
    elif feature.WhichOneof("stats") == "string_stats":
        summary |= {
            "unique": int(feature.string_stats.unique),
            "average_length": round(feature.string_stats.avg_length, 3),
            "top_values": histogram(feature),
        }
    return summary


def _json(value: float) -> float | str:
    """JSON has no infinity and no NaN; they become text."""
    return value if math.isfinite(value) else str(value)

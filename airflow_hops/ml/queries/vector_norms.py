"""Features of vectors as pages show them: by the norms of their sample, since they have no one number."""

from __future__ import annotations

from typing import Any

import numpy as np

from airflow_hops.ml.monitoring.skew.distribution import Vectors, distribution
from airflow_hops.ml.statistics.vectors import SAMPLE, vector_width

_BUCKETS = 20
_QUANTILES = 10


def shown_type(feature: Any, type_name: str) -> str:
    """A feature's type, with the length of its vectors where it has any: ``FLOAT[16]``."""
    width = vector_width(feature)
    return type_name if width is None else f"{type_name}[{width}]"


def by_norm(feature: Any) -> Any:
    """The ``FeatureNameStatistics`` of vectors with the figures of their Euclidean norms; of any other feature itself.

    How many rows have one, and how many of their numbers are zero or NaN, is what it was.
    """
    result = distribution(feature)
    if not isinstance(result, Vectors):
        return feature
    norms = result.norms
    shown = type(feature)()
    shown.CopyFrom(feature)
    number = shown.num_stats
    number.mean, number.std_dev, number.median = float(norms.mean()), float(norms.std()), float(np.median(norms))
    number.min, number.max = float(norms.min()), float(norms.max())
    nan = max((one.num_nan for one in feature.num_stats.histograms), default=0)
    del number.histograms[:]
    counts, edges = np.histogram(norms, _BUCKETS)
    quantiles = np.quantile(norms, np.linspace(0, 1, _QUANTILES + 1))
    for kind, bounds, shares in (
        ("STANDARD", edges, counts),
        ("QUANTILES", quantiles, np.full(_QUANTILES, len(norms) / _QUANTILES)),
    ):
        histogram = number.histograms.add(num_nan=nan)
        histogram.type = histogram.HistogramType.Value(kind)
        for low, high, count in zip(bounds[:-1], bounds[1:], shares, strict=True):
            histogram.buckets.add(low_value=low, high_value=high, sample_count=count)
    others = [one for one in feature.custom_stats if one.name != SAMPLE]
    del shown.custom_stats[:]
    shown.custom_stats.extend(others)
    report = f"norms of {len(norms):,} vectors of {result.rows.shape[1]} numbers, a sample"
    shown.custom_stats.add(name="Distribution shown").str = report
    return shown

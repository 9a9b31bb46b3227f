"""Vectors in TFDV's statistics: detects vector features, and reads the samples that comparisons need.

TFDV only reports the distribution of all numbers of a list feature together, not how vectors are distributed;
therefore, a sample of vectors is a custom statistic of the feature.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from google.protobuf import wrappers_pb2

from airflow_hops.ml.statistics.frequent_numbers import NAME

SAMPLE = "vectors"
"""Name of the custom statistic: the sample's numbers, float32, row by row."""


def vector_width(feature: Any) -> int | None:
    """Returns the length of a feature's vectors; None if it is not a feature of vectors."""
    common = feature.num_stats.common_stats
    if feature.type != type(feature).FLOAT or not common.num_non_missing:
        return None
    least, most = common.min_num_values, common.max_num_values
    return int(most) if least == most > 1 else None


def sampled_vectors(feature: Any) -> np.ndarray[Any, Any] | None:
    """Returns the sample of a feature's vectors, float32 of shape ``[rows, width]``; None if there is none."""
    width, packed = vector_width(feature), wrappers_pb2.BytesValue()
    if width is None:
        return None
    for one in feature.custom_stats:
        if one.name == SAMPLE and one.any.Unpack(packed):
            return np.frombuffer(packed.value, "<f4").reshape(-1, width)
    return None


def pack_sample(feature: Any, sample: np.ndarray[Any, Any]) -> None:
    """Adds a sample of vectors to a feature's statistics."""
    one = feature.custom_stats.add(name=SAMPLE)
    one.any.Pack(wrappers_pb2.BytesValue(value=np.ascontiguousarray(sample, "<f4").tobytes()))


def drop_samples(dataset: Any) -> None:
    """Removes statistics that only comparisons need from a ``DatasetFeatureStatistics``."""
    for feature in dataset.features:
        ones = [one for one in feature.custom_stats if one.name not in (SAMPLE, NAME)]
        del feature.custom_stats[:]
        feature.custom_stats.extend(ones)

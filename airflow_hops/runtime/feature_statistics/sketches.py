"""TFDV's sketches, fed with values that are counted first.

Columns repeat their values. Arrow counts the values of a batch several times faster than a sketch takes them one by
one, and a sketch takes a value with its count in one go. What comes out is the same for counts of values and numbers of
distinct values, and within the sketch's stated error for quantiles.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tensorflow_data_validation import constants
from tensorflow_data_validation.arrow import arrow_util
from tensorflow_data_validation.statistics.generators.top_k_uniques_sketch_stats_generator import (
    TopKUniquesSketchStatsGenerator,
)
from tensorflow_data_validation.utils import top_k_uniques_stats_util
from tensorflow_metadata.proto.v0 import statistics_pb2
from tfx_bsl import sketches
from tfx_bsl.arrow import array_util

TOP_VALUES_BUCKETS = 16_384
"""Distinct values of a string feature up to which the Misra-Gries sketch of its top values is exact."""
LARGE_BYTES = 1024
"""Bytes above which values are no longer told apart in top values; as TFDV's own sketches have it."""
_DISTINCT_BUCKETS = 16_384
_UNREPEATED_BATCHES = 8


class CountedQuantiles:
    """A ``QuantilesSketch`` that counts repeated values before it takes them.

    Args:
        epsilon: The sketch's error, as a share of the rows (Zhang and Wang, 2007, as implemented in tfx_bsl).
    """

    def __init__(self, epsilon: float) -> None:
        self._sketch = sketches.QuantilesSketch(eps=epsilon, max_num_elements=1 << 32, num_streams=1)
        self._skip = 0

    def AddValues(self, values: pa.Array, weights: pa.Array | None = None) -> None:
        """Takes values, each with the weight 1 or its own."""
        if weights is not None:
            self._sketch.AddValues(values, weights)
        elif self._skip:
            self._skip -= 1
            self._sketch.AddValues(values)
        else:
            counts = values.value_counts()
            if 2 * len(counts) <= len(values):
                self._sketch.AddValues(counts.field(0), counts.field(1))
            else:
                self._sketch.AddValues(values)
                # Counting again what does not repeat would be lost work; a later batch may repeat.
                self._skip = _UNREPEATED_BATCHES

    def Merge(self, other: CountedQuantiles) -> None:
        """Takes all that another sketch holds."""
        self._sketch.Merge(other._sketch)

    def GetQuantiles(self, count: int) -> pa.Array:
        """The boundaries of ``count`` equally filled buckets."""
        return self._sketch.GetQuantiles(count)

    def GetQuantilesAndCumulativeWeights(self, count: int) -> Any:
        """The boundaries, and the weight up to each."""
        return self._sketch.GetQuantilesAndCumulativeWeights(count)

    def Compact(self) -> None:
        """Makes the sketch small."""
        self._sketch.Compact()


class CountedTopValues(TopKUniquesSketchStatsGenerator):
    """TFDV's generator of top values and numbers of distinct values, which counts before it sketches.

    Args:
        options: ``tensorflow_data_validation.StatsOptions``.
    """

    def __init__(self, options: Any) -> None:
        super().__init__(
            schema=options.schema,
            example_weight_map=options.example_weight_map,
            num_top_values=options.num_top_values,
            num_rank_histogram_buckets=options.num_rank_histogram_buckets,
            frequency_threshold=options.frequency_threshold,
            weighted_frequency_threshold=options.weighted_frequency_threshold,
            num_misragries_buckets=TOP_VALUES_BUCKETS,
            num_kmv_buckets=_DISTINCT_BUCKETS,
            # How often TFDV tells Beam's metrics of the values' lengths: never, as there is no Beam.
            length_counter_sampling_rate=-1.0,
        )

    def _update_combined_sketch_for_feature(
        self, feature_name: Any, values: pa.Array, weights: Any, accumulator: dict[Any, Any]
    ) -> None:
        if feature_name not in accumulator:
            super()._update_combined_sketch_for_feature(feature_name, values[:0], weights, accumulator)
        sketch = accumulator[feature_name]
        flat, rows = array_util.flatten_nested(values, weights is not None)
        counts = flat.value_counts()
        distinct = counts.field(0)
        sketch._distinct.AddValues(distinct)
        sketch._topk_unweighted.AddValues(_without_large(distinct), counts.field(1).cast(pa.float32()))
        if weights is not None:
            sketch._topk_weighted.AddValues(_without_large(flat), pa.array(weights[rows], pa.float32()))

    def extract_output(self, accumulator: dict[Any, Any]) -> statistics_pb2.DatasetFeatureStatistics:
        """Top values, rank histograms and numbers of distinct values."""
        result = statistics_pb2.DatasetFeatureStatistics()
        for path, sketch in accumulator.items():
            if not (listed := self._most_frequent(sketch._topk_unweighted)):
                continue
            feature = top_k_uniques_stats_util.make_feature_stats_proto_topk_uniques(
                feature_path=path,
                num_top_values=self._num_top_values,
                num_rank_histogram_buckets=self._num_rank_histogram_buckets,
                num_unique=sketch._distinct.Estimate(),
                value_count_list=listed,
                weighted_value_count_list=self._most_frequent(sketch._topk_weighted),
                frequency_threshold=self._frequency_threshold,
                weighted_frequency_threshold=self._weighted_frequency_threshold,
            )
            result.features.add().CopyFrom(feature)
        return result

    def _most_frequent(self, sketch: sketches.MisraGriesSketch) -> list[Any]:
        """The values that may be listed; a sketch keeps many more, which need not become objects of Python."""
        values, counts = sketch.Estimate().flatten()
        wanted = max(self._num_top_values, self._num_rank_histogram_buckets)
        if wanted < len(counts):
            least = np.partition(counts.to_numpy(), len(counts) - wanted)[len(counts) - wanted]
            listed = pc.greater_equal(counts, least)  # all that are tied with the last
            values, counts = values.filter(listed), counts.filter(listed)
        pairs = zip(values.to_pylist(), counts.to_pylist(), strict=True)
        return [top_k_uniques_stats_util.FeatureValueCount(value, count) for value, count in pairs]


def _without_large(values: pa.Array) -> pa.Array:
    """The values, with one in the place of all that are large: a sketch keeps thousands of values."""
    if not arrow_util.is_binary_like(values.type):
        return values
    large = pc.greater(pc.binary_length(values), LARGE_BYTES)
    if not pc.any(large).as_py():
        return values
    return pc.if_else(large, pa.scalar(constants.LARGE_BYTES_PLACEHOLDER.encode(), values.type), values)

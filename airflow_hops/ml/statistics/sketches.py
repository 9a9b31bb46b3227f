"""TFDV's sketches, with batches that are reduced first.

A sketch takes values one by one. If a column repeats its values, they are counted, and the sketch takes each with its
count. If it does not, numbers are sorted, and the sketch takes the middle of small groups; strings are hashed, and
hashes identify those that may be frequent. Counts and numbers of distinct values are the same as in TFDV, quantiles are
within the sketch's stated error.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tensorflow_data_validation.statistics.generators.top_k_uniques_sketch_stats_generator import (
    TopKUniquesSketchStatsGenerator,
    _CombinedSketch,
)
from tensorflow_data_validation.utils import top_k_uniques_stats_util
from tensorflow_metadata.proto.v0 import statistics_pb2
from tfx_bsl import sketches
from tfx_bsl.arrow import array_util

from airflow_hops.ml.statistics.frequent_hashes import FrequentHashes, hashes_of, most_frequent_hashes
from airflow_hops.ml.statistics.value_counts import (
    LARGE_BYTES,
    ValueCounts,
    most_frequent,
    named,
    rows_listed_together,
    without_large,
)

TOP_VALUES_BUCKETS = 16_384
"""Maximum number of distinct values of a string feature for which the Misra-Gries sketch of top values is exact."""
# With TOP_VALUES_BUCKETS buckets, slightly more values than buckets might be estimated as slightly fewer.
_DISTINCT_BUCKETS = TOP_VALUES_BUCKETS + 256
_SPLIT = 32
_KEPT_BYTES = 32 << 20
_SAMPLE_ROWS = 1_024


class CountedQuantiles:
    """``QuantilesSketch`` that counts or sorts a batch, and takes it as few values with their counts.

    Args:
        epsilon: The error, as a share of the rows (Zhang and Wang, 2007, as implemented in tfx_bsl).
    """

    def __init__(self, epsilon: float) -> None:
        # Each value represents at most 1/_most of a batch, which adds half of that to the error.
        self._most = math.ceil(_SPLIT / 2 / epsilon)
        epsilon -= epsilon / _SPLIT
        self._sketch = sketches.QuantilesSketch(eps=epsilon, max_num_elements=1 << 32, num_streams=1)

    def AddValues(self, values: pa.Array, weights: pa.Array | None = None) -> None:
        """Adds values, each with the weight 1 or its own."""
        if weights is None and _repeats(values):
            values, weights = values.value_counts().flatten()
        elif weights is None:
            numbers = np.sort(values.to_numpy(zero_copy_only=False))
            first = np.flatnonzero(np.append(True, numbers[1:] != numbers[:-1]))
            if len(first) > self._most:
                # Minimum and maximum stay exact.
                first = np.append(np.arange(self._most + 1) * (len(numbers) - 2) // self._most + 1, len(numbers) - 1)
                first = np.unique(np.append(0, first))
            ends = np.append(first[1:], len(numbers))
            values, weights = pa.array(numbers[(first + ends - 1) // 2]), pa.array(ends - first)
        self._sketch.AddValues(values, weights)

    def Merge(self, other: CountedQuantiles) -> None:
        """Adds another sketch."""
        self._sketch.Merge(other._sketch)

    def GetQuantiles(self, count: int) -> pa.Array:
        """Returns the boundaries of ``count`` equally filled buckets."""
        return self._sketch.GetQuantiles(count)

    def GetQuantilesAndCumulativeWeights(self, count: int) -> Any:
        """Returns the boundaries, and the weight up to each."""
        return self._sketch.GetQuantilesAndCumulativeWeights(count)

    def Compact(self) -> None:
        """Compacts the sketch."""
        self._sketch.Compact()


class CountedSketch(_CombinedSketch):  # type: ignore[misc]
    """State of a feature's values.

    Attributes:
        kind: Arrow's type of the values; null before the first value.
        frequent: Possibly frequent values in batches that hardly repeat values, for a second pass.
        weighted: Same as ``frequent``, by the examples' weights.
        kept: All values so far with their hashes, while they are few and hardly repeat; afterwards None.
        listed: The most frequent values with their counts, if all values were kept to the end.
    """

    __slots__ = ("frequent", "kept", "kind", "listed", "weighted")

    def __init__(self, sketch: _CombinedSketch) -> None:
        super().__init__(sketch._distinct, sketch._topk_unweighted, sketch._topk_weighted)
        self.kind = pa.null()
        self.frequent, self.weighted = FrequentHashes(TOP_VALUES_BUCKETS), FrequentHashes(TOP_VALUES_BUCKETS)
        self.kept: list[tuple[pa.Array, Any]] | None = []
        self.listed: list[Any] | None = None

    @property
    def is_exact(self) -> bool:
        """Whether the values are few enough for an exact sketch of top values."""
        return bool(self._distinct.Estimate() < TOP_VALUES_BUCKETS)

    def candidates(self) -> Any:
        """Returns hashes (uint64) of the values that may be frequent."""
        results = [self.frequent.hashes, self.weighted.hashes]
        for sketch in (self._topk_unweighted, self._topk_weighted):
            retained = sketch.Estimate().field(0)
            if pa.types.is_integer(self.kind):
                retained = retained.cast(pa.large_string()).cast(self.kind)
            results.append(hashes_of(retained, LARGE_BYTES))
        return np.concatenate(results)

    def settle(self, wanted: int) -> None:
        """Lists the ``wanted`` most frequent of the kept values, and stops keeping values."""
        if self.kept:
            values = pa.concat_arrays([values for values, _ in self.kept])
            hashes = np.concatenate([hashes for _, hashes in self.kept])
            frequent, counts, rows = most_frequent_hashes(hashes, TOP_VALUES_BUCKETS)
            # Needed if this accumulator is merged with one of other rows.
            self.frequent.add(frequent, counts)
            rows = np.union1d(rows, rows_listed_together(values))
            result = ValueCounts.of(named(values.take(pa.array(rows))), np.ones((1, len(rows))))
            self.listed = most_frequent(result.values, result.counts[0], wanted)
        self.kept = None

    def merge(self, other: CountedSketch) -> None:
        """Adds another sketch; both must have been settled."""
        assert not (self.kept or other.kept)
        super().merge(other)
        self.listed = None
        self.kind = other.kind if pa.types.is_null(self.kind) else self.kind
        self.frequent.add(other.frequent.hashes, other.frequent.counts)
        self.weighted.add(other.weighted.hashes, other.weighted.counts)


class CountedTopValues(TopKUniquesSketchStatsGenerator):
    """TFDV's generator of top values and numbers of distinct values, with values counted before they are sketched.

    Args:
        options: ``tensorflow_data_validation.StatsOptions``.
        looks_twice: Whether a second pass counts the top values of features with many values, for which hashes of
            candidates are enough; otherwise the sketch estimates them.
    """

    def __init__(self, options: Any, *, looks_twice: bool) -> None:
        super().__init__(
            schema=options.schema,
            example_weight_map=options.example_weight_map,
            num_top_values=options.num_top_values,
            num_rank_histogram_buckets=options.num_rank_histogram_buckets,
            frequency_threshold=options.frequency_threshold,
            weighted_frequency_threshold=options.weighted_frequency_threshold,
            num_misragries_buckets=TOP_VALUES_BUCKETS,
            num_kmv_buckets=_DISTINCT_BUCKETS,
            # Disables reporting of value lengths to Beam's metrics, as there is no Beam.
            length_counter_sampling_rate=-1.0,
        )
        self._looks_twice = looks_twice
        self._wanted = max(options.num_top_values, options.num_rank_histogram_buckets)
        self._room = _KEPT_BYTES

    def _update_combined_sketch_for_feature(
        self, feature_name: Any, values: pa.Array, weights: Any, accumulator: dict[Any, Any]
    ) -> None:
        if feature_name not in accumulator:
            super()._update_combined_sketch_for_feature(feature_name, values[:0], weights, accumulator)
            accumulator[feature_name] = CountedSketch(accumulator[feature_name])
        sketch = accumulator[feature_name]
        flat, rows = array_util.flatten_nested(values, weights is not None)
        if not len(flat):
            return
        sketch.kind = flat.type
        differs = _differs(flat)
        if differs and not self._looks_twice:
            super()._update_combined_sketch_for_feature(feature_name, values, weights, accumulator)
            return
        if self._looks_twice and (differs or not (sketch.is_exact or pa.types.is_floating(flat.type))):
            known = pc.drop_null(flat)
            hashes = hashes_of(known, LARGE_BYTES)
            if not sketch.is_exact or len(np.unique(hashes)) > TOP_VALUES_BUCKETS:
                sketch._distinct.AddValues(known)
                if weights is None:
                    self._keep(sketch, known, hashes)
                else:
                    sketch.frequent.add(hashes, np.ones(len(hashes)))
                    sketch.weighted.add(hashes, weights[rows[np.asarray(flat.is_valid())]])
                return
        self._drop(sketch)
        counts = flat.value_counts()
        distinct = counts.field(0)
        sketch._distinct.AddValues(distinct)
        sketch._topk_unweighted.AddValues(without_large(distinct), counts.field(1).cast(pa.float32()))
        if weights is not None:
            sketch._topk_weighted.AddValues(without_large(flat), pa.array(weights[rows], pa.float32()))

    def compact(self, accumulator: dict[Any, Any]) -> dict[Any, Any]:
        """Lists the most frequent of the kept values."""
        for sketch in accumulator.values():
            self._settle(sketch)
        return accumulator

    def _keep(self, sketch: CountedSketch, values: pa.Array, hashes: Any) -> None:
        """Keeps values to avoid a second read, or only their hashes if they are too many."""
        size = values.nbytes + hashes.nbytes
        is_alike = not sketch.kept or sketch.kept[0][0].type == values.type
        if sketch.kept is not None and is_alike and size <= self._room:
            self._room -= size
            sketch.kept.append((values, hashes))
        else:
            self._drop(sketch)
            sketch.frequent.add(hashes, np.ones(len(hashes)))

    def _drop(self, sketch: CountedSketch) -> None:
        self._settle(sketch)
        sketch.listed = None

    def _settle(self, sketch: CountedSketch) -> None:
        self._room += sum(values.nbytes + hashes.nbytes for values, hashes in sketch.kept or ())
        sketch.settle(self._wanted)

    def extract_output(self, accumulator: dict[Any, Any]) -> statistics_pb2.DatasetFeatureStatistics:
        """Returns top values, rank histograms and numbers of distinct values."""
        result = statistics_pb2.DatasetFeatureStatistics()
        for path, sketch in accumulator.items():
            if not sketch._distinct.Estimate():
                continue
            feature = top_k_uniques_stats_util.make_feature_stats_proto_topk_uniques(
                feature_path=path,
                num_top_values=self._num_top_values,
                num_rank_histogram_buckets=self._num_rank_histogram_buckets,
                num_unique=sketch._distinct.Estimate(),
                value_count_list=sketch.listed or self._most_frequent(sketch._topk_unweighted),
                weighted_value_count_list=self._most_frequent(sketch._topk_weighted),
                frequency_threshold=self._frequency_threshold,
                weighted_frequency_threshold=self._weighted_frequency_threshold,
            )
            result.features.add().CopyFrom(feature)
        return result

    def _most_frequent(self, sketch: sketches.MisraGriesSketch) -> list[Any]:
        values, counts = sketch.Estimate().flatten()
        return most_frequent(values, counts.to_numpy(), self._wanted)


def _repeats(values: pa.Array) -> bool:
    """Returns whether a batch has each of its values at least twice on average, judging by a sample."""
    sample = values.to_numpy(zero_copy_only=False)[:: max(1, len(values) // _SAMPLE_ROWS)]
    return 2 * len(np.unique(sample)) <= len(sample)


def _differs(values: pa.Array) -> bool:
    """Returns whether nearly all values of a batch are different, judging by a sample."""
    if len(values) <= TOP_VALUES_BUCKETS or pa.types.is_floating(values.type):
        return False
    sample = values.take(pa.array(np.arange(_SAMPLE_ROWS) * (len(values) // _SAMPLE_ROWS)))
    return bool(len(np.unique(hashes_of(pc.drop_null(sample), LARGE_BYTES))) > _SAMPLE_ROWS * 15 // 16)

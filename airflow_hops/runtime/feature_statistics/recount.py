"""Exact top values of features with very many distinct ones, by a second look at those columns.

A Misra-Gries sketch of k buckets keeps every value that more than one row in k has, but not how often (Misra and Gries,
1982): what it keeps are candidates. Where a feature has more distinct values than buckets, the candidates are counted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import tensorflow_data_validation as tfdv
from tensorflow_data_validation import constants, types
from tensorflow_data_validation.arrow import arrow_util
from tensorflow_data_validation.statistics.generators.stats_generator import CombinerStatsGenerator
from tensorflow_data_validation.utils import top_k_uniques_stats_util
from tensorflow_metadata.proto.v0 import statistics_pb2
from tfx_bsl.arrow import array_util

from airflow_hops.runtime.feature_statistics.combiners import Accumulator, Combiners
from airflow_hops.runtime.feature_statistics.sketches import LARGE_BYTES, TOP_VALUES_BUCKETS, CountedTopValues

Candidates = Mapping[types.FeaturePath, pa.Array]
_LARGE, _NOT_TEXT = constants.LARGE_BYTES_PLACEHOLDER.encode(), constants.NON_UTF8_PLACEHOLDER.encode()


def candidates(combiners: Combiners, accumulator: Accumulator) -> dict[types.FeaturePath, pa.Array]:
    """The values to be counted, of the features whose sketch was too small to have counted them itself."""
    found: dict[types.FeaturePath, set[Any]] = {}
    for part in accumulator.slices.values():
        for generator, sketches in zip(combiners.generators, part.parts, strict=True):
            if isinstance(generator, CountedTopValues):
                for path, sketch in sketches.items():
                    kept = sketch._topk_unweighted.Estimate().field(0)
                    if len(kept) >= TOP_VALUES_BUCKETS:
                        found.setdefault(path, set()).update(kept.to_pylist())
    return {path: pa.array(sorted(values - {_LARGE, _NOT_TEXT})) for path, values in found.items()}


def columns(found: Collection[types.FeaturePath], options: tfdv.StatsOptions) -> set[str] | None:
    """The columns that counting takes: those of the features and their weights; None for all, where slices look."""
    if options.experimental_slice_functions or options.experimental_slice_sqls or options.slicing_config:
        return None
    return {path.steps()[0] for path in found} | set(options.example_weight_map.all_weight_features())


class CandidateCounts(CombinerStatsGenerator):
    """Counts given values; what it extracts has top values and rank histograms alone.

    Args:
        found: Values to count, by feature.
        options: ``StatsOptions``.
    """

    def __init__(self, found: Candidates, options: tfdv.StatsOptions) -> None:
        super().__init__("CandidateCounts")
        self._values = dict(found)
        self._options = options

    def create_accumulator(self) -> dict[types.FeaturePath, list[np.ndarray]]:
        """No counts."""
        return {}

    def add_input(self, accumulator: Any, batch: pa.RecordBatch) -> Any:
        """Counts the values of a batch."""
        weights_of = self._options.example_weight_map
        for path, array, weights in arrow_util.enumerate_arrays(batch, weights_of, enumerate_leaves_only=True):
            if path not in self._values:
                continue
            flat, rows = array_util.flatten_nested(array, weights is not None)
            found = [_count(flat, self._values[path], None)]
            if weights is not None:
                found.append(_count(flat, self._values[path], weights[rows].astype(np.float64)))
            before = accumulator.get(path)
            accumulator[path] = found if before is None else [a + b for a, b in zip(before, found, strict=True)]
        return accumulator

    def merge_accumulators(self, accumulators: Iterable[Any]) -> Any:
        """Adds the counts up."""
        merged: dict[types.FeaturePath, list[np.ndarray]] = {}
        for accumulator in accumulators:
            for path, found in accumulator.items():
                before = merged.get(path)
                merged[path] = found if before is None else [a + b for a, b in zip(before, found, strict=True)]
        return merged

    def extract_output(self, accumulator: Any) -> statistics_pb2.DatasetFeatureStatistics:
        """Top values and rank histograms, as TFDV makes them of counted values."""
        result = statistics_pb2.DatasetFeatureStatistics()
        options = self._options
        for path, counts in accumulator.items():
            listed = [_most_frequent(self._values[path], found, options) for found in counts]
            feature = top_k_uniques_stats_util.make_feature_stats_proto_topk_uniques(
                feature_path=path,
                num_top_values=options.num_top_values,
                num_rank_histogram_buckets=options.num_rank_histogram_buckets,
                num_unique=0,
                value_count_list=listed[0],
                weighted_value_count_list=listed[1] if len(listed) > 1 else None,
                frequency_threshold=options.frequency_threshold,
                weighted_frequency_threshold=options.weighted_frequency_threshold,
            )
            result.features.add().CopyFrom(feature)
        return result


def replace_top_values(
    statistics: statistics_pb2.DatasetFeatureStatisticsList, counted: statistics_pb2.DatasetFeatureStatisticsList
) -> None:
    """Puts counted top values and rank histograms in the place of sketched ones."""
    exact = {dataset.name: {tuple(f.path.step): f for f in dataset.features} for dataset in counted.datasets}
    for dataset in statistics.datasets:
        for feature in dataset.features:
            found = exact.get(dataset.name, {}).get(tuple(feature.path.step))
            # The generator's own protos have paths; a name alone would be a feature of no path.
            if found is None or feature.string_stats.unique < TOP_VALUES_BUCKETS:
                continue
            ours, theirs = feature.string_stats, found.string_stats
            _replace(ours, theirs)
            if theirs.HasField("weighted_string_stats"):
                _replace(ours.weighted_string_stats, theirs.weighted_string_stats)


def _count(flat: pa.Array, values: pa.Array, weights: np.ndarray | None) -> np.ndarray:
    """How often each of the values occurs, then the large ones, then those that are not UTF-8, or their weights."""
    index = pc.index_in(flat, values.cast(flat.type))
    kind = np.array(pc.fill_null(index, -1))
    if arrow_util.is_binary_like(flat.type):
        unknown = np.flatnonzero(kind < 0)
        others = flat.take(pa.array(unknown))
        large = np.asarray(pc.greater(pc.binary_length(others), LARGE_BYTES))
        kind[unknown[large]] = len(values)
        if weights is None and array_util.CountInvalidUTF8(others):
            text = [array_util.CountInvalidUTF8(others.slice(i, 1)) == 0 for i in range(len(others))]
            kind[unknown[~large & ~np.array(text)]] = len(values) + 1
    listed = kind >= 0
    counted: np.ndarray = np.bincount(
        kind[listed], None if weights is None else weights[listed], minlength=len(values) + 2
    )
    return counted


def _replace(ours: Any, theirs: Any) -> None:
    ours.ClearField("top_values")
    ours.top_values.extend(theirs.top_values)
    ours.rank_histogram.CopyFrom(theirs.rank_histogram)


def _most_frequent(values: pa.Array, counts: np.ndarray, options: tfdv.StatsOptions) -> list[Any]:
    wanted = max(options.num_top_values, options.num_rank_histogram_buckets)
    # Of equally frequent values TFDV lists the greater first.
    order = np.lexsort((-np.arange(len(counts)), -counts))[:wanted]
    order = order[counts[order] > 0]
    named = [*values.to_pylist(), _LARGE, _NOT_TEXT]
    names = [named[index] for index in order]
    return [
        top_k_uniques_stats_util.FeatureValueCount(name, count)
        for name, count in zip(names, counts[order].tolist(), strict=True)
    ]

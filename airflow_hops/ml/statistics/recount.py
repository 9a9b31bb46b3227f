"""Counts the top values of features with very many distinct values, by a second pass over those columns.

A Misra-Gries sketch of k buckets keeps every value of more than 1/k of the rows, but not its count (Misra and Gries,
1982). If a feature has more distinct values than buckets, the values kept are candidates, which are counted here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import tensorflow_data_validation as tfdv
from tensorflow_data_validation import types
from tensorflow_data_validation.arrow import arrow_util
from tensorflow_data_validation.statistics.generators.stats_generator import CombinerStatsGenerator
from tensorflow_data_validation.utils import top_k_uniques_stats_util
from tensorflow_metadata.proto.v0 import statistics_pb2
from tfx_bsl.arrow import array_util

from airflow_hops.core.versions import has_slices
from airflow_hops.ml.statistics.combiners import Accumulator, Combiners
from airflow_hops.ml.statistics.frequent_hashes import hashes_of
from airflow_hops.ml.statistics.sketches import TOP_VALUES_BUCKETS, CountedTopValues
from airflow_hops.ml.statistics.value_counts import (
    LARGE_BYTES,
    ValueCounts,
    most_frequent,
    named,
    rows_listed_together,
)

_MOST_PARTS = 32


def candidates(combiners: Combiners, accumulator: Accumulator) -> dict[types.FeaturePath, np.ndarray]:
    """Returns hashes (uint64) of the values to count, for features whose sketch was too small to count them."""
    results: dict[types.FeaturePath, list[np.ndarray]] = {}
    for part in accumulator.slices.values():
        for generator, sketches in zip(combiners.generators, part.parts, strict=True):
            if isinstance(generator, CountedTopValues):
                for path, sketch in sketches.items():
                    if not (sketch.is_exact or sketch.listed or pa.types.is_floating(sketch.kind)):
                        results.setdefault(path, []).append(sketch.candidates())
    return {path: np.unique(np.concatenate(hashes)) for path, hashes in results.items()}


def columns(found: Collection[types.FeaturePath], options: tfdv.StatsOptions) -> set[str] | None:
    """Returns the columns to read: the features and their weights; None for all features, with slices."""
    if has_slices(options):
        return None
    return {path.steps()[0] for path in found} | set(options.example_weight_map.all_weight_features())


class CandidateCounts(CombinerStatsGenerator):
    """Counts values by their hashes (uint64, ascending); its output has only top values and rank histograms."""

    def __init__(self, found: Mapping[types.FeaturePath, np.ndarray], options: tfdv.StatsOptions) -> None:
        super().__init__("CandidateCounts")
        self._hashes = dict(found)
        self._options = options

    def create_accumulator(self) -> dict[types.FeaturePath, list[ValueCounts]]:
        """Returns no counts."""
        return {}

    def add_input(self, accumulator: Any, batch: pa.RecordBatch) -> Any:
        """Counts the values of a batch."""
        weights_of = self._options.example_weight_map
        for path, array, weights in arrow_util.enumerate_arrays(batch, weights_of, enumerate_leaves_only=True):
            if path in self._hashes:
                flat, rows = array_util.flatten_nested(array, weights is not None)
                there = np.flatnonzero(np.asarray(flat.is_valid()))
                known = pc.drop_null(flat)
                chosen = self._chosen(path, known)
                counts = [np.ones(len(chosen))]
                if weights is not None:
                    counts.append(weights[rows[there[chosen]]].astype(np.float64))
                parts = accumulator.setdefault(path, [])
                parts.append(ValueCounts.of(named(known.take(pa.array(chosen))), np.stack(counts)))
                if len(parts) == _MOST_PARTS:
                    accumulator[path] = [ValueCounts.sum(parts)]
        return accumulator

    def merge_accumulators(self, accumulators: Iterable[Any]) -> Any:
        """Adds counts."""
        merged: dict[types.FeaturePath, list[ValueCounts]] = {}
        for accumulator in accumulators:
            for path, parts in accumulator.items():
                merged[path] = [ValueCounts.sum([*merged.get(path, ()), *parts])]
        return merged

    def extract_output(self, accumulator: Any) -> statistics_pb2.DatasetFeatureStatistics:
        """Returns top values and rank histograms, in TFDV's form."""
        result = statistics_pb2.DatasetFeatureStatistics()
        options = self._options
        wanted = max(options.num_top_values, options.num_rank_histogram_buckets)
        for path, parts in accumulator.items():
            results = ValueCounts.sum(parts)
            listed = [most_frequent(results.values, counts, wanted) for counts in results.counts]
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

    def _chosen(self, path: types.FeaturePath, values: pa.Array) -> np.ndarray:
        """Returns the rows of candidates, and of values that are large or not UTF-8, which are counted together."""
        chosen = np.flatnonzero(np.isin(hashes_of(values, LARGE_BYTES), self._hashes[path]))
        return np.union1d(chosen, rows_listed_together(values))


def replace_top_values(
    statistics: statistics_pb2.DatasetFeatureStatisticsList, counted: statistics_pb2.DatasetFeatureStatisticsList
) -> None:
    """Replaces sketched top values and rank histograms with counted ones."""
    exact = {dataset.name: {tuple(f.path.step): f for f in dataset.features} for dataset in counted.datasets}
    for dataset in statistics.datasets:
        for feature in dataset.features:
            result = exact.get(dataset.name, {}).get(tuple(feature.path.step))
            # Matched by path: the generators' protos have paths instead of names.
            if result is None or feature.string_stats.unique < TOP_VALUES_BUCKETS:
                continue
            ours, theirs = feature.string_stats, result.string_stats
            _replace(ours, theirs)
            if theirs.HasField("weighted_string_stats"):
                _replace(ours.weighted_string_stats, theirs.weighted_string_stats)


def _replace(ours: Any, theirs: Any) -> None:
    ours.ClearField("top_values")
    ours.top_values.extend(theirs.top_values)
    ours.rank_histogram.CopyFrom(theirs.rank_histogram)

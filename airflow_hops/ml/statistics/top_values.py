"""Top values and the number of distinct values of a feature: exact while they fit, and the same on any number of cores.

As many distinct values are kept as for :mod:`~airflow_hops.ml.statistics.quantiles`, of at most 64 bytes on average.
Beyond that, the most frequent quarter is kept, and the number of distinct values is estimated by TFDV's own sketch of
16,384 minima (Beyer et al., 2007: a standard error of 0.8%). The count of a value that was dropped in some part of the
rows is too low: by at most 1 in as many rows as values are kept, for each time that the rows were cut.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tensorflow_data_validation import constants
from tensorflow_data_validation.statistics.generators.top_k_uniques_sketch_stats_generator import (
    TopKUniquesSketchStatsGenerator,
)
from tensorflow_data_validation.utils import stats_util, top_k_uniques_stats_util
from tensorflow_metadata.proto.v0 import statistics_pb2
from tfx_bsl import sketches
from tfx_bsl.arrow import array_util

from airflow_hops.ml.statistics.quantiles import PROBED

LARGE_BYTES = 1024
"""Bytes above which values are listed together, as in TFDV's own sketches."""
_MEAN_BYTES = 64
_MINIMA = 16_384
_LARGE = b"\xff\x00large:"
"""Prefix, not of UTF-8, of the digest that stands for a large value."""


class Frequencies:
    """Distinct values, as bytes, with their counts or weights; can be pickled.

    Args:
        most: Number of distinct values above which only the most frequent are kept.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._parts: list[tuple[pa.Array, np.ndarray]] = []
        self._held, self._bytes, self._is_summed = 0, 0, True
        self._distinct: sketches.KmvSketch | None = None

    def add(self, values: pa.Array, counts: np.ndarray) -> None:
        """Adds values, which may repeat, with their counts or weights; numbers are counted as text."""
        if len(values):
            values = _short(values)
            repeat = len(values[:PROBED].unique()) <= PROBED // 2
            # A slice would keep, and send to other processes, the values of its whole table.
            own = _summed(values, counts) if repeat else (pa.concat_arrays([values]), counts)
            self._append(*own, is_summed=repeat)

    def merge(self, other: Frequencies) -> None:
        """Adds those of later rows."""
        if other._distinct is not None:
            self._sketch().Merge(other._distinct)
        for values, counts in other._parts:
            self._append(values, counts, is_summed=other._is_summed, is_sketched=other._distinct is not None)

    def unique(self) -> int:
        """Returns the number of distinct values."""
        self.compact()
        if self._distinct is not None:
            return int(self._distinct.Estimate())
        return len(self._parts[0][0]) if self._parts else 0

    def most_frequent(self, wanted: int) -> list[Any]:
        """Returns the ``wanted`` most frequent values; large ones together, and those that are not UTF-8."""
        self.compact()
        if not self._parts:
            return []
        values, counts = _listed_together(*self._parts[0])
        # Among equally frequent values, TFDV lists the greater first.
        order = [("count", "descending"), ("value", "descending")]
        listed = pc.select_k_unstable(pa.table({"value": values, "count": counts}), min(wanted, len(values)), order)
        pairs = zip(values.take(listed).to_pylist(), counts[np.asarray(listed)].tolist(), strict=True)
        return [top_k_uniques_stats_util.FeatureValueCount(value, count) for value, count in pairs]

    def _append(
        self, values: pa.Array, counts: np.ndarray, *, is_summed: bool = True, is_sketched: bool = False
    ) -> None:
        self._is_summed = is_summed and not self._parts
        if self._distinct is not None and not is_sketched:
            self._distinct.AddValues(values)
        self._parts.append((values, counts))
        self._held += len(values)
        self._bytes += _text_bytes(values)
        if self._is_full():
            self.compact()

    def _is_full(self) -> bool:
        return self._held > self._most or self._bytes > self._most * _MEAN_BYTES

    def compact(self) -> None:
        """Sums the counts of equal values."""
        if not self._is_summed:
            values = pa.concat_arrays([values for values, _ in self._parts])
            self._replace(*_summed(values, np.concatenate([counts for _, counts in self._parts])))
        if self._is_full():
            self._sketch()
            values, counts = _listed_together(*self._parts[0])
            # Among equally frequent values, the first ones stay.
            frequent = np.argsort(-counts, kind="stable")[: self._most // 4]
            ends = np.cumsum(np.asarray(pc.binary_length(values))[frequent])
            frequent = np.sort(frequent[ends <= self._most * _MEAN_BYTES // 4])
            self._replace(values.take(pa.array(frequent)), counts[frequent])

    def _replace(self, values: pa.Array, counts: np.ndarray) -> None:
        self._parts, self._held, self._bytes = [(values, counts)], len(values), _text_bytes(values)
        self._is_summed = True

    def _sketch(self) -> sketches.KmvSketch:
        """Returns the sketch of the number of distinct values, after adding those that are kept."""
        if self._distinct is None:
            self._distinct = sketches.KmvSketch(_MINIMA)
            for values, _ in self._parts:
                self._distinct.AddValues(values)
        return self._distinct


class TopValues(TopKUniquesSketchStatsGenerator):
    """TFDV's generator of top values and numbers of distinct values, with :class:`Frequencies` as its state.

    Args:
        options: ``tensorflow_data_validation.StatsOptions``.
        most: As in :class:`Frequencies`; raised if the options list more values.
    """

    def __init__(self, options: Any, most: int) -> None:
        super().__init__(
            schema=options.schema,
            example_weight_map=options.example_weight_map,
            num_top_values=options.num_top_values,
            num_rank_histogram_buckets=options.num_rank_histogram_buckets,
            frequency_threshold=options.frequency_threshold,
            weighted_frequency_threshold=options.weighted_frequency_threshold,
            # Disables reporting of value lengths to Beam's metrics, as there is no Beam.
            length_counter_sampling_rate=-1.0,
        )
        self._wanted = max(options.num_top_values, options.num_rank_histogram_buckets)
        self._most = max(most, 4 * self._wanted)

    def _update_combined_sketch_for_feature(
        self, feature_name: Any, values: pa.Array, weights: Any, accumulator: dict[Any, Any]
    ) -> None:
        if feature_name not in accumulator:
            accumulator[feature_name] = Frequencies(self._most), Frequencies(self._most)
        counts, weighted = accumulator[feature_name]
        flat, rows = array_util.flatten_nested(values, weights is not None)
        known = flat.drop_null()
        counts.add(known, np.ones(len(known), np.int64))
        if weights is not None:
            # TFDV 1.16: its sketch takes float32.
            weighted.add(known, weights[rows[np.asarray(flat.is_valid())]].astype(np.float32).astype(np.float64))

    def merge_accumulators(self, accumulators: Any) -> dict[object, object]:
        """Adds those of later rows to the first."""
        merged, *others = accumulators
        for other in others:
            for path, of_path in other.items():
                if path in merged:
                    for mine, theirs in zip(merged[path], of_path, strict=True):
                        mine.merge(theirs)
                else:
                    merged[path] = of_path
        return merged  # type: ignore[no-any-return]

    def compact(self, accumulator: dict[Any, Any]) -> dict[object, object]:
        """Sums the counts of equal values of each feature."""
        for counts, weighted in accumulator.values():
            counts.compact()
            weighted.compact()
        return accumulator

    def extract_output(self, accumulator: dict[Any, Any]) -> statistics_pb2.DatasetFeatureStatistics:
        """Returns top values, rank histograms and numbers of distinct values."""
        result = statistics_pb2.DatasetFeatureStatistics()
        for path, (counts, weighted) in accumulator.items():
            if unique := counts.unique():
                feature = top_k_uniques_stats_util.make_feature_stats_proto_topk_uniques(
                    feature_path=path,
                    num_top_values=self._num_top_values,
                    num_rank_histogram_buckets=self._num_rank_histogram_buckets,
                    num_unique=unique,
                    value_count_list=counts.most_frequent(self._wanted),
                    weighted_value_count_list=weighted.most_frequent(self._wanted),
                    frequency_threshold=self._frequency_threshold,
                    weighted_frequency_threshold=self._weighted_frequency_threshold,
                )
                result.features.add().CopyFrom(feature)
        return result


def _summed(values: pa.Array, counts: np.ndarray) -> tuple[pa.Array, np.ndarray]:
    """Returns the distinct values in the order of their first row, with the sums of their counts."""
    encoded = values.dictionary_encode()
    index, size = np.asarray(encoded.indices), len(encoded.dictionary)
    return encoded.dictionary, np.bincount(index, counts, size)


def _text_bytes(values: pa.Array) -> int:
    return int(pc.sum(pc.binary_length(values)).as_py() or 0)


def _short(values: pa.Array) -> pa.Array:
    """Returns values as bytes, and digests of large ones, so that memory does not depend on them."""
    if pa.types.is_integer(values.type) or pa.types.is_floating(values.type):
        values = values.cast(pa.large_string())
    values = values.cast(pa.large_binary())
    large = pc.greater(pc.binary_length(values), LARGE_BYTES)
    if not pc.any(large).as_py():
        return values
    rows = np.flatnonzero(large).tolist()
    digests = [_LARGE + hashlib.sha256(values[row].as_buffer()).digest() for row in rows]
    return pc.replace_with_mask(values, large, pa.array(digests, values.type))


def _listed_together(values: pa.Array, counts: np.ndarray) -> tuple[pa.Array, np.ndarray]:
    """Counts large values together, and those that are not UTF-8."""
    if not array_util.CountInvalidUTF8(values):
        return values, counts
    return _summed(pa.array(map(_listed, values.to_pylist()), values.type), counts)


def _listed(value: bytes) -> bytes:
    """Returns the value that TFDV lists: a placeholder for those that are large or not UTF-8."""
    if value.startswith(_LARGE):
        return bytes(constants.LARGE_BYTES_PLACEHOLDER, "ascii")
    is_text = stats_util.maybe_get_utf8(value) is not None
    return value if is_text else bytes(constants.NON_UTF8_PLACEHOLDER, "ascii")

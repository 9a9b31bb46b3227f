"""Lift: how much more often a label has a value where a feature has one; TFDV's ``LiftStatsGenerator`` without Beam.

The lift of a value x of a feature and a value y of the label is ``P(Y = y | X = x) / P(Y = y)``; it is 1 if they are
independent. Of a feature with several values per example, ``X = x`` means that x is among them. TFDV computes it by
joins between Beam collections of single values; here each batch becomes a small table of counts, and tables add up.

This module imports TFDV; import it inside functions.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from tensorflow_data_validation import constants, types
from tensorflow_data_validation.arrow import arrow_util
from tensorflow_data_validation.statistics.generators.stats_generator import CombinerStatsGenerator
from tensorflow_data_validation.utils import bin_util, schema_util, stats_util
from tensorflow_data_validation.utils.example_weight_map import ExampleWeightMap
from tensorflow_metadata.proto.v0 import statistics_pb2

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.ml.statistics.pair_counts import (
    MAX_PAIRS,
    LiftAccumulator,
    PairCounts,
    Presence,
    presence,
    string_features,
)

log = logging.getLogger(__name__)

MAX_LABEL_VALUES = 1_000
"""Distinct values of a label; one with more is no category."""


class LiftGenerator(CombinerStatsGenerator):  # type: ignore[misc]
    """Computes what ``tensorflow_data_validation``'s ``LiftStatsGenerator`` computes, as a combiner.

    Integers and strings have lift; a label of floats has it in buckets. Values of weight zero have none. A feature with
    more than :data:`MAX_PAIRS` pairs with the label's values, or :data:`MAX_BYTES` of them, is left out, which is
    logged: that bounds the memory.

    Args:
        label: Path of the label.
        schema: Which features are categories; without it every string is one, and so are a label's integers.
        features: Paths of the features; None for all categories but the label.
        boundaries: Of the buckets of a numeric label: b of them make b + 1 buckets.
        min_count: Examples (or weight) that a feature's value must exceed to be told of.
        top_values: Values of the highest lift to keep for each value of the label; None for all.
        bottom_values: Values of the lowest lift to keep; None for all.
        weights: Which column weighs which feature; with one, lift over weights is told beside lift over examples.
        custom_statistics: Whether to give each feature its lift as a ``CustomStatistic`` as well, as Facets draws it.

    Raises:
        BadInput: the schema has no such label, or boundaries are given for a category, or none for a number.
    """

    def __init__(
        self,
        label: types.FeaturePath,
        *,
        schema: Any = None,
        features: Iterable[types.FeaturePath] | None = None,
        boundaries: Iterable[float] | None = None,
        min_count: float = 0,
        top_values: int | None = None,
        bottom_values: int | None = None,
        weights: ExampleWeightMap | None = None,
        custom_statistics: bool = True,
    ) -> None:
        super().__init__("LiftGenerator", schema)
        self._label = label
        self._boundaries = np.array(sorted(set(boundaries))) if boundaries else None
        self._min_count, self._top, self._bottom = min_count, top_values, bottom_values
        self._weights = weights or ExampleWeightMap()
        self._views = 2 if self._weights.all_weight_features() else 1
        self._custom_statistics = custom_statistics
        self._features = None if features is None else sorted(set(features))
        if schema is not None:
            self._check_label(schema)
            if features is None:
                self._features = sorted(schema_util.get_categorical_features(schema) - {label})

    def create_accumulator(self) -> LiftAccumulator:
        """An accumulator of no examples."""
        return LiftAccumulator(np.zeros((self._views, 0)))

    def add_input(self, accumulator: LiftAccumulator, batch: pa.RecordBatch) -> LiftAccumulator:
        """Takes in a batch whose columns are lists.

        Raises:
            BadInput: the label is no category, or has too many values.
        """
        accumulator.examples += batch.num_rows
        accumulator.label_seen |= batch.schema.get_field_index(self._label.steps()[0]) >= 0
        label = presence(batch, self._label, self._boundaries, is_label=True)
        if label is None:
            label = Presence(np.zeros(0, np.int64), np.zeros(0, np.int64), [])
        width = len(label.values)
        self._check_label_values(width)
        counted = [np.bincount(label.codes, w, width) for w in self._row_weights(batch, self._label, label.rows)]
        index = accumulator.add_label(label.values, np.array(counted))
        self._check_label_values(len(accumulator.label_values))
        for path in self._features if self._features is not None else string_features(batch, self._label):
            if accumulator.pairs.get(path, ...) is None:
                continue
            feature = presence(batch, path)
            if feature is None:
                continue
            if len(feature.values) * width > MAX_PAIRS:
                accumulator.leave_out(path)
                continue
            counts = self._count_pairs(batch, path, feature, label)
            self._add_pairs(accumulator, path, feature.values, counts, index)
        return accumulator

    def merge_accumulators(self, accumulators: Iterable[LiftAccumulator]) -> LiftAccumulator:
        """Adds the others to the first."""
        merged, *others = accumulators
        for other in others:
            merged.examples += other.examples
            merged.label_seen |= other.label_seen
            index = merged.add_label(list(other.label_values), other.label_counts)
            self._check_label_values(len(merged.label_values))
            for path, pairs in other.pairs.items():
                if pairs is None:
                    merged.leave_out(path)
                elif merged.pairs.get(path, ...) is not None:
                    counts = pairs.counts[:, : len(pairs.values)]
                    known = index[: counts.shape[2] - 1]
                    self._add_pairs(merged, path, list(pairs.values), counts, known)
        return merged

    def extract_output(self, accumulator: LiftAccumulator) -> statistics_pb2.DatasetFeatureStatistics:
        """The lift of every feature as ``cross_features``.

        Raises:
            BadInput: no batch had the label.
        """
        result = statistics_pb2.DatasetFeatureStatistics()
        if not accumulator.examples:
            return result
        if not accumulator.label_seen:
            raise BadInput(f"label feature {str(self._label)!r}: there is no such column")
        for path in sorted(accumulator.pairs):
            pairs = accumulator.pairs[path]
            if pairs is None or pairs.is_too_large(len(accumulator.label_values)):
                log.warning("Feature %r has too many values for a meaningful lift, so none is computed", str(path))
            else:
                self._write(result, path, pairs, accumulator)
        return result

    def _check_label(self, schema: Any) -> None:
        try:
            label = schema_util.get_feature(schema, self._label)
        except ValueError as error:
            raise BadInput(f"label feature {str(self._label)!r} is not in the schema") from error
        if schema_util.is_categorical_feature(label) == (self._boundaries is not None):
            raise BadInput(
                f"label feature {str(self._label)!r} is a category in the schema: it has no boundaries"
                if self._boundaries is not None
                else f"label feature {str(self._label)!r} is a number in the schema, expected a category (a string, a "
                "bool_domain, or an int_domain with is_categorical) or boundaries of buckets"
            )

    def _check_label_values(self, count: int) -> None:
        if count > MAX_LABEL_VALUES:
            raise BadInput(
                f"label feature {str(self._label)!r} has more than {MAX_LABEL_VALUES:,} distinct values, expected a "
                "category; for a number, give boundaries of buckets"
            )

    def _row_weights(self, batch: pa.RecordBatch, path: types.FeaturePath, rows: Any) -> list[Any]:
        """For each view the weights at ``rows``; None counts them."""
        if self._views == 1:
            return [None]
        column = self._weights.get(path)
        return [None, None if column is None else arrow_util.get_weight_feature(batch, column)[rows]]

    def _count_pairs(self, batch: pa.RecordBatch, path: types.FeaturePath, feature: Presence, label: Presence) -> Any:
        """Counts ``[views, values, 1 + label values]`` of one batch."""
        width = 1 + len(label.values)
        per_row = np.bincount(label.rows, minlength=batch.num_rows)
        first = np.cumsum(per_row) - per_row
        repeats = per_row[feature.rows]
        pair = np.repeat(np.arange(len(feature.rows)), repeats)
        nth = np.arange(len(pair)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
        label_code = label.codes[first[feature.rows[pair]] + nth]
        cells = np.concatenate([feature.codes * width, feature.codes[pair] * width + 1 + label_code])
        views = [
            np.bincount(cells, None if weights is None else np.concatenate([weights, weights[pair]]), width * height)
            for height in (len(feature.values),)
            for weights in self._row_weights(batch, path, feature.rows)
        ]
        return np.array(views).reshape(self._views, len(feature.values), width)

    def _add_pairs(
        self, accumulator: LiftAccumulator, path: types.FeaturePath, values: Sequence[Any], counts: Any, index: Any
    ) -> None:
        label_values = len(accumulator.label_values)
        pairs = accumulator.pairs.setdefault(path, PairCounts({}, np.zeros((self._views, 0, 1))))
        assert pairs is not None
        pairs.add(values, counts, index, label_values)
        if pairs.is_too_large(label_values):
            accumulator.leave_out(path)

    def _write(self, result: Any, path: types.FeaturePath, pairs: PairCounts, accumulator: LiftAccumulator) -> None:
        labels = sorted((value, index) for value, index in accumulator.label_values.items())
        values = sorted(pairs.values)
        ordered = pairs.counts[:, [pairs.values[value] for value in values]]
        cross, custom = None, None
        for view in range(self._views):
            keep = np.flatnonzero((ordered[view, :, 0] > self._min_count) | (not self._min_count))
            keep = keep[ordered[view, keep, 0] != 0]
            counts = ordered[view, keep]
            for label, index in labels:
                label_count = accumulator.label_counts[view, index]
                if not len(keep) or not label_count:
                    continue
                if cross is None:
                    cross = result.cross_features.add(path_x=path.to_proto(), path_y=self._label.to_proto())
                    custom = result.features.add(path=path.to_proto()) if self._custom_statistics else None
                both = counts[:, 1 + index] if 1 + index < counts.shape[1] else np.zeros(len(counts))
                lift = (both / counts[:, 0]) / (label_count / accumulator.examples)
                series = cross.categorical_cross_stats.lift.lift_series.add()
                shown = self._write_label(series, label)
                _set_count(series, "y_count", label_count, view)
                buckets = custom.custom_stats.add(name=f"Lift (Y={shown})").rank_histogram.buckets if custom else None
                for row in self._ranked(lift):
                    _write_value(series, values[keep[row]], lift[row], counts[row, 0], both[row], view, buckets)

    def _write_label(self, series: Any, label: Any) -> str:
        """Sets the label's value; returns how it is shown."""
        if self._boundaries is not None:
            low, high = bin_util.get_boundaries(label, self._boundaries)
            series.y_bucket.low_value, series.y_bucket.high_value = low, high
            return f"[{low},{high}{']' if high == np.inf else ')'}"
        if isinstance(label, bytes):
            series.y_string = _text(label)
            return str(series.y_string)
        series.y_int = label
        return str(label)

    def _ranked(self, lift: Any) -> Any:
        """Indexes by descending lift, then by value: all of them, or the highest and the lowest."""
        rank = np.arange(len(lift))
        order = np.lexsort((rank, -lift))
        if not self._top and not self._bottom:
            return order
        chosen = np.zeros(len(lift), bool)
        chosen[np.lexsort((-rank, -lift))[: self._top or 0]] = True
        chosen[np.lexsort((rank, lift))[: self._bottom or 0]] = True
        return order[chosen[order]]


def lift_generator(options: Any) -> LiftGenerator:
    """The combiner for what TFDV computes where ``StatsOptions`` has a ``label_feature`` and a schema.

    Raises:
        BadInput: the label is not in the schema, or no category there.
    """
    return LiftGenerator(
        types.FeaturePath([options.label_feature]), schema=options.schema, weights=options.example_weight_map
    )


def _write_value(series: Any, value: Any, lift: float, count: float, both: float, view: int, buckets: Any) -> None:
    written = series.lift_values.add(lift=lift)
    _set_count(written, "x_count", count, view)
    _set_count(written, "x_and_y_count", both, view)
    if isinstance(value, bytes):
        written.x_string = _text(value)
    else:
        written.x_int = value
    if buckets is not None:
        buckets.add(label=written.x_string if isinstance(value, bytes) else str(value), sample_count=lift)


def _set_count(proto: Any, name: str, count: float, view: int) -> None:
    if view:
        setattr(proto, f"weighted_{name}", count)
    else:
        setattr(proto, name, int(count))


def _text(value: bytes) -> str:
    text = stats_util.maybe_get_utf8(value)
    return constants.NON_UTF8_PLACEHOLDER if text is None else str(text)

"""Lift of feature values for label values: TFDV's ``LiftStatsGenerator`` without Beam.

The lift of a feature's value x and a label's value y is ``P(Y = y | X = x) / P(Y = y)``; it is 1 if they are
independent. If a feature has several values per example, ``X = x`` means that x is among them. TFDV joins Beam
collections of single values; here each batch becomes a small table of counts, and tables are added.

This module imports TFDV; import it inside functions.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from tensorflow_data_validation import constants, types
from tensorflow_data_validation.arrow import arrow_util
from tensorflow_data_validation.statistics.generators.stats_generator import CombinerStatsGenerator
from tensorflow_data_validation.utils import bin_util, schema_util, stats_util
from tensorflow_data_validation.utils.example_weight_map import ExampleWeightMap
from tensorflow_metadata.proto.v0 import statistics_pb2
from tfx_bsl.arrow import array_util, table_util
from tfx_bsl.arrow import path as arrow_path

from airflow_hops.core.contract.artifacts import BadInput

log = logging.getLogger(__name__)

MAX_LABEL_VALUES = 1_000
"""Maximum number of distinct label values; a label with more is not a category."""

MAX_PAIRS = 200_000
"""Maximum pairs of a feature's and the label's distinct values; features with more are skipped, as each is too rare."""

MAX_BYTES = 16 << 20
"""Maximum bytes of a feature's distinct values, times the label's values; features with more are skipped."""

_TYPES = statistics_pb2.FeatureNameStatistics
_PREFIXES = {"count": "", "weight": "weighted_"}


@dataclass
class LiftCounts:
    """Counts of the examples added so far; can be pickled.

    Each table has a column ``count`` and, if there are weights, ``weight``.

    Attributes:
        labels: Table by label value.
        values: Tables by feature value, by the feature's path; None for a skipped feature.
        pairs: Tables by feature value and label value, by path.
        examples: Number of examples.
        label_seen: Whether a batch had the label's column.
    """

    labels: pd.DataFrame
    values: dict[types.FeaturePath, pd.DataFrame | None] = field(default_factory=dict)
    pairs: dict[types.FeaturePath, pd.DataFrame] = field(default_factory=dict)
    examples: int = 0
    label_seen: bool = False


class LiftGenerator(CombinerStatsGenerator):
    """Combiner that computes the output of ``tensorflow_data_validation``'s ``LiftStatsGenerator``.

    Integers and strings have lift; a label of floats has it in buckets. Values of weight zero have none. To bound
    memory, features with more than :data:`MAX_PAIRS` or :data:`MAX_BYTES` are skipped and logged.

    Args:
        label: Path of the label.
        schema: Determines which features are categories; by default all strings are, and the label's integers.
        features: Paths of the features; None for all categories except the label.
        boundaries: Boundaries of a numeric label's buckets: b of them make b + 1 buckets.
        min_count: Number of examples (or weight) that a reported value must exceed.
        top_values: Number of values with the highest lift per label value; None for all.
        bottom_values: Number of values with the lowest lift per label value; None for all.
        weights: Weight columns by feature; with weights, lift is reported both by weights and by examples.

    Raises:
        BadInput: the schema lacks the label, a category has boundaries, or a numeric label has none.
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
    ) -> None:
        super().__init__("LiftGenerator", schema)
        self._label = label
        self._boundaries = np.array(sorted(set(boundaries))) if boundaries else None
        self._min_count, self._top, self._bottom = min_count, top_values, bottom_values
        self._weights = weights or ExampleWeightMap()
        self._columns = ["count", "weight"] if self._weights.all_weight_features() else ["count"]
        self._features = None if features is None else sorted(set(features))
        if schema is None:
            return
        try:
            feature = schema_util.get_feature(schema, label)
        except ValueError as error:
            raise BadInput(f"label feature {str(label)!r} is not in the schema") from error
        if schema_util.is_categorical_feature(feature) == (self._boundaries is not None):
            raise BadInput(
                f"label feature {str(label)!r} is a category in the schema: it has no boundaries"
                if self._boundaries is not None
                else f"label feature {str(label)!r} is a number in the schema, expected a category (a string, a "
                "bool_domain, or an int_domain with is_categorical) or boundaries of buckets"
            )
        if features is None:
            self._features = sorted(schema_util.get_categorical_features(schema) - {label})

    def create_accumulator(self) -> LiftCounts:
        """Returns counts of no examples."""
        return LiftCounts(pd.DataFrame(columns=self._columns, dtype=float))

    def add_input(self, accumulator: LiftCounts, batch: pa.RecordBatch) -> LiftCounts:
        """Adds a batch of list columns; raises ``BadInput`` if the label is not a category, or has too many values."""
        accumulator.examples += batch.num_rows
        accumulator.label_seen |= batch.schema.get_field_index(self._label.steps()[0]) >= 0
        label = self._presence(batch, self._label)
        if label is None:
            label = pd.DataFrame({"row": [], "value": []}).astype({"row": np.int64})
        self._add_labels(
            accumulator, label.groupby("value")[self._columns].sum() if len(label) else accumulator.labels[:0]
        )
        label = label[["row", "value"]].rename(columns={"value": "label"})
        paths = self._features
        if paths is None:
            leaves = arrow_util.enumerate_arrays(batch, None, enumerate_leaves_only=True)
            kinds = {path: stats_util.get_feature_type_from_arrow_type(path, array.type) for path, array, _ in leaves}
            paths = [path for path, kind in kinds.items() if path != self._label and kind == _TYPES.STRING]
        for path in paths:
            feature = self._presence(batch, path)
            if feature is None or accumulator.values.get(path, ...) is None:
                continue
            values = feature.groupby("value")[self._columns].sum()
            if len(values) * label["label"].nunique() > MAX_PAIRS:
                accumulator.values[path] = None
                continue
            pairs = feature.merge(label, on="row").groupby(["value", "label"])[self._columns].sum()
            self._add(accumulator, path, values, pairs)
        return accumulator

    def merge_accumulators(self, accumulators: Iterable[LiftCounts]) -> LiftCounts:
        """Adds the others to the first."""
        merged, *others = accumulators
        for other in others:
            merged.examples += other.examples
            merged.label_seen |= other.label_seen
            self._add_labels(merged, other.labels)
            for path, values in other.values.items():
                self._add(merged, path, values, other.pairs.get(path))
        return merged

    def extract_output(self, accumulator: LiftCounts) -> statistics_pb2.DatasetFeatureStatistics:
        """Returns the lift of every feature as ``cross_features``; raises ``BadInput`` if no batch had the label."""
        result = statistics_pb2.DatasetFeatureStatistics()
        if not accumulator.examples:
            return result
        if not accumulator.label_seen:
            raise BadInput(f"label feature {str(self._label)!r}: there is no such column")
        for path in sorted(accumulator.values):
            values = accumulator.values[path]
            if values is None or _are_too_many(values.index, len(accumulator.labels)):
                log.warning("Feature %r has too many values for a meaningful lift, so none is computed", str(path))
            else:
                self._write(result, path, values.sort_index(), accumulator)
        return result

    def _presence(self, batch: pa.RecordBatch, path: types.FeaturePath) -> pd.DataFrame | None:
        """Returns each example's distinct values; None if the batch has none, or the feature cannot have lift."""
        try:
            array, rows = table_util.get_array(batch, arrow_path.ColumnPath(path.steps()), return_example_indices=True)
        except KeyError:
            return None
        kind = stats_util.get_feature_type_from_arrow_type(path, array.type)
        if kind is None:
            return None
        boundaries = self._boundaries if path == self._label else None
        expected = (_TYPES.INT, _TYPES.STRING) if boundaries is None else (_TYPES.INT, _TYPES.FLOAT)
        if kind not in expected:
            if path != self._label:
                return None
            what = "strings or integers" if boundaries is None else "numbers, since there are boundaries"
            hint = "; for a number, give boundaries of buckets" if kind == _TYPES.FLOAT else ""
            raise BadInput(f"label feature {str(path)!r} is {array.type}, expected {what}{hint}")
        flat, parents = array_util.flatten_nested(array, return_parent_indices=True)
        there = np.asarray(flat.is_valid())
        rows, values = rows[parents].astype(np.int64)[there], flat.drop_null().to_numpy(zero_copy_only=False)
        if boundaries is not None:
            rows, values = rows[~np.isnan(values)], values[~np.isnan(values)]
            values = np.searchsorted(boundaries, values, side="right")
        # TFDV treats text and bytes as the same values.
        values = [v.encode() for v in values] if pa.types.is_string(flat.type) else values
        present = pd.DataFrame({"row": rows, "value": values}).drop_duplicates()
        present["count"] = 1.0
        if "weight" in self._columns:
            column = self._weights.get(path)
            present["weight"] = 1.0 if column is None else arrow_util.get_weight_feature(batch, column)[present["row"]]
        return present

    def _add_labels(self, accumulator: LiftCounts, labels: pd.DataFrame) -> None:
        accumulator.labels = _sum(accumulator.labels, labels)
        if len(accumulator.labels) > MAX_LABEL_VALUES:
            raise BadInput(
                f"label feature {str(self._label)!r} has more than {MAX_LABEL_VALUES:,} distinct values, expected a "
                "category; for a number, give boundaries of buckets"
            )

    def _add(self, accumulator: LiftCounts, path: types.FeaturePath, values: Any, pairs: Any) -> None:
        """Adds a feature's counts, or drops them if it has too many values."""
        if values is not None and path in accumulator.values:
            known = accumulator.values[path]
            values = None if known is None else _sum(known, values)
            pairs = None if known is None else _sum(accumulator.pairs[path], pairs)
        if values is not None and _are_too_many(values.index, len(accumulator.labels)):
            values = None
        accumulator.values[path] = values
        if values is None:
            accumulator.pairs.pop(path, None)
        else:
            accumulator.pairs[path] = pairs

    def _write(self, result: Any, path: types.FeaturePath, values: pd.DataFrame, accumulator: LiftCounts) -> None:
        cross: Any = None
        for column, prefix in _PREFIXES.items() if "weight" in self._columns else [("count", "")]:
            of_all = values[column]
            counts = of_all[(of_all != 0) & ((of_all > self._min_count) | (not self._min_count))]
            labels = accumulator.labels[column].sort_index()
            both = accumulator.pairs[path][column].unstack(fill_value=0.0)
            both = both.reindex(index=counts.index, columns=labels.index, fill_value=0.0)
            for label, label_count in labels[labels != 0].items() if len(counts) else ():
                if cross is None:
                    cross = result.cross_features.add(path_x=path.to_proto(), path_y=self._label.to_proto())
                    custom: Any = result.features.add(path=path.to_proto())
                lift = (both[label] / counts).to_numpy() / (label_count / accumulator.examples)
                series = cross.categorical_cross_stats.lift.lift_series.add()
                shown = self._write_label(series, label)
                _set_count(series, f"{prefix}y_count", label_count)
                buckets = custom.custom_stats.add(name=f"Lift (Y={shown})").rank_histogram.buckets
                for row in self._ranked(lift):
                    value = counts.index[row]
                    written = series.lift_values.add(lift=lift[row])
                    _set_count(written, f"{prefix}x_count", counts.iloc[row])
                    _set_count(written, f"{prefix}x_and_y_count", both[label].iloc[row])
                    if isinstance(value, bytes):
                        written.x_string = _text(value)
                    else:
                        written.x_int = value
                    text = written.x_string if isinstance(value, bytes) else str(value)
                    buckets.add(label=text, sample_count=lift[row])

    def _write_label(self, series: Any, label: Any) -> str:
        """Sets the label's value; returns its text."""
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
        """Returns indexes by descending lift, then by value: all, or those of the highest and lowest lift."""
        rank = np.arange(len(lift))
        order = np.lexsort((rank, -lift))
        if not self._top and not self._bottom:
            return order
        chosen = np.zeros(len(lift), bool)
        chosen[np.lexsort((-rank, -lift))[: self._top or 0]] = True
        chosen[np.lexsort((rank, lift))[: self._bottom or 0]] = True
        return order[chosen[order]]


def _sum(one: pd.DataFrame, other: pd.DataFrame) -> pd.DataFrame:
    """Adds tables of counts; missing values count zero."""
    return one.add(other, fill_value=0.0) if len(one) and len(other) else other if len(other) else one


def _are_too_many(values: pd.Index, labels: int) -> bool:
    size = sum(len(value) for value in values if isinstance(value, bytes))
    return len(values) * labels > MAX_PAIRS or size * labels > MAX_BYTES


def _set_count(proto: Any, name: str, count: float) -> None:
    setattr(proto, name, count if name.startswith("weighted") else int(count))


def _text(value: bytes) -> str:
    text = stats_util.maybe_get_utf8(value)
    return constants.NON_UTF8_PLACEHOLDER if text is None else str(text)

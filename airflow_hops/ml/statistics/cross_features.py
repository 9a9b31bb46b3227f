"""Covariance and correlation of pairs of numbers: TFDV's ``CrossFeatureStatsGenerator``, vectorized.

All pairs of a batch are computed together. Moments are centered on the mean and merged as in Chan, Golub and LeVeque,
"Updating Formulae and a Pairwise Algorithm for Computing Sample Variances" (1979). They are therefore correct for
values that are large compared with their spread, such as seconds since the epoch, for which TFDV's sums of squares
overflow.

This module imports TFDV; import it inside functions.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from tensorflow_data_validation import types
from tensorflow_data_validation.statistics.generators.stats_generator import CombinerStatsGenerator
from tensorflow_data_validation.utils import stats_util
from tensorflow_metadata.proto.v0 import statistics_pb2
from tfx_bsl.arrow import array_util

from airflow_hops.core.contract.artifacts import BadInput

MAX_FEATURES = 500
"""Maximum number of numeric features for which all pairs are computed; with more, pairs must be named."""

_ROUNDING = 1e-13
"""If centering leaves less than this share of a sum of squares, the rest is rounding error."""

_NUMBERS = (statistics_pb2.FeatureNameStatistics.INT, statistics_pb2.FeatureNameStatistics.FLOAT)


@dataclass
class Moments:
    """Joint moments of features, as arrays ``[features, features]`` over the examples that have both; can be pickled.

    Attributes:
        names: Names of the features.
        count: Number of examples.
        mean: Mean of the row's feature.
        squares: Sum of squared deviations of the row's feature from that mean.
        products: Sum of products of both features' deviations.
    """

    names: list[str]
    count: Any
    mean: Any
    squares: Any
    products: Any

    def spread(self, names: Sequence[str]) -> Moments:
        """Returns these moments with rows and columns for more features, which have no examples."""
        if list(names) == self.names:
            return self
        at = [names.index(name) for name in self.names]
        arrays = []
        for array in (self.count, self.mean, self.squares, self.products):
            larger = np.zeros((len(names), len(names)))
            larger[np.ix_(at, at)] = array
            arrays.append(larger)
        return Moments(list(names), *arrays)

    def merge(self, other: Moments) -> Moments:
        """Merges moments of two shares of the examples."""
        names = self.names + [name for name in other.names if name not in set(self.names)]
        a, b = self.spread(names), other.spread(names)
        count = a.count + b.count
        share = np.divide(b.count, count, out=np.zeros_like(count), where=count > 0)
        shift = b.mean - a.mean
        weight = a.count * share
        return Moments(
            names,
            count,
            a.mean + shift * share,
            a.squares + b.squares + shift**2 * weight,
            a.products + b.products + shift * shift.T * weight,
        )


class CrossFeatureGenerator(CombinerStatsGenerator):
    """Computes covariance and correlation of pairs of numeric features, by default all.

    Only examples with one value of each count; NaN is not a value. A pair with an infinity has the covariance NaN,
    and no correlation.
    """

    def __init__(self, crosses: Iterable[tuple[str, str]] | None = None) -> None:
        super().__init__("CrossFeatureGenerator", None)
        self._crosses = None if crosses is None else sorted({(min(pair), max(pair)) for pair in crosses})
        self._wanted = None if self._crosses is None else set(itertools.chain(*self._crosses))

    def create_accumulator(self) -> Moments:
        """Returns moments of no features."""
        return Moments([], *np.zeros((4, 0, 0)))

    def add_input(self, accumulator: Moments, batch: pa.RecordBatch) -> Moments:
        """Adds a batch of list columns.

        Raises:
            BadInput: a feature of a pair is not numeric, or there are too many features for all pairs.
        """
        results = {}
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if self._wanted is None or name in self._wanted:
                values = self._single_values(name, column)
                if values is not None:
                    results[name] = values
        if self._crosses is None and len(results) > MAX_FEATURES:
            raise BadInput(
                f"cross_features: there are {len(results):,} numeric features; all pairs are computed for at most "
                f"{MAX_FEATURES}: name the pairs"
            )
        return accumulator.merge(_moments(results)) if results else accumulator

    def merge_accumulators(self, accumulators: Iterable[Moments]) -> Moments:
        """Merges moments."""
        merged, *others = accumulators
        for other in others:
            merged = merged.merge(other)
        return merged

    def extract_output(self, accumulator: Moments) -> statistics_pb2.DatasetFeatureStatistics:
        """Returns the pairs as ``cross_features``, sorted by name."""
        result = statistics_pb2.DatasetFeatureStatistics()
        at = {name: index for index, name in enumerate(accumulator.names)}
        for x, y in self._crosses or itertools.combinations(sorted(at), 2):
            if x in at and y in at:
                i = at[x]
                j = at[y]
                cross = result.cross_features.add()
                cross.path_x.step.append(x)
                cross.path_y.step.append(y)
                cross.count = int(accumulator.count[i, j])
                if cross.count:
                    covariance = accumulator.products[i, j] / cross.count
                    cross.num_cross_stats.covariance = covariance
                    deviations = np.sqrt(accumulator.squares[i, j] / cross.count) * np.sqrt(
                        accumulator.squares[j, i] / cross.count
                    )
                    if deviations > 0 and np.isfinite(covariance):
                        cross.num_cross_stats.correlation = covariance / deviations
        return result

    def _single_values(self, name: str, column: pa.Array) -> Any:
        """Returns one number per example, NaN if it does not have exactly one; None if the feature has no numbers."""
        kind = stats_util.get_feature_type_from_arrow_type(types.FeaturePath([name]), column.type)
        if kind is None:
            return None
        if kind not in _NUMBERS or array_util.is_list_like(column.type.value_type):
            if self._wanted is None:
                return None
            raise BadInput(f"cross_features: feature {name!r} is {column.type}, expected one number per example")
        lengths = array_util.ListLengthsFromListArray(column).to_numpy(zero_copy_only=False)
        flat, parents = array_util.flatten_nested(column, return_parent_indices=True)
        single = lengths[parents] == 1
        if not single.any():
            return None
        values = np.full(len(column), np.nan)
        values[parents[single]] = flat.to_numpy(zero_copy_only=False)[single]
        return values


def _moments(columns: dict[str, Any]) -> Moments:
    """Computes the moments of one batch, by matrix products of centered values and masks."""
    values = np.array(list(columns.values()))
    infinite = np.isinf(values)
    there = ~np.isnan(values)
    centre = np.array([_middle(row[keep]) for row, keep in zip(values, there & ~infinite, strict=True)])
    about = np.where(there & ~infinite, values - centre[:, None], 0.0)
    mask = there.astype(float)
    count = mask @ mask.T
    at_least_one = np.maximum(count, 1.0)
    total = about @ mask.T
    total_squares = (about**2) @ mask.T
    squares = total_squares - total**2 / at_least_one
    squares[squares <= _ROUNDING * total_squares] = 0.0
    products = about @ about.T - total * total.T / at_least_one
    if infinite.any():
        spoilt = infinite.astype(float) @ mask.T
        products[(spoilt + spoilt.T) > 0] = np.nan
    mean = np.where(count > 0, total / at_least_one + centre[:, None], 0.0)
    return Moments(list(columns), count, mean, squares, products)


def _middle(values: Any) -> float:
    """Returns the mean; exactly the value if all values are equal."""
    if not len(values):
        return 0.0
    low, high = values.min(), values.max()
    return float(low) if low == high else float(values.mean())

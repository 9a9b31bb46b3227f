"""Constants for preprocessing functions: statistics of the training split, computed by TFDV."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_hops.core.errors import BadInput, MissingColumn
from airflow_hops.ml.statistics.files import load_statistics
from airflow_hops.ml.statistics.summary import common_statistics, feature_name, type_name

if TYPE_CHECKING:
    from tensorflow_metadata.proto.v0 import statistics_pb2

_T = TypeVar("_T")
_NO_VALUES = {"": "empty", "__BYTES_VALUE__": "not UTF-8", "__LARGE_BYTES__": "longer than 1,024 bytes"}
"""Labels that are not values: the empty string, and those under which TFDV counts several values together."""
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Vocabulary:
    """Values of a string feature in the training split, most frequent first.

    Attributes:
        feature: Name of the feature.
        values: The values; ``values[i]`` has the id ``i + 1``, and all other values have 0.
        looked_up: Tensors of ids made with this vocabulary, from which an output's vocabulary size is derived.

    Example:
        >>> from airflow_hops import Vocabulary
        >>> Vocabulary("carrier", ("AA", "DL")).size
        3
    """

    feature: str
    values: tuple[str, ...]
    looked_up: list[object] = field(default_factory=list, compare=False, repr=False)

    @property
    def size(self) -> int:
        """Number of ids: one per value, and one for other values."""
        return len(self.values) + 1


class Constants:
    """Statistics of the training split, by feature.

    :attr:`used` records every requested statistic, as the constants of a model.

    Args:
        statistics: ``tensorflow_metadata.proto.v0.statistics_pb2.DatasetFeatureStatistics`` of the training split.
        source: Origin of the statistics, for messages.
    """

    def __init__(self, statistics: statistics_pb2.DatasetFeatureStatisticsList, source: str = "statistics") -> None:
        self.source = source
        self.used: dict[str, dict[str, Any]] = {}
        self.vocabularies: list[Vocabulary] = []
        self._num_examples = int(statistics.num_examples)
        self._features = {feature_name(feature): feature for feature in statistics.features}

    @classmethod
    def read(cls, path: Path) -> Constants:
        """Reads ``<split>/FeatureStats.pb``; raises ``BadInput`` if it is missing or empty."""
        statistics = load_statistics(path)
        if not statistics.datasets[0].num_examples:
            raise BadInput(f"{path}: statistics of no rows; expected those of the training split")
        return cls(statistics.datasets[0], str(path))

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features in the statistics."""
        return tuple(self._features)

    def row_count(self) -> int:
        """Returns the number of rows of the training split."""
        return self._use("row_count", "", self._num_examples)

    def mean(self, feature: str) -> float:
        """Returns the mean of the values that are not missing."""
        return self._use("mean", feature, float(self._numeric(feature).mean))

    def std_dev(self, feature: str) -> float:
        """Returns the standard deviation of the values that are not missing; 0 for a constant feature.

        Raises:
            BadInput: float64 does not hold their variance.
        """
        numeric = self._numeric(feature)
        if math.isnan(numeric.std_dev):
            raise BadInput(
                f"std_dev({feature!r}): float64 does not hold the variance of values from {numeric.min:g} to "
                f"{numeric.max:g}; scale them in prepare()"
            )
        # Rounding leaves a constant such as 0.1 with a deviation of 1e-17, by which another value would be divided.
        return self._use("std_dev", feature, float(numeric.std_dev if numeric.max - numeric.min else 0.0))

    def minimum(self, feature: str) -> float:
        """Returns the minimum value."""
        return self._use("minimum", feature, float(self._numeric(feature).min))

    def maximum(self, feature: str) -> float:
        """Returns the maximum value."""
        return self._use("maximum", feature, float(self._numeric(feature).max))

    def median(self, feature: str) -> float:
        """Returns the median of the values that are not missing."""
        return self._use("median", feature, float(self._numeric(feature).median))

    def missing_fraction(self, feature: str) -> float:
        """Returns the share of the rows in which the feature is missing, 0 to 1."""
        common = common_statistics(self._get(feature))
        rows = common.num_non_missing + common.num_missing
        return self._use("missing_fraction", feature, common.num_missing / rows if rows else 0.0)

    def float32_spacing(self, feature: str) -> float:
        """Returns the distance between neighbouring float32 numbers at the feature's largest absolute value."""
        numeric = self._get(feature).num_stats
        largest = max(abs(numeric.min), abs(numeric.max), 1.0)
        return 2.0 ** (math.frexp(largest)[1] - 24) if math.isfinite(largest) else math.inf

    def quantiles(self, feature: str, n: int) -> list[float]:
        """Returns the ``n - 1`` boundaries between ``n`` parts with equal numbers of rows, without duplicates.

        Boundaries are interpolated linearly within the buckets of the quantiles histogram (100 buckets by default).

        Raises:
            BadInput: ``n`` is below 2, or the statistics have no quantiles of the feature.
        """
        if n < 2:
            raise BadInput(f"quantiles({feature!r}, {n}): expected at least 2 parts")
        buckets = [
            bucket
            for histogram in self._numeric(feature).histograms
            if histogram.type == histogram.QUANTILES
            for bucket in histogram.buckets
        ]
        total = sum(bucket.sample_count for bucket in buckets)
        if not total:
            raise BadInput(f"quantiles({feature!r}, {n}): {self.source} holds no quantiles histogram of it")
        boundaries: list[float] = []
        for part in range(1, n):
            boundary = _quantile(buckets, total * part / n)
            if not boundaries or boundary > boundaries[-1]:
                boundaries.append(boundary)
        return self._use(f"quantiles_{n}", feature, boundaries)

    def vocabulary(self, feature: str, *, top_k: int | None = None, min_frequency: int = 1) -> Vocabulary:
        """Returns the values of a string feature, most frequent first.

        Values that are empty, not UTF-8 or longer than 1,024 bytes are left out: their id is 0.

        Args:
            feature: Name of the feature.
            top_k: Maximum number of values; None for all.
            min_frequency: Minimum number of rows with a value.

        Raises:
            BadInput: the feature is not a string, or the statistics have fewer values than requested.
        """
        statistics = self._get(feature)
        if statistics.WhichOneof("stats") != "string_stats":
            raise BadInput(
                f"vocabulary({feature!r}): {self.source} has {type_name(statistics)} for it, but only a string has "
                "a vocabulary; cast it in prepare(), or use quantiles() and bucketize()"
            )
        buckets = statistics.string_stats.rank_histogram.buckets
        unique = int(statistics.string_stats.unique)
        frequent = [bucket for bucket in buckets if bucket.sample_count >= min_frequency]
        values = tuple(bucket.label for bucket in frequent if bucket.label not in _NO_VALUES)
        for bucket in frequent:
            if bucket.label in _NO_VALUES:
                why = _NO_VALUES[bucket.label]
                log.warning("vocabulary(%r): %d values are %s and have no id", feature, bucket.sample_count, why)
        wanted = unique if top_k is None else min(top_k, unique)
        common = statistics.string_stats.common_stats
        left_out = (common.tot_num_values or common.num_non_missing) - sum(bucket.sample_count for bucket in buckets)
        # Values that the statistics omit are at most as frequent as the last value that they contain.
        if left_out > 0 and len(buckets) < wanted and len(frequent) == len(buckets):
            raise BadInput(
                f"vocabulary({feature!r}): it has {unique} values, and {self.source} holds the {len(buckets)} most "
                f"frequent; ask for top_k={len(buckets)} or fewer, or for a higher min_frequency"
            )
        vocabulary = Vocabulary(feature, values if top_k is None else values[:top_k])
        self.vocabularies.append(vocabulary)
        self._use("vocabulary", feature, list(vocabulary.values))
        return vocabulary

    def _get(self, feature: str) -> statistics_pb2.FeatureNameStatistics:
        try:
            return self._features[feature]
        except KeyError:
            raise MissingColumn(self.source, feature).with_text(
                f"there is no feature {feature!r} in {self.source}; there are {', '.join(sorted(self._features))}"
            ) from None

    def _numeric(self, feature: str) -> statistics_pb2.NumericStatistics:
        statistics = self._get(feature)
        if statistics.WhichOneof("stats") != "num_stats":
            raise BadInput(
                f"feature {feature!r} is not numeric: {self.source} has {type_name(statistics)} for it; a string has "
                "vocabulary()"
            )
        if not statistics.num_stats.common_stats.num_non_missing:
            raise BadInput(f"feature {feature!r} is missing in every row of the training split ({self.source})")
        return statistics.num_stats

    def _use(self, figure: str, feature: str, value: _T) -> _T:
        if isinstance(value, float) and not math.isfinite(value):
            raise BadInput(f"{figure} of feature {feature!r} is {value} in {self.source}; expected a finite number")
        self.used.setdefault(feature or "rows", {})[figure] = value
        return value


def _quantile(buckets: Sequence[statistics_pb2.Histogram.Bucket], rank: float) -> float:
    seen = 0.0
    for bucket in buckets:
        if bucket.sample_count and seen + bucket.sample_count >= rank:
            share = (rank - seen) / bucket.sample_count
            return float(bucket.low_value + share * (bucket.high_value - bucket.low_value))
        seen += bucket.sample_count
    return float(buckets[-1].high_value)

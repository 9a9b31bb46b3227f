"""Figures of a feature's ``FeatureNameStatistics``, counted or weighted, for the pages."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from airflow_hops.core.artifacts.page_files import DistributionFunction, FeatureDetail, FeatureTable
from airflow_hops.ml.readers.vectors import finite_vectors
from airflow_hops.ml.statistics.summary import common_statistics, feature_name, type_name, vector_width

BUCKETS = 20
"""Largest number of buckets of a small histogram."""
FEW_INTEGERS = 10
"""Range of integers below which each has its own bucket: TFDV's histogram has ten."""
OUTER = 0.01
"""Share of the values outside each of the outer percentiles."""
DECILES = 11
VALUES = 8
"""Number of most frequent values in a table of features."""
MAX_NAME = 60
"""Characters of a value in a table of features; :data:`MAX_TEXT` if one feature is shown in full."""
MAX_TEXT = 200
SHARES = 10_000
"""Unit of a small histogram's shares."""
_NORM_ROWS = 1000
_NORM_BUCKETS, _NORM_QUANTILES = 20, 10
"""Buckets of the norms of vectors, equally wide and equally filled."""


def feature_table(dataset: Any, *, weighted: bool, sample: object = None) -> FeatureTable:
    """Returns the features of a ``DatasetFeatureStatistics``, in columns.

    Args:
        dataset: The data set.
        weighted: Whether to return weights instead of counts.
        sample: ``pyarrow.Table`` of some of its rows, which have no weights: figures of vectors are those of the norms
            of the first of them. None for figures of all their numbers.
    """
    rows = int(dataset.num_examples)
    lines = [_line(each if weighted else _by_norm(each, sample), rows, weighted) for each in dataset.features]
    columns = {name: [line[name] for line in lines] for name in _LINE}
    return FeatureTable(rows=rows, weighted_rows=dataset.weighted_num_examples or None, **columns)


def feature_detail(feature: Any, rows: int, *, weighted: bool, sample: Any = None, values: int = 1000) -> FeatureDetail:
    """Returns all figures of one feature of a data set of ``rows``, with at most as many ``values``.

    ``weighted`` and ``sample`` are as in :func:`feature_table`.
    """
    feature = feature if weighted else _by_norm(feature, sample)
    view = _View.of(feature, weighted)
    custom: dict[str, float | str | None] = {}
    for one in feature.custom_stats:  # numbers and texts of other generators
        kind = one.WhichOneof("val")
        if kind in ("num", "str"):
            custom[one.name] = _exact(one.num) if kind == "num" else one.str[:MAX_TEXT]
    number = view.number if view.has_numbers else None
    curve = view.curve if number is not None else None
    ranked = [] if view.ranks is None else [(b.label[:MAX_TEXT], b.sample_count) for b in view.ranks.buckets[:values]]
    lengths = None
    if view.common is not None and view.common.num_non_missing:
        least, mean, most = (getattr(view.common, f"{name}_num_values") for name in ("min", "avg", "max"))
        lengths = int(least), _round(mean, 6), int(most)
    line = {name: value for name, value in _line(feature, rows, weighted).items() if name not in _SMALL}
    return FeatureDetail(
        **line
        | {
            "mean": None if number is None else _exact(number.mean),
            "std": None if number is None else _exact(number.std_dev),
        },
        rows=rows,
        values_per_row=lengths,
        not_utf8=int(feature.string_stats.invalid_utf8_count),
        standard=[]
        if number is None
        else [(_exact(b.low_value), _exact(b.high_value), b.sample_count) for b in view.buckets(0)],
        curve=None
        if curve is None
        else DistributionFunction([_round(x, 12) or 0.0 for x in curve.x], [round(float(f), 6) for f in curve.f]),
        values=ranked,
        other_values=None if view.ranks is None else max(0.0, view.values - sum(count for _, count in ranked)),
        custom=custom,
    )


@dataclass(frozen=True)
class _Curve:
    """CDF of finite values, linear between knots, with a jump at a repeated knot.

    Attributes:
        x: Knots in ascending order, ``[knots]``, in the feature's units.
        f: Share of finite values up to each knot, from 0 to 1, ``[knots]``.
    """

    x: np.ndarray
    f: np.ndarray

    @classmethod
    def of(cls, buckets: Iterable[Any]) -> _Curve | None:
        """Returns the CDF of a histogram; None without finite values."""
        table = np.array([(b.low_value, b.high_value, b.sample_count) for b in buckets])
        table = table[np.isfinite(table[:, :2]).all(axis=1)]
        if not len(table) or table[:, 2].sum() <= 0:
            return None
        cumulative = np.append(0.0, np.cumsum(table[:, 2])) / table[:, 2].sum()
        return cls(np.append(table[0, 0], table[:, 1]), np.minimum(cumulative, 1.0))


@dataclass(frozen=True)
class _View:
    """Statistics of a feature, counted or weighted; ``values`` is the number of values, or their weight."""

    common: Any
    number: Any
    """``NumericStatistics`` or ``WeightedNumericStatistics``."""
    ranks: Any
    values: float
    has_numbers: bool
    integer: bool

    @classmethod
    def of(cls, feature: Any, weighted: bool) -> _View:
        kind = feature.WhichOneof("stats")
        common = common_statistics(feature) if kind else None
        number, string = feature.num_stats, feature.string_stats
        counts: Any = common
        if weighted and common is not None:
            counts = common.weighted_common_stats
            number, string = number.weighted_numeric_stats, string.weighted_string_stats
        values = 0.0 if counts is None else float(counts.tot_num_values or counts.num_non_missing)
        ranks = string.rank_histogram if kind == "string_stats" else None
        has_numbers = kind == "num_stats" and values > 0
        return cls(common, number, ranks, values, has_numbers, type_name(feature) == "INT")

    def buckets(self, kind: int) -> list[Any]:
        """Returns the buckets of a number's histogram: equally wide (0) or equally filled (1)."""
        return [b for one in self.number.histograms if one.type == kind for b in one.buckets]

    @cached_property
    def curve(self) -> _Curve | None:
        """CDF of the finite values: steps for few integers, else by quantiles, and beyond these by wide buckets."""
        curves = [_Curve.of(one.buckets) for one in self.number.histograms if one.type in (0, 1) and one.buckets]
        known = [each for each in curves if each is not None]
        if len(known) < 2:
            return known[0] if known else None
        standard, quantiles = known
        if self.integer and standard.x[-1] - standard.x[0] < FEW_INTEGERS:
            integers = _integers(standard.x[0], standard.x[-1])
            upper: Any = np.searchsorted(standard.x[1:], integers, side="left") + 1
            upto: Any = np.append(standard.f[upper[1:] - 1], 1.0)
            return _Curve(np.repeat(integers, 2), np.sort(np.concatenate([[0.0], upto[:-1], upto])))
        if any(b.sample_count and not np.isfinite([b.low_value, b.high_value]).all() for b in self.buckets(1)):
            return standard
        outer = (standard.f < OUTER) | (standard.f > 1 - OUTER)
        # Both columns ascend, so sorting them apart keeps the pairs together.
        return _Curve(
            np.sort(np.append(quantiles.x, standard.x[outer])), np.sort(np.append(quantiles.f, standard.f[outer]))
        )


_LINE = (
    "names", "types", "kinds", "count", "missing", "zeros", "nan", "infinite", "mean", "std", "quantiles", "unique",
    "average_length", "top_values", "histogram", "non_uniformity", "values_per_row",
)  # fmt: skip
_SMALL = ("names", "histogram", "top_values", "values_per_row")
"""Columns that one feature in full has in another form."""


def _line(feature: Any, rows: int, weighted: bool) -> dict[str, Any]:
    view = _View.of(feature, weighted)
    kind = (feature.WhichOneof("stats") or "none").removesuffix("_stats")
    line: dict[str, Any] = dict.fromkeys(_LINE)
    types = _shown_type(feature, type_name(feature))
    line |= {"names": feature_name(feature), "types": types, "kinds": kind}
    if view.common is None:
        return line
    common = view.common
    if weighted:
        counts = common.weighted_common_stats
        line |= {"count": _round(counts.num_non_missing, 9), "missing": _round(counts.num_missing, 9)}
    else:
        line["count"] = int(common.num_non_missing)
        # Missing values of a nested feature are counted among rows that have the outer feature.
        nested = len(feature.path.step) > 1
        line["missing"] = int(common.num_missing) if nested else max(0, rows - line["count"])
    if (common.min_num_values, common.max_num_values) != (1, 1) and common.num_non_missing:
        line["values_per_row"] = _round(common.avg_num_values, 4)
    if view.has_numbers:
        line |= _number(feature, view)
    elif view.ranks is not None:
        counts = [bucket.sample_count for bucket in view.ranks.buckets]
        line["top_values"] = [[b.label[:MAX_NAME], _round(b.sample_count, 6)] for b in view.ranks.buckets[:VALUES]]
        line |= {"unique": int(feature.string_stats.unique), "non_uniformity": non_uniformity(counts)}
        line["average_length"] = _round(feature.string_stats.avg_length, 4)
    elif kind == "bytes":
        line |= {"unique": int(feature.bytes_stats.unique)}
        line["average_length"] = _round(feature.bytes_stats.avg_num_bytes, 4)
    return line


def _number(feature: Any, view: _View) -> dict[str, Any]:
    number = feature.num_stats
    standard = view.buckets(0)
    line: dict[str, Any] = {
        "zeros": int(number.num_zeros),
        "nan": int(max((one.num_nan for one in number.histograms), default=0)),
        "infinite": int(sum(b.sample_count for b in standard if not math.isfinite(b.low_value + b.high_value))),
        "mean": _round(view.number.mean, 6),
        "std": _round(view.number.std_dev, 6),
        "non_uniformity": non_uniformity([bucket.sample_count for bucket in standard]),
    }
    curve = view.curve
    if curve is not None:
        digits = 12 if view.integer else 6
        line["quantiles"] = [_round(value, digits) for value in _deciles(number, view)]
        line["histogram"] = _small_histogram(view, curve, digits)
    return line


def _deciles(number: Any, view: _View) -> Iterable[float]:
    """Returns minimum, deciles and maximum; the deciles of the histogram of equally filled buckets, if it has them."""
    buckets = view.buckets(1)
    inner: Any
    if buckets and len(buckets) % (DECILES - 1) == 0:
        step = len(buckets) // (DECILES - 1)
        inner = [bucket.high_value for bucket in buckets][step - 1 : -1 : step]
    else:
        curve = view.curve
        assert curve is not None
        inner = np.interp(np.linspace(0, 1, DECILES)[1:-1], curve.f, curve.x)
    return [number.min, *inner, number.max]


def _small_histogram(view: _View, curve: _Curve, digits: int) -> list[Any]:
    """Returns ``[from, to, shares]``: equally wide buckets, in ten-thousandths; for few integers one bucket each."""
    low, high = float(curve.x[0]), float(curve.x[-1])
    shares: Any
    if view.integer and high - low < FEW_INTEGERS:
        shares = np.diff(np.append(0.0, np.interp(_integers(low, high), curve.x, curve.f)))
        low, high = low - 0.5, high + 0.5
    else:
        counts: Any = np.array([b.sample_count for b in view.buckets(0) if math.isfinite(b.low_value + b.high_value)])
        together = -(-len(counts) // BUCKETS)
        if len(counts) % together == 0:
            counts = counts.reshape(-1, together).sum(axis=1)
        shares = counts / counts.sum()
    return [_round(low, digits), _round(high, digits), [int(share) for share in (shares * SHARES).round()]]


def _integers(low: float, high: float) -> Any:
    return low + np.arange(high - low + 1)  # high + 1 is high from 2**53 on


def non_uniformity(counts: Iterable[float]) -> float | None:
    """Returns how unequally values fill the buckets of a histogram: 0 for equally, 1 if all are in one.

    One minus the entropy, divided by that of equal counts: Facets Overview sorts by it as "non-uniformity".
    """
    filled: Any = np.array([count for count in counts if count > 0])
    buckets = sum(1 for _ in counts)
    if not len(filled):
        return None
    if buckets == 1:
        return 1.0
    shares: Any = filled / filled.sum()
    return round(float(1.0 + (shares * np.log(shares)).sum() / np.log(buckets)), 4) + 0.0


def _round(value: float, digits: int) -> float | None:
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 2**53 else rounded


def _exact(value: float) -> float | None:
    return _round(value, 12)


def _shown_type(feature: object, type_name: str) -> str:
    width = vector_width(feature)
    return type_name if width is None else f"{type_name}[{width}]"


def _by_norm(feature: Any, sample: Any) -> Any:
    """Replaces the figures of a vector feature by those of its Euclidean norms; other features stay as they are.

    The number of rows with a vector, and how many of their numbers are zero or NaN, stay the same.
    """
    width, name = vector_width(feature), feature_name(feature)
    if width is None or sample is None or name not in sample.column_names:
        return feature
    vectors = finite_vectors(sample[name].slice(0, _NORM_ROWS).combine_chunks()).drop_null()
    if not len(vectors):
        return feature
    numbers = vectors.flatten().to_numpy(zero_copy_only=False).astype(np.float64)
    norms = np.linalg.norm(numbers.reshape(-1, width), axis=1)
    shown = type(feature)()
    shown.CopyFrom(feature)
    number = shown.num_stats
    number.mean, number.std_dev, number.median = float(norms.mean()), float(norms.std()), float(np.median(norms))
    number.min, number.max = float(norms.min()), float(norms.max())
    nan = max((one.num_nan for one in feature.num_stats.histograms), default=0)
    del number.histograms[:]
    counts, edges = np.histogram(norms, _NORM_BUCKETS)
    quantiles = np.quantile(norms, np.linspace(0, 1, _NORM_QUANTILES + 1))
    for kind, bounds, shares in (
        ("STANDARD", edges, counts),
        ("QUANTILES", quantiles, np.full(_NORM_QUANTILES, len(norms) / _NORM_QUANTILES)),
    ):
        histogram = number.histograms.add(num_nan=nan)
        histogram.type = histogram.HistogramType.Value(kind)
        for low, high, count in zip(bounds[:-1], bounds[1:], shares, strict=True):
            histogram.buckets.add(low_value=low, high_value=high, sample_count=count)
    report = f"norms of {len(norms):,} vectors of {width} numbers, a sample"
    shown.custom_stats.add(name="Distribution shown").str = report
    return shown

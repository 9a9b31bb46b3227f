"""The two sides of a comparison, and a feature's values on both, made comparable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from airflow_hops.ml.readers.vectors import finite_vectors, is_list, list_lengths, lists_of, plain_lists

Array: TypeAlias = NDArray[Any]
FEW = 20
"""Largest number of different numbers of both sides that are compared value by value, like text."""
VECTORS = 1_000
"""Largest number of vectors of a side that are compared: a test of some thousand permutations takes a second."""
_VECTOR_NUMBERS = 1 << 20
_TRIMMED = 0.1
"""Share that the trimmed mean leaves out at each end."""


@dataclass(frozen=True)
class Side:
    """One side of a comparison.

    Attributes:
        statistics: ``DatasetFeatureStatisticsList``.
        sample: Uniform sample of the rows; None for statistics without one, such as TFDV's own.
    """

    statistics: Any
    sample: pa.Table | None = None

    @property
    def rows(self) -> int:
        """Number of rows that the statistics were computed from."""
        return int(self.statistics.datasets[0].num_examples)


@dataclass(frozen=True)
class Numbers:
    """Finite numbers, ascending, ``[values]``: floats, or integers beyond 2**53, which floats do not tell apart."""

    values: Array

    def __len__(self) -> int:
        return len(self.values)

    def cdf(self, points: Array) -> Array:
        """Returns the share of the values up to each point."""
        return np.searchsorted(self.values, points, "right") / len(self.values)

    def quantiles(self, shares: Array, *, between: bool = True) -> Array:
        """Returns the values at shares of the numbers, interpolated unless ``between`` is false."""
        places = shares * (len(self.values) - 1)
        low = places.astype(int)
        if not between:
            return self.values[low]
        parts = places - low
        above = self.values[np.minimum(low + 1, len(self.values) - 1)]
        return np.asarray((1 - parts) * self.values[low] + parts * above)  # the difference of both may overflow

    @cached_property
    def counts(self) -> tuple[Array, Array]:
        """The different values, ascending, and how often each occurs."""
        starts = np.flatnonzero(np.append(True, self.values[1:] != self.values[:-1]))
        return self.values[starts], np.diff(np.append(starts, len(self.values)))

    @property
    def usual(self) -> tuple[Any, float]:
        """The most frequent value, and its share."""
        values, counts = self.counts
        most = int(counts.argmax())
        return values[most], float(counts[most] / len(self.values))

    @cached_property
    def trimmed(self) -> tuple[float, float]:
        """The mean without a tenth at each end, and its standard error (Tukey and McLaughlin, 1963)."""
        cut = int(_TRIMMED * len(self.values))
        inner = self.values[cut : len(self.values) - cut]
        deviation = np.clip(self.values, inner[0], inner[-1]).std()
        return float(inner.mean()), float(deviation / (1 - 2 * _TRIMMED) / len(self.values) ** 0.5)

    def without(self, value: Any) -> Numbers:
        """Returns the numbers other than a value."""
        return Numbers(self.values[self.values != value])


@dataclass(frozen=True)
class Kinds:
    """Values of few kinds, or text: the number of times each occurs."""

    counts: dict[Any, int]

    def __len__(self) -> int:
        return self._rows

    @cached_property
    def _rows(self) -> int:
        return sum(self.counts.values())

    def share(self, value: object) -> float:
        """Returns a value's share."""
        return self.counts.get(value, 0) / len(self)


@dataclass(frozen=True)
class Vectors:
    """Vectors of finite numbers, ``[rows, width]``."""

    values: Array

    def __len__(self) -> int:
        return len(self.values)

    @cached_property
    def norms(self) -> Array:
        """Euclidean norms, ``[rows]``."""
        return np.linalg.norm(self.values.astype(np.float64), axis=1)


Distribution: TypeAlias = Numbers | Kinds | Vectors


@dataclass(frozen=True)
class Feature:
    """A feature's values in a sample.

    Attributes:
        rows: Number of rows.
        missing: Rows without a value: null, NaN or an empty list; of vectors, also with a number that is not finite.
        infinite: Rows with an infinite value.
        lengths: Number of values of each row that is not null, ``[rows]``, ascending.
        distribution: The finite values; None if there are none.
    """

    rows: int
    missing: int
    infinite: int
    lengths: Array
    distribution: Distribution | None


ReadValues: TypeAlias = tuple[int, Array, Any]
"""Rows, lengths of those not null, and one value of each that has any: sorted numbers, or a ``pyarrow.Array``."""


def alike(samples: Sequence[pa.Table], name: str, *, width: int | None, seed: int) -> list[Feature]:
    """Returns a feature's values in several samples in the same form.

    Floats have the coarsest precision of all, and 0.0 equals -0.0. A row with several values counts by one of them,
    drawn by ``seed``, since values of the same row are not independent.

    Args:
        samples: Samples of rows.
        name: Name of the feature; the steps of a path into structs are joined by dots.
        width: Length of its vectors; None if it is not a vector.
        seed: Seed of the draws.
    """
    columns = [_column(sample, name) for sample in samples]
    if width is not None:
        return [_vectors(column, width) for column in columns]
    return alike_values([_read(column, np.random.default_rng(seed)) for column in columns])


def values_read(sample: pa.Table, name: str, seed: int) -> ReadValues:
    """Reads a feature's values in a sample for :func:`alike_values`, so that a side is read once for many others."""
    return _read(_column(sample, name), np.random.default_rng(seed))


def alike_values(read: Sequence[ReadValues]) -> list[Feature]:
    """Returns what :func:`alike` returns of a feature that is no vector, of its values in several samples."""
    if not any(isinstance(values, np.ndarray) for _, _, values in read):
        return [_of_kinds(*each) for each in read]
    numbers = [values if isinstance(values, np.ndarray) else np.zeros(0) for _, _, values in read]
    if any(values.dtype in (np.float16, np.float32) or _is_float32(values) for values in numbers):
        numbers = [values.astype(np.float32) for values in numbers]
    exact = _exact_type(numbers)
    numbers = [values.astype(exact) + exact(0) for values in numbers]
    finite = [Numbers(values[np.isfinite(values)]) for values in numbers]
    kinds = [each.counts[0] if len(each) else each.values for each in finite]
    few = max(map(len, kinds)) <= FEW and len(np.unique(np.concatenate(kinds))) <= FEW
    features = []
    for (rows, lengths, _), present, values in zip(read, map(len, numbers), finite, strict=True):
        distribution: Distribution | None = values if len(values) else None
        if few and len(values):
            distribution = Kinds(dict(zip(*(column.tolist() for column in values.counts), strict=True)))
        features.append(Feature(rows, rows - present, present - len(values), lengths, distribution))
    return features


def _exact_type(numbers: Sequence[Array]) -> Any:
    """Returns the type in which the numbers of all samples are compared: floats, unless these lose whole numbers."""
    samples = [values for values in numbers if len(values)]
    if not samples or any(values.dtype.kind not in "iu" for values in samples):
        return np.float64
    least, most = min(int(values.min()) for values in samples), max(int(values.max()) for values in samples)
    if max(-least, most) <= 2**53:
        return np.float64
    return np.int64 if most < 2**63 else np.uint64 if least >= 0 else np.float64


def _of_kinds(rows: int, lengths: Array, values: pa.Array) -> Feature:
    counted = pc.value_counts(values)
    counts = dict(zip(counted.field(0).to_pylist(), counted.field(1).to_pylist(), strict=True))
    return Feature(rows, rows - len(values), 0, lengths, Kinds(counts) if counts else None)


def _read(column: pa.Array, random: np.random.Generator) -> ReadValues:
    """Returns the number of rows, the lengths of rows that are not null, and one value of each row that has any."""
    rows = len(column)
    lengths = np.ones(rows - column.null_count, np.int64)
    if is_list(column.type):
        column = plain_lists(column).drop_null()
        lengths = np.diff(np.asarray(column.offsets))
        starts = np.asarray(column.offsets)[:-1][lengths > 0]
        column = column.values.take(pa.array(starts + (random.random(len(starts)) * lengths[lengths > 0]).astype(int)))
    column, kind = column.drop_null(), column.type
    if pa.types.is_boolean(kind):
        column = column.cast(pa.int8())
    elif pa.types.is_temporal(kind):
        column = column.cast(pa.int32() if kind.bit_width == 32 else pa.int64())
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        numbers = column.to_numpy(zero_copy_only=False)
        return rows, np.sort(lengths), np.sort(numbers[~np.isnan(numbers)])
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    return rows, np.sort(lengths), column.cast(pa.large_binary()) if is_text else column


def _vectors(column: pa.Array, width: int) -> Feature:
    rows = len(column)
    if not is_list(column.type):  # it has no values
        column = pa.nulls(rows, pa.list_(pa.float64()))
    column = finite_vectors(column).drop_null()
    values = column.flatten().to_numpy(zero_copy_only=False).reshape(-1, width)
    most = max(100, min(VECTORS, _VECTOR_NUMBERS // width))
    distribution = Vectors(values[:most]) if len(values) else None
    return Feature(rows, rows - len(values), 0, np.full(len(values), width), distribution)


def _is_float32(values: Array) -> bool:
    """Returns whether values that are not all integers have only the precision of float32."""
    finite = values[np.isfinite(values)] if values.dtype == np.float64 else values[:0]
    fractions = finite[finite % 1 != 0]
    with np.errstate(over="ignore"):
        return bool(len(fractions) and (fractions.astype(np.float32) == fractions).all())


def _column(sample: pa.Table, name: str) -> pa.Array:
    """Returns a column, or a field of a column of structs; null in each row if the sample lacks it.

    Lists of structs become lists of the field, and lists of lists become one list per row.
    """
    if name in sample.column_names:
        outer, fields = name, list[str]()
    else:
        outer, *fields = name.split(".")
        if outer not in sample.column_names:
            return pa.nulls(sample.num_rows)
    column = sample[outer].combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, column.type)
    for field in fields:
        column = _flat(column)
        structs = plain_lists(column).flatten() if is_list(column.type) else column
        values = pc.struct_field(structs, [structs.type.get_field_index(field)])
        column = lists_of(values, column) if is_list(column.type) else values
    column = _flat(column)
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _flat(column: pa.Array) -> pa.Array:
    """Returns lists of lists as one list per row."""
    while is_list(column.type) and is_list(column.type.value_type):
        inner = column.flatten()
        ends = np.append(0, np.cumsum(list_lengths(inner)))[np.append(0, np.cumsum(list_lengths(column)))]
        column = lists_of(plain_lists(inner).flatten(), column, np.diff(ends))
    return column

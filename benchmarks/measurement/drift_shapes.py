"""Columns of many shapes, and changes of them, each with the distance of the two populations.

A change takes a column as it would have been and returns it changed, so that a population and its change can be
compared row by row. All is drawn with given generators; needs PyArrow and NumPy alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np
import pyarrow as pa

Random = np.random.Generator
Numbers = np.ndarray[Any, Any]
Change = Callable[[Any, Random, "Shape"], Any]
"""Changes a column of the shape."""
POPULATION_ROWS = 100_000


@dataclass(frozen=True)
class Shape:
    """A column of one shape.

    Attributes:
        draw: Draws a number of rows: numbers or texts, or a PyArrow array.
        changes: Names of the :data:`CHANGES` that make sense for it.
        snap: Brings changed numbers back to values that the column can have (rounded, within bounds).
        type: PyArrow type of the numbers, None for that of what is drawn.
    """

    draw: Callable[[Random, int], Any]
    changes: tuple[str, ...]
    snap: Callable[[Numbers, Random], Numbers] = field(default=lambda values, random: values)
    type: Any = None

    def column(self, random: Random, rows: int) -> Any:
        """Draws rows as a PyArrow array; NaN is missing."""
        values = self.draw(random, rows)
        return values if isinstance(values, pa.Array) else pa.array(values, self.type, from_pandas=True)


@cache
def _facts(shape: Shape) -> tuple[float, float]:
    """Returns a deviation that no outlier moves (that of a normal one's quartiles), and the 99.9th percentile."""
    values = _numbers(shape.column(np.random.default_rng(1), POPULATION_ROWS))
    low, high, top = np.nanquantile(values, [0.25, 0.75, 0.999])
    return float((high - low) / 1.349 or np.nanstd(values)), float(top)


def _numbers(column: Any) -> Numbers:
    """Returns the numbers of a column, or of its lists; missing ones as NaN."""
    if pa.types.is_list(column.type):
        column = column.flatten()
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.float64)


def _with_numbers(column: Any, values: Numbers) -> Any:
    if pa.types.is_list(column.type):
        return pa.ListArray.from_arrays(column.offsets, pa.array(values, column.type.value_type))
    return pa.array(values.astype(column.type.to_pandas_dtype()), column.type, from_pandas=True)


def _shift(column: Any, random: Random, shape: Shape, *, deviations: float) -> Any:
    moved = _numbers(column) + deviations * _facts(shape)[0]
    return _with_numbers(column, shape.snap(moved, random))


def _scale(column: Any, random: Random, shape: Shape, *, factor: float) -> Any:
    return _with_numbers(column, shape.snap(_numbers(column) * factor, random))


def _replace(column: Any, random: Random, shape: Shape) -> Any:
    some = random.random(len(column)) < 0.1
    if pa.types.is_string(column.type):
        return pa.array(np.where(some, "unknown", _texts(column)))
    values = _numbers(column)
    return _with_numbers(column, np.where(some & ~np.isnan(values), _facts(shape)[1], values))


def _lose(column: Any, random: Random, shape: Shape) -> Any:
    lost = random.random(len(column)) < 0.05
    return pa.array(
        [None if gone else value for gone, value in zip(lost, column.to_pylist(), strict=True)], column.type
    )


def _zero(column: Any, random: Random, shape: Shape) -> Any:
    """Sets two points of the rows, none of them zero or missing before, to zero."""
    values = _numbers(column)
    present = ~np.isnan(values) & (values != 0)
    share = 0.02 / present.mean()
    return _with_numbers(column, np.where(present & (random.random(len(values)) < share), 0.0, values))


def _texts(column: Any) -> Numbers:
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=object)


@cache
def _frequent(shape: Shape) -> tuple[Any, Any]:
    """Returns the two most frequent values."""
    values = shape.column(np.random.default_rng(1), POPULATION_ROWS).to_pylist()
    (first, _), (second, _) = Counter(values).most_common(2)
    return first, second


def _rename(column: Any, random: Random, shape: Shape) -> Any:
    first, _ = _frequent(shape)
    if pa.types.is_string(column.type):
        values = _texts(column)
        return pa.array(np.where(values == first, f"{first} (new)", values))
    values = _numbers(column)
    return _with_numbers(column, np.where(values == first, 99, values))


def _move_mode(column: Any, random: Random, shape: Shape) -> Any:
    """Moves ten points of the rows from the most frequent value to the second; of numbers with two modes, to -mode."""
    some = random.random(len(column))
    if shape is SHAPES["bimodal"]:
        values = _numbers(column)
        return _with_numbers(column, np.where((values > 0) & (some < 0.2), values - 6, values))
    first, second = _frequent(shape)
    values = _texts(column)
    share = 0.1 / float(np.mean(values == first))
    return pa.array(np.where((values == first) & (some < share), second, values), column.type)


def _grow_rare(column: Any, random: Random, shape: Shape) -> Any:
    return _with_numbers(column, _numbers(column) * 100)


def _upper(column: Any, random: Random, shape: Shape) -> Any:
    values, some = _texts(column), random.random(len(column)) < 0.15
    return pa.array([value.upper() if chosen else value for value, chosen in zip(values, some, strict=True)])


def _empty_lists(column: Any, random: Random, shape: Shape) -> Any:
    gone = random.random(len(column)) < 0.95
    lists = zip(gone, column.to_pylist(), strict=True)
    return pa.array([[] if emptied else values for emptied, values in lists], column.type)


def _longer_lists(column: Any, random: Random, shape: Shape) -> Any:
    """Repeats the first value in every fifth list."""
    some = random.random(len(column)) < 0.2
    lists = zip(some, column.to_pylist(), strict=True)
    return pa.array([values[:1] + values if longer else values for longer, values in lists], column.type)


def _new_words(column: Any, random: Random, shape: Shape) -> Any:
    words = np.asarray(column.flatten().to_numpy(zero_copy_only=False), dtype=object)
    some = random.random(len(words)) < 0.1
    return pa.ListArray.from_arrays(column.offsets, pa.array(np.where(some, "word-new", words)))


def _as_float32(column: Any, random: Random, shape: Shape) -> Any:
    return column.cast(pa.float32(), safe=False)


def _as_float64(column: Any, random: Random, shape: Shape) -> Any:
    return column.cast(pa.float64())


def _negative_zeros(column: Any, random: Random, shape: Shape) -> Any:
    values = _numbers(column)
    return _with_numbers(column, np.where(values == 0, -0.0, values))


CHANGES: Mapping[str, Change] = {
    "+0.1 deviations": partial(_shift, deviations=0.1),
    "+0.3 deviations": partial(_shift, deviations=0.3),
    "x 1.05": partial(_scale, factor=1.05),
    "x 1.3": partial(_scale, factor=1.3),
    "tenth replaced": _replace,
    "5 points missing": _lose,
    "value renamed": _rename,
    "10 points moved": _move_mode,
    "2 points to 0": _zero,
    "non-zeros x 100": _grow_rare,
    "15% upper case": _upper,
    "95% of lists empty": _empty_lists,
    "fifth longer": _longer_lists,
    "tenth of words new": _new_words,
}
"""Changes of values. The 99.9th percentile, or "unknown", replaces a tenth."""
HARMLESS: Mapping[str, Change] = {
    "as float32": _as_float32,
    "as float64": _as_float64,
    "0.0 as -0.0": _negative_zeros,
}
"""Changes that leave all values as they are, so that nothing has drifted."""

SHIFTS = ("+0.1 deviations", "+0.3 deviations")
REPLACED = ("tenth replaced", "5 points missing")
NUMERIC = (*SHIFTS, "x 1.05", "x 1.3", *REPLACED)
POSITIVE = (*NUMERIC, "2 points to 0")
KINDS = (*REPLACED, "value renamed", "10 points moved")


def _whole(values: Numbers, random: Random) -> Numbers:
    """Rounds up or down by chance, so that the mean stays as it is."""
    return np.floor(values + random.random(len(values)))


def _one_outlier(random: Random, rows: int) -> Numbers:
    """Normal values, of which one in 2,000 is at 100 times their range."""
    return np.where(random.random(rows) < 1 / 2_000, 800.0, random.normal(size=rows))


def _percentages(random: Random, rows: int) -> Numbers:
    kind = random.random(rows)
    return np.select([kind < 0.2, kind < 0.3], [0.0, 100.0], (100 * random.beta(2, 2, rows)).round(1))


def _some(share: float, random: Random, values: Numbers) -> Numbers:
    """Returns the values of a share of the rows, and zeros."""
    return np.where(random.random(len(values)) < share, values, 0.0)


def _price(values: Numbers, random: Random) -> Numbers:
    """Rounds to x.99."""
    return np.floor(values) + 0.99


def _named(prefix: str, numbers: Numbers) -> Numbers:
    return np.char.add(prefix, numbers.astype("U8")).astype(object)


def _lists(random: Random, rows: int, values: Callable[[Random, int], Any]) -> Any:
    lengths = random.integers(0, 7, rows)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values(random, int(offsets[-1]))))


def _vectors(random: Random, rows: int) -> Any:
    offsets = pa.array(np.arange(rows + 1, dtype=np.int32) * 8)
    return pa.ListArray.from_arrays(offsets, pa.array(random.normal(size=8 * rows).astype(np.float32)))


def _chosen(values: Any, shares: tuple[float, ...]) -> Callable[[Random, int], Any]:
    return lambda random, rows: np.asarray(values)[random.choice(len(values), rows, p=shares)]


def _texts_of(values: tuple[str, ...], shares: tuple[float, ...]) -> Callable[[Random, int], Any]:
    return lambda random, rows: np.asarray(values, dtype=object)[random.choice(len(values), rows, p=shares)]


SHAPES: Mapping[str, Shape] = {
    "normal": Shape(lambda r, n: r.normal(10, 2, n), NUMERIC),
    "heavy tail": Shape(lambda r, n: r.standard_t(1.5, n), NUMERIC),
    "one outlier": Shape(_one_outlier, NUMERIC),
    "lognormal": Shape(lambda r, n: r.lognormal(0, 1, n), POSITIVE),
    "exponential": Shape(lambda r, n: r.exponential(2, n), POSITIVE),
    "bounded": Shape(lambda r, n: r.beta(2, 5, n), POSITIVE, lambda v, r: np.clip(v, 0, 1)),
    "percentages": Shape(_percentages, NUMERIC, lambda v, r: np.clip(v.round(1), 0, 100)),
    "mostly zero": Shape(
        lambda r, n: _some(0.1, r, r.exponential(50, n)), (*REPLACED, "x 1.3", "2 points to 0", "non-zeros x 100")
    ),
    "1% non-zero": Shape(lambda r, n: _some(0.01, r, r.exponential(50, n)), (*REPLACED, "non-zeros x 100")),
    "prices": Shape(lambda r, n: _price(r.lognormal(3, 0.8, n), r), POSITIVE, _price),
    "bimodal": Shape(lambda r, n: r.normal(np.where(r.random(n) < 0.5, 3, -3), 1), (*NUMERIC, "10 points moved")),
    "dates in seconds": Shape(
        lambda r, n: 1_700_000_000 + r.integers(0, 365 * 86_400, n), (*SHIFTS, *REPLACED), _whole
    ),
    "constant with noise": Shape(lambda r, n: 1e6 + r.normal(0, 0.01, n), NUMERIC),
    "mostly constant": Shape(lambda r, n: np.where(r.random(n) < 0.97, 5.0, r.normal(5, 1, n)), NUMERIC),
    "float32": Shape(lambda r, n: r.normal(10, 2, n), NUMERIC, type=pa.float32()),
    "third missing": Shape(lambda r, n: np.where(r.random(n) < 0.33, np.nan, r.gamma(2, 3, n)), POSITIVE),
    "zeros and normal": Shape(lambda r, n: _some(0.4, r, r.normal(0, 10, n)), NUMERIC),
    "uniform integers": Shape(lambda r, n: r.integers(0, 1_000, n), POSITIVE, _whole),
    "Poisson": Shape(lambda r, n: r.poisson(4, n), POSITIVE, _whole),
    "ages": Shape(
        lambda r, n: np.clip(r.normal(42, 14, n).round(), 18, 90).astype(np.int64), NUMERIC, lambda v, r: v.round()
    ),
    "integer codes": Shape(lambda r, n: 1_000 + 17 * (r.zipf(1.3, n) % 300), KINDS),
    "few integers": Shape(_chosen((1, 2, 3, 4, 5), (0.1, 0.15, 0.4, 0.25, 0.1)), KINDS),
    "flag": Shape(_chosen((0, 1), (0.7, 0.3)), KINDS),
    "rare flag": Shape(_chosen((0, 1), (0.99, 0.01)), KINDS),
    "few texts": Shape(_texts_of(("red", "green", "blue", "white"), (0.4, 0.3, 0.2, 0.1)), KINDS),
    "many categories": Shape(lambda r, n: _named("shop-", r.zipf(1.3, n) % 2_000), KINDS),
    "even categories": Shape(lambda r, n: _named("zip-", r.integers(0, 1_000, n)), REPLACED),
    "rare category": Shape(_texts_of(("card", "cash", "cheque", "gold"), (0.7, 0.28, 0.015, 0.005)), KINDS),
    "text with case": Shape(
        _texts_of(("Yes", "No", "yes", "no", "NO"), (0.4, 0.3, 0.15, 0.1, 0.05)), (*KINDS, "15% upper case")
    ),
    "text flag": Shape(_texts_of(("true", "false"), (0.2, 0.8)), KINDS),
    "lists of numbers": Shape(
        lambda r, n: _lists(r, n, lambda r, m: r.gamma(2, 3, m)),
        (*SHIFTS, "x 1.3", "5 points missing", "95% of lists empty", "fifth longer"),
    ),
    "lists of texts": Shape(
        lambda r, n: _lists(r, n, lambda r, m: _named("word-", r.zipf(1.5, m) % 100)),
        ("5 points missing", "95% of lists empty", "fifth longer", "tenth of words new"),
    ),
    "vectors of 8": Shape(_vectors, (*SHIFTS, "x 1.3")),
}
"""Shapes by name."""
HARMLESS_OF: Mapping[str, str] = {
    "normal": "as float32",
    "percentages": "as float32",
    "prices": "as float32",
    "mostly constant": "as float32",
    "float32": "as float64",
    "zeros and normal": "0.0 as -0.0",
    "1% non-zero": "0.0 as -0.0",
    "mostly zero": "as float32",
}
"""The harmless change of a shape, where there is one."""


def draw_table(random: Random, rows: int, changed: Mapping[str, str] | None = None) -> Any:
    """Draws rows of all shapes, some of them changed.

    Args:
        random: What draws them.
        rows: Number of rows.
        changed: Names of changes, by shape.

    Returns:
        ``pyarrow.Table`` with a column for each shape.
    """
    columns = {}
    for name, shape in SHAPES.items():
        column = shape.column(random, rows)
        if changed and name in changed:
            column = {**CHANGES, **HARMLESS}[changed[name]](column, random, shape)
        columns[name] = column
    return pa.table(columns)


def population_distance(name: str, change: str) -> float:
    """Returns how far the change moves the population, 0 to 1.

    The greatest of: the Kolmogorov-Smirnov distance of the numbers, or the total variation distance of texts; the
    difference of the shares of missing values; the Kolmogorov-Smirnov distance of the lengths of lists. Of vectors,
    that of the coordinate that moved most.
    """
    shape, random = SHAPES[name], np.random.default_rng(2)
    base = shape.column(random, POPULATION_ROWS)
    changed = {**CHANGES, **HARMLESS}[change](base, random, shape)
    distances = [abs(changed.null_count - base.null_count) / POPULATION_ROWS]
    sides = [base, changed]
    if pa.types.is_list(base.type):
        sides = [column.drop_null() for column in sides]
        distances.append(_kolmogorov_smirnov(*(column.value_lengths().to_numpy() for column in sides)))
        sides = [column.flatten() for column in sides]
    sides = [column.drop_null() for column in sides]
    if pa.types.is_string(sides[0].type):
        counts = [Counter(column.to_pylist()) for column in sides]
        shares = [
            {text: count / len(column) for text, count in c.items()} for c, column in zip(counts, sides, strict=True)
        ]
        distances.append(sum(abs(shares[0].get(t, 0) - shares[1].get(t, 0)) for t in shares[0] | shares[1]) / 2)
    else:
        distances.append(_kolmogorov_smirnov(*map(_numbers, sides)))
    return round(max(distances), 3)


def _kolmogorov_smirnov(one: Numbers, other: Numbers) -> float:
    if not (len(one) and len(other)):
        return 0.0
    one, other = (np.sort(np.where(np.abs(side) == 0, 0.0, side)) for side in (one, other))
    points = np.unique(np.concatenate([one, other]))
    shares = [np.searchsorted(side, points, side="right") / len(side) for side in (one, other)]
    return float(np.abs(shares[0] - shares[1]).max())

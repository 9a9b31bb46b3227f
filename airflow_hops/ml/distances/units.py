"""Conversions of units that turn a feature's earlier values into the current ones.

Growth by any factor may look like a conversion by nearly that factor. So a factor by which the world changes, too,
counts only with a cause beside the number: the feature's name or the schema names the unit or the quantity, or the
values themselves are converted ones, value by value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from airflow_hops.ml.distances.measures import Ranked
from airflow_hops.ml.distances.mixtures import PERCENTILES, at_points, mixture, noise, of_rows
from airflow_hops.ml.distances.sides import Array, Numbers

_UNITS: dict[str, tuple[str, dict[str, float]]] = {
    "length": (
        "distance length height width depth altitude elevation visibility diameter radius",
        {"millimetre millimeter mm": 0.001, "centimetre centimeter cm": 0.01, "inch inches in": 0.0254,
         "foot feet ft": 0.3048, "yard yd": 0.9144, "metre meter m": 1.0, "kilometre kilometer km": 1000.0,
         "mile mi": 1609.344, "nautical mile nmi": 1852.0},
    ),
    "speed": (
        "speed velocity wind gust pace",
        {"km/h kmh kph": 1 / 3.6, "mph": 0.44704, "m/s ms mps": 1.0, "knot kt kn": 0.514444},
    ),
    "mass": (
        "weight mass payload",
        {"gram g": 0.001, "ounce oz": 0.0283495, "pound lb": 0.45359237, "kilogram kilo kg": 1.0, "tonne t": 1000.0},
    ),
    "volume": (
        "volume fuel capacity",
        {"millilitre milliliter ml": 0.001, "litre liter l": 1.0, "gallon gal": 3.785412},
    ),
    "pressure": (
        "pressure",
        {"pascal pa": 1.0, "hPa mbar millibar": 100.0, "mmHg": 133.3224, "kPa": 1e3, "inHg": 3386.389, "psi": 6894.757,
         "bar": 1e5},
    ),
    "time": (
        "duration time elapsed delay latency age",
        {"millisecond msec ms": 0.001, "second sec s": 1.0, "minute min": 60.0, "hour hr h": 3600.0, "day d": 86400.0,
         "week": 604800.0},
    ),
    "angle": ("angle bearing heading latitude longitude lat lon", {"radian rad": 1.0, "degree deg": np.pi / 180}),
    "energy": ("energy consumption", {"joule j": 1.0, "kJ": 1e3, "kcal": 4184.0, "MJ": 1e6, "kWh": 3.6e6}),
}  # fmt: skip
"""Quantities: words that name them, and their units with the words that name these, and sizes."""
_SHORT = {"in", "m", "ms", "g", "t", "l", "s", "h", "d", "pa", "min", "j", "mi", "kn", "c", "f", "k"}
"""Words that name a unit only beside a word that names its quantity."""
_TEMPERATURES = {"Celsius c": (1.0, 0.0), "Fahrenheit f": (1.8, 32.0), "kelvin k": (1.0, 273.15)}
"""Factor and shift from Celsius."""
_TEMPERATURE_WORDS = "temperature temp dewpoint dewp"
_FAR = {
    "ten": 10.0, "hundred": 100.0, "thousand": 1e3, "million": 1e6, "billion": 1e9, "sixty": 60.0,
    "hour to second": 3600.0, "day to second": 86400.0,
}  # fmt: skip
"""Factors by which features hardly ever grow or shrink: they need no other cause."""
_BY_ANY, _BY_QUANTITY, _BY_UNIT = 0.4, 0.01, 0.15
"""Largest half of the interval of a factor's logarithm: of a far one; of a near one if the name names the quantity, or
the unit. Among the factors from 1/5 to 5, the conversions of a quantity with such intervals cover some 5%."""
_FARNESS, _NEAR_TEN = 8.0, 0.1
"""Smallest far factor; largest half of the interval of ten, to whose neighbours values do grow."""
_SHIFT, _SHIFT_NAMED = 0.02, 0.2
"""Largest half of the interval of the mean, relative to its move by a conversion with a shift; if the name names it."""
_SIMILAR, _BY_GROWTH = 3.0, 0.5
"""Largest ratio of similar factors; largest share of them that fits a conversion, for a near factor to be named."""
_ERRORS, _OF_SPREAD = 2.6, 1.6
"""Half of an interval, in standard errors; how much wider that of the spread is, as the middle is not known, either."""
_SHAPE, _SHAPE_P = 0.02, 0.001
"""Distance that converted values may keep, beside the one that unchanged samples exceed with this probability."""
_EXACT, _EXACT_ROWS, _EXACT_KINDS, _EXACT_ERROR = 0.95, 20, 5, 3e-4
"""Least share of rows, and least rows and different numbers, that are converted ones; a factor's error: 1.609."""
_DIGITS = 5
"""Decimals of the mantissas whose shapes are compared."""
_SEASON = 0.28
"""Part that a mixture may leave of what a move and a stretch leave.

Fortnights of weather compared with earlier quarters leave at least 0.295, half of a month's rows in another unit mostly
less than 0.25.
"""


@dataclass(frozen=True)
class Conversion:
    """A conversion of units.

    Attributes:
        name: Its name, such as "mile to kilometre".
        width: Largest half of the interval of the factor's logarithm that counts; 0 if only exact values do.
        is_named: Whether the name of the feature, or the schema, names the unit or the quantity.
        is_of_unit: Whether it is from the unit that they name.
    """

    name: str
    factor: float
    shift: float = 0.0
    width: float = 0.0
    is_named: bool = False
    is_of_unit: bool = False

    def of(self, numbers: Numbers, size: float) -> Numbers:
        """Converts numbers, which are parts of ``size``."""
        values = self.factor * numbers.values + self.shift / size
        return Numbers(values if self.factor > 0 else values[::-1])


def unit_change(reference: Numbers, current: Numbers, name: str = "", unit: str = "") -> str | None:
    """Returns the conversion of units that turns the reference's values into the current ones; None if there is none.

    It has to explain mean and spread up to their sampling errors, and the shape; the interval of a factor by which the
    world changes, too, must be narrow, by how much name and unit tell. Exact values need nothing else.

    Args:
        reference: Numbers of the reference.
        current: Current numbers.
        name: Name of the feature.
        unit: Its unit in the reference, if the schema has it.
    """
    size = max(float(np.abs(side.values).max()) for side in (reference, current))  # sums of the largest are infinite
    if not size:
        return None
    one, other = (Numbers(side.values / size) for side in (reference, current))
    is_whole, fitting = bool((current.values % 1 == 0).all()), list[tuple[float, str]]()
    compared = _kinds_to_compare(one, other)
    for conversion in conversions_of(name, unit):
        divides = is_whole and _is_whole(1 / conversion.factor)  # all whole numbers are converted ones
        is_exact = compared is not None and not divides and _is_exact(conversion.of(compared[2], size), *compared)
        if is_exact or _holds(conversion, size, one, other):
            fitting.append((_compare(conversion.of(one, size), other).distance, conversion.name))
    if fitting:
        return min(fitting, key=lambda each: each[0])[1]
    return _partial_change(one, other, size, [each for each in conversions_of(name, unit) if each.is_named])


def possible_change(reference: Numbers, current: Numbers, name: str = "", unit: str = "") -> str | None:
    """Returns the conversion that fits a change, and how often growth would fit one; None if none fits.

    Args:
        reference: Numbers of the reference.
        current: Current numbers, of which :func:`unit_change` is not sure that they are converted.
        name: Name of the feature; if it tells a quantity, only conversions of that and far factors count.
        unit: Its unit in the reference, if the schema has it.
    """
    size = max(float(np.abs(side.values).max()) for side in (reference, current))
    one, other = (Numbers(side.values / (size or 1.0)) for side in (reference, current))
    (mean, mean_error), (now, now_error) = one.trimmed, other.trimmed
    (spread, spread_error), (spread_now, spread_now_error) = _spread(one), _spread(other)
    if not (spread > 0 and spread_now > 0):
        return None
    error = float(np.hypot(spread_error / spread, spread_now_error / spread_now))
    factor = float(np.log(spread_now / spread))
    if mean * now > 0 and (of_mean := float(np.hypot(mean_error / mean, now_error / now))) < error:
        error, factor = of_mean, float(np.log(now / mean))
    known = _known_conversions(name, unit)
    logarithms = np.log([each.factor for each in known])
    near = np.abs(logarithms - factor) <= _ERRORS * error
    candidates = [each for each, is_near in zip(known, near, strict=True) if is_near]
    fitting = [each for each in candidates if _holds(each, size, one, other)]
    if not fitting:
        return None
    best = min(fitting, key=lambda each: _compare(each.of(one, size), other).distance)
    others = factor + np.linspace(-np.log(_SIMILAR), np.log(_SIMILAR), 201)
    by_growth = float((np.abs(others[:, None] - logarithms).min(axis=1) <= _ERRORS * error).mean())
    if by_growth > _BY_GROWTH and abs(np.log(best.factor)) < np.log(_FARNESS):
        return None
    return (
        f"perhaps {best.name} (times {best.factor:.4g}), but growth is not excluded: {100 * by_growth:.0f}% of changes "
        "by similar factors would fit a conversion as well"
    )


@cache
def _known_conversions(name: str, unit: str) -> tuple[Conversion, ...]:
    """Returns the conversions by a factor alone: far ones, and those of the named quantity, or without one, of all."""
    candidates = conversions_of(name, unit)
    far = [each for each in candidates if each.name.partition(",")[0] in _FAR]
    named = [each for each in candidates if each.is_named and not each.shift]
    known = {each.factor: each for each in (*(named or _of_units(set(), "", only_odd=False)), *far)}
    return tuple(replace(each, width=np.inf) for each in known.values())


@cache
def conversions_of(name: str, unit: str) -> tuple[Conversion, ...]:
    """Returns the conversions that a feature may have had, those of its unit first."""
    words = words_of(name)
    conversions = [Conversion("opposite sign", -1.0, width=_BY_ANY)]
    for far, factor in _FAR.items():
        width = _BY_ANY if factor > 10 else _NEAR_TEN
        conversions += [Conversion(far, factor, width=width), Conversion(f"{far}, backwards", 1 / factor, width=width)]
    units = [*_of_units(words, unit.lower()), *_of_temperature(words, unit.lower())]
    conversions += [each for each in units if each.is_named] or units  # of another quantity only if none is named
    return tuple(sorted(conversions, key=lambda each: not each.is_of_unit))


def words_of(words: str) -> set[str]:
    """Returns the words of a name in lower case, also without a plural's s."""
    split = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", words)
    lower = {each.lower() for each in (*split, *re.split(r"[\W_\d]+", words))}
    return lower | {each.removesuffix("s") for each in lower if len(each) > 3}


def _named(units: Iterable[str], words: set[str], unit: str, *, of_quantity: bool) -> set[str]:
    """Returns the units that a name names, or the one that the schema has."""
    known = {each: set(each.lower().split()) for each in units}
    if unit:
        return {each for each, aliases in known.items() if unit in aliases}
    return {each for each, aliases in known.items() if words & (aliases if of_quantity else aliases - _SHORT)}


def _label(aliases: str) -> str:
    return "nautical mile" if aliases.startswith("nautical") else aliases.split()[0]


def _of_units(words: set[str], unit: str, *, only_odd: bool = True) -> Iterator[Conversion]:
    """Yields conversions of named quantities, and of others, only those by odd factors unless ``only_odd`` is false."""
    for quantity, units in _UNITS.values():
        of_quantity = bool(words & set(quantity.split()))
        named = _named(units, words, unit, of_quantity=of_quantity)
        for one, size in units.items():
            for other, other_size in units.items():
                factor = size / other_size
                is_far = abs(np.log(factor)) >= np.log(_FARNESS)
                is_named = one in named if named else of_quantity
                is_round = _is_whole(10 * factor) or _is_whole(10 / factor)  # prices grow by 3.6, too
                if one != other and (is_named or not is_round or not only_odd):
                    width = _BY_ANY if is_far else _BY_UNIT if named else _BY_QUANTITY
                    name = f"{_label(one)} to {_label(other)}"
                    yield Conversion(name, factor, 0.0, width if is_named else 0.0, is_named, one in named)


def _is_whole(factor: float) -> bool:
    return abs(factor - round(factor)) < 1e-6 * factor


def _of_temperature(words: set[str], unit: str) -> Iterator[Conversion]:
    of_quantity = bool(words & set(_TEMPERATURE_WORDS.split()))
    named = _named(_TEMPERATURES, words, unit, of_quantity=of_quantity)
    for one, (factor, shift) in _TEMPERATURES.items():
        for other, (other_factor, other_shift) in _TEMPERATURES.items():
            if one != other:
                ratio, is_named = other_factor / factor, one in named if named else of_quantity
                name = f"{_label(one)} to {_label(other)}"
                yield Conversion(name, ratio, other_shift - ratio * shift, _BY_ANY, is_named, one in named)


def _kinds_to_compare(reference: Numbers, current: Numbers) -> tuple[Array, Array, Numbers] | None:
    """Returns the current values other than 0 with their counts, and the reference's values; None for too few."""
    values, counts = (each[current.counts[0] != 0] for each in current.counts)
    known = reference.counts[0]
    is_few = len(values) < min(_EXACT_KINDS, len(known) / 2)  # nearly any few numbers are converted ones
    if is_few or counts.sum() < _EXACT_ROWS or len(known) > len(reference) / 2:
        return None
    return values, counts, Numbers(known)


def _is_exact(converted: Numbers, values: Array, counts: Array, reference: Numbers) -> bool:
    """Returns whether nearly all current values are converted ones, and hardly any are by neighbouring factors."""

    def share(known: Array) -> float:
        places = np.searchsorted(known, values)
        above, below = known[places.clip(0, len(known) - 1)], known[(places - 1).clip(0)]
        apart = np.minimum(np.abs(above - values), np.abs(below - values))
        return float(counts[apart <= _EXACT_ERROR * np.abs(values)].sum() / counts.sum())

    known_now = converted.values
    others = (reference.values, known_now * (1 + 5 * _EXACT_ERROR), known_now * (1 - 5 * _EXACT_ERROR))
    return share(known_now) >= _EXACT and max(map(share, others)) < 0.5


def _holds(conversion: Conversion, size: float, reference: Numbers, current: Numbers) -> bool:
    """Returns whether the intervals of mean and spread hold a conversion and exclude what explains them as well."""
    if not conversion.width:
        return False
    (old_mean, old_error), (now, now_error) = reference.trimmed, current.trimmed
    mean = conversion.factor * old_mean + conversion.shift / size
    error = _ERRORS * float(np.hypot(now_error, conversion.factor * old_error))
    if abs(now - mean) > error:
        return False
    converted = conversion.of(reference, size)
    (spread, spread_error), (spread_now, spread_now_error) = _spread(converted), _spread(current)
    if not (spread > 0 and spread_now > 0):
        return False
    of_spread = _ERRORS * float(np.hypot(spread_error / spread, spread_now_error / spread_now))
    if abs(np.log(spread_now / spread)) > _OF_SPREAD * of_spread:
        return False
    if not conversion.shift and conversion.factor > 0:
        of_mean = error / abs(mean) if mean else np.inf
        if min(of_spread, of_mean) > conversion.width:
            return False
    else:
        if error > (_SHIFT_NAMED if conversion.is_named else _SHIFT) * abs(mean - old_mean):
            return False
        # A factor alone
        if abs(conversion.factor) != 1 and abs(now - conversion.factor * old_mean) <= error + of_spread * abs(now):
            return False
    comparison = _compare(converted, current)
    return comparison.distance <= comparison.by_chance(_SHAPE_P) + _SHAPE


def _compare(*sides: Numbers) -> Ranked:
    """Compares shapes; equal values differ in their last bits after a conversion."""
    parts = (np.frexp(side.values) for side in sides)
    return Ranked.of(*(Numbers(np.ldexp(np.round(part, _DIGITS), exponent)) for part, exponent in parts))


def _spread(side: Numbers) -> tuple[float, float]:
    """Returns the trimmed mean of the distances from the trimmed mean, and its standard error."""
    return Numbers(np.sort(np.abs(side.values - side.trimmed[0]))).trimmed


def _partial_change(reference: Numbers, current: Numbers, size: float, conversions: Sequence[Conversion]) -> str | None:
    """Returns the conversion that some of the rows have had.

    Other seasons can resemble a mixture, but are closer to the reference moved and stretched.
    """
    old, new = (side.quantiles(PERCENTILES) for side in (reference, current))
    if old[0] == old[-1]:
        return None
    # The reference moved and stretched by least squares; divided first, as squares may be 0
    x_unit, y_unit = float(np.abs(old).max()), float(np.abs(new).max()) or 1.0
    x, y = old / x_unit, new / y_unit
    centred = x - x.mean()
    slope = float(centred @ (y - y.mean()) / (centred @ centred))
    moved = Numbers(np.sort((slope * reference.values / x_unit + y.mean() - slope * x.mean()) * y_unit))
    points = np.unique(np.concatenate([new, moved.quantiles(PERCENTILES)]))
    nearest = _SEASON * float(np.abs(current.cdf(points) - moved.cdf(points)).max())
    best, by_chance = None, noise(len(reference), len(current))
    for conversion in conversions:
        shares = at_points(reference, current, conversion.of(reference, size))
        share, left = mixture(shares[0], shares[1], shares[2], by_chance)
        if share and left < nearest:
            best, nearest = f"{conversion.name}{of_rows(share)}", left
    return best

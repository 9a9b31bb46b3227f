"""Likely causes of a feature's drift: a fault of the pipeline, or a change of the world.

Causes are derived from the values of both sides alone, so they are likely, not proven. A fault is only reported if real
changes rarely look like it: many new values, or all quantiles moved by a conversion of units.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from airflow_hops.core.contract.skew import Cause
from airflow_hops.ml.monitoring.skew.sides import Array, Distribution, Kinds, Numbers, Vectors

FAULTS: frozenset[Cause] = frozenset({"all_missing", "constant", "unit_change", "swapped", "new_category"})
"""Causes that are faults of a pipeline. A missing rate is one if it moved by :data:`MISSING_FAULT`."""
MISSING_FAULT = 0.5
"""Smallest change of the share of missing values that is a fault."""
NEW_CATEGORY_SHARE = 0.1
"""Largest share of current values, never seen in the reference, that is not a fault."""
CONSTANT_SHARE = 0.5
"""Share of the reference above which a value may fill a window by chance."""
USUAL_SHARE = 0.5
"""Share above which a feature's most frequent number is left out, and the remaining numbers are compared."""

_FACTORS = {
    "ten": 10.0, "hundred": 100.0, "thousand": 1e3, "million": 1e6, "billion": 1e9,
    "sixty": 60.0, "hour to second": 3600.0, "day to hour": 24.0, "day to second": 86400.0,
    "mile to kilometre": 1.609344, "nautical mile to kilometre": 1.852,
    "m/s to mph": 2.236936, "m/s to km/h": 3.6, "metre to foot": 3.28084, "yard to foot": 3.0,
    "inch to centimetre": 2.54,
    "inch to millimetre": 25.4, "foot to inch": 12.0, "kilogram to pound": 2.204623, "pound to ounce": 16.0,
    "gallon to litre": 3.785412, "inHg to hPa": 33.86389, "radian to degree": 57.29578,
}  # fmt: skip
_SHIFTS = {
    "Fahrenheit to Celsius": (1 / 1.8, -32 / 1.8), "Fahrenheit to kelvin": (1 / 1.8, 459.67 / 1.8),
    "Celsius to kelvin": (1.0, 273.15), "opposite sign": (-1.0, 0.0),
}  # fmt: skip
_Conversion = tuple[str, float, float]
_CONVERSIONS: tuple[_Conversion, ...] = (
    *((name, factor, 0.0) for name, factor in _FACTORS.items()),
    *((name, factor, shift) for name, (factor, shift) in _SHIFTS.items()),
)
_LEVELS = np.linspace(0.1, 0.9, 9)
_FAR = 8.0
_ANY_FACTOR = 4.0
"""Smallest factor between two distributions of the same shape that always counts as a change of units."""
_APART = 0.4
"""Smallest distance of two distributions at which a mixture and a shift can be distinguished."""
_NOISES, _UNEXPLAINED, _SEASON = 5.0, 0.12, 0.28
"""Limits of a mixture: its least distance in units of the noise, and the part of it that may stay unexplained.

The third is the part that it may leave of what a move and a stretch leave: fortnights of weather compared with earlier
quarters leave at least 0.295, half of a month's rows in another unit mostly less than 0.25.
"""
_PERCENTILES = np.linspace(0.005, 0.995, 199)
MOST_SWAPPED = 50
"""Largest number of drifted features that are compared with each other."""


def cause_of(
    reference: Distribution | None, current: Distribution | None, *, values_moved: bool, missing_moved: bool
) -> tuple[Cause, str | None]:
    """Returns the likely cause of a feature's drift, and the evidence in words.

    Args:
        reference: Values of the reference; None without values.
        current: Values of the current rows.
        values_moved: Whether the values have drifted.
        missing_moved: Whether the share of missing values has drifted.
    """
    if current is None:
        return "all_missing", None
    if values_moved and reference is not None:
        if (value := _only_value(reference, current)) is not None:
            return "constant", value
        one, other = as_numbers(reference), as_numbers(current)
        if one is not None and other is not None:
            if (conversion := unit_change(one, other)) is not None:
                return "unit_change", conversion
        elif isinstance(reference, Kinds) and isinstance(current, Kinds) and (new := _new_values(reference, current)):
            return "new_category", new
    return ("missing_rate" if missing_moved else "covariate_shift"), None


def as_numbers(values: Distribution | None) -> Numbers | None:
    """Returns numbers, also those of few kinds, as numbers; None for others."""
    if isinstance(values, Kinds) and not isinstance(next(iter(values.counts)), str | bytes):
        kinds = sorted(values.counts)
        return Numbers(np.repeat(np.array(kinds, float), [values.counts[kind] for kind in kinds]))
    return values if isinstance(values, Numbers) else None


def unusual(reference: Numbers, current: Numbers) -> tuple[Numbers, Numbers] | None:
    """Returns the numbers other than the most frequent one, if it is the same and holds half of both sides, or more.

    Otherwise their changes, such as those of positive numbers among zeros, would be hidden.
    """
    (value, share), (other, current_share) = reference.usual, current.usual
    if value != other or min(share, current_share) < USUAL_SHARE or max(share, current_share) == 1:
        return None
    return reference.without(value), current.without(value)


def unit_change(reference: Numbers, current: Numbers) -> str | None:
    """Returns the conversion of units that turns the reference's values into the current ones; None if there is none.

    All nine deciles must lie where the conversion puts the reference's, up to 5% of the distance from the first to the
    last plus the sampling error, and the conversion must move at least one decile by three times this limit.
    """
    if (others := unusual(reference, current)) is not None:
        reference, current = others
    before, now = (side.quantiles(_LEVELS) for side in (reference, current))
    if len(np.unique(before)) < 5:
        return _far_factor(reference, current) or _partial_change(reference, current)
    noise = 1.0 / min(len(reference), len(current)) ** 0.5
    with np.errstate(all="ignore"):  # the range of numbers may be too large for float64
        ratio = float((now[-1] - now[0]) / (before[-1] - before[0]))
        is_far = ratio > 0 and np.isfinite(ratio) and max(ratio, 1 / ratio) >= _ANY_FACTOR
        any_factor = ((f"a factor of {ratio:.3g}", ratio, 0.0),) if is_far else ()
        for conversions in (_CONVERSIONS, any_factor):
            best, nearest = None, 0.05 + noise
            for name, factor, shift in _both_ways(conversions):
                converted = np.sort(factor * before + shift)
                spread = converted[-1] - converted[0]
                apart = float(np.abs(now - converted).max() / spread)
                moved = float(np.abs(converted - before).max() / max(spread, before[-1] - before[0]))
                if apart < nearest and moved > 3 * nearest:
                    best, nearest = name, apart
            if best is not None:
                return best
    return _partial_change(reference, current)


def swapped(features: Mapping[str, tuple[Distribution | None, Distribution | None]]) -> dict[str, str]:
    """Returns the features whose current values come, in some rows, from another feature: evidence in words by name.

    A feature only counts if the other one does, too: two swapped columns, or a cycle of columns under each other's
    names.
    """
    sources: dict[str, tuple[str, float]] = {}
    for name, (before, now) in features.items():
        shares = [
            (share, other) for other, (source, _) in features.items() if (share := _mixed_share(before, now, source))
        ]
        if shares:
            share, other = max(shares)
            sources[name] = other, share
    while outside := [name for name, (other, _) in sources.items() if other not in sources]:
        for name in outside:
            del sources[name]
    return {name: f"values of {other!r}{_of_rows(share)}" for name, (other, share) in sources.items()}


def _both_ways(conversions: Iterable[_Conversion]) -> Iterator[_Conversion]:
    for name, factor, shift in conversions:
        yield name, factor, shift
        yield f"{name}, backwards", 1 / factor, -shift / factor


def _partial_change(reference: Numbers, current: Numbers) -> str | None:
    """Returns the conversion that some of the rows have had.

    Other seasons can resemble a mixture, but are closer to the reference moved and stretched.
    """
    before, now = (side.quantiles(_PERCENTILES) for side in (reference, current))
    if before[0] == before[-1] or not np.isfinite([before[-1] - before[0], now[-1] - now[0]]).all():
        return None
    # The reference moved and stretched by least squares; divided first, as squares may be 0 or infinite
    x_unit, y_unit = float(np.abs(before).max()), float(np.abs(now).max()) or 1.0
    x, y = before / x_unit, now / y_unit
    centred = x - x.mean()
    slope = float(centred @ (y - y.mean()) / (centred @ centred))
    moved = _converted(reference, slope * y_unit / x_unit, float(y.mean() - slope * x.mean()) * y_unit)
    points = np.unique(np.concatenate([now, moved.quantiles(_PERCENTILES)]))
    nearest = _SEASON * float(np.abs(current.cdf(points) - moved.cdf(points)).max())
    best, noise = None, _noise(len(reference), len(current))
    for name, factor, shift in _both_ways(_CONVERSIONS):
        shares = _at_points(reference, current, _converted(reference, factor, shift))
        share, left = _mixture(shares[0], shares[1], shares[2], noise)
        if share and left < nearest:
            best, nearest = f"{name}{_of_rows(share)}", left
    return best


def _converted(numbers: Numbers, factor: float, shift: float) -> Numbers:
    with np.errstate(over="ignore"):
        values = factor * numbers.values + shift
    return Numbers(values if factor >= 0 else values[::-1])


def _at_points(*sides: Numbers) -> tuple[Array, ...]:
    """Returns each side's cumulative shares at the percentiles of all."""
    points = np.unique(np.concatenate([side.quantiles(_PERCENTILES, between=False) for side in sides]))
    return tuple(side.cdf(points) for side in sides)


def _mixed_share(before: Distribution | None, now: Distribution | None, other: Distribution | None) -> float:
    """Returns the share of the current values that another feature's distribution explains."""
    if before is None or now is None or other is None or isinstance(before, Vectors):
        return 0.0
    numbers = [as_numbers(side) for side in (before, now, other)]
    if all(side is not None for side in numbers):
        shares = _at_points(*(side for side in numbers if side is not None))
    elif isinstance(before, Kinds) and isinstance(now, Kinds) and isinstance(other, Kinds):
        values = dict.fromkeys([*before.counts, *now.counts, *other.counts])
        shares = tuple(np.array([side.share(value) for value in values]) for side in (before, now, other))
    else:
        return 0.0
    return _mixture(shares[0], shares[1], shares[2], _noise(len(before), len(now)))[0]


def _mixture(before: Array, now: Array, other: Array, noise: float) -> tuple[float, float]:
    """Returns the share of ``other`` mixed into ``before`` to give ``now``, and the distance left; 0 if none fits.

    ``noise`` is the approximate distance of two samples of one population.
    """
    way, moved = other - before, now - before
    distance = float(np.abs(moved).max())
    if distance < _NOISES * noise or np.abs(way).max() < _APART:
        return 0.0, 0.0
    share = float(np.clip(way @ moved / (way @ way), 0.0, 1.0))
    left = float(np.abs(moved - share * way).max())
    return (share, left) if left < _UNEXPLAINED * distance else (0.0, left)


def _of_rows(share: float) -> str:
    return "" if share > 0.97 else f", in about {100 * share:.0f}% of the rows"


def _noise(reference_rows: float, current_rows: float) -> float:
    return float((1 / reference_rows + 1 / current_rows) ** 0.5)


def _far_factor(reference: Numbers, current: Numbers) -> str | None:
    """Finds a large factor for a feature with few different deciles, by mean, deviation and largest absolute value."""
    sides = (reference.values, current.values)
    with np.errstate(over="ignore"):
        figures = [np.array([side.mean(), np.abs(side).max(), side.std()]) for side in sides]
    # A flag's ones among zeros are not deviations.
    before, now = (each[: 2 if all(side[0] == side[-1] for side in sides) else 3] for each in figures)
    if (before == 0).any() or (now == 0).any() or not np.isfinite([before, now]).all():
        return None
    ratios = now / before
    for name, factor in _FACTORS.items():
        for way, wanted in (("", factor), (", backwards", 1 / factor)):
            if max(factor, 1 / factor) >= _FAR and np.abs(np.log(np.abs(ratios) / wanted)).max() < 0.3:
                return name + way
    return None


def _only_value(reference: Distribution, current: Distribution) -> str | None:
    """Returns the only value of the current rows, if the reference varies."""
    if isinstance(reference, Vectors) and isinstance(current, Vectors):
        is_one = (current.values == current.values[0]).all() and len(current) > 1
        is_new = float((reference.values == current.values[0]).all(axis=1).mean()) < CONSTANT_SHARE
        return f"a vector of norm {current.norms[0]:g}" if is_one and is_new else None
    if isinstance(reference, Kinds) and isinstance(current, Kinds):
        value = next(iter(current.counts))
        if len(current.counts) > 1 or len(reference.counts) == 1 or reference.share(value) >= CONSTANT_SHARE:
            return None
        return in_text(value)
    assert isinstance(reference, Numbers) and isinstance(current, Numbers)
    low, high = current.values[0], current.values[-1]
    if low != high or reference.values[0] == reference.values[-1]:
        return None
    return f"{low:g}" if float((reference.values == low).mean()) < CONSTANT_SHARE else None


def _new_values(reference: Kinds, current: Kinds) -> str | None:
    """Returns the most frequent values that the reference lacks, if many current values are among them.

    If the reference's values are mostly rare, further rows of it would also have new values: the share of values that
    occur once (Good, "The population frequencies of species and the estimation of population parameters", 1953).
    """
    new = {value: count for value, count in current.counts.items() if value not in reference.counts}
    unseen = sum(count == 1 for count in reference.counts.values()) / len(reference)
    if sum(new.values()) / len(current) - unseen <= NEW_CATEGORY_SHARE:
        return None
    return ", ".join(in_text(value) for value in sorted(new, key=lambda value: -new[value])[:5])


def in_text(value: object) -> str:
    """Returns a value of few kinds as text."""
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else f"{value:g}"

"""Likely causes of a feature's drift: a fault of the pipeline, or a change of the world.

Causes are derived from the two distributions alone, so they are likely, not proven. A fault is only reported if real
changes hardly ever look like it: many values that were never seen, or all quantiles moved by a conversion of units.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from airflow_hops.core.contract.skew import Cause
from airflow_hops.ml.monitoring.skew.distribution import Array, Curve, Distribution, Numbers, Values, Vectors
from airflow_hops.ml.monitoring.skew.measures import overflows

FAULTS: frozenset[Cause] = frozenset({"all_missing", "constant", "unit_change", "swapped", "new_category"})
"""Causes that are faults of a pipeline. A missing rate is one if it moved by :data:`MISSING_FAULT`."""
MISSING_FAULT = 0.5
"""Smallest change of the share of missing values that is a fault."""
NEW_CATEGORY_SHARE = 0.1
"""Largest share of current values, never seen in the reference, that is not a fault."""
CONSTANT_SHARE = 0.5
"""Share of the reference from which a value may be the only one of a window by chance."""

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
_LEVELS = np.linspace(0.1, 0.9, 9)
_FAR = 8.0
_ANY_FACTOR = 4.0
"""Smallest factor between two distributions of the same shape that always counts as a change of units."""
_APART = 0.4
"""Smallest distance of two distributions at which a mixture can be told from a shift."""
_NOISES, _UNEXPLAINED, _SEASON = 5.0, 0.12, 0.28
"""Limits of a mixture: its least distance in units of the noise, and the part of it that may stay unexplained.

The third is the part that it may leave of what a move and a stretch leave: fortnights of weather compared with earlier
quarters leave at least 0.295, half of a month's rows in another unit mostly less than 0.25.
"""
_PERCENTILES = np.linspace(0.01, 0.99, 99)
_SWAPPED = 50
"""Largest number of drifted features that are compared with each other."""


def cause_of(
    reference: Distribution | None, current: Distribution | None, *, values_moved: bool, missing_moved: bool
) -> tuple[Cause, str | None]:
    """Returns the likely cause of a feature's drift, and the evidence in words.

    Args:
        reference: Distribution in the reference; None without values.
        current: Distribution in the current rows.
        values_moved: Whether the distribution of the values has drifted.
        missing_moved: Whether the share of missing values has drifted.
    """
    if current is None:
        return "all_missing", None
    if values_moved and reference is not None and not overflows(reference, current):
        if (value := _only_value(reference, current)) is not None:
            return "constant", value
        if isinstance(reference, Numbers) and isinstance(current, Numbers):
            if (conversion := unit_change(reference, current)) is not None:
                return "unit_change", conversion
        elif isinstance(reference, Values) and isinstance(current, Values) and (new := _new_values(reference, current)):
            return "new_category", new
    return ("missing_rate" if missing_moved else "covariate_shift"), None


def unit_change(reference: Numbers, current: Numbers) -> str | None:
    """Returns the conversion of units that turns the reference's values into the current ones; None if there is none.

    All nine deciles must lie where the conversion puts the reference's, up to 5% of the distance from the first to the
    last plus the sampling error, and the conversion must move at least one decile by three times this limit.
    """
    before, now = (_deciles(sample) for sample in (reference, current))
    conversions = [(name, factor, 0.0) for name, factor in _FACTORS.items()]
    conversions += [(name, factor, shift) for name, (factor, shift) in _SHIFTS.items()]
    if len(np.unique(before)) < 5:
        return _far_factor(reference, current) or _partial_change(reference, current, conversions)
    noise = 1.0 / min(reference.count, current.count) ** 0.5
    ratio = float((now[-1] - now[0]) / (before[-1] - before[0]))
    if ratio > 0 and max(ratio, 1 / ratio) >= _ANY_FACTOR:
        conversions.append((f"a factor of {ratio:.3g}", ratio, 0.0))
    best, nearest = None, 0.05 + noise
    for name, factor, shift in _both_ways(conversions):
        converted = np.sort(factor * before + shift)
        spread = converted[-1] - converted[0]
        apart = float(np.abs(now - converted).max()) / spread
        moved = float(np.abs(converted - before).max()) / max(spread, before[-1] - before[0])
        if apart < nearest and moved > 3 * nearest:
            best, nearest = name, apart
    return best or _partial_change(reference, current, conversions)


def swapped(features: Mapping[str, tuple[Distribution | None, Distribution | None]]) -> dict[str, str]:
    """Returns the features whose current values come, in some rows, from another feature: evidence in words by name.

    A feature only counts if the other one does, too: two swapped columns, or a cycle of columns under each other's
    names.
    """
    sources: dict[str, tuple[str, float]] = {}
    some = [(name, of) for name, of in features.items() if not overflows(*of)][:_SWAPPED]
    for name, (before, now) in some:
        shares = [(share, other) for other, (source, _) in some if (share := _mixed_share(before, now, source))]
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


def _partial_change(reference: Numbers, current: Numbers, conversions: Iterable[_Conversion]) -> str | None:
    """Returns the conversion that some of the rows have had.

    Other seasons can look like such a mixture, but are nearer to a reference that was moved and stretched.
    """
    one, other, noise = reference.curve, current.curve, _noise(reference.count, current.count)
    before, now = (np.interp(_PERCENTILES, curve.f[0], curve.x[0]) for curve in (one, other))
    if before[0] == before[-1]:
        return None
    # The reference moved and stretched by least squares; divided first, as squares may be 0 or infinite
    x_unit, y_unit = float(np.abs(before).max()), float(np.abs(now).max()) or 1.0
    x, y = before / x_unit, now / y_unit
    centred = x - x.mean()
    slope = float(centred @ (y - y.mean()) / (centred @ centred))
    line = _converted(Curve(one.x / x_unit, one.f, one.infinite), slope, float(y.mean() - slope * x.mean()))
    moved = Curve(line.x * y_unit, line.f, line.infinite)
    points = _points(other, moved)
    nearest = _SEASON * float(np.abs(other.at(points) - moved.at(points)).max())
    best = None
    for name, factor, shift in _both_ways(conversions):
        converted = _converted(one, factor, shift)
        points = _points(one, other, converted)
        share, left = _mixture(one.at(points)[0], other.at(points)[0], converted.at(points)[0], noise)
        if share and left < nearest:
            best, nearest = f"{name}{_of_rows(share)}", left
    return best


def _converted(curve: Curve, factor: float, shift: float) -> Curve:
    x = factor * curve.x + shift
    return Curve(x, curve.f, curve.infinite) if factor >= 0 else Curve(x[:, ::-1], 1 - curve.f[:, ::-1], curve.infinite)


def _points(*curves: Curve) -> Array:
    return np.unique(np.concatenate([curve.x for curve in curves], 1))[None]


def _mixed_share(before: Distribution | None, now: Distribution | None, other: Distribution | None) -> float:
    """Returns the share of the current values that another feature's distribution explains."""
    if isinstance(before, Numbers) and isinstance(now, Numbers) and isinstance(other, Numbers):
        points = _points(before.curve, now.curve, other.curve)
        values = [side.curve.at(points)[0] for side in (before, now, other)]
        return _mixture(values[0], values[1], values[2], _noise(before.count, now.count))[0]
    if isinstance(before, Values) and isinstance(now, Values) and isinstance(other, Values):
        labels = dict.fromkeys([*before.counts, *now.counts, *other.counts])
        values = [np.array([s.counts.get(v, 0.0) for v in labels]) / s.total for s in (before, now, other)]
        return _mixture(values[0], values[1], values[2], _noise(before.total, now.total))[0]
    return 0.0


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


def _deciles(sample: Numbers) -> Array:
    quantiles = sample.quantiles.x[0]
    return np.interp(_LEVELS, np.linspace(0.0, 1.0, len(quantiles)), quantiles)


def _far_factor(reference: Numbers, current: Numbers) -> str | None:
    """Finds a large factor for a feature with few different deciles, by mean, deviation and largest absolute value."""
    before, now = (np.array([s.mean, s.std, max(abs(s.low), abs(s.high))]) for s in (reference, current))
    if (before == 0).any() or (now == 0).any():
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
        is_one = (current.rows == current.rows[0]).all() and len(current.rows) > 1
        is_new = float((reference.rows == current.rows[0]).all(axis=1).mean()) < CONSTANT_SHARE
        return f"a vector of norm {current.norms[0]:g}" if is_one and is_new else None
    if isinstance(current, Values) and isinstance(reference, Values):
        value = next(iter(current.counts))
        share = reference.counts.get(value, 0.0) / reference.total
        return value if current.unique == 1 and share < CONSTANT_SHARE and reference.unique > 1 else None
    assert isinstance(reference, Numbers) and isinstance(current, Numbers)
    if current.low != current.high or current.standard.infinite[0] or reference.low == reference.high:
        return None
    at = np.array([[current.low]])
    share = float((reference.curve.at(at) - reference.curve.at(at, "left"))[0, 0])
    if current.low == 0:
        share = max(share, reference.zeros / reference.count)
    return f"{current.low:g}" if share < CONSTANT_SHARE else None


def _new_values(reference: Values, current: Values) -> str | None:
    """Returns the most frequent values that the reference lacks, if many current values are among them."""
    new = {value: count for value, count in current.counts.items() if value not in reference.counts}
    # Unlisted values of the reference may be among them.
    unlisted = max(0.0, 1.0 - sum(reference.counts.values()) / reference.total)
    if sum(new.values()) / current.total - unlisted <= NEW_CATEGORY_SHARE:
        return None
    return ", ".join(sorted(new, key=lambda value: -new[value])[:5])

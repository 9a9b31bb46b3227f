"""Whether a drifted feature looks like a broken pipeline, or like the world changing.

What is told apart is told from both distributions alone, so a cause is a likeness, not a proof. Faults are named only
where the world hardly does the like: a share of new values that no season brings, or every quantile moved by the factor
between two units.
"""

from __future__ import annotations

import numpy as np

from airflow_hops.contract.skew import Cause
from airflow_hops.runtime.skew.distribution import Array, Distribution, Numbers, Values, Vectors

FAULTS: frozenset[Cause] = frozenset({"all_missing", "constant", "unit_change", "new_category"})
"""Causes that are faults of a pipeline. A missing rate is one when it has moved by :data:`MISSING_FAULT`."""
MISSING_FAULT = 0.5
"""Change of the share of missing values from which it is a fault."""
NEW_CATEGORY_SHARE = 0.1
"""Share of current values, never seen in the reference, above which they are a fault."""
CONSTANT_SHARE = 0.5
"""A value that more than this share of the reference has may be the only one of a window by chance."""

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
_LEVELS = np.linspace(0.1, 0.9, 9)
_FAR = 8.0


def cause_of(
    reference: Distribution | None,
    current: Distribution | None,
    *,
    values_moved: bool,
    missing_moved: bool,
) -> tuple[Cause, str | None]:
    """What the drift of a feature looks like, and what makes it look so.

    Args:
        reference: The feature's distribution in the reference; None if it has no value.
        current: The same of the current rows.
        values_moved: Whether the distribution of the values has drifted.
        missing_moved: Whether the share of missing values has.
    """
    if current is None:
        return "all_missing", None
    if values_moved and reference is not None:
        if (value := _only_value(reference, current)) is not None:
            return "constant", value
        if isinstance(reference, Numbers) and isinstance(current, Numbers):
            if (conversion := unit_change(reference, current)) is not None:
                return "unit_change", conversion
        elif isinstance(reference, Values) and isinstance(current, Values) and (new := _new_values(reference, current)):
            return "new_category", new
    return ("missing_rate" if missing_moved else "covariate_shift"), None


def unit_change(reference: Numbers, current: Numbers) -> str | None:
    """The conversion of units that makes the current values of the reference's; None if there is none.

    A conversion counts when each of the nine deciles is where it puts the reference's, give or take 5% of the distance
    from the first to the last of them and what sampling adds, and when it moves one by three times as much.
    """
    before, now = (_deciles(sample) for sample in (reference, current))
    conversions = [(name, factor, 0.0) for name, factor in _FACTORS.items()]
    conversions += [(name, factor, shift) for name, (factor, shift) in _SHIFTS.items()]
    if len(np.unique(before)) < 5:
        return _far_factor(reference, current)
    noise = 1.0 / min(reference.count, current.count) ** 0.5
    best, nearest = None, 0.05 + noise
    for name, factor, shift in conversions:
        for way, a, b in (("", factor, shift), (", backwards", 1 / factor, -shift / factor)):
            converted = np.sort(a * before + b)
            spread = converted[-1] - converted[0]
            apart = float(np.abs(now - converted).max()) / spread
            moved = float(np.abs(converted - before).max()) / max(spread, before[-1] - before[0])
            if apart < nearest and moved > 3 * nearest:
                best, nearest = name + way, apart
    return best


def _deciles(sample: Numbers) -> Array:
    quantiles = sample.quantiles.x[0]
    return np.interp(_LEVELS, np.linspace(0.0, 1.0, len(quantiles)), quantiles)


def _far_factor(reference: Numbers, current: Numbers) -> str | None:
    """A conversion of a feature with few different deciles: by a far factor, in mean, deviation and greatest value."""
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
    """The one value that the current rows have, where the reference varies."""
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
    """The most frequent values that the reference does not have, where they are many of the current ones."""
    new = {value: count for value, count in current.counts.items() if value not in reference.counts}
    # What the reference has and does not list may be among them.
    unlisted = max(0.0, 1.0 - sum(reference.counts.values()) / reference.total)
    if sum(new.values()) / current.total - unlisted <= NEW_CATEGORY_SHARE:
        return None
    return ", ".join(sorted(new, key=lambda value: -new[value])[:5])

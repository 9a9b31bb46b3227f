"""Likely causes of a feature's drift: a fault of the pipeline, or a change of the world.

Causes are derived from the values of both sides alone, so they are likely, not proven. A fault is only reported if real
changes rarely look like it: many new values, or a conversion of units.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from airflow_hops.core.skew import Cause
from airflow_hops.ml.distances.mixtures import at_points, mixture, noise, of_rows
from airflow_hops.ml.distances.sides import Distribution, Kinds, Numbers, Vectors
from airflow_hops.ml.distances.units import possible_change, unit_change, words_of

FAULTS: frozenset[Cause] = frozenset(
    {"all_missing", "other_type", "constant", "unit_change", "swapped", "new_category"}
)
"""Causes that are faults of a pipeline. A missing rate is one if it rose by :data:`MISSING_FAULT`."""

# Each bound lies between what the world does and what a broken pipeline does. No model is retrained on a fault: if a
# bound is too low, real changes prevent it, too; if it is too high, models are trained on broken rows.

MISSING_FAULT = 0.5
"""Smallest rise of the share of missing values that is a fault: fields go out of use by less within a window."""
NEW_CATEGORY_SHARE = 0.1
"""Largest share of current values, never seen in the reference, that is not a fault: new shops and codes are fewer."""
CONSTANT_SHARE = 0.5
"""Share of the reference from which a text may fill a window: it is the rule, and the rest are exceptions."""
MANY_KINDS = 60
"""Kinds that a window need not show: of an hour's minutes it may have one alone, of so many ids the next has others."""
_CALENDAR = ("date", "day", "dow", "doy", "weekday", "weekend", "week", "month", "quarter", "season", "year", "hour")
"""Words of names of features that the time sets: a short window has one value, and a later one new values."""
USUAL_SHARE = 0.5
"""Share from which a feature's most frequent number is left out: below it, the median tells of the others."""
MOST_SWAPPED = 50
"""Largest number of drifted features that are compared with each other: of a thousand, all pairs take minutes."""


def cause_of(
    reference: Distribution | None,
    current: Distribution | None,
    *,
    name: str = "",
    unit: str = "",
    values_moved: bool,
    missing_moved: bool,
) -> tuple[Cause, str | None]:
    """Returns the likely cause of a feature's drift, and the evidence in words.

    Args:
        reference: Values of the reference; None without values.
        current: Values of the current rows.
        name: Name of the feature.
        unit: Its unit in the reference, if the schema has it.
        values_moved: Whether the values have drifted.
        missing_moved: Whether the share of missing values has drifted.
    """
    if current is None:
        return "all_missing", None
    if values_moved and reference is not None:
        words = words_of(name)
        of_calendar = any(word in words and f"{word}s" not in words for word in _CALENDAR)  # days are a duration
        if not of_calendar and (value := _only_value(reference, current)) is not None:
            return "constant", value
        one, other = as_numbers(reference), as_numbers(current)
        if one is not None and other is not None:
            rest = unusual(one, other) or (one, other)
            if (conversion := unit_change(*rest, name, unit)) is not None:
                return "unit_change", conversion
            if not missing_moved:
                return "covariate_shift", possible_change(*rest, name, unit)
        elif not of_calendar and isinstance(reference, Kinds) and isinstance(current, Kinds):
            new = _new_values(reference, current)
            if new is not None:
                return "new_category", new
    return ("missing_rate" if missing_moved else "covariate_shift"), None


def as_numbers(values: Distribution | None) -> Numbers | None:
    """Returns numbers, also those of few kinds, as numbers; None for others."""
    if isinstance(values, Kinds) and not isinstance(next(iter(values.counts)), str | bytes):
        kinds = sorted(values.counts)
        return Numbers(np.repeat(np.array(kinds), [values.counts[kind] for kind in kinds]))
    return values if isinstance(values, Numbers) else None


def unusual(reference: Numbers, current: Numbers) -> tuple[Numbers, Numbers] | None:
    """Returns the numbers other than the most frequent one, if it is the same and holds half of both sides, or more.

    Otherwise their changes, such as those of positive numbers among zeros, would be hidden.
    """
    (value, share), (other, current_share) = reference.usual, current.usual
    if value != other or min(share, current_share) < USUAL_SHARE or max(share, current_share) == 1:
        return None
    return reference.without(value), current.without(value)


def swapped(features: Mapping[str, tuple[Distribution | None, Distribution | None]]) -> dict[str, str]:
    """Returns the features whose current values come, in some rows, from another feature: evidence in words by name.

    A feature only counts if the other one does, too: two swapped columns, or a cycle of columns under each other's
    names.
    """
    sources: dict[str, tuple[str, float]] = {}
    for name, (reference, current) in features.items():
        shares = [
            (share, other)
            for other, (source, _) in features.items()
            if (share := _mixed_share(reference, current, source))
        ]
        if shares:
            share, other = max(shares)
            sources[name] = other, share
    while outside := [name for name, (other, _) in sources.items() if other not in sources]:
        for name in outside:
            del sources[name]
    return {name: f"values of {other!r}{of_rows(share)}" for name, (other, share) in sources.items()}


def _mixed_share(reference: Distribution | None, current: Distribution | None, other: Distribution | None) -> float:
    """Returns the share of the current values that another feature's distribution explains."""
    if reference is None or current is None or other is None or isinstance(reference, Vectors):
        return 0.0
    numbers = [as_numbers(side) for side in (reference, current, other)]
    if all(side is not None for side in numbers):
        shares = at_points(*(side for side in numbers if side is not None))
    elif isinstance(reference, Kinds) and isinstance(current, Kinds) and isinstance(other, Kinds):
        values = dict.fromkeys([*reference.counts, *current.counts, *other.counts])
        shares = tuple(np.array([side.share(value) for value in values]) for side in (reference, current, other))
    else:
        return 0.0
    return mixture(shares[0], shares[1], shares[2], noise(len(reference), len(current)))[0]


def _only_value(reference: Distribution, current: Distribution) -> str | None:
    """Returns the only value of the current rows, if the reference varies and hardly ever has it."""
    if isinstance(reference, Vectors) and isinstance(current, Vectors):
        is_one = (current.values == current.values[0]).all() and len(current) > 1
        is_new = float((reference.values == current.values[0]).all(axis=1).mean()) < CONSTANT_SHARE
        return f"a vector of norm {current.norms[0]:g}" if is_one and is_new else None
    old, new = as_numbers(reference), as_numbers(current)
    if old is not None and new is not None:
        low, high = new.values[0], new.values[-1]
        if low != high or old.values[0] == old.values[-1]:
            return None
        return in_text(low) if float((old.values == low).mean()) < 1 / MANY_KINDS else None
    assert isinstance(reference, Kinds) and isinstance(current, Kinds)
    value = next(iter(current.counts))
    if len(current.counts) > 1 or len(reference.counts) == 1 or reference.share(value) >= CONSTANT_SHARE:
        return None
    return in_text(value)


def _new_values(reference: Kinds, current: Kinds) -> str | None:
    """Returns the most frequent values that the reference lacks, if many current values are among them.

    If the reference's values are mostly rare, further rows of it would also have new values: the share of values that
    occur once (Good, "The population frequencies of species and the estimation of population parameters", 1953). If it
    has many values, such as ids, a new one counts only if it is frequent, or a known one that is written otherwise.
    """
    new = {value: count for value, count in current.counts.items() if value not in reference.counts}
    rows = len(reference)
    unseen = sum(count == 1 for count in reference.counts.values()) / rows
    # The effective number of kinds: the inverse of Simpson's index
    if rows**2 >= MANY_KINDS * sum(count**2 for count in reference.counts.values()):
        known, unseen = {_folded(value) for value in reference.counts}, 0.0
        often = NEW_CATEGORY_SHARE * len(current)
        new = {value: count for value, count in new.items() if count > often or _folded(value) in known}
    if sum(new.values()) / len(current) - unseen <= NEW_CATEGORY_SHARE:
        return None
    return ", ".join(in_text(value) for value in sorted(new, key=lambda value: -new[value])[:5])


def _folded(value: str | bytes) -> str:
    return in_text(value).strip().casefold()


def in_text(value: object) -> str:
    """Returns a value of few kinds as text."""
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return f"{value:g}" if isinstance(value, float) else str(value)

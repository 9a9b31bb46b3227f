"""A feature's change in a line of words."""

from __future__ import annotations

import numpy as np

from airflow_hops.ml.distances.causes import as_numbers, in_text, unusual
from airflow_hops.ml.distances.sides import Distribution, Feature, Kinds, Numbers, Vectors

_LEAST = 0.05
"""Smallest change that is mentioned besides the largest."""
_ALIKE = 0.15
"""Largest difference of the quartiles' ratios, or shifts, at which all values have changed alike."""


def in_words(reference: Feature, current: Feature, distance: float) -> str:
    """Describes the largest change, such as "about 30% larger than in the reference".

    Args:
        reference: The feature in the reference.
        current: The feature in the current rows.
        distance: Distance of the values.
    """
    old, new, sides = reference.distribution, current.distribution, (reference, current)
    missing = [side.missing / max(1, side.rows) for side in sides]
    if new is None:
        return "no values"
    if old is None:
        return f"values in {_percent(1 - missing[1])} of the rows, none in the reference"
    changes = [(distance, _of_values(old, new))]
    changes.append((abs(missing[1] - missing[0]), f"missing in {_both(missing)}"))
    infinite = [side.infinite / max(1, side.rows) for side in sides]
    changes.append((abs(infinite[1] - infinite[0]), f"infinite in {_both(infinite)}"))
    if len(reference.lengths) and len(current.lengths):
        means = [float(side.lengths.mean()) for side in sides]
        change = abs(means[1] - means[0]) / max(*means, 1e-9)
        changes.append((change, f"{means[1]:.3g} values per row, {means[0]:.3g} in the reference"))
    first, *others = sorted(changes, key=lambda change: -change[0])
    return "; ".join([first[1], *(words for change, words in others if change >= _LEAST)])


def _of_values(old: Distribution, new: Distribution) -> str:
    one, other = as_numbers(old), as_numbers(new)
    if one is not None and other is not None:
        return _of_numbers(one, other)
    if isinstance(old, Kinds) and isinstance(new, Kinds):
        values = dict.fromkeys([*old.counts, *new.counts])
        value = max(values, key=lambda each: abs(new.share(each) - old.share(each)))
        return f"{in_text(value)!r} in {_both([old.share(value), new.share(value)])}"
    assert isinstance(old, Vectors) and isinstance(new, Vectors)
    norms = [float(np.median(side.norms)) for side in (old, new)]
    return f"median norm {_number(norms[1])}, {_number(norms[0])} in the reference"


def _both(shares: list[float]) -> str:
    return f"{_percent(shares[1])} of the rows, {_percent(shares[0])} in the reference"


def _of_numbers(old: Numbers, new: Numbers) -> str:
    others = unusual(old, new)
    prefix = ""
    if others is not None:
        prefix = f"values other than {_number(old.usual[0])}: "
        old, new = others
    quartiles, after = (side.quantiles(np.array([0.25, 0.5, 0.75])) for side in (old, new))
    if (quartiles != 0).all() and (np.sign(quartiles) == np.sign(after)).all():
        ratios = after / quartiles
        if np.ptp(ratios) <= _ALIKE * abs(ratios[1] - 1) and abs(ratios[1] - 1) >= 0.005:
            return f"{prefix}{_times(float(np.exp(np.log(ratios).mean())))} in the reference"
    return f"{prefix}median {_number(after[1])}, {_number(quartiles[1])} in the reference"


def _times(ratio: float) -> str:
    if ratio >= 2:
        return f"about {ratio:.3g} times as large as"
    return f"about {_percent(abs(ratio - 1))} {'larger' if ratio > 1 else 'smaller'} than"


def _number(value: float) -> str:
    return f"{value:.4g}"


def _percent(share: float) -> str:
    return f"{100 * share:.2g}%" if share < 0.995 else "100%" if share >= 0.9995 else f"{100 * share:.1f}%"

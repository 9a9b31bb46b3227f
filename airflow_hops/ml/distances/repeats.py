"""Rows that repeat others, as requests that a client retries do: tests assume that rows are independent."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from airflow_hops.core.skew import SkewTest
from airflow_hops.ml.distances.sides import Side

# Too low, bounds leave out rows of which more than one client sent the same, so a shift towards these is not found; too
# high, ten copies of each row count as ten observations, and chance is called drift.

_REPEATED = 0.05
"""Least share of repeated rows: fewer do not change p-values by as much as their own error."""
_MORE = 2.0
"""How many times the reference's share of repeated rows is not by chance: coarse columns repeat in both."""
_OF_ONE = 0.1
"""Largest part of the repetitions that a single row may have: those of a row of default values are a finding."""


def without_repeats(reference: Side, current: Side) -> tuple[Side, tuple[str, ...]]:
    """Returns the current side with each row once in its sample, and a note, if rows of the reference hardly repeat.

    The rows must agree in more than the most varied feature, which may only have become coarser. A sample of few
    different rows stays as it is: its features no longer vary, which is a finding.
    """
    old, new = reference.sample, current.sample
    if old is None or new is None or not len(old) or not len(new):
        return current, ()
    plain = ({item.name for item in side.schema if not pa.types.is_nested(item.type)} for side in (old, new))
    names = sorted(set.intersection(*plain))
    sides = [side.select(names).slice(0, min(len(old), len(new))).to_pandas() for side in (old, new)]
    others = sides[0].nunique().sort_values(kind="stable").index[:-1].tolist()
    if not others:
        return current, ()
    by_chance, share = (side[others].duplicated().mean() for side in sides)
    if share < _REPEATED or share <= _MORE * by_chance:
        return current, ()
    rows = new.select(names).to_pandas()
    repeated = rows.duplicated().to_numpy()
    most = int(rows.value_counts(dropna=False).iloc[0]) - 1
    if repeated.mean() < _REPEATED or len(new) - repeated.sum() < SkewTest.MIN_ROWS or most > _OF_ONE * repeated.sum():
        return current, ()
    note = (
        f"{int(repeated.sum()):,} of {len(new):,} rows repeat others, as requests that a client retries do: each is "
        "compared once"
    )
    return replace(current, sample=new.filter(pa.array(~repeated))), (note,)

"""Finds what must be known of all rows before any is classified: the latest time, and the lengths of vectors."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import pyarrow.compute as pc

from airflow_hops.core.errors import BadInput
from airflow_hops.ml.prepare.columns import REASON_COLUMN, to_seconds
from airflow_hops.ml.prepare.engine import PreparedRows


def latest_time(rows: PreparedRows, time: str) -> int | None:
    """Returns the latest time of the rows without a reason to reject them, in seconds since the epoch, or None.

    Raises:
        BadInput: a time is outside the years 1 to 9999.
    """
    columns = [time, *({REASON_COLUMN} & {*rows.schema.names})]
    latest = (value for line in rows.summarize(columns, partial(_latest, time)) for value in json.loads(line))
    return max(latest, default=None)


def vector_widths(rows: PreparedRows, names: Sequence[str]) -> dict[str, int]:
    """Returns the median length of each vector feature.

    Raises:
        BadInput: it is below 2, or no row has the vector.
    """
    counts: dict[str, Counter[int]] = {name: Counter() for name in names}
    for line in rows.summarize(names, partial(_lengths, names)) if names else ():
        for name, lengths in json.loads(line).items():
            counts[name].update(dict(lengths))
    widths = {}
    for name, lengths in counts.items():
        ordered = sorted(lengths.items())
        seen, half = 0, (lengths.total() + 1) // 2
        for width, number in ordered:
            widths[name] = width
            if (seen := seen + number) >= half:
                break
        if widths.get(name, 0) < 2:
            what = f"of {widths[name]} numbers in most rows" if name in widths else "in no row"
            raise BadInput(
                f"prepare's column {name!r} is a vector {what}; expected 2 numbers or more, or a number itself"
            )
    return widths


def _latest(time: str, batches: Iterable[Any]) -> str:
    latest = (pc.max(to_seconds(batch.column(0), time, *batch.columns[1:])).as_py() for batch in batches)
    return json.dumps([value for value in latest if value is not None])


def _lengths(names: Sequence[str], batches: Iterable[Any]) -> str:
    counts: dict[str, Counter[int]] = {name: Counter() for name in names}
    for batch in batches:
        for name, column in zip(names, batch.columns, strict=True):
            counts[name].update(column.value_lengths().drop_null().to_pylist())
    return json.dumps({name: [*lengths.items()] for name, lengths in counts.items()})

"""Times of rows, and the period that they span without wrong ones: a default of 1970, a typing error, milliseconds."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_hops.core.errors import BadInput
from airflow_hops.ml.distances.sides import Array

_FEW, _SOME = 0.01, 0.25
"""Largest shares of the rows, at each end, whose times may be wrong: if they are far; if also a month away."""
_MONTH_S = 30 * 86_400.0
_ZONE = r"(Z|z|[+-]\d\d(:?\d\d)?)$"


def seconds_of(table: pa.Table, time: str) -> Array:
    """Returns times as seconds since the epoch, ``[rows]``; NaN where there is none.

    Args:
        table: Rows.
        time: Column of seconds since the epoch, timestamps, dates, or text in ISO 8601; UTC unless it has a zone.

    Raises:
        BadInput: there is no such column, or it has no times.
    """
    if time not in table.column_names:
        raise BadInput(f"there is no column {time!r} of times; found {', '.join(table.column_names)}")
    column = table[time].combine_chunks()
    kind = column.type
    try:
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            column = pc.if_else(pc.equal(pc.utf8_trim_whitespace(column), ""), pa.scalar(None, kind), column)
            zoned = pc.match_substring_regex(column, rf"[T ]\d.*{_ZONE}")
            plain = pc.if_else(zoned, pa.scalar(None, kind), column).cast(pa.timestamp("us"))
            column = pc.if_else(zoned, column, pa.scalar(None, kind)).cast(pa.timestamp("us", "UTC"))
            column = pc.coalesce(column.cast(pa.int64()), plain.cast(pa.int64())).cast(pa.timestamp("us"))
        if pa.types.is_temporal(column.type):
            column = pc.divide(column.cast(pa.timestamp("us"), safe=False).cast(pa.int64()).cast(pa.float64()), 1e6)
        seconds: Array = column.cast(pa.float64()).to_numpy(zero_copy_only=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise BadInput(f"column {time!r} is {kind}, expected times ({error})") from error
    if not np.isfinite(seconds).any():
        raise BadInput(f"column {time!r} has no times")
    return seconds


def usual_period(times: Array, rows: Array, unit: float = 0.0) -> tuple[float, float]:
    """Returns the first and the last time, without few that are further away than the period of all others is long.

    Args:
        times: Finite seconds since the epoch, ascending, ``[times]``.
        rows: Number of rows of each time, ``[times]``.
        unit: Seconds that each time stands for, as of whole days.
    """
    until = np.cumsum(rows) / rows.sum()
    first, last = (int(np.searchsorted(until, share)) for share in (_SOME, 1 - _SOME))

    def belongs(gap: float, few: float) -> bool:
        return gap <= times[last] - times[first] + unit or (few > _FEW and gap < _MONTH_S)

    size = -1
    while size != last - first:
        size = last - first
        while first and belongs(times[first] - times[first - 1], until[first - 1]):
            first -= 1
        while last < len(times) - 1 and belongs(times[last + 1] - times[last], 1 - until[last]):
            last += 1
    return float(times[first]), float(times[last])

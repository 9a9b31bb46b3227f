"""IDs of the rows that ``ScoreOperator`` scored: the key, and the end of the window or the run."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

SCORED = "batch"
"""The ``api`` of captured rows that were scored."""
_US = pa.timestamp("us", "UTC")


def is_scored(table: pa.Table) -> Any:
    """Returns which captured rows were scored, an Arrow array of booleans; their ``api`` says so."""
    if "api" not in table.column_names:
        return pa.array([False] * table.num_rows, pa.bool_())
    return pc.fill_null(pc.equal(table["api"].cast(pa.string()), SCORED), False)


def as_key(column: Any) -> Any:
    """Returns a column of a key as it is compared: times as seconds since the epoch, and integers as texts."""
    if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
        column = column.cast(pa.timestamp("us"), safe=False).cast(pa.timestamp("s"), safe=False).cast(pa.int64())
    return column.cast(pa.string()) if pa.types.is_integer(column.type) else column


def split_ids(ids: Any) -> tuple[Any, Any]:
    """Returns the keys of scored rows, and the ends of their windows; null if a run takes the window's place."""
    parts = pc.extract_regex(ids.cast(pa.string()), r"(?s)^(?P<key>.*)@(?P<window>[^@]*)$")
    names = pc.struct_field(parts, [1]).dictionary_encode()
    names = names.combine_chunks() if isinstance(names, pa.ChunkedArray) else names
    ends: list[datetime | None] = []
    for name in names.dictionary.to_pylist():
        ends.append(None)
        with contextlib.suppress(ValueError):
            end = datetime.fromisoformat(name)
            ends[-1] = end if end.tzinfo else end.replace(tzinfo=UTC)
    return pc.struct_field(parts, [0]), pa.array(ends, _US).take(names.indices)


def assigned_units(table: pa.Table) -> pa.ChunkedArray:
    """Returns what was assigned to a version, text by captured row: the request's ID, or a scored row's key."""
    ids = table["request_id"].cast(pa.string())
    scored = is_scored(table)
    return pc.if_else(scored, pc.coalesce(split_ids(ids)[0], ids), ids) if pc.any(scored).as_py() else ids

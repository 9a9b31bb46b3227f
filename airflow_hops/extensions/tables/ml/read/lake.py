"""Selection of rows in tables of Iceberg and Delta, and their division into parts."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.extensions.tables.core.sources import TableSource
from airflow_hops.extensions.tables.ml.read.open_table import check_duplicates
from airflow_hops.ml.stages.ingest.window import Window

PART_BYTES = 128 << 20
"""Maximum bytes of the files of a part, unless it is one file."""


def bounds(source: TableSource, window: Window, schema: pa.Schema) -> list[tuple[str, pa.Scalar]]:
    """Returns comparisons of the time column with the window's bounds; none for text, which is selected later."""
    if source.time_column is None:
        return []
    type_ = schema.field(source.time_column).type
    ends = [(compared, time) for compared, time in ((">=", window.start), ("<", window.end)) if time is not None]
    if pa.types.is_integer(type_):
        return [(compared, pa.scalar(math.ceil(time.timestamp()), pa.int64())) for compared, time in ends]
    if pa.types.is_timestamp(type_):
        return [(c, pa.scalar(time if type_.tz else time.replace(tzinfo=None), type_)) for c, time in ends]
    if pa.types.is_date(type_):
        return [(compared, pa.scalar(_next_day(time).date(), type_)) for compared, time in ends]
    return []


def _next_day(time: datetime) -> datetime:
    """Returns the first midnight that is not before a time."""
    midnight = time.replace(hour=0, minute=0, second=0, microsecond=0)
    return midnight if midnight == time else midnight + timedelta(days=1)


def parts(files: Iterable[tuple[Any, int]]) -> list[list[Any]]:
    """Divides files, with their bytes, into parts of consecutive ones."""
    result: list[list[Any]] = [[]]
    size = 0
    for file, size_bytes in files:
        if result[-1] and size + size_bytes > PART_BYTES:
            result.append([])
            size = 0
        result[-1].append(file)
        size += size_bytes
    return result


def check_key(keys: pa.Table, source: TableSource, where: str) -> None:
    """Raises BadInput if two rows have the same key."""
    names = list(source.key)
    try:
        counts = keys.group_by(names).aggregate([([], "count_all")])
    except pa.ArrowNotImplementedError as error:
        raise BadInput(f"{where}: the columns of 'key' cannot be compared: {error}; name others") from error
    duplicates = counts.filter(pc.greater(counts["count_all"], 1)).slice(0, 1).to_pylist()
    check_duplicates([[*(row[name] for name in names), row["count_all"]] for row in duplicates], source, where)


def span(times: pa.ChunkedArray) -> tuple[str | None, str | None]:
    """Returns the first and last of times."""
    ends = pc.min_max(times).as_py()
    return (str(ends["min"]), str(ends["max"])) if ends["min"] is not None else (None, None)

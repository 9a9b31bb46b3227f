"""Selection of rows in tables of Iceberg and Delta, and their division into parts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_hops.core.errors import BadInput
from airflow_hops.extensions.tables.core.sources import KeyedSource
from airflow_hops.extensions.tables.ml.read.open_table import OpenTable, check_duplicates, columns_to_read
from airflow_hops.ml.ingest.window import Window

PART_BYTES = 128 << 20
"""Maximum bytes of the files of a part, unless it is one file."""


def bounds(source: KeyedSource, window: Window, schema: pa.Schema) -> list[tuple[str, pa.Scalar]]:
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


def parts(files: Iterable[tuple[object, int]]) -> list[list[Any]]:
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


def check_key(keys: pa.Table, source: KeyedSource, where: str) -> None:
    """Raises BadInput if two rows have the same key."""
    names = [str(number) for number in range(len(source.key))]
    keys = keys.select(list(source.key)).rename_columns(names)
    try:
        counts = keys.group_by(names).aggregate([("0", "count", pc.CountOptions(mode="all"))])
    except pa.ArrowNotImplementedError as error:
        raise BadInput(f"{where}: the columns of 'key' cannot be compared: {error}; name others") from error
    repeated = counts.filter(pc.greater(counts["0_count"], 1)).slice(0, 1).to_pylist()
    check_duplicates([[*(row[name] for name in names), row["0_count"]] for row in repeated], source, where)


def span(times: pa.ChunkedArray) -> tuple[str | None, str | None]:
    """Returns the first and last of times."""
    ends = pc.min_max(times).as_py()
    return (str(ends["min"]), str(ends["max"])) if ends["min"] is not None else (None, None)


def open_dataset(
    dataset: Any,
    sizes: Mapping[str, int],
    source: KeyedSource,
    window: Window,
    where: str,
    failing: Callable[[str], AbstractContextManager[None]],
) -> OpenTable:
    """Opens a dataset of Arrow for the rows in a window.

    Args:
        dataset: The dataset, of files.
        sizes: Size of each file in bytes, by its path.
        source: The source that it belongs to.
        window: The window.
        where: Name for messages.
        failing: Turns errors of reading into ours.

    Raises:
        BadInput: a column is missing, or a key occurs twice.
    """
    schema: pa.Schema = dataset.schema
    columns = columns_to_read(source, schema.names, where)
    limits = bounds(source, window, schema)
    time = pc.field(source.time_column or "")
    inside = None
    for compared, bound in limits:
        condition = time >= bound if compared == ">=" else time < bound
        inside = condition if inside is None else inside & condition
    with failing(where):
        if source.key:
            check_key(dataset.to_table(columns=list(source.key), filter=inside), source, where)
        without_time = dataset.count_rows(filter=time.is_null()) if limits else 0
        files = parts((each, sizes.get(each.path, 0)) for each in dataset.get_fragments(filter=inside))
    return OpenTable(
        where,
        {name: schema.field(name).type for name in columns},
        files,
        partial(_read, where, schema, columns, inside, failing),
        without_time=without_time,
        span=lambda: span(dataset.to_table(columns=[source.time_column])[0]),
    )


def _read(
    where: str,
    schema: pa.Schema,
    columns: Sequence[str],
    inside: Any,
    failing: Callable[[str], AbstractContextManager[None]],
    part: Sequence[Any],
) -> Iterator[pa.RecordBatch]:
    with failing(where):
        for fragment in part:
            yield from fragment.to_batches(schema=schema, columns=list(columns), filter=inside)

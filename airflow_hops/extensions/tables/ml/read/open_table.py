"""A table or query that is open for reading at one state."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pyarrow as pa

from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.extensions.tables.core.sources import KeyedSource, QuerySource
from airflow_hops.ml.ingest.window import Window
from airflow_hops.ml.readers.types import Types
from airflow_hops.ml.spark.pools import Pool


@dataclass(frozen=True)
class OpenTable:
    """A table or query at one state, which lasts as long as it is open.

    Attributes:
        name: Name for messages.
        types: Types of the columns.
        parts: Parts of the table.
        read: Yields the rows of a part, as record batches; called in the pool.
        rows: Number of rows that all parts have; None if unknown.
        without_time: Number of rows that ``read`` leaves out because they have no time.
        span: Returns the first and last time of all rows, also outside the window.
        in_this_process: Whether only this process can read it.
        pool: Reads the parts; None for the step's.
    """

    name: str
    types: Types
    parts: Sequence[Any]
    read: Callable[[Any], Iterable[pa.RecordBatch]] = field(repr=False)
    rows: int | None = None
    without_time: int = 0
    span: Callable[[], tuple[str | None, str | None]] = lambda: (None, None)
    in_this_process: bool = False
    pool: Pool | None = None


def module_for(name: str, what: str) -> Any:
    """Imports the module for the tables of one kind; raises BadInput if the environment lacks its library."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise BadInput(
            f"{what}: the environment {sys.prefix} lacks {error.name}; make one with 'airflow hops runtime create "
            f"--name lake --with {error.name}', and name it in the operator's 'runtime'"
        ) from error


def quoted(name: str) -> str:
    """Returns a name as SQL's identifier."""
    return '"' + name.replace('"', '""') + '"'


def subquery(columns: Sequence[str], sql: str, conditions: Sequence[str] = ()) -> str:
    """Returns a query on the rows of another query, which may end with a comment."""
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    return f"SELECT {', '.join(columns)} FROM (\n{sql.strip().rstrip(';')}\n) AS hops_source{where}"


def columns_to_read(source: KeyedSource, names: Sequence[str], where: str) -> list[str]:
    """Returns the names of the columns to read; raises BadInput if one that the source names does not exist."""
    if not names:
        raise BadInput(f"{where}: there are no columns")
    for argument in ("columns", "key", "time_column", "partition_column"):
        value = getattr(source, argument, None) or ()
        for name in (value,) if isinstance(value, str) else value:
            if name not in names:
                raise BadInput(
                    f"{where}: there is no column {name!r}, which the source's {argument!r} names; its columns are "
                    f"{', '.join(names)}"
                )
    return [name for name in names if source.columns is None or name in (*source.columns, source.time_column)]


def window_conditions(column: str, window: Window, literal: Callable[[datetime], str]) -> list[str]:
    """Returns the SQL conditions on the times of a window; ``literal`` writes a time in SQL."""
    bounds = ((">=", window.start), ("<", window.end))
    return [f"{quoted(column)} {compared} {literal(time)}" for compared, time in bounds if time is not None]


def duplicates(source: QuerySource, conditions: Sequence[str], identity: Callable[[str], str] = quoted) -> str:
    """Returns a query for one key that occurs twice, and its count; ``identity`` is the SQL for a column's values."""
    key = [identity(column) for column in source.key]
    rows = subquery([*key, "count(*)"], source.sql, conditions)
    return f"{rows} GROUP BY {', '.join(key)} HAVING count(*) > 1 LIMIT 1"


def check_duplicates(rows: Sequence[Sequence[object]], source: KeyedSource, where: str) -> None:
    """Raises BadInput if the result of :func:`duplicates` has a row."""
    for *values, count in rows:
        key = ", ".join(f"{name}={value!r}" for name, value in zip(source.key, values, strict=True))
        raise BadInput(f"{where}: the key {key} occurs {count} times; name a key that is unique, or remove duplicates")


@contextmanager
def failing_as(where: str, *errors: type[Exception], is_bad: Callable[[Exception], bool]) -> Iterator[None]:
    """Turns errors of a database into ours: ``BadInput`` if a retry cannot help."""
    try:
        yield
    except HopsError:
        raise
    except errors as error:
        raise (BadInput if is_bad(error) else HopsError)(f"{where}: {' '.join(str(error).split())}") from error

"""Rows of a query of PostgreSQL, read by ADBC in parallel ranges of one exported snapshot."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from itertools import pairwise
from typing import Any, Self

import adbc_driver_manager as adbc
import adbc_driver_postgresql
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from adbc_driver_manager._reader import AdbcRecordBatchReader  # keeps SQLSTATE in the errors of a stream

from airflow_hops.core.errors import BadInput
from airflow_hops.extensions.tables.core.sources import FAULTS, QuerySource, name_of_query
from airflow_hops.extensions.tables.ml.read.open_table import (
    OpenTable,
    check_duplicates,
    columns_to_read,
    duplicates,
    failing_as,
    quoted,
    subquery,
    window_conditions,
)
from airflow_hops.ml.features.raw_features import check_names
from airflow_hops.ml.ingest.window import Window
from airflow_hops.ml.readers.types import MOST_DIGITS, Types

_DIGITS_OF_INT64 = 18
_INTEGERS, _NUMBERS = ("int2", "int4", "int8"), ("int2", "int4", "int8", "numeric")
_TEXTS = ("text", "varchar", "citext")
_TIMES = ("date", "timestamp", "timestamptz")
_CASTS = {"oid": "int8"} | dict.fromkeys(["uuid", "interval", "money", "record", "regproc"], "text")
"""Types that ADBC returns changed, or in a form that a snapshot does not hold, and casts that preserve them."""


class PostgresSession:
    """A connection to PostgreSQL.

    Args:
        options: libpq's parameters.
        where: Connection and query, for messages.

    Raises:
        BadInput: PostgreSQL refuses the login.
        HopsError: PostgreSQL does not answer.
    """

    def __init__(self, options: Mapping[str, str], where: str) -> None:
        self._where, self._stack = where, ExitStack()
        words = [f"{name}={_conninfo(value)}" for name, value in options.items() if name != "dialect"]
        driver = adbc_driver_postgresql._driver_path()
        with self._failing():
            database = self._stack.enter_context(adbc.AdbcDatabase(driver=driver, uri=" ".join(words)))
            self._connection = self._stack.enter_context(adbc.AdbcConnection(database))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def begin(self, snapshot: str | None = None) -> None:
        """Begins a read-only transaction, on an exported snapshot if one is given."""
        self.rows("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        if snapshot is not None:
            self.rows("SET TRANSACTION SNAPSHOT '{}'".format(snapshot.replace("'", "''")))
        self.rows("SET LOCAL idle_in_transaction_session_timeout = 0")

    def rows(self, query: str) -> list[list[Any]]:
        """Returns the rows of a query."""
        with self._failing():
            columns = self._execute(query).read_all().columns
            return [list(row) for row in zip(*(column.to_pylist() for column in columns), strict=True)]

    def fields(self, query: str) -> dict[str, pa.Field]:
        """Returns the columns of a query by name."""
        with self._failing():
            schema = self._execute(query).schema
        check_names(schema.names, self._where)
        return {field.name: field for field in schema}

    def batches(self, query: str) -> Iterator[pa.RecordBatch]:
        """Streams the rows of a query."""
        with self._failing():
            yield from self._execute(query)

    def _execute(self, query: str) -> pa.RecordBatchReader:
        # adbc-driver-postgresql 1.13: its DB-API needs a newer pyarrow than the profile `base` has.
        statement = self._stack.enter_context(adbc.AdbcStatement(self._connection))
        statement.set_sql_query(query)
        stream, _ = statement.execute_query()
        return AdbcRecordBatchReader._import_from_c(stream.address)

    def _failing(self) -> AbstractContextManager[None]:
        return failing_as(self._where, adbc.Error, pa.ArrowException, OSError, is_bad=_is_bad)


def _is_bad(error: Exception) -> bool:
    code = str(getattr(error, "sqlstate", None) or "")
    return code.startswith(FAULTS) or isinstance(error, pa.ArrowInvalid)


@contextmanager
def opened(source: QuerySource, window: Window, _state: str) -> Iterator[OpenTable]:
    """Opens a query for the rows in a window.

    Raises:
        BadInput: the query is refused, a column cannot be used, or a key occurs twice.
        HopsError: PostgreSQL does not answer.
    """
    where, sql = name_of_query(source, source.sql), source.sql
    with PostgresSession(source.storage_options, where) as session:
        session.begin()
        fields = session.fields(subquery(["*"], sql) + " LIMIT 0")
        wanted = [fields[name] for name in columns_to_read(source, list(fields), where)]
        time, conditions = quoted(source.time_column or ""), list[str]()
        if source.time_column is not None:
            kind = _kind(fields[source.time_column], where, "time_column", (*_INTEGERS, *_TIMES))
            conditions = window_conditions(source.time_column, window, partial(_literal, kind))

        def row_of(columns: Sequence[str], conditions: Sequence[str] = ()) -> list[Any]:
            return session.rows(subquery(columns, sql, conditions))[0]

        if source.key:
            check_duplicates(session.rows(duplicates(source, conditions, partial(_identity, fields))), source, where)
        types = _types(wanted, partial(row_of, conditions=conditions), where)
        count, parts = None, list[list[str]]([[]])
        if source.partition_column is not None:
            kind = _kind(fields[source.partition_column], where, "partition_column", (*_NUMBERS, *_TIMES))
            column = quoted(source.partition_column)
            ends = [f"{end}({column})" for end in ("min", "max")]
            if kind in _TIMES:
                ends = [f"(extract(epoch FROM {end}) * 1000000)" for end in ends]
            count, low, high = row_of(["count(*)", *(f"{end}::text" for end in ends)], conditions)
            if not all(Decimal(end or 0).is_finite() for end in (low, high)):
                raise BadInput(
                    f"{where}: partition_column {source.partition_column!r} holds NaN or infinity; leave those rows "
                    "out in the query, or name another column"
                )
            parts = ranges(column, kind, low, high, source.num_partitions)
        without_time = row_of(["count(*)"], [f"{time} IS NULL"])[0] if conditions else 0
        [[snapshot]] = session.rows("SELECT pg_export_snapshot()")

        def span() -> tuple[str | None, str | None]:
            first, last = row_of([f"{end}({time})::text" for end in ("min", "max")])
            return first, last

        read = partial(_read, source, where, [_selected(field) for field in wanted], types, conditions, snapshot)
        yield OpenTable(where, types, parts, read, count, without_time, span)


def state_of(source: QuerySource) -> list[list[object]]:
    """Returns the rows of the source's ``version`` query."""
    with PostgresSession(source.storage_options, name_of_query(source, source.version)) as session:
        return session.rows(source.version or "")


def _read(
    source: QuerySource,
    where: str,
    columns: Sequence[str],
    types: Mapping[str, pa.DataType],
    conditions: Sequence[str],
    snapshot: str,
    part: Sequence[str],
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a part, selected by further conditions."""
    with PostgresSession(source.storage_options, where) as session:
        session.begin(snapshot)
        for batch in session.batches(subquery(columns, source.sql, [*conditions, *part])):
            arrays = [_as_decimal(array, types[name], name, where) for name, array in zip(types, batch, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, list(types))


def ranges(column: str, kind: str, low: str | None, high: str | None, count: int) -> list[list[str]]:
    """Divides values into ranges of equal width, as conditions; the first also has the rows without a value.

    Args:
        column: Quoted name of the column.
        kind: Type of the column.
        low: Least value, a number; of a time, microseconds since the epoch; None if there is no value.
        high: Greatest value.
        count: Number of ranges, which are fewer if they would be less than 1 wide.
    """
    first, last = math.floor(Decimal(low or 0)), math.ceil(Decimal(high or 0))
    bounds = sorted({first + (last - first) * number // count for number in range(1, count)} - {first})
    if kind in _TIMES:
        epoch = f"{'timestamptz' if kind == 'timestamptz' else 'timestamp'} 'epoch'"
        edges = [f"{epoch} + {bound} * interval '1 microsecond'" for bound in bounds]
    else:
        edges = [str(bound) for bound in bounds]
    if not edges:
        return [[]]
    between = [[f"{column} >= {start}", f"{column} < {end}"] for start, end in pairwise(edges)]
    return [[f"({column} < {edges[0]} OR {column} IS NULL)"], *between, [f"{column} >= {edges[-1]}"]]


def _identity(fields: Mapping[str, pa.Field], name: str) -> str:
    """Returns the SQL for the values of a column of a key, of texts for their bytes, whatever the collation."""
    is_text = _fact(fields[name], "POSTGRESQL:type") in _TEXTS
    return f'{quoted(name)}::text COLLATE "C"' if is_text else quoted(name)


def _literal(kind: str, time: datetime) -> str:
    """Returns a time as a literal that is compared with a column of a type; integers are seconds since the epoch."""
    utc = time.astimezone(UTC)
    if kind in _INTEGERS:
        return str(math.ceil(utc.timestamp()))
    return f"timestamptz '{utc.isoformat()}'" if kind == "timestamptz" else f"timestamp '{utc.replace(tzinfo=None)}'"


def _conninfo(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _fact(field: pa.Field, name: str) -> str:
    return str((field.metadata or {}).get(name.encode(), b"").decode())


def _extension(field: pa.Field) -> str:
    """Returns the name of an extension type, which PyArrow 10 leaves in the metadata; empty for other types."""
    return getattr(field.type, "extension_name", "") or _fact(field, "ARROW:extension:name")


def _kind(field: pa.Field, where: str, argument: str, known: Sequence[str]) -> str:
    """Returns the type of a column in PostgreSQL, which must be one of the known ones."""
    kind = _fact(field, "POSTGRESQL:type")
    if kind not in known:
        raise BadInput(
            f"{where}: {argument} {field.name!r} is of type {kind}; cast it in the query to one of {', '.join(known)}"
        )
    return kind


def _selected(field: pa.Field) -> str:
    name, cast = quoted(field.name), _cast(field)
    return f"{name}::{cast} AS {name}" if cast else name


def _cast(field: pa.Field) -> str | None:
    """Returns the type to read a column in, if it is not the column's own."""
    kind = _fact(field, "POSTGRESQL:type")
    is_opaque = _extension(field) == "arrow.opaque" and kind != "numeric"
    return _CASTS.get(kind) or ("text" if is_opaque else None)


def _types(fields: Sequence[pa.Field], row_of: Callable[[Sequence[str]], list[Any]], where: str) -> Types:
    """Returns the Arrow types in which columns are read; ``row_of`` returns aggregates of the rows."""
    types = {field.name: _type(field, where) for field in fields}
    open_ended = [name for name, type_ in types.items() if type_ is None]
    arrays = [name for name, type_ in types.items() if type_ is not None and pa.types.is_list(type_)]
    digits = (
        "max(scale({0}))::int8",
        "max(length(trunc(abs({0}))::text))::int8",
    )  # of digits right and left of the decimal point
    aggregates = [digit.format(quoted(name)) for name in open_ended for digit in digits]
    aggregates += [f"max(array_ndims({quoted(name)}))" for name in arrays]
    values = iter(row_of(aggregates) if aggregates else [])
    for name in open_ended:
        types[name] = _decimal(name, next(values), next(values), where)
    for name, dimensions in zip(arrays, values, strict=True):
        if (dimensions or 0) > 1:
            raise BadInput(
                f"{where}: column {name!r} holds arrays of {dimensions} dimensions; cast it in the query, as "
                f"to_json({quoted(name)})::text"
            )
    return types


def _type(field: pa.Field, where: str) -> pa.DataType | None:
    """Returns the Arrow type in which a column is read; None of a numeric without precision."""
    kind, typmod = _fact(field, "POSTGRESQL:type"), _fact(field, "POSTGRESQL:typmod")
    if kind == "numeric":
        if typmod in ("", "-1"):
            return None
        precision, scale = (int(typmod) - 4) >> 16 & 0xFFFF, (int(typmod) - 4) & 0x7FF
        scale = scale - 2048 if scale >= 1024 else scale  # negative: digits left of the point are rounded
        return _decimal(field.name, max(scale, 0), max(precision - scale, 0), where)
    if cast := _cast(field):
        return pa.int64() if cast == "int8" else pa.string()
    if not all(_is_held(inner) for inner in _inner(field)):
        raise BadInput(
            f"{where}: column {field.name!r} is of type {kind}, whose items have no type in Arrow; cast it in the "
            "query, to text or an array of another type"
        )
    return field.type


def _inner(field: pa.Field) -> list[pa.Field]:
    if pa.types.is_list(field.type):
        return [field.type.value_field]
    return list(field.type) if pa.types.is_struct(field.type) else []


def _is_held(field: pa.Field) -> bool:
    """Returns whether items of an array, or a field of a row, have all their values in Arrow's type.

    Arrays within rows have not, since their number of dimensions is unknown.
    """
    return not (_cast(field) or _extension(field) or pa.types.is_list(field.type)) and all(
        _is_held(inner) for inner in _inner(field)
    )


def _decimal(name: str, right: int | None, left: int | None, where: str) -> pa.DataType:
    digits = (right or 0) + (left or 0)
    if digits > MOST_DIGITS:
        raise BadInput(
            f"{where}: column {name!r} is numeric with {left} digits left of the point and {right} right of it; a "
            f"snapshot holds {MOST_DIGITS}: round it in the query, or cast it to float8 or text"
        )
    return pa.decimal128(max(digits, 1), right or 0)


def _as_decimal(array: pa.Array, type_: pa.DataType, name: str, where: str) -> pa.Array:
    """Converts strings to decimals, which pyarrow 10 cannot; returns other arrays unchanged."""
    if not pa.types.is_decimal(type_):
        return array
    array = getattr(array, "storage", array)  # of an extension type
    pattern = rf"^-?\d+\.\d{{{type_.scale}}}$" if type_.scale else r"^-?\d+$"
    if type_.precision <= _DIGITS_OF_INT64 and pc.all(pc.match_substring_regex(array, pattern)).as_py():
        units = pc.fill_null(pc.replace_substring(array, ".", "").cast(pa.int64()), 0).to_numpy()
        # A decimal is an integer of 128 bits, the lower half first
        halves = np.stack([units, units >> 63], axis=1)
        validity = pa.array(np.asarray(array.is_valid())).buffers()[1]
        return pa.Array.from_buffers(type_, len(array), [validity, pa.py_buffer(halves)])
    try:
        return pa.array([None if value is None else Decimal(value) for value in array.to_pylist()], type_)
    except (pa.ArrowException, ArithmeticError) as error:
        raise BadInput(
            f"{where}: column {name!r} has a value that is not a decimal number, such as NaN or infinity ({error}); "
            "cast it in the query to float8 or text"
        ) from error

"""Rows of a query of PostgreSQL, read by ADBC in parallel ranges of one exported snapshot."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import UTC, date, datetime
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

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.core.contract.sources import Source
from airflow_hops.ml.features.raw_features import check_names
from airflow_hops.ml.stages.ingest.open_table import (
    OpenTable,
    check_duplicates,
    columns_to_read,
    duplicates,
    failing_as,
    name_of_query,
    quoted,
    subquery,
)
from airflow_hops.ml.stages.ingest.window import Window

_MOST_DIGITS = 38
_DIGITS_OF_INT64 = 18
_INTEGERS, _NUMBERS = ("int2", "int4", "int8"), ("int2", "int4", "int8", "numeric")
_TIMES = ("date", "timestamp", "timestamptz")
_CASTS = {"oid": "int8", "uuid": "text", "interval": "text"}
"""Types that ADBC returns in a form that a snapshot does not hold, and what preserves their values."""
_FAULTS_OF_USERS = ("22", "23", "25006", "28", "3D", "3F", "42")
"""Beginnings of SQLSTATE: data, constraints, writing, authorisation, database, schema, and syntax or access."""


class Session:
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
        self.set({"idle_in_transaction_session_timeout": "0"})

    def set(self, settings: Mapping[str, str]) -> None:
        """Sets what the transaction's queries read by ``current_setting``.

        Bounds of window and range are passed so, since ``COPY``, by which ADBC reads, takes no parameters.
        """
        for name, value in settings.items():
            self.rows("SELECT set_config($1, $2, true)", name, value)

    def rows(self, query: str, *values: str) -> list[list[Any]]:
        """Returns the rows of a query with texts for ``$1``, ``$2`` and so on."""
        with self._failing():
            columns = self._execute(query, values).read_all().columns
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

    def append(self, rows: pa.RecordBatch, table: str, schema: str = "") -> None:
        """Appends rows to a table, whose columns have the types that ADBC maps theirs to, by a binary ``COPY``."""
        options = {"adbc.ingest.target_table": table, "adbc.ingest.mode": "adbc.ingest.mode.append"}
        with self._failing(), adbc.AdbcStatement(self._connection) as statement:
            statement.set_options(**options, **({"adbc.ingest.target_db_schema": schema} if schema else {}))
            _bind(statement, rows)
            statement.execute_update()

    def _execute(self, query: str, values: Sequence[str] = ()) -> pa.RecordBatchReader:
        # ADBC's own DB-API wants a newer pyarrow than the profile `base` has.
        statement = self._stack.enter_context(adbc.AdbcStatement(self._connection))
        statement.set_sql_query(query)
        if values:
            _bind(
                statement, pa.RecordBatch.from_arrays([pa.array([value]) for value in values], list(map(str, values)))
            )
        stream, _ = statement.execute_query()
        return AdbcRecordBatchReader._import_from_c(stream.address)

    def _failing(self) -> AbstractContextManager[None]:
        return failing_as(self._where, adbc.Error, pa.ArrowException, OSError, is_bad=_is_bad)


def _bind(statement: Any, rows: pa.RecordBatch) -> None:
    array, schema = adbc._lib.ArrowArrayHandle(), adbc._lib.ArrowSchemaHandle()
    rows._export_to_c(array.address, schema.address)
    statement.bind(array, schema)


def _is_bad(error: Exception) -> bool:
    code = str(getattr(error, "sqlstate", None) or "")
    return code.startswith(_FAULTS_OF_USERS) or isinstance(error, pa.ArrowInvalid)


@contextmanager
def opened(source: Source, window: Window, _state: str) -> Iterator[OpenTable]:
    """Opens a query for the rows in a window.

    Raises:
        BadInput: the query is refused, a column cannot be used, or a key occurs twice.
        HopsError: PostgreSQL does not answer.
    """
    where, sql = name_of_query(source, source.sql), source.sql or ""
    with Session(source.storage_options, where) as session:
        session.begin()
        fields = session.fields(subquery(["*"], sql) + " LIMIT 0")
        wanted = [fields[name] for name in columns_to_read(source, list(fields), where)]
        settings, conditions = _window(source, window, fields, where)
        session.set(settings)

        def row_of(columns: Sequence[str], conditions: Sequence[str] = ()) -> list[Any]:
            return session.rows(subquery(columns, sql, conditions))[0]

        if source.key:
            check_duplicates(session.rows(duplicates(source, conditions)), source, where)
        types = {field.name: _type(field, where) for field in wanted}
        open_ended = [name for name, type_ in types.items() if type_ is None]
        digits = row_of(_digits(open_ended), conditions) if open_ended else []
        for number, name in enumerate(open_ended):
            types[name] = _decimal(name, digits[2 * number], digits[2 * number + 1], where)
        count, parts = None, list[tuple[str | None, str | None]]([(None, None)])
        if source.partition_column is not None:
            kind = _kind(source.partition_column, fields, where, "partition_column", (*_NUMBERS, *_TIMES))
            column = quoted(source.partition_column)
            count, low, high = row_of(["count(*)", f"min({column})", f"max({column})"], conditions)
            parts = ranges(low, high, source.num_partitions, kind)
        without_time = 0
        if conditions:
            (without_time,) = row_of(["count(*)"], [f"{quoted(_time(source)[0])} IS NULL"])
        [[snapshot]] = session.rows("SELECT pg_export_snapshot()")

        def span() -> tuple[str | None, str | None]:
            first, last = row_of([f"{end}({quoted(_time(source)[0])})::text" for end in ("min", "max")])
            return first, last

        read = partial(
            _read, source, where, [_selected(field) for field in wanted], types, conditions, settings, fields, snapshot
        )
        yield OpenTable(where, types, parts, read, count, without_time, span)


def state_of(source: Source) -> list[list[Any]]:
    """Returns the rows of the source's ``version`` query."""
    with Session(source.storage_options, name_of_query(source, source.version)) as session:
        return session.rows(source.version or "")


def _read(
    source: Source,
    where: str,
    columns: Sequence[str],
    types: Mapping[str, pa.DataType],
    conditions: Sequence[str],
    settings: Mapping[str, str],
    fields: Mapping[str, pa.Field],
    snapshot: str,
    part: tuple[str | None, str | None],
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a range ``[low, high)``; the first range also has those without a value."""
    low, high = part
    conditions, settings = list(conditions), dict(settings)
    if source.partition_column is not None:
        column = quoted(source.partition_column)
        kind = _kind(source.partition_column, fields, where, "partition_column", (*_NUMBERS, *_TIMES))
        if low is not None:
            settings["hops.low"] = low
            conditions.append(f"{column} >= {_setting('hops.low', kind)}")
        if high is not None:
            settings["hops.high"] = high
            missing = f" OR {column} IS NULL" if low is None else ""
            conditions.append(f"({column} < {_setting('hops.high', kind)}{missing})")
    with Session(source.storage_options, where) as session:
        session.begin(snapshot)
        session.set(settings)
        for batch in session.batches(subquery(columns, source.sql or "", conditions)):
            arrays = [_as_decimal(array, types[name], name, where) for name, array in zip(types, batch, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, list(types))


def ranges(low: Any, high: Any, count: int, kind: str) -> list[tuple[str | None, str | None]]:
    """Divides values into ranges of equal width, the first and last of which are open; texts that PostgreSQL reads."""
    if low is None or low == high:
        return [(None, None)]
    if kind in _NUMBERS:
        first, last = math.floor(Decimal(str(low))), math.ceil(Decimal(str(high)))
    else:
        first, last = (_micros(value) for value in (low, high))
    bounds = sorted({first + (last - first) * number // count for number in range(1, count)} - {first})
    text = [str(bound) if kind in _NUMBERS else _time_text(bound, kind) for bound in bounds]
    edges = [None, *dict.fromkeys(text), None]
    return list(pairwise(edges))


def _micros(value: date | datetime) -> int:
    return int(pa.scalar(value).cast(pa.timestamp("us")).cast(pa.int64()).as_py())


def _time_text(micros: int, kind: str) -> str:
    text: str = pa.scalar(micros, pa.timestamp("us")).as_py().isoformat()
    return text[:10] if kind == "date" else text + "+00" * (kind == "timestamptz")


def _window(
    source: Source, window: Window, fields: Mapping[str, pa.Field], where: str
) -> tuple[dict[str, str], list[str]]:
    """Returns the settings with the bounds of the window, and the conditions that read them."""
    bounds = {"start": (window.start, ">="), "end": (window.end, "<")}
    settings: dict[str, str] = {}
    conditions: list[str] = []
    for column in _time(source):
        kind = _kind(column, fields, where, "time_column", (*_INTEGERS, *_TIMES))
        for name, (time, compared) in bounds.items():
            if time is None:
                continue
            utc = time.astimezone(UTC)
            if kind in _INTEGERS:
                settings[f"hops.{name}"], kind_of_bound = str(math.ceil(utc.timestamp())), "int8"
            else:
                kind_of_bound = "timestamptz" if kind == "timestamptz" else "timestamp"
                text = utc.isoformat() if kind == "timestamptz" else utc.replace(tzinfo=None).isoformat()
                settings[f"hops.{name}"] = text
            conditions.append(f"{quoted(column)} {compared} {_setting(f'hops.{name}', kind_of_bound)}")
    return settings, conditions


def _time(source: Source) -> list[str]:
    return [] if source.time_column is None else [source.time_column]


def _setting(name: str, kind: str) -> str:
    return f"current_setting('{name}')::{kind}"


def _conninfo(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _fact(field: pa.Field, name: str) -> str:
    return str((field.metadata or {}).get(name.encode(), b"").decode())


def _extension(field: pa.Field) -> str:
    """Returns the name of an extension type, which PyArrow 10 leaves in the metadata; empty for other types."""
    return getattr(field.type, "extension_name", "") or _fact(field, "ARROW:extension:name")


def _kind(column: str, fields: Mapping[str, pa.Field], where: str, argument: str, known: Sequence[str]) -> str:
    """Returns the type of a column in PostgreSQL, which must be one of the known ones."""
    if column not in fields:
        raise BadInput(f"{where}: there is no column {column!r}, which the source's {argument!r} names")
    kind = _fact(fields[column], "POSTGRESQL:type")
    if kind not in known:
        raise BadInput(
            f"{where}: {argument} {column!r} is of type {kind}; cast it in the query to one of {', '.join(known)}"
        )
    return kind


def _selected(field: pa.Field) -> str:
    name, kind = quoted(field.name), _fact(field, "POSTGRESQL:type")
    is_opaque = _extension(field) == "arrow.opaque" and kind != "numeric"
    cast = _CASTS.get(kind) or ("text" if is_opaque else None)
    return f"{name}::{cast} AS {name}" if cast else name


def _type(field: pa.Field, where: str) -> pa.DataType | None:
    """Returns the Arrow type in which a column is read; None of a numeric without precision."""
    kind, typmod = _fact(field, "POSTGRESQL:type"), _fact(field, "POSTGRESQL:typmod")
    if kind == "numeric":
        if typmod in ("", "-1"):
            return None
        precision, scale = (int(typmod) - 4) >> 16 & 0xFFFF, (int(typmod) - 4) & 0x7FF
        scale = scale - 2048 if scale >= 1024 else scale  # negative: digits left of the point are rounded
        return _decimal(field.name, max(scale, 0), precision - scale, where)
    if pa.types.is_list(field.type) and _extension(field.type.value_field):
        raise BadInput(
            f"{where}: column {field.name!r} is of type {kind}, an array of items without a type in Arrow; "
            "cast it in the query, to text or another type of items"
        )
    if _selected(field) != quoted(field.name):
        return pa.int64() if _CASTS.get(kind) == "int8" else pa.string()
    return field.type


def _digits(names: Sequence[str]) -> list[str]:
    """Returns what to select for the digits right and left of the point in columns of numbers."""
    return [
        digits
        for name in map(quoted, names)
        for digits in (f"max(scale({name}))::int8", f"max(length(trunc(abs({name}))::text))::int8")
    ]


def _decimal(name: str, right: int | None, left: int | None, where: str) -> pa.DataType:
    digits = (right or 0) + (left or 0)
    if digits > _MOST_DIGITS:
        raise BadInput(
            f"{where}: column {name!r} is numeric with {left} digits left of the point and {right} right of it; a "
            f"snapshot holds {_MOST_DIGITS}: round it in the query, or cast it to float8 or text"
        )
    return pa.decimal128(max(digits, 1), right or 0)


def _as_decimal(array: pa.Array, type_: pa.DataType, name: str, where: str) -> pa.Array:
    """Converts texts to decimals, which pyarrow 10 cannot; other arrays are returned as they are."""
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

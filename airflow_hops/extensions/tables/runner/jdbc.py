"""Values of JDBC, which JayDeBeApi 1.2.3 changes: exact ones of Python, made of each value's text."""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal
from functools import partial
from typing import Any

from airflow_hops.core.errors import BadInput

_TIMES = (datetime.fromisoformat, time.fromisoformat)
_NANOSECONDS = re.compile(r"\.\d{6}0*[1-9]")
"""Fractions of seconds of which Python would cut off digits."""
_FROM_TEXT: dict[str, Callable[[str], object]] = {
    **dict.fromkeys(["TINYINT", "SMALLINT", "INTEGER", "BIGINT"], int),
    **dict.fromkeys(["REAL", "FLOAT", "DOUBLE"], float),
    **dict.fromkeys(["DECIMAL", "NUMERIC"], Decimal),
    **dict.fromkeys(["CHAR", "NCHAR", "VARCHAR", "NVARCHAR", "LONGVARCHAR", "LONGNVARCHAR", "OTHER", "SQLXML"], str),
    **dict.fromkeys(["TIMESTAMP", "TIMESTAMP_WITH_TIMEZONE"], _TIMES[0]),
    **{"DATE": date.fromisoformat, "TIME": _TIMES[1]},
}
_BYTES = ("BINARY", "VARBINARY", "LONGVARBINARY", "BLOB")
_BOOLS = ("BIT", "BOOLEAN")


def return_exact_values(connection: Any, where: str) -> None:
    """Makes a connection's cursors return exact values, as JayDeBeApi's own converters round, cut and wrap them."""
    types = {str(field.getName()): int(field.getInt(None)) for field in _java("java.sql.Types").class_.getFields()}
    converters: dict[int, Callable[[Any, int], object]] = {
        types[name]: partial(_of_text, convert, where) for name, convert in _FROM_TEXT.items()
    }
    converters |= {types[name]: _bytes for name in _BYTES} | {types[name]: _bool for name in _BOOLS}
    connection._converters = converters  # there is no public way


def type_names(cursor: Any) -> list[str]:
    """Returns the database's words for the types of a cursor's columns."""
    columns = cursor._meta
    return [str(columns.getColumnTypeName(number)) for number in range(1, columns.getColumnCount() + 1)]


def _java(name: str) -> Any:
    return pkgutil.resolve_name("jpype:JClass")(name)


def _of_text(convert: Callable[[str], object], where: str, rows: Any, number: int) -> object:
    text = rows.getString(number)
    try:
        if convert in _TIMES and _NANOSECONDS.search(str(text)):
            raise ValueError(text)
        return None if text is None else convert(str(text))
    except (ValueError, ArithmeticError) as error:
        columns = rows.getMetaData()
        raise BadInput(
            f"{where}: column {str(columns.getColumnLabel(number))!r} has {str(text)!r}, of type "
            f"{columns.getColumnTypeName(number)}, which Python does not hold; cast it in the query, such as to text"
        ) from error


def _bytes(rows: Any, number: int) -> bytes | None:
    value = rows.getBytes(number)
    return None if value is None else bytes(value)


def _bool(rows: Any, number: int) -> object:
    value = rows.getObject(number)  # also a word of bits, which is refused
    return bool(value) if isinstance(value, _java("java.lang.Boolean")) else value

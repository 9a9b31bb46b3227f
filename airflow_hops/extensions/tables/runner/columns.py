"""Types of the columns that a driver returns as Python's values, decided by all rows and by the cursor's description.

A driver may return values in another type than the column's. Each such case is converted by a rule that loses nothing,
or refused.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa

from airflow_hops.core.errors import BadInput
from airflow_hops.extensions.tables.runner.servers import is_jdbc, is_odbc, package_of, server_of

_MOST_DIGITS = 38
_EXACT_DIGITS = 15
"""Digits of a decimal that every float64 preserves."""
_KINDS: tuple[tuple[type, str], ...] = (
    (bool, "bool"), (int, "int"), (float, "float"), (Decimal, "decimal"), (str, "text"), (UUID, "uuid"),
    (bytes, "binary"), (bytearray, "binary"), (memoryview, "binary"), (datetime, "datetime"), (date, "date"),
    (time, "time"), (timedelta, "duration"),
)  # fmt: skip
"""Kinds of Python's values; a subclass comes before its base."""
_PLAIN: dict[str, Callable[[Any], object]] = {
    "int": int.__int__, "float": float.__float__, "text": str.__str__, "binary": bytes,
}  # fmt: skip
"""Conversions of values of subclasses, such as Java's integers, which cannot be pickled."""
_Class = type  # which names a method of Column
_EXACT = (int, float, str, bytes)
_TYPES = {
    "bool": pa.bool_(), "int": pa.int64(), "float": pa.float64(), "text": pa.string(), "binary": pa.binary(),
    "datetime": pa.timestamp("us"), "zoned": pa.timestamp("us", "UTC"), "date": pa.date32(),
    "time": pa.time64("us"), "duration": pa.duration("us"), "uuid": pa.string(),
}  # fmt: skip
_NUMBERS, TIMES = ("int", "float", "decimal", "number"), ("date", "datetime", "zoned", "time", "duration", "moment")
_NAMES = {
    "decimal": r"decimal|(big)?numeric|number|dec\b|fixed\b",
    "int": r"u?(tiny|small|medium|big|huge)?int(eger)?\d*\b",
    "float": r"float|double|real|binary_(float|double)",
    "bool": r"bool",
    "zoned": r"timestamptz|timestamp_l?tz|timestamp.*with\b.*time.?zone|datetimeoffset",
    "datetime": r"timestamp|datetime|smalldatetime",
    "date": r"date\b",
    "time": r"time\b",
    "binary": r"blob|bytea|bytes|(long_)?raw|(var)?binary",
    "text": r"(n|long_)?(var)?char|n?text|(fixed)?string|str\b|n?clob|xml|json|enum",
    "uuid": r"uuid",
}
"""Patterns of the beginnings of type names in lower case; the first that matches counts."""
_CHANGED = {
    "single": "is a FLOAT, which the server sends with six digits, also as text",
    "json": "is JSON, of which the driver makes nulls, floats and texts",
    "interval": "is an interval, and the driver takes each month for 30 days",
    "oid": "is an oid, which the driver takes for an integer with a sign",
    "money": "is money, of which the driver makes a float",
}
"""Declared kinds whose values a driver changes, and how."""
_CHANGED_BY_DUCKDB = re.compile(r"\b(UHUGEINT|BIGNUM|BIT|VARIANT|TIME WITH TIME ZONE)\b")
"""Types whose values lose their zone or become other numbers, or some format of DuckDB's own, in Arrow."""
_CODES: dict[str, dict[str, Sequence[int]]] = {
    "mysql": {"decimal": (0, 246), "int": (1, 2, 3, 8, 9, 13), "single": (4,), "float": (5,), "zoned": (7,),
              "date": (10, 14), "duration": (11,), "datetime": (12,)},
    "postgres": {"bool": (16,), "binary": (17,), "int": (20, 21, 23), "text": (25, 1042, 1043), "float": (700, 701),
                 "date": (1082,), "time": (1083,), "datetime": (1114,), "zoned": (1184,), "decimal": (1700,),
                 "json": (114, 3802), "interval": (1186,)},
    "snowflake": {"decimal": (0,), "float": (1,), "text": (2,), "date": (3,), "datetime": (8,), "zoned": (6, 7),
                  "binary": (11,), "time": (12,), "bool": (13,)},
}  # fmt: skip
"""Numbers of types in a driver's description, by the driver's protocol."""
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_FLOAT = re.compile(rf"{_NUMBER.pattern}|[+-]?(nan|inf(inity)?)", re.IGNORECASE)
"""Texts of numbers; Python's own conversions also take ``1_000``, blanks and digits of other scripts."""
_BOOLS = {"1": True, "0": False, "t": True, "f": False, "true": True, "false": False}
_PROTOCOLS = dict.fromkeys(["MySQLdb", "pymysql", "mysql"], "mysql") | {
    **dict.fromkeys(["psycopg", "psycopg2", "redshift_connector"], "postgres"),
    **dict.fromkeys(["clickhouse_driver", "clickhouse_connect"], "clickhouse"),
    "snowflake": "snowflake",
}


@dataclass
class Column:
    """A column of a query's result, which :meth:`add` shows the values of each batch.

    Attributes:
        name: Its name.
        where: Connection and query, for messages.
        declared: Kind by the cursor's description: of ``_TYPES``, ``decimal``, ``number`` or ``moment``; empty if
            unknown, or of ``_CHANGED``.
        digits: Declared digits left and right of a decimal's point; None if unknown.
        is_utc: Whether times without a zone are in UTC, since the session is; None if its zone is unknown.
        kinds: Kinds of all values.
        left: Most digits left of the point.
        right: Most digits right of it.
        nulls: Number of nulls.
        has_nan: Whether a float is NaN.
        is_large: Whether an integer is outside of int64.
    """

    name: str
    where: str
    declared: str = ""
    digits: tuple[int, int] | None = None
    is_utc: bool | None = False
    kinds: set[str] = field(default_factory=set)
    left: int = 0
    right: int = 0
    nulls: int = 0
    has_nan: bool = False
    is_large: bool = False

    def add(self, values: Sequence[object]) -> Sequence[Any]:
        """Returns the values of a batch, as :meth:`array` takes them.

        Raises:
            BadInput: a value stands for another, or has no type in a snapshot.
        """
        present = [value for value in values if value is not None]
        self.nulls += len(values) - len(present)
        conversions = {type_: self._conversion(type_) for type_ in set(map(type, present))}
        if any(conversions.values()):
            values = [convert(value) if (convert := conversions.get(type(value))) else value for value in values]
            present = [value for value in values if value is not None]
        kinds = {_kind_of(type_) for type_ in set(map(type, present))}
        timed = present if kinds & {"float", "datetime"} else ()
        if any(value != value for value in timed if not isinstance(value, Decimal)):
            if kinds != {"float"}:
                raise self._refused("has NaN or NaT among other values, as if it stood for a null")
            self.has_nan = True
        if "datetime" in kinds:
            zoned = {value.tzinfo is not None for value in present if isinstance(value, datetime)}
            kinds = kinds - {"datetime"} | {("datetime", "zoned")[is_zoned] for is_zoned in zoned}
        if "time" in kinds and any(isinstance(value, time) and value.tzinfo is not None for value in present):
            raise self._refused("has times of day with a zone")
        if kinds & {"int", "decimal"}:
            self._count_digits(present)
        self.kinds |= kinds
        return values

    def type(self) -> pa.DataType:
        """Returns the type of all values; of none, the declared one.

        Raises:
            BadInput: the values are of several kinds, or of another than is declared, and no rule converts them.
        """
        kinds, declared = self.kinds, self.declared
        if declared in _CHANGED:
            raise self._refused(_CHANGED[declared])
        if not kinds:
            if declared in ("decimal", "number"):
                return self._decimal()
            return _TYPES.get(declared, pa.null())
        if self.has_nan and kinds != {"float"}:
            raise self._refused("has NaN among integers, as if it stood for a null")
        if len(kinds) > 1 and kinds not in ({"int", "float"}, {"int", "decimal"}):
            raise self._refused(f"has values of the kinds {' and '.join(sorted(kinds))}")
        kind = "float" if "float" in kinds else "decimal" if "decimal" in kinds else next(iter(kinds))
        if kind == "float" and declared in ("int", "decimal"):
            raise self._refused(f"is declared as {declared}, and the driver returns floats")
        if declared in TIMES and kind not in TIMES:
            raise self._refused(f"is declared as a time ({declared}), and the driver returns {kind}")
        if kind == "datetime" and self.is_utc is None:
            raise self._refused("has times without a zone, and the zone of the database's sessions is unknown")
        if kind == "datetime" and declared == "zoned":
            if not self.is_utc:
                raise self._refused("is declared as a time with a zone, and the driver returns times without")
            kind = "zoned"
        if kind == "decimal" or (kind == "int" and self.is_large):
            return self._decimal()
        return _TYPES[kind]

    def array(self, values: Sequence[object], type_: pa.DataType) -> pa.Array:
        """Returns values of :meth:`add` as an array of the type of all. Raises BadInput if one does not fit."""
        try:
            return pa.array(values, type_)
        except (pa.ArrowException, OverflowError, UnicodeError, TypeError) as error:
            raise self._refused(f"has a value that does not fit {type_} ({error})") from error

    def _conversion(self, type_: _Class) -> Callable[[Any], object] | None:
        """Returns the conversion of a Python type's values, None if there is none; it does not depend on others."""
        kind = _kind_of(type_)
        if not kind:
            raise self._refused(f"has a value of Python's type {type_.__name__!r}, which has no type in a snapshot")
        if kind == "uuid":
            return str
        if kind == "text" and self.declared in (*_NUMBERS, "bool", "uuid"):
            return self._value_of_text
        has_scale = self.digits is not None and self.digits[1] > 0
        if kind == "float" and self.declared in ("", "decimal", "number") and has_scale:
            return self._decimal_of_float
        if hasattr(type_, "nanosecond"):  # of pandas
            return self._without_nanoseconds
        return _PLAIN[kind] if type_ not in _EXACT and kind in _PLAIN else None

    def _value_of_text(self, text: str) -> object:
        if self.declared == "uuid":
            return text.lower()  # psqlodbc's are in upper case
        if self.declared == "bool" and text in _BOOLS:
            return _BOOLS[text]
        if self.declared == "float" and _FLOAT.fullmatch(text):
            return float(text)
        if self.declared not in ("float", "bool") and _NUMBER.fullmatch(text):
            return Decimal(text)
        raise self._refused(f"is declared as {self.declared}, and the driver returns the text {text!r}")

    def _without_nanoseconds(self, value: Any) -> object:
        if value == value and value.nanosecond:
            raise self._refused(f"has the time {value}, and a snapshot holds microseconds")
        return value

    def _decimal_of_float(self, value: float) -> Decimal:
        """Returns the decimal of which a driver made a float."""
        assert self.digits is not None
        left, right = self.digits
        result = Decimal(repr(float(value))) if value == value else Decimal("NaN")
        if left + right > _EXACT_DIGITS or not result.is_finite() or -_exponent(result) > right:
            raise self._refused(
                f"is declared as decimal({left + right}, {right}), and the driver returns floats, such as {value!r}, "
                "which lose digits"
            )
        return result

    def _count_digits(self, values: Sequence[Any]) -> None:
        for value in values:
            if isinstance(value, Decimal):
                if not value.is_finite():
                    raise self._refused(f"has {value}")
                self.right = max(self.right, -_exponent(value))
                self.left = max(self.left, len(value.as_tuple().digits) + _exponent(value))
            elif isinstance(value, int):
                self.is_large = self.is_large or not -(1 << 63) <= value < 1 << 63
        whole = [min(abs(value), 10**_MOST_DIGITS) for value in values if isinstance(value, int)]
        self.left = max(self.left, len(str(max(whole))) if whole else 0)

    def _decimal(self) -> pa.DataType:
        """Returns the declared decimal, or one with the digits of all values if these are more."""
        left, right = self.digits or (0, 0)
        left, right = max(left, self.left), max(right, self.right)
        if left + right > _MOST_DIGITS:
            left = self.left
        if left + right > _MOST_DIGITS:
            raise self._refused(f"has {left} digits left of the point and {right} right of it; a snapshot holds 38")
        return pa.decimal128(max(left + right, 1), right)

    def _refused(self, problem: str) -> BadInput:
        return BadInput(
            f"{self.where}: column {self.name!r} {problem}; cast it in the query, such as to text or double"
        )


def _exponent(value: Decimal) -> int:
    exponent = value.as_tuple().exponent
    assert isinstance(exponent, int)
    return exponent


def _kind_of(type_: type) -> str:
    """Returns the kind of a type's values; empty if a snapshot has none."""
    return next((kind for base, kind in _KINDS if issubclass(type_, base)), "")


def columns_of(
    description: Sequence[Sequence[object]] | None, connection: object, where: str, types: Sequence[str] = ()
) -> list[Column]:
    """Returns the columns that a cursor describes; ``types`` are their types' names, if the database was asked.

    Raises:
        BadInput: there are none, or two have one name.
    """
    if not description:
        raise BadInput(f"{where}: the query returns no columns; expected a query for rows, such as SELECT")
    package = package_of(connection)
    protocol = "odbc" if is_odbc(connection) else "jdbc" if is_jdbc(connection) else _PROTOCOLS.get(package, "")
    columns = dict[str, Column]()
    for number, entry in enumerate(description, 1):
        name = str(entry[0] or "")
        if name in columns:
            raise BadInput(f"{where}: column {number} ({name!r}) has an earlier one's name; rename it, or leave it out")
        code = types[number - 1] if types else entry[1]
        columns[name] = _column(name, (name, code, *entry[2:]), connection, protocol, where)
    return list(columns.values())


def _column(name: str, entry: Sequence[object], connection: object, protocol: str, where: str) -> Column:
    code, precision, scale = entry[1], entry[4] if len(entry) > 4 else None, entry[5] if len(entry) > 5 else None
    declared = ""
    if isinstance(code, int):
        declared = next((kind for kind, codes in _CODES.get(protocol, {}).items() if code in codes), "")
        if protocol == "snowflake" and declared == "decimal" and scale == 0:  # the type of its integers
            declared, precision = "int", None
    else:
        text = str(getattr(code, "name", None) or getattr(code, "__name__", None) or code or "").lower()
        text = text.replace("db_type_date", "datetime")  # Oracle's has a time of day
        text = re.sub(r"^(db_type_|nullable\(|lowcardinality\()+", "", text)
        declared = next((kind for kind, pattern in _NAMES.items() if re.match(pattern, text)), "")
        declared = text if protocol == "odbc" and text in ("oid", "money") else declared
        if protocol == "clickhouse" and declared == "datetime":  # a moment, which the driver returns in some local time
            declared = "zoned"
        if match := re.search(r"\((\d+)\s*,\s*(\d+)\)", text):
            precision, scale = map(int, match.groups())
    if not declared and protocol != "mysql":  # whose objects take text for binary
        declared = _by_type_objects(code, connection)
    digits = None
    if isinstance(precision, int) and isinstance(scale, int) and 0 <= scale <= precision <= _MOST_DIGITS and precision:
        digits = (precision - scale, scale)
    is_utc = server_of(connection).utc is not None or None if protocol in ("odbc", "jdbc") else protocol == "mysql"
    return Column(name, where, declared, digits, is_utc)


def check_duckdb_types(names: Sequence[str], types: Sequence[object], where: str) -> None:
    """Raises BadInput if DuckDB's driver changes values of a column's type."""
    for name, type_ in zip(names, types, strict=True):
        if match := _CHANGED_BY_DUCKDB.search(re.sub(r"'[^']*'", "", str(type_))):
            raise BadInput(
                f"{where}: column {name!r} is {type_}, and the driver changes {match[1]}; cast it in the query, "
                "such as to VARCHAR"
            )


def _by_type_objects(code: object, connection: object) -> str:
    """Returns the kind of a column by the type objects of the driver's module, as of PEP 249; empty if unknown."""
    name = type(connection).__module__
    while name and not hasattr(sys.modules.get(name), "NUMBER"):
        name = name.rpartition(".")[0]
    module = sys.modules.get(name)
    kinds = {"NUMBER": "number", "DATETIME": "moment", "BINARY": "binary", "STRING": "text"}
    return next((kind for word, kind in kinds.items() if module and getattr(module, word, object()) == code), "")

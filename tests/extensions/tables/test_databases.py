"""Queries of databases that the worker reads: a driver with every oddity, and PostgreSQL beside its exact reader."""

from __future__ import annotations

import contextlib
import datetime
import importlib
import json
import math
import threading
import tracemalloc
import uuid
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from airflow.providers.common.sql.hooks.sql import DbApiHook
from airflow.sdk import BaseHook

from airflow_hops.core.errors import BadInput, HopsError, StepFailed
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.tables import QuerySource
from airflow_hops.extensions.tables.core.tables import Table
from airflow_hops.extensions.tables.runner import query
from airflow_hops.extensions.tables.runner.columns import columns_of
from airflow_hops.extensions.tables.runner.failures import failing
from airflow_hops.extensions.tables.runner.write import opened_table
from tests.extensions.tables.database_clients import PyMySql, Sqlite, read, write, written_rows

RUN = "airflow_hops.ml.ingest:run"
UTC, PLUS_2 = datetime.UTC, datetime.timezone(datetime.timedelta(hours=2))
NUMBER, DATETIME, STRING, BINARY = 1, 2, 3, 4
"""Type objects, as of PEP 249."""


class OperationalError(Exception):
    pass


class ProgrammingError(Exception):
    pass


class Driver:
    """Connection and cursor of a driver whose query returns these rows; it dies after so many of them."""

    def __init__(self, columns: Sequence[Sequence[Any]], rows: Sequence[Any], dies_after: int | None = None) -> None:
        self.columns = [(name, code, None, None, *digits, None, None)[:7] for name, code, *digits in columns]
        self.rows, self.dies_after, self.position = list(rows), dies_after, 0
        self.statements: list[str] = []
        self.is_closed = False

    @property
    def description(self) -> Any:
        return self.columns or None

    def cursor(self) -> Driver:
        self.position = 0
        return self

    def execute(self, sql: str) -> None:
        self.statements.append(sql)
        if sql == "refused":
            raise ProgrammingError("no such table: gone")

    def fetchmany(self, size: int) -> list[Any]:
        first, self.position = self.position, self.position + size
        if self.dies_after is not None and self.position > self.dies_after:
            raise OperationalError("server closed the connection")
        return self.rows[first : first + size]

    def close(self) -> None:
        self.is_closed = True
        raise OperationalError("Unread result found")


class DriverHook:
    conn_type = "odd"

    def __init__(self, driver: Driver) -> None:
        self.driver = driver

    def get_conn(self) -> Driver:
        return self.driver


def at(hour: int, zone: Any = None) -> datetime.datetime:
    return datetime.datetime(2013, 1, 1, hour, tzinfo=zone)


class Whole(int):
    """A number as Java's, which cannot be pickled."""

    def __reduce__(self) -> Any:
        raise TypeError("cannot pickle")


class Word(str):
    """A text whose ``str`` is another."""

    def __str__(self) -> str:
        return "other"


DAY, NAN, D = datetime.date(2013, 1, 1), math.nan, Decimal
CASES: dict[str, tuple[tuple[Any, ...], list[Any], Any]] = {
    # Name: declared type, precision and scale; the values; and the type that holds them, or the reason of the refusal.
    "integers": ((NUMBER,), [1, -(2**63), 2**63 - 1], pa.int64()),
    "unsigned": ((NUMBER,), [1, 2**64 - 1], pa.decimal128(20, 0)),
    "huge": ((NUMBER,), [10**37], pa.decimal128(38, 0)),
    "too huge": ((NUMBER,), [1, 10**38], "39 digits left"),
    "bools": ((None,), [True, False], pa.bool_()),
    "bools and integers": ((None,), [True, 2], "bool and int"),
    "floats": ((NUMBER,), [0.1, NAN, math.inf], pa.float64()),
    "integers and floats": ((None,), [1, 0.5], pa.float64()),
    "exact integers and floats": ((None,), [2**53 + 1, 0.5], "does not fit double"),
    "NaN for null": ((None,), [1, NAN], "NaN"),
    "NaN for null of decimals": ((None,), [D("1.5"), NAN], "NaN"),
    "NaN for null of text": ((None,), ["a", NAN], "NaN"),
    "NaN of decimals": ((None,), [D("1.5"), D("NaN")], "NaN"),
    "infinite decimal": ((None,), [D("1.5"), D("Infinity")], "Infinity"),
    "decimals": ((None,), [D("1.5"), D("-20.25"), D("3E+2")], pa.decimal128(5, 2)),
    "fractions": ((NUMBER, 38, 38), [D("0.5"), D("-0.25")], pa.decimal128(38, 38)),
    "declared decimals": ((NUMBER, 12, 3), [D("1.5")], pa.decimal128(12, 3)),
    "more digits than declared": ((NUMBER, 4, 2), [D("123.4567")], pa.decimal128(7, 4)),
    "decimals and integers": ((NUMBER,), [2, D("1.5")], pa.decimal128(2, 1)),
    "decimals and floats": ((NUMBER,), [D("1.5"), 1.5], "decimal and float"),
    "too many digits": ((NUMBER,), [D(10**30), D("1E-9")], "31 digits left of the point and 9 right"),
    "a decimal as text": (("DECIMAL(10, 2)",), ["1.50", "-7"], pa.decimal128(10, 2)),
    "a number as text": ((NUMBER,), ["1.5", "12"], pa.decimal128(3, 1)),
    "a number as other text": ((NUMBER,), ["1.5", "n/a"], "'n/a'"),
    "a double as text": (("double",), ["1e300"], pa.float64()),
    "a double as other text": (("double",), ["1.5", "n/a"], "'n/a'"),
    "a decimal as float": ((NUMBER, 10, 2), [0.1, 19.99], pa.decimal128(10, 2)),
    "a long decimal as float": ((NUMBER, 20, 2), [0.1], r"decimal\(20, 2\)"),
    "a decimal as a float with more digits": ((NUMBER, 10, 2), [0.125], r"decimal\(10, 2\)"),
    "a decimal as NaN": ((NUMBER, 10, 2), [NAN], "nan"),
    "an integer as float": (("BIGINT",), [1.0, 2.0], "declared as int"),
    "a number with Python's underscore": ((NUMBER,), ["1_000"], "'1_000'"),
    "a double in other digits": (("double",), ["１.5"], "'１.5'"),
    "a double of PostgreSQL": (("float8",), ["-Infinity", "NaN", "1e-3"], pa.float64()),
    "numbers and texts": ((NUMBER,), [7, "1.5", D("2")], pa.decimal128(2, 1)),
    "numbers and other texts": ((NUMBER,), [7, "n/a"], "'n/a'"),
    "numbers and texts undeclared": ((None,), [7, "n/a"], "int and text"),
    "sNaN": ((NUMBER,), [D("1.5"), D("sNaN")], "sNaN"),
    "sNaN among floats": ((None,), [1.5, D("sNaN")], "sNaN"),
    "beyond all digits": ((None,), [10**5000], "39 digits left"),
    "beyond all exponents": ((None,), [D("1E+999999")], "1000000 digits left"),
    "subclasses": ((NUMBER,), [Whole(7), Whole(2**62)], pa.int64()),
    "subclasses of texts": ((STRING,), [Word("a")], pa.string()),
    "booleans as text": (("boolean",), ["1", "0", "t"], pa.bool_()),
    "booleans as other text": (("boolean",), ["1", "yes"], "'yes'"),
    "identifiers in capitals": (("uuid",), ["0A"], pa.string()),
    "no times without zone": (("timestamp without time zone",), [], pa.timestamp("us")),
    "text": ((STRING,), ["ü😀", "", "1.5"], pa.string()),
    "broken text": ((STRING,), ["\udce4"], "does not fit string"),
    "text and bytes": ((STRING,), ["a", b"a"], "binary and text"),
    "bytes": ((BINARY,), [b"\x00\xff", bytearray(b"a"), memoryview(b"b")], pa.binary()),
    "identifiers": ((None,), [uuid.UUID(int=7)], pa.string()),
    "days": (("DATE",), [DAY, datetime.date.min], pa.date32()),
    "times": ((DATETIME,), [at(7), datetime.datetime.max], pa.timestamp("us")),
    "zoned times": ((DATETIME,), [at(7, UTC), at(7, PLUS_2)], pa.timestamp("us", "UTC")),
    "times with and without zone": ((DATETIME,), [at(7), at(7, UTC)], "datetime and zoned"),
    "days and times": ((DATETIME,), [DAY, at(7)], "date and datetime"),
    "zoned times without zone": (("TIMESTAMP WITH TIME ZONE",), [at(7)], "returns times without"),
    "plain times": (("timestamp(3)",), [at(7)], pa.timestamp("us")),
    "times as text": ((DATETIME,), ["2013-01-01"], "returns text"),
    "times as seconds": (("TIMESTAMP",), [1.5e9], "returns float"),
    "times of day": (("time",), [datetime.time(12, 30)], pa.time64("us")),
    "times of day with a zone": (("time",), [datetime.time(12, tzinfo=UTC)], "with a zone"),
    "durations": ((None,), [datetime.timedelta(days=-2)], pa.duration("us")),
    "documents": ((None,), [{"a": 1}], "'dict'"),
    "arrays": ((None,), [[1, 2]], "'list'"),
    "no values": ((None,), [], pa.null()),
    "no declared decimals": ((NUMBER, 12, 3), [], pa.decimal128(12, 3)),
    "no days": (("Nullable(Date)",), [], pa.date32()),
    "no zoned times": (("timestamp(6) with time zone",), [], pa.timestamp("us", "UTC")),
    "no Python decimals": ((Decimal, 5, 1), [], pa.decimal128(5, 1)),
    "no doubles": (("Float64",), [], pa.float64()),
    "no blob": ((BINARY,), [], pa.binary()),
}  # fmt: skip


def expected_value(value: Any, type_: pa.DataType) -> Any:
    if isinstance(value, str) and pa.types.is_boolean(type_):
        return value in ("1", "t")
    if isinstance(value, str) and pa.types.is_string(type_):
        return str.__str__(value).lower() if value == "0A" else str.__str__(value)
    if isinstance(value, str):
        return float(value) if pa.types.is_floating(type_) else Decimal(value)
    if isinstance(value, float | int) and pa.types.is_decimal(type_):
        return Decimal(str(value))
    if isinstance(value, int) and pa.types.is_floating(type_):
        return float(value)
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, Whole):
        return value + 0
    return bytes(value) if isinstance(value, bytearray | memoryview) else value


def text_of(value: Any) -> str:
    """Text of a value that is equal for equal ones, NaN included, and another for other times or digits."""
    if isinstance(value, datetime.datetime) and value.tzinfo:
        value = value.astimezone(UTC)
    return repr(value.normalize() if isinstance(value, Decimal) else value).replace("tzinfo=<UTC>", repr(UTC))


@pytest.mark.parametrize("rows", [1, 2, 1000])
@pytest.mark.parametrize("case", CASES)
def test_values_of_all_batches_decide(case: str, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In whatever batches the values come, and with nulls at either end."""
    monkeypatch.setattr(query, "_BATCH_ROWS", rows)
    (code, *digits), values, outcome = CASES[case]
    padded = [None, *values, None, *reversed(values), None]
    hook = DriverHook(Driver([("id", NUMBER), ('it\'s "x"', code, *digits)], list(enumerate(padded))))
    if isinstance(outcome, str):
        with pytest.raises(BadInput, match=outcome) as refusal:
            read(hook, "SELECT", tmp_path / "rows")
        assert "column" in str(refusal.value) and "x" in str(refusal.value)
        return
    table = read(hook, "SELECT", tmp_path / "rows")
    assert table.schema.field(1).type == outcome
    assert table["id"].to_pylist() == list(range(len(padded)))
    wanted = [None if value is None else expected_value(value, outcome) for value in padded]
    assert list(map(text_of, table[1].to_pylist())) == list(map(text_of, wanted))
    assert hook.driver.is_closed
    empty = DriverHook(Driver([("x", code, *digits)], []))
    assert read(empty, "SELECT", tmp_path / "empty").num_rows == 0


@pytest.fixture
def warehouse(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Driver]:
    """Makes a driver the database of the Airflow connection ``warehouse``."""

    class Hook(DbApiHook):
        conn_name_attr, conn_type = "odd_conn_id", "odd"

        def get_conn(self) -> Any:
            return self.driver

    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", "odd://")

    def set_driver(*args: Any, **kwargs: Any) -> Driver:
        hook = Hook()
        hook.driver = driver = Driver(*args, **kwargs)
        monkeypatch.setattr(BaseHook, "get_hook", lambda conn_id, **_: hook)
        return driver

    return set_driver


@pytest.mark.parametrize(
    ("module", "declared", "values", "outcome"),
    [
        ("clickhouse_driver.dbapi.connection", ("DateTime",), [at(7)], "returns times without"),
        ("clickhouse_driver.dbapi.connection", ("DateTime('UTC')",), [at(7, UTC)], pa.timestamp("us", "UTC")),
        ("clickhouse_driver.dbapi.connection", ("FixedString(5)",), ["00123"], pa.string()),
        ("oracledb.connection", (SimpleNamespace(name="DB_TYPE_DATE"),), [], pa.timestamp("us")),
        ("snowflake.connector.connection", (0, 38, 0), [], pa.int64()),
        ("snowflake.connector.connection", (0, 38, 0), [7], pa.int64()),
        ("snowflake.connector.connection", (0, 12, 3), [], pa.decimal128(12, 3)),
        ("snowflake.connector.connection", (0, 12, 3), [D("1.5")], pa.decimal128(12, 3)),
        ("snowflake.connector.connection", (7, 0, 9), [at(7)], "returns times without"),
        ("MySQLdb.connections", (7,), [at(7)], pa.timestamp("us", "UTC")),
        ("MySQLdb.connections", (12,), [at(7)], pa.timestamp("us")),
        ("MySQLdb.connections", (10,), ["0000-00-00"], "returns text"),
        ("MySQLdb.connections", (5, 22, 31), [0.1], pa.float64()),
        ("MySQLdb.connections", (4,), [0.5], "six digits"),
        ("psycopg", (3802,), [1.5], "is JSON"),
        ("psycopg", (114,), [], "is JSON"),
        ("redshift_connector.core", (1186,), [datetime.timedelta(30)], "30 days"),
        ("redshift_connector.core", (1184,), [at(7)], "returns times without"),
        ("redshift_connector.core", (1700, 12, 3), [], pa.decimal128(12, 3)),
        ("oracledb.connection", (SimpleNamespace(name="DB_TYPE_NUMBER"), 10, 2), [0.1], pa.decimal128(10, 2)),
        ("oracledb.connection", (SimpleNamespace(name="DB_TYPE_NUMBER"), 0, -127), [0.1], "returns floats"),
        ("oracledb.connection", (SimpleNamespace(name="DB_TYPE_TIMESTAMP_TZ"),), [at(7)], "returns times without"),
        ("oracledb.connection", (SimpleNamespace(name="DB_TYPE_BINARY_DOUBLE"),), [0.1], pa.float64()),
        ("pyodbc", (float, 53, 0), [0.5], pa.float64()),
        ("pyodbc", (str, 50, 0), ["7"], pa.string()),
        ("pyodbc", (bool, 1, 0), [], pa.bool_()),
    ],
)
def test_declarations_of_known_drivers(module: str, declared: Any, values: list[Any], outcome: Any) -> None:
    """As their documentation and sources have them."""
    connection = type("Connection", (), {"__module__": module})()
    code, *digits = declared
    entry = ("x", code, None, None, *digits, None, None)[:7]
    [column] = columns_of([entry], connection, "connection 'odd'")
    if isinstance(outcome, str):
        column.add(values)
        with pytest.raises(BadInput, match=outcome):
            column.type()
        return
    values = list(column.add(values))
    assert column.type() == outcome
    assert len(column.array(values, outcome)) == len(values)


class ArrowDriver(Driver):
    """As drivers of DuckDB, ADBC and Databricks, and BigQuery's client: the rows of a table in Arrow."""

    def __init__(self, method: str, table: pa.Table) -> None:
        super().__init__([("ignored", None)], [])
        self.table, self.total_rows, self.conn_type = table, table.num_rows, "odd"
        self.columns = table.column_names
        setattr(self, method, getattr(self, f"_{method}"))
        if method == "to_arrow_iterable":
            self.conn_type, self.to_arrow = "gcpbigquery", lambda: table

    def get_conn(self) -> ArrowDriver:
        return self

    def get_client(self) -> ArrowDriver:
        return self

    def query(self, sql: str) -> ArrowDriver:
        return self

    @property
    def types(self) -> list[str]:
        return ["BIGINT"] * self.table.num_columns

    def sql(self, sql: str) -> ArrowDriver | None:
        return self if sql.startswith("SELECT") else None

    def result(self) -> ArrowDriver:
        return self

    def _to_arrow_iterable(self) -> Any:
        return iter(self.table.to_batches(2))

    def _to_arrow_reader(self, rows: int) -> Any:
        return self.table.to_reader(2)

    def _fetch_record_batch(self) -> Any:
        return self.table.to_reader(2)

    def _fetchmany_arrow(self, rows: int) -> pa.Table:
        first, self.position = self.position, self.position + 2
        return self.table.slice(first, 2)


LONG_DECIMAL = pa.Array.from_buffers(pa.decimal128(38, 0), 1, [None, pa.py_buffer((2**127 - 1).to_bytes(16, "little"))])
"""A number of 39 digits, as DuckDB's HUGEINT may have."""


@pytest.mark.parametrize("method", ["to_arrow_reader", "fetch_record_batch", "fetchmany_arrow", "to_arrow_iterable"])
def test_arrow_of_the_driver_is_used(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query, "_FILE_ROWS", 4)
    prices = pa.array([D(n) for n in range(9)], pa.decimal128(38, 9))
    table = pa.table({"id": range(9, 0, -1), "price": prices})
    assert read(ArrowDriver(method, table), "SELECT", tmp_path / "rows") == table
    assert len(list((tmp_path / "rows").iterdir())) == 3
    assert read(ArrowDriver(method, table.slice(0, 0)), "SELECT", tmp_path / "empty").schema == table.schema
    for lost in (pa.nulls(1, pa.float16()), pa.array(["a"], pa.string_view()), LONG_DECIMAL):
        with pytest.raises(BadInput, match=r"column 'lost'.*cast it in the query"):
            read(ArrowDriver(method, pa.table({"lost": lost})), "SELECT", tmp_path / str(lost.type))
    if method == "to_arrow_reader":
        with pytest.raises(BadInput, match="returns no columns"):
            read(ArrowDriver(method, table), "-- SELECT", tmp_path / "none")
    twice = pa.Table.from_arrays([prices, prices], names=["a", "a"])
    with pytest.raises(BadInput, match="an earlier one's name"):
        read(ArrowDriver(method, twice), "SELECT", tmp_path / "twice")


class Odbc(Driver):
    """A connection of ODBC to a database of some name."""

    name = ""

    def getinfo(self, number: int) -> str:
        return self.name if number == 17 else ""

    def commit(self) -> None:
        pass


@pytest.mark.parametrize(
    ("name", "statements", "outcome"),
    [
        ("Vertica", [], "zone of the database's sessions is unknown"),
        ("Microsoft SQL Server", [], pa.timestamp("us")),
        ("Snowflake", ["ALTER SESSION SET TIMEZONE = 'UTC'"], pa.timestamp("us")),
        ("MariaDB", ["SET SESSION time_zone = '+00:00'"], "use a connection of type mysql"),
    ],
)
def test_database_behind_odbc_decides_on_times(name: str, statements: list[str], outcome: Any, tmp_path: Path) -> None:
    driver = Odbc([("x", datetime.datetime)], [(at(7),)])
    driver.name = name
    if isinstance(outcome, str):
        with pytest.raises(BadInput, match=outcome):
            read(DriverHook(driver), "SELECT", tmp_path / "rows")
    else:
        assert read(DriverHook(driver), "SELECT", tmp_path / "rows").schema.field("x").type == outcome
    assert driver.statements[: len(statements)] == statements


COLUMNS = [("id", NUMBER), ("at", "timestamptz"), ("price", NUMBER, 12, 2), ("name", STRING)]
ROWS = [(n, at(n % 24, UTC) if n != 7 else None, D(n) / 4, f"t{n}") for n in (*range(20, 0, -1), 40)]


@pytest.mark.runtime
def test_rows_become_a_snapshot(warehouse: Any, run_step: Any, warm_launcher: Any) -> None:
    def ingest(**fields: Any) -> tuple[Any, list[dict[str, Any]]]:
        source = QuerySource(conn_id="warehouse", **{"sql": "SELECT * FROM rows; ", "key": "id", **fields}).to_dict()
        window = {"window_start": "2013-01-01T03:00:00+00:00", "window_end": "2013-01-01T14:00:00+02:00"}
        params = {"sources": {"rows": source}, **window}
        artifact = run_step(RUN, params=params, kind="snapshot", launcher=warm_launcher, run_id="run")
        return artifact, pq.read_table(run_step.store.local(artifact) / "rows").to_pylist()

    def refused(retryable: bool = False, **fields: Any) -> str:
        with pytest.raises((StepFailed, BadInput, HopsError)) as failure:
            ingest(**fields)
        assert failure.value.retryable is retryable, failure.value
        assert fetched_rows() == []
        return str(failure.value)

    def fetched_rows() -> list[str]:
        names = run_step.store.names(run_step.store.uri("tests", "run", "ingest-run"))
        return [name for name in names if not name.startswith("snapshot")]

    driver = warehouse(COLUMNS, ROWS, dies_after=10)
    assert "server closed the connection" in refused(retryable=True)
    driver.dies_after = None
    query_of_window = "SELECT * FROM rows WHERE at >= TIMESTAMP :window_start AND at::date < :window_end"
    artifact, rows = ingest(time_column="at", sql=query_of_window, version="unused in a step")
    assert driver.statements[-1].endswith("TIMESTAMP '2013-01-01 03:00:00' AND at::date < '2013-01-01 12:00:00'")
    inside = [n for n, time, *_ in ROWS if time and at(3, UTC) <= time < at(12, UTC)]
    assert [row["id"] for row in rows] == inside
    assert rows[0] == dict(zip(("id", "at", "price", "name"), ROWS[9], strict=True))
    counts = artifact.rows["rows"]
    assert (counts.rows_in, counts.rejected) == (len(inside) + 1, {"at is missing": 1})
    assert fetched_rows() == []
    assert ingest(columns=("name",))[1] == [{"name": row[3]} for row in ROWS]

    warehouse(COLUMNS, [*ROWS, ROWS[3]])
    assert "the key id=17 occurs 2 times" in refused()
    assert "no such table: gone" in refused(sql="refused")
    assert "'when', which the source's 'time_column' names" in refused(time_column="when")
    warehouse([("a", NUMBER), ("a", NUMBER)], [(1, 2)])
    assert "column 2 ('a') has an earlier one's name" in refused()
    warehouse([], [])
    assert "returns no columns" in refused()
    warehouse(COLUMNS, [])
    assert "has no rows" in refused()
    warehouse(COLUMNS, [{"id": 1}])
    assert "remove 'cursor'" in refused()


@pytest.mark.runtime
def test_rows_are_not_read_for_a_cached_snapshot(warehouse: Any, run_dag: Any) -> None:
    """A source without a version is read each time."""
    driver = warehouse([("changed", NUMBER)], [])
    for state, cached, reads in ((7, False, 2), (7, True, 1), (8, False, 2)):
        driver.rows = [(state,)]
        driver.statements.clear()
        dag_run = run_dag("ingest_queries", {"table": "many"}, "tests/extensions/tables/dags")
        values = {each.task_id: each.xcom_pull(task_ids=each.task_id) for each in dag_run.get_task_instances()}
        assert values["versioned"]["properties"]["plans"] == {"rows": str(state)}
        assert values["unknown"]["rows"]["rows"]["rows_out"] == 1
        is_cached = [values[task]["cached"] for task in ("versioned", "unknown")]
        assert (is_cached, driver.statements.count("SELECT * FROM many")) == ([cached, False], reads)


@pytest.mark.parametrize(("conn_type", "expected"), [("trino", "apache-airflow-providers-trino"), ("http", "HttpHook")])
def test_unusable_connection_is_named(conn_type: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", f"{conn_type}://")
    with pytest.raises(BadInput, match=expected):
        query.hook_of(BaseHook.get_connection("warehouse"))


def test_missing_driver_is_named() -> None:
    class Hook:
        def get_conn(self) -> Any:
            importlib.import_module("no_such_driver")

    with pytest.raises(BadInput, match=r"no_such_driver.*install the driver"), query.connected(Hook(), "x"):
        pass


@pytest.mark.parametrize(("state", "retried"), [("57014", True), ("40001", True), ("42S02", False), ("", False)])
@pytest.mark.parametrize("driver", ["snowflake", "redshift", "odbc"])
def test_error_is_retried_by_its_state(driver: str, state: str, retried: bool) -> None:
    """Also of drivers that raise one class for all errors of a query."""
    args = {"redshift": [{"S": "ERROR", "C": state, "M": "no"}], "odbc": [state, "no"]}.get(driver, ["no"])
    error = ProgrammingError(*args)
    if driver == "snowflake":
        error.sqlstate = state  # type: ignore[attr-defined]
    with pytest.raises(HopsError) as failure, failing("x"):
        raise error
    assert failure.value.retryable is retried


def test_window_that_is_missing_is_named() -> None:
    with pytest.raises(BadInput, match="names :window_end, and the task has none"):
        query.in_window("SELECT * FROM t WHERE at < :window_end", ("2013-01-01", None), "x")
    assert query.in_window("SELECT a::window_start, :window_starts", (None, None), "x").endswith(":window_starts")


MARIADB = """
    CREATE TABLE many (id INT PRIMARY KEY, price DECIMAL(10, 2), exact DECIMAL(38, 10), big BIGINT UNSIGNED,
        ratio DOUBLE, flag TINYINT(1), txt TEXT, name VARCHAR(9), kind ENUM('a', 'b'), plain DATETIME(6),
        zoned TIMESTAMP NULL, day DATE, span TIME, since YEAR, raw BLOB, doc JSON)
"""
MARIADB_ROW = {
    "id": 1, "price": D("12345678.91"), "exact": D("1234567890123456789012345678.0123456789"), "big": D(2**64 - 1),
    "ratio": 0.1, "flag": 1, "txt": "😀ü", "name": "x'%s", "kind": "a",
    "plain": datetime.datetime(2013, 1, 1, 10, 0, 0, 123456), "zoned": at(8, UTC), "day": DAY,
    "span": -datetime.timedelta(hours=25, minutes=30), "since": 2013, "raw": b"\x00\xff", "doc": '{"a": 1}',
}  # fmt: skip


@pytest.fixture(params=["mysql-connector-python", "PyMySQL"])
def mysql_hook(request: pytest.FixtureRequest, mariadb: Any, mariadb_port: int) -> Any:
    """A hook of MariaDB by each driver."""
    if request.param == "mysql-connector-python":
        return importlib.import_module("airflow.providers.mysql.hooks.mysql").MySqlHook("warehouse")
    hook = PyMySql()
    hook.port = mariadb_port
    return hook


@pytest.mark.scheduled(part="databases")
def test_mariadb_types_survive(mariadb: Any, mysql_hook: Any, tmp_path: Path) -> None:
    mariadb.execute(MARIADB)
    values = {**MARIADB_ROW, "big": 2**64 - 1, "zoned": "2013-01-01 10:00:00"}
    places = ", ".join(["%s"] * len(values))
    mariadb.execute(f"INSERT INTO many VALUES ({places})", tuple(values.values()))  # in the session's zone, +02:00
    mariadb.execute("INSERT INTO many (id) VALUES (2)")
    table = read(mysql_hook, "SELECT * FROM many ORDER BY id DESC", tmp_path / "rows")
    assert table.to_pylist() == [{**dict.fromkeys(MARIADB_ROW), "id": 2}, MARIADB_ROW]
    types = dict(zip(table.schema.names, table.schema.types, strict=True))
    assert (types["exact"], types["big"]) == (pa.decimal128(38, 10), pa.decimal128(20, 0))
    assert (types["zoned"], types["plain"]) == (pa.timestamp("us", "UTC"), pa.timestamp("us"))


@pytest.mark.scheduled(part="databases")
def test_mariadb_floats_are_refused(mariadb: Any, mysql_hook: Any, tmp_path: Path) -> None:
    """The server sends 1234567 as 1234570."""
    mariadb.execute("CREATE TABLE single (x FLOAT)")
    mariadb.execute("INSERT INTO single VALUES (1234567), (16777216), (NULL)")
    with pytest.raises(BadInput, match="column 'x' is a FLOAT, which the server sends with six digits"):
        read(mysql_hook, "SELECT x FROM single", tmp_path / "refused")
    table = read(mysql_hook, "SELECT CAST(x AS DOUBLE) AS x FROM single", tmp_path / "rows")
    assert table["x"].to_pylist() == [1234567.0, 16777216.0, None]


@pytest.mark.scheduled(part="databases")
def test_mariadb_table_that_changes_is_read_in_one_state(
    mariadb: Any, mysql_hook: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mariadb.execute("CREATE TABLE changing (id INT PRIMARY KEY) AS SELECT seq AS id FROM seq_1_to_20000")
    add, changed = query.Column.add, []

    def add_and_change(column: Any, values: Any) -> Any:
        if not changed:
            mariadb.execute("UPDATE changing SET id = id + 100000 WHERE id > 10000")
            mariadb.execute("DELETE FROM changing WHERE id < 10000")
            changed.append(column)
        return add(column, values)

    monkeypatch.setattr(query.Column, "add", add_and_change)
    table = read(mysql_hook, "SELECT id FROM changing ORDER BY id", tmp_path / "rows")
    assert changed and table["id"].to_pylist() == list(range(1, 20001))


@pytest.mark.scheduled(part="databases")
def test_mariadb_zero_dates_are_refused(mariadb: Any, mysql_hook: Any, tmp_path: Path) -> None:
    mariadb.execute("CREATE TABLE zero (id INT, a DATE, b DATETIME NOT NULL)")
    mariadb.execute(
        "INSERT INTO zero VALUES (1, '0000-00-00', '2013-00-10'), (2, NULL, '2013-01-01'), (3, '2013-01-01', 0)"
    )
    for number, column in enumerate("ab"):
        with pytest.raises(BadInput, match=f"column '{column}' has .*(0000-00-00|text)"):
            read(mysql_hook, f"SELECT {column} FROM zero", tmp_path / str(number))
    assert read(mysql_hook, "SELECT a FROM zero WHERE id > 1 ORDER BY id", tmp_path / "rows")["a"].to_pylist() == [
        None,
        DAY,
    ]


@pytest.mark.scheduled(part="databases")
@pytest.mark.parametrize("what", ["CONNECTION", "QUERY"])
def test_mariadb_killed_query_is_retried(what: str, mariadb: Any, mysql_hook: Any, tmp_path: Path) -> None:
    """After more rows than a batch has."""

    def kill() -> None:
        mariadb.execute("SELECT id FROM information_schema.processlist WHERE info LIKE 'SELECT seq,%'")
        for (number,) in mariadb.fetchall():
            mariadb.execute(f"KILL {what} {number}")

    slow = "SELECT seq, SLEEP(IF(seq < 50000, 0, 1)) AS pause FROM seq_1_to_51000"
    timer = threading.Timer(2, kill)
    timer.start()
    with pytest.raises(HopsError) as failure:
        read(mysql_hook, slow, tmp_path / "rows")
    timer.join()
    assert failure.value.retryable, failure.value
    assert not any((tmp_path / "rows").iterdir())


@pytest.mark.scheduled(part="databases")
def test_mariadb_rows_arrive_with_bounded_memory(mysql_hook: Any, tmp_path: Path) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()
    sql = "SELECT seq, REPEAT('x', 200) AS x FROM seq_1_to_200000"
    with query.connected(mysql_hook, "x") as connection:
        tracemalloc.start()
        assert query.read_query(mysql_hook, connection, sql, folder, "x") == 200_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40e6  # of 100 MB of Python's values


@pytest.mark.scheduled(part="databases")
@pytest.mark.filterwarnings("error:Arrow output")  # DuckDB's warning of a result that is made before it is read
def test_duckdb_types_survive(duckdb_hook: Any, tmp_path: Path) -> None:
    """They are read in UTC, whatever the zone of the database, and not all at once."""
    path = tmp_path / "shop.db"
    with importlib.import_module("duckdb").connect(str(path)) as database:
        database.execute("""
            SET GLOBAL TimeZone = 'America/New_York';
            CREATE TABLE many AS SELECT n AS id, (n / 8)::DECIMAL(12, 3) AS price, 'ü' || n AS name,
            TIMESTAMPTZ '2013-01-01 10:00+02' AS zoned, TIMESTAMP '2013-01-01 10:00' AS plain, uuid() AS key,
            9223372036854775808::UBIGINT AS big, NULL::DATE AS nothing FROM range(3000000) AS r(n)
        """)
        sql = "SELECT *, zoned > '2013-01-01 07:00' AS later FROM many ORDER BY id DESC"
        table = read(duckdb_hook, sql, tmp_path / "rows")
    assert len(list((tmp_path / "rows").iterdir())) == 3
    assert table["id"].to_pylist() == list(range(2_999_999, -1, -1))
    types = dict(zip(table.schema.names, table.schema.types, strict=True))
    assert (types["price"], types["nothing"], types["plain"]) == (pa.decimal128(12, 3), pa.date32(), pa.timestamp("us"))
    row = table.slice(2_999_992, 1).to_pylist()[0]
    assert (row["id"], row["price"], row["name"], row["zoned"]) == (7, D("0.875"), "ü7", at(8, UTC))
    assert row["later"]


DUCKDB_LOSES = {
    "UHUGEINT": "340282366920938463463374607431768211455", "BIGNUM": "1", "BIT": "'101'", "VARIANT": "1::VARIANT",
    "TIMETZ": "'10:00:00+02'", "INTERVAL": "INTERVAL 1 MONTH", "STRUCT(a UHUGEINT)": "{'a': 1}",
    "HUGEINT": "170141183460469231731687303715884105727",
}  # fmt: skip
DUCKDB_KEEPS = {
    "HUGEINT": ("99999999999999999999999999999999999999", D(10**38 - 1)), "ENUM('BIT')": ("'BIT'", "BIT"),
    "TIMESTAMPTZ": ("'2013-01-01 10:00+02'", at(8, UTC)), "UBIGINT": ("18446744073709551615", 2**64 - 1),
}  # fmt: skip


@pytest.fixture
def duckdb_hook(drivers: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", json.dumps({"conn_type": "duckdb", "host": str(tmp_path / "shop.db")}))
    return importlib.import_module("duckdb_provider.hooks.duckdb_hook").DuckDBHook("warehouse")


@pytest.mark.scheduled(part="databases")
def test_duckdb_types_that_its_driver_changes_are_refused(duckdb_hook: Any, tmp_path: Path) -> None:
    for number, (type_, value) in enumerate(DUCKDB_LOSES.items()):
        with pytest.raises(BadInput, match=r"cast .* in the query"):
            read(duckdb_hook, f"SELECT ({value})::{type_} AS x", tmp_path / f"refused{number}")
    for number, (type_, (value, expected)) in enumerate(DUCKDB_KEEPS.items()):
        table = read(duckdb_hook, f"SELECT ({value})::{type_} AS x", tmp_path / f"rows{number}")
        assert table["x"].to_pylist() == [expected]


@pytest.mark.server
@pytest.mark.parametrize("value", ["'null'::jsonb", "'1.10'::json", "interval '1 month'", "'{1}'::int[]"])
def test_postgres_values_that_psycopg_changes_are_refused(postgres: Any, value: str, tmp_path: Path) -> None:
    from airflow.providers.postgres.hooks.postgres import PostgresHook

    with pytest.raises(BadInput, match="cast it in the query"):
        read(PostgresHook("warehouse"), f"SELECT {value} AS x", tmp_path / "refused")


@pytest.mark.runtime
def test_postgres_is_read_as_by_its_exact_reader(
    postgres: Any, run_step: Any, warm_launcher: Any, tmp_path: Path
) -> None:
    postgres.execute(r"""
        CREATE TABLE many (small int2, big int8, ratio float8, price numeric(12, 3), exact numeric, flag bool,
            raw bytea, zoned timestamptz, plain timestamp, day date, id uuid, name varchar(9), empty numeric(7, 2));
        INSERT INTO many VALUES
            (1, 9007199254740993, 'NaN', 123456789.125, 12345678901234567890.123456789, true, '\x00ff',
             '2013-01-01 10:00+02', '2013-01-01 10:00', '2013-01-01', '00000000-0000-0000-0000-00000000000a', 'ü''"'),
            (2, -7, 0.1, -0.001, -7, false, '',
             '0001-01-01 00:00Z', '9999-12-31 23:59:59.999999', '0001-01-01', NULL, NULL);
    """)
    from airflow.providers.postgres.hooks.postgres import PostgresHook

    sql = "SELECT * FROM many ORDER BY small DESC"
    table = read(PostgresHook("warehouse"), sql, tmp_path / "rows")
    params = {"sources": {"rows": QuerySource(conn_id="warehouse", sql=sql).to_dict()}}
    artifact = run_step(RUN, params=params, kind="snapshot", launcher=warm_launcher)
    exact = pq.read_table(run_step.store.local(artifact) / "rows")
    assert table.schema.field("exact").type == exact.schema.field("exact").type
    assert table.schema.field("empty").type == pa.decimal128(7, 2)
    assert [list(map(text_of, row.values())) for row in table.to_pylist()] == [
        list(map(text_of, row.values())) for row in exact.to_pylist()
    ]


@pytest.fixture
def sqlite(tmp_path: Path) -> Sqlite:
    hook = Sqlite()
    hook.path = tmp_path / "db"
    return hook


@pytest.mark.parametrize(
    ("type_", "values", "kept"),
    [
        ("TEXT", ["a", "", None, "x'%s", "😀 "], True),
        ("REAL", [0.1, -0.0, 1e308, None], True),
        ("REAL", [0.5, math.nan], False),  # a null in SQLite
        ("INTEGER", [2**63 - 1, -(2**63), None], True),
        ("INTEGER", [True, False, None], True),
        ("INTEGER", ["007", "1"], False),  # SQLite's affinity makes numbers of them
        ("BLOB", [b"\x00\xff", b""], True),
        ("REAL", [2**53 + 1], False),
        ("CHAR(2) CHECK (length(c) < 3)", ["abc"], None),
        ("INTEGER UNIQUE ON CONFLICT REPLACE", [1, 1], None),
        ("INTEGER UNIQUE ON CONFLICT IGNORE", [1, 2, 2], None),
    ],
)
def test_a_table_that_does_not_keep_what_is_written_is_left_as_it_was(
    type_: str, values: list[Any], kept: bool | None, sqlite: Sqlite, tmp_path: Path
) -> None:
    hook, store = sqlite, ArtifactStore(str(tmp_path / "s"))
    with contextlib.closing(hook.get_conn()) as connection, connection:
        connection.execute(f"CREATE TABLE kept (HOPS_BATCH TEXT, hops_folder TEXT, C {type_})")
        connection.execute("INSERT INTO kept VALUES ('other', 'eval', NULL)")
    table = pa.table({"c": values})
    if kept:
        for _ in range(2):  # the second time instead of the first
            assert write(store, table, hook)["rows"] == len(values)
    else:
        with pytest.raises(BadInput, match="'c' does not keep" if kept is False else "holds .* rows|constraint failed"):
            write(store, table, hook)
    with contextlib.closing(hook.get_conn()) as connection:
        rows = connection.execute("SELECT c FROM kept WHERE hops_batch = 'd/r/predict/predictions'").fetchall()
        others = connection.execute("SELECT count(*) FROM kept WHERE hops_batch = 'other'").fetchall()
    assert [value for (value,) in rows] == (values if kept else [])
    assert others == [(1,)]


@pytest.mark.parametrize(
    ("created", "rows", "message"),
    [
        ("CREATE TABLE kept (a INTEGER, hops_batch TEXT)", {"a": [1]}, "'hops_folder' is in the rows alone"),
        (
            "CREATE TABLE kept (a INTEGER, b TEXT, hops_batch TEXT, hops_folder TEXT)",
            {"a": [1]},
            "'b' is in the table alone",
        ),
        ("CREATE TABLE other (a INTEGER)", {"a": [1]}, "no such table: kept"),
        (
            "CREATE TABLE kept (a INTEGER)",
            {"a": [[datetime.date(2026, 11, 1)]]},
            "cannot hold column 'a', which is list",
        ),
        ("CREATE TABLE kept (a INTEGER)", {"hops_batch": ["x"]}, "reserved by the table"),
    ],
)
def test_a_table_of_other_columns_is_refused(
    created: str, rows: dict[str, Any], message: str, sqlite: Sqlite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = sqlite
    with contextlib.closing(hook.get_conn()) as connection, connection:
        connection.execute(created)
    with pytest.raises(HopsError, match=message):
        write(ArtifactStore(str(tmp_path / "s")), pa.table(rows), hook)
    monkeypatch.setattr(hook, "conn_type", "gcpbigquery")
    with pytest.raises(BadInput, match="loads files, not rows"), opened_table(Table(conn_id="w", name="kept"), hook):
        raise AssertionError("it is opened")


def test_lists_are_written_as_json(sqlite: Sqlite, tmp_path: Path) -> None:
    store, lists = ArtifactStore(str(tmp_path / "s")), [[0.25, 1e-9], None, [], [None, 1.0]]
    with contextlib.closing(sqlite.get_conn()) as connection, connection:
        connection.execute("CREATE TABLE kept (c TEXT, hops_batch TEXT, hops_folder TEXT)")
    write(store, pa.table({"c": lists}), sqlite, batch="b")
    with pytest.raises(BadInput, match=r"column 'c', list.* has a value that a driver does not take: .*JSON"):
        write(store, pa.table({"c": [[float("nan")]]}), sqlite, batch="b")
    with contextlib.closing(sqlite.get_conn()) as connection:
        texts = [text for (text,) in connection.execute("SELECT c FROM kept")]
    assert [None if each is None else json.loads(each) for each in texts] == lists


def test_no_rows_replace_those_of_the_batch(sqlite: Sqlite, tmp_path: Path) -> None:
    store = ArtifactStore(str(tmp_path / "s"))
    with contextlib.closing(sqlite.get_conn()) as connection, connection:
        connection.execute("CREATE TABLE kept (c INTEGER, hops_batch TEXT, hops_folder TEXT)")
    assert write(store, pa.table({"c": [1, 2]}), sqlite, batch="b")["rows"] == 2
    assert write(store, pa.table({"c": pa.array([], pa.int64())}), sqlite, batch="b")["rows"] == 0
    assert write(store, pa.table({"c": [1, 2]}), sqlite, batch="b")["rows"] == 2
    assert write(store, pa.table({"c": [1, 2]}), sqlite, batch="b", folders=["quarantine"])["rows"] == 0
    with contextlib.closing(sqlite.get_conn()) as connection:
        assert connection.execute("SELECT count(*) FROM kept").fetchall() == [(0,)]


@pytest.mark.runtime
def test_the_worker_writes_before_the_step_records_it(
    sqlite: Sqlite, monkeypatch: pytest.MonkeyPatch, run_step: Any, warm_launcher: Any
) -> None:
    hook = sqlite
    with contextlib.closing(hook.get_conn()) as connection, connection:
        connection.execute("CREATE TABLE kept (c INTEGER, hops_batch TEXT, hops_folder TEXT)")
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", "odd://")
    monkeypatch.setattr(BaseHook, "get_hook", lambda conn_id, **_: hook)
    rows = written_rows(run_step.store, pa.table({"c": [1, 2, 3]}))
    params = {"table": Table(conn_id="warehouse", name="kept").to_dict(), "batch": "o'clock"}
    entry = "airflow_hops.extensions.tables.ml.write.stage:run"
    artifact = run_step(entry, params=params, inputs={"rows": rows}, kind="table_write", launcher=warm_launcher)
    assert run_step.store.manifest(artifact.uri).metrics == {"rows": 3}
    with contextlib.closing(hook.get_conn()) as connection:
        assert connection.execute("SELECT count(*) FROM kept WHERE hops_batch = 'o''clock'").fetchall() == [(3,)]

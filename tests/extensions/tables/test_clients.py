"""Rows that one client writes to a database and another reads: exact, or refused by name with nothing changed."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import math
import random
import re
import sqlite3
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal as D
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.tables.runner import query
from airflow_hops.extensions.tables.runner.jdbc import return_exact_values
from tests.extensions.tables.database_clients import PyMySql, Sqlite, jdbc_hook, odbc_hook, read, write

BATCHES = (
    ("b1", "B1", "b1 ", " b1", "ｂ1"),
    ("é", "e\u0301", "e", "É"),
    ("ß", "ss", "SS", "ẞ"),
    ("1", "01", "1.0", "１", "true", " 1", "1e0"),
    ("i", "I", "ı", "İ"),
    ("b%", "b_", "%s", "bb", "%%s"),
    ("a'b", "a\\'b", 'a"b', "a''b", "\\"),
    ("日", "?", "😀", "\t", "", "NULL", "{}", ":1"),
    ("x" * 190, "x" * 189 + "y", "X" * 190),
)
"""Names that some comparison of texts takes for each other: by case, accents, blanks, widths, numbers or patterns."""


@dataclass(frozen=True)
class Kind:
    """A type of columns of rows.

    Attributes:
        type: It.
        plain: Values that each database keeps in its natural column.
        odd: Values that some do not.
    """

    type: pa.DataType
    plain: Sequence[Any]
    odd: Sequence[Any]


KINDS = {
    "int": Kind(pa.int64(), [0, 1, -1, -2, 2**53 + 1, 2**63 - 1, -(2**63)], [3]),
    "small": Kind(pa.int16(), [0, 7, -(2**15)], [2**15 - 1]),
    "bool": Kind(pa.bool_(), [True, False], [True]),
    "double": Kind(pa.float64(), [0.5, 0.1, 1e300, 1e-300, -1 / 3], [-0.0, math.nan, math.inf, -math.inf, 5e-324]),
    "single": Kind(pa.float32(), [0.5, 16777215.0, -2.25], [0.1, 1e38, math.nan, 1e-45]),
    "decimal": Kind(pa.decimal128(38, 10), [D("0.4"), D("0.6"), D(10**28 - 1), D("-1E-10"), D(0)], [D("0.5")]),
    "text": Kind(
        pa.string(),
        ["a", "A", "007", "1e3", "ü😀", "\\", "'", "%s", "x\n", "1_000", "NaN", "e\u0301", "null", "{", "true"],
        ["", " ", "a ", "\0", "y" * 5000, "日本"],
    ),
    "binary": Kind(pa.binary(), [b"a", b"\x00\xff", b"\\", b"'"], [b"", b" ", b"\x80" * 3000]),
    "date": Kind(pa.date32(), [date(2013, 1, 1), date(1582, 10, 10), date(9999, 12, 31)], [date.min]),
    "plain": Kind(
        pa.timestamp("us"),
        [datetime(2013, 3, 31, 2, 30), datetime(2013, 1, 1, 0, 0, 0, 1), datetime(1850, 1, 1)],
        [datetime.min, datetime.max],
    ),
    "zoned": Kind(
        pa.timestamp("us", "Europe/Berlin"),
        [datetime(2013, 1, 1, 8, tzinfo=UTC), datetime(2013, 10, 27, 0, 30, 0, 999999, UTC)],
        [datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC), datetime(1970, 1, 1, tzinfo=UTC)],
    ),
    "clock": Kind(pa.time64("us"), [time(7, 0, 0, 1), time(23, 59, 59, 999999)], [time(0)]),
    "nanoseconds": Kind(pa.timestamp("ns"), [datetime(2013, 1, 1)], [1_000_000_001]),
    "list": Kind(pa.list_(pa.int64()), [], [[1]]),
}


@dataclass(frozen=True)
class Database:
    """A database to write to.

    Attributes:
        hooks: Its clients.
        execute: Runs a statement as another client, and returns its rows.
        batches: Types of the column with the batch; ``natural`` of them keep each batch.
        columns: Types of columns, by the kind whose values they keep; of other kinds, there are none.
        other_columns: Types that lose something.
        quote: Quotes a name.
        refusing: Kinds of values that some of its clients do not take.
    """

    hooks: dict[str, Any]
    execute: Callable[[str], Sequence[Sequence[Any]]]
    batches: Sequence[str]
    natural: int
    columns: dict[str, str]
    other_columns: Sequence[str] = ()
    quote: str = '"'
    refusing: dict[str, Sequence[str]] = field(default_factory=dict)


def exact(value: Any, kind: Kind) -> object:
    """A value that is equal for equal numbers, moments and texts of any client, and for no others."""
    if isinstance(value, str | type(None)):
        return value
    if isinstance(value, list):  # which a database gets as JSON
        return json.dumps(value)
    if isinstance(value, bytes | bytearray):
        return (bytes(value),)
    if isinstance(value, datetime):
        return value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day)
    if isinstance(value, time):
        return timedelta(hours=value.hour, minutes=value.minute, seconds=value.second, microseconds=value.microsecond)
    if isinstance(value, timedelta):
        return value
    if kind.type == pa.float32() and abs(value) < 3.5e38:
        (value,) = struct.unpack("f", struct.pack("f", value))
    is_odd = isinstance(value, float) and not math.isfinite(value)
    return repr(value) if is_odd else Fraction(value)


def draw_rows(draw: random.Random, kinds: dict[str, Kind], odd: bool) -> pa.Table:
    count = draw.choice([0, 1, 2, 5])
    columns = {}
    for name, kind in kinds.items():
        values = [*kind.plain, None] if not odd else [*kind.plain, *kind.odd, None]
        columns[name] = pa.array([draw.choice(values) for _ in range(count)], kind.type)
    return pa.table(columns)


def refusal(store: ArtifactStore, rows: pa.Table, hook: Any, batch: str) -> str | None:
    """Writes rows; returns the message if they are refused."""
    try:
        assert write(store, rows, hook, batch=batch)["rows"] == len(rows)
    except BadInput as error:
        return str(error)
    return None


def check_history(draw: random.Random, database: Database, folder: Path, writes: int) -> None:
    """Writes batches to a new table by random clients; after each, another client reads what is there."""
    odd = draw.random() < 0.5
    names = draw.sample([*database.columns] if not odd else [*KINDS], draw.choice([1, 2, 3]))
    kinds, quote = {f"c {name}": KINDS[name] for name in names}, database.quote
    types = {
        f"c {name}": draw.choice([*database.columns.values(), *database.other_columns])
        if name not in database.columns or (odd and draw.random() < 0.3)
        else database.columns[name]
        for name in names
    }
    batch_type = draw.choice(database.batches if odd else database.batches[: database.natural])
    not_null = {name: " NOT NULL" * (odd and draw.random() < 0.1) for name in types}
    declared = [f"{quote}{name}{quote} {type_}{not_null[name]}" for name, type_ in types.items()]
    database.execute("DROP TABLE IF EXISTS kept")
    database.execute(f"CREATE TABLE kept ({', '.join(declared)}, hops_batch {batch_type}, hops_folder VARCHAR(50))")
    batches = draw.choice(BATCHES)
    store, model = ArtifactStore(str(folder / "store")), dict[str, list[tuple[object, ...]]]()
    for number in range(writes):
        rows, batch = draw_rows(draw, kinds, odd), draw.choice(batches) or "d/r/predict/predictions"
        client = draw.choice([*database.hooks])
        error = refusal(store, rows, database.hooks[client], batch)
        context = (client, types, not_null, batch_type, batch, rows.to_pylist(), error)
        if error is None:
            values = [tuple(exact(value, kinds[name]) for name, value in row.items()) for row in rows.to_pylist()]
            model[batch] = sorted(values, key=repr)
        elif not odd:
            assert set(names) & set(database.refusing.get(client, ())), context
        counts = dict[str, int]()
        for (each,) in database.execute("SELECT hops_batch FROM kept"):
            counts[each] = counts.get(each, 0) + 1
        assert counts == {name: len(rows) for name, rows in model.items() if rows}, context
        reader = draw.choice([*database.hooks.values()])
        with contextlib.suppress(BadInput):  # such as FLOAT of MariaDB
            table = read(reader, "SELECT * FROM kept", folder / f"rows{number}")
            read_rows = dict[str, list[tuple[object, ...]]]()
            for row in table.to_pylist():
                values = tuple(exact(row[name], kind) for name, kind in kinds.items())
                read_rows.setdefault(row["hops_batch"], []).append(values)
            assert {name: sorted(rows, key=repr) for name, rows in read_rows.items()} == {
                name: rows for name, rows in model.items() if rows
            }, context


def check_batches(database: Database, folder: Path) -> None:
    """Writes each name once to a column of each natural type, of which it replaces no other."""
    store, rows = ArtifactStore(str(folder / "batches")), pa.table({"id": [1]})
    for type_ in database.batches[: database.natural]:
        database.execute("DROP TABLE IF EXISTS kept")
        database.execute(f"CREATE TABLE kept (id INTEGER, hops_batch {type_}, hops_folder VARCHAR(50))")
        clients = itertools.cycle(database.hooks.values())
        names = [name for family in BATCHES for name in family if name]
        written = [name for name in names if refusal(store, rows, next(clients), name) is None]
        assert sorted(name for (name,) in database.execute("SELECT hops_batch FROM kept")) == sorted(written), type_
        assert len(written) > 20


def check(database: Database, folder: Path, draws: int, seed: int) -> None:
    check_batches(database, folder)
    for history in range(draws // 5):
        check_history(random.Random(f"{seed} {history}"), database, folder / str(history), 5)


@pytest.fixture
def sqlite_database(tmp_path: Path) -> Iterator[Database]:
    hooks = {"sqlite3": Sqlite(), "autocommit": Sqlite()}
    for hook in hooks.values():
        hook.path = tmp_path / "db"
    hooks["autocommit"].options = {"isolation_level": None}
    columns = {"int": "INTEGER", "small": "INTEGER", "bool": "INTEGER", "double": "REAL", "single": "REAL"}
    with contextlib.closing(Sqlite.get_conn(hooks["autocommit"])) as connection:
        yield Database(
            hooks,
            lambda sql: connection.execute(sql).fetchall(),
            ["TEXT", "TEXT COLLATE NOCASE", "TEXT COLLATE RTRIM", "VARCHAR(3)", "INTEGER", "BLOB", "REAL", "NUMERIC"],
            4,
            {**columns, "text": "TEXT", "binary": "BLOB"},
            ["NUMERIC", "TEXT COLLATE NOCASE"],
        )


@pytest.fixture
def postgres_database(postgres: Any, postgres_port: int, monkeypatch: pytest.MonkeyPatch) -> Database:
    from airflow.providers.postgres.hooks.postgres import PostgresHook

    def execute(sql: str) -> Sequence[Sequence[Any]]:
        cursor = postgres.execute(sql)
        return cursor.fetchall() if cursor.description else []  # type: ignore[no-any-return]

    postgres.prepare_threshold = None  # whose plans last longer than the table
    execute("CREATE EXTENSION IF NOT EXISTS citext")
    execute("CREATE COLLATION alike (provider = icu, locale = 'und-u-ks-level1', deterministic = false)")
    execute("ALTER DATABASE postgres SET timezone TO 'Europe/Berlin'")
    columns = {
        "int": "bigint", "small": "smallint", "bool": "boolean", "double": "double precision", "single": "real",
        "decimal": "numeric(38, 10)", "text": "text", "binary": "bytea", "date": "date", "plain": "timestamp",
        "zoned": "timestamptz", "clock": "time",
    }  # fmt: skip
    return Database(
        {"psycopg": PostgresHook("warehouse")},
        execute,
        ["text", "text COLLATE alike", "citext", "varchar(200)", "varchar(5)", "char(200)", "integer", "bytea"],
        4,
        columns,
        ["numeric(9, 1)", "integer", "varchar(3)", "char(4)", "timestamp(0)", "time(0)", "citext", "interval"],
    )


@pytest.fixture
def all_postgres_database(
    postgres_database: Database, drivers: None, postgres_port: int, monkeypatch: pytest.MonkeyPatch
) -> Database:
    postgres_database.hooks["odbc"] = odbc_hook(postgres_port, monkeypatch)
    postgres_database.hooks["jdbc"] = jdbc_hook(postgres_port, monkeypatch)
    postgres_database.refusing.update(
        {"odbc": ["clock"], "jdbc": ["decimal", "date", "plain", "zoned", "clock", "binary"]}
    )
    return postgres_database


@pytest.fixture
def mariadb_database(mariadb: Any, mariadb_port: int) -> Database:
    by_pymysql = PyMySql()
    by_pymysql.port = mariadb_port

    def execute(sql: str) -> Sequence[Sequence[Any]]:
        mariadb.execute(sql)
        return mariadb.fetchall()  # type: ignore[no-any-return]

    columns = {
        "int": "BIGINT", "small": "SMALLINT", "bool": "BOOLEAN", "double": "DOUBLE", "decimal": "DECIMAL(38, 10)",
        "text": "TEXT CHARACTER SET utf8mb4", "binary": "BLOB", "date": "DATE", "plain": "DATETIME(6)",
        "zoned": "DATETIME(6)", "clock": "TIME(6)",
    }  # fmt: skip
    return Database(
        {
            "connector": importlib.import_module("airflow.providers.mysql.hooks.mysql").MySqlHook("warehouse"),
            "pymysql": by_pymysql,
        },
        execute,
        [
            *("VARCHAR(200)", "VARCHAR(200) COLLATE utf8mb4_unicode_ci", "VARCHAR(200) COLLATE utf8mb4_bin", "TEXT"),
            *("VARCHAR(200) CHARACTER SET latin1", "CHAR(200)", "VARBINARY(200)", "INT", "VARCHAR(5)", "DOUBLE"),
        ],
        4,
        columns,
        ["FLOAT", "INT", "DECIMAL(9, 1)", "VARCHAR(3)", "CHAR(4)", "TIMESTAMP(6) NULL", "DATETIME", "TIME", "JSON"],
        "`",
    )


@pytest.fixture
def duckdb_database(drivers: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    path = tmp_path / "shop.db"
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", f'{{"conn_type": "duckdb", "host": "{path}"}}')
    columns = {
        "int": "BIGINT", "small": "SMALLINT", "bool": "BOOLEAN", "double": "DOUBLE", "single": "FLOAT",
        "decimal": "DECIMAL(38, 10)", "text": "VARCHAR", "binary": "BLOB", "date": "DATE", "plain": "TIMESTAMP",
        "zoned": "TIMESTAMPTZ", "clock": "TIME",
    }  # fmt: skip
    with importlib.import_module("duckdb").connect(str(path)) as connection:
        yield Database(
            {"duckdb": importlib.import_module("duckdb_provider.hooks.duckdb_hook").DuckDBHook("warehouse")},
            lambda sql: connection.execute(sql).fetchall(),
            ["VARCHAR", "VARCHAR COLLATE NOCASE", "VARCHAR COLLATE NOACCENT", "INTEGER", "BLOB"],
            3,
            columns,
            ["DECIMAL(9, 1)", "INTEGER", "TIMESTAMP_S", "HUGEINT", "UUID"],
        )


def test_sqlite_keeps_what_is_written_or_nothing_changes(sqlite_database: Database, tmp_path: Path) -> None:
    check(sqlite_database, tmp_path, 50, 0)


@pytest.mark.server
def test_postgres_keeps_what_is_written_or_nothing_changes(postgres_database: Database, tmp_path: Path) -> None:
    check(postgres_database, tmp_path, 50, 0)


@pytest.mark.scheduled(part="databases")
@pytest.mark.parametrize("name", ["sqlite", "all_postgres", "mariadb", "duckdb"])
def test_values_are_equal_to_another_client(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    check(request.getfixturevalue(f"{name}_database"), tmp_path, 500, 1)


@pytest.fixture
def kept(postgres: Any, tmp_path: Path) -> Callable[..., str | None]:
    """Writes numbers to a table of PostgreSQL by the provider's hook; returns the message if they are refused."""
    from airflow.providers.postgres.hooks.postgres import PostgresHook

    hook = PostgresHook("warehouse")
    postgres.execute("CREATE TABLE kept (id int8, hops_batch text, hops_folder text)")

    def run(numbers: Sequence[int], batch: str = "b", store: str = "store", **fields: Any) -> str | None:
        rows = pa.table({"id": pa.array(numbers, pa.int64()), **fields})
        return refusal(ArtifactStore(str(tmp_path / store)), rows, hook, batch)

    return run


@pytest.mark.server
def test_rows_that_postgres_changes_are_refused(kept: Any, postgres: Any) -> None:
    def ids() -> list[tuple[str, int]]:
        return postgres.execute("SELECT hops_batch, id FROM kept ORDER BY 1, 2").fetchall()  # type: ignore[no-any-return]

    assert kept([1, 2]) is None
    body = "BEGIN IF NEW.id = 3 THEN RETURN NULL; END IF; IF NEW.id = 7 THEN NEW.id = 8; END IF; RETURN NEW; END"
    postgres.execute(f"CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $${body}$$")
    postgres.execute("CREATE TRIGGER t BEFORE INSERT ON kept FOR EACH ROW EXECUTE FUNCTION f()")
    assert "holds 2 rows of batch 'b' after 3 were written" in kept([3, 4, 5])
    assert "column 'id' does not keep" in kept([7, 4])
    postgres.execute("CREATE UNIQUE INDEX ON kept (id)")
    assert "duplicate key" in kept([5, 5])
    body = "BEGIN DELETE FROM kept WHERE id = 6; RETURN NULL; END"
    postgres.execute(f"CREATE FUNCTION g() RETURNS trigger LANGUAGE plpgsql AS $${body}$$")
    postgres.execute(
        "CREATE CONSTRAINT TRIGGER u AFTER INSERT ON kept INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION g()"
    )
    assert "holds 1 rows of batch 'b' after 2 were written" in kept([5, 6])
    assert "create it with the columns id, x, hops_batch, hops_folder" not in kept([5], x=["a"])
    assert ids() == [("b", 1), ("b", 2)]
    postgres.execute("CREATE RULE r AS ON DELETE TO kept DO INSTEAD NOTHING")
    assert "holds 3 rows of batch 'b' after 1 were written" in kept([4])
    postgres.execute("DROP TABLE kept")
    assert "create it with the columns id, hops_batch, hops_folder" in kept([4])


@pytest.mark.server
def test_writers_that_overlap_wait_for_each_other(kept: Any, postgres: Any) -> None:
    """Also with stores that have no locks, here two of them; each write takes as long as a killed try may live on."""
    with ThreadPoolExecutor() as pool:
        assert list(pool.map(lambda name: kept(range(3000), store=name), "abcd")) == [None] * 4
    assert postgres.execute("SELECT count(*) FROM kept").fetchone() == (3000,)


@pytest.mark.server
def test_names_of_postgres_are_taken_as_written(postgres: Any, tmp_path: Path) -> None:
    from airflow.providers.postgres.hooks.postgres import PostgresHook

    hook, rows = PostgresHook("warehouse"), pa.table({"ID": [1], "id": [2], "%s": [3]})
    postgres.execute('DROP SCHEMA IF EXISTS "Shop" CASCADE; CREATE SCHEMA "Shop"')
    for name in ("Late", 'a "b" %s', "Shop.Late"):
        quoted = ".".join(f'"{part.replace(chr(34), 2 * chr(34))}"' for part in name.split("."))
        postgres.execute(f'CREATE TABLE {quoted} ("ID" int8, id int8, "%s" int8, hops_batch text, hops_folder text)')
        spec_rows = ArtifactStore(str(tmp_path / "store"))
        assert write(spec_rows, rows, hook, table=name)["rows"] == 1
        assert postgres.execute(f"SELECT * FROM {quoted}".encode()).fetchall()[0][:3] == (1, 2, 3)
    for name in (".late", "shop.", "a.b.c", "ä" * 32):
        with pytest.raises(BadInput, match=r"expected 'table' or 'schema\.table'"):
            write(ArtifactStore(str(tmp_path / "store")), rows, hook, table=name)


PSQL_VALUES = (
    *("1::int2", "9223372036854775807::int8", "4000000000::oid", "true"),
    *("0.1::float4", "'NaN'::float8", "'-0'::float8", "123456789012345678901.5::numeric"),
    *("123.450::numeric(10, 3)", "99999999999999999999::numeric(20, 0)", "1234.5::money", "'NaN'::numeric"),
    *("'Infinity'::numeric", "'ü😀'::text", "'a '::char(4)", "repeat('a', 10000)"),
    *("'x'::name", "'\\x00ff'::bytea", "''::bytea", "'2013-01-01 10:00+02'::timestamptz"),
    *("'1582-10-10'::date", "'0001-01-01'::date", "'2013-03-31 02:30'::timestamp", "'1850-01-01'::timestamp"),
    *(
        "'9999-12-31 23:59:59.999999'::timestamp",
        "'2013-01-01 10:00:00.000001'::timestamp",
        "'infinity'::timestamp",
        "'-infinity'::date",
    ),
    *("'0044-03-15 BC'::timestamp", "'20000-01-01'::timestamptz", "'12:30:00.000001'::time", "'24:00'::time"),
    *("'12:30+02'::timetz", "'{1,2}'::int[]", "'00000000-0000-0000-0000-00000000000a'::uuid", "'<a/>'::xml"),
    *("'101'::bit(3)", "'(1,2)'::point"),
)


@pytest.mark.scheduled(part="databases")
def test_clients_of_postgres_read_the_same_or_refuse(all_postgres_database: Database, tmp_path: Path) -> None:
    """Each type alone and beside others, with and without nulls, in a database whose zone is not UTC."""
    taken = dict[str, set[str]]()
    for number, value in enumerate(PSQL_VALUES):
        for position, nulls in enumerate(("", " UNION ALL SELECT NULL, 2")):
            answers = {}
            for client, hook in all_postgres_database.hooks.items():
                sql = f"SELECT {value} AS x, 1 AS n{nulls}"
                with contextlib.suppress(BadInput):
                    table = read(hook, sql, tmp_path / f"{client}-{number}-{position}")
                    answers[client] = table.schema.field("x").type, repr(table.to_pylist())
            assert len({rows for _, rows in answers.values()}) <= 1, (value, answers)
            assert len({type_ for type_, _ in answers.values()}) <= 1 or "numeric" in value, (value, answers)
            taken[value] = set(answers)
    assert {value for value, clients in taken.items() if not clients} >= {"'infinity'::timestamp", "'24:00'::time"}
    for value in ("true", "99999999999999999999::numeric(20, 0)", "0.1::float4", "'2013-01-01 10:00+02'::timestamptz"):
        assert taken[value] == {"psycopg", "odbc", "jdbc"}


@pytest.mark.scheduled(part="databases")
def test_window_of_a_query_is_in_utc_by_each_client(all_postgres_database: Database, tmp_path: Path) -> None:
    all_postgres_database.execute(
        "CREATE TABLE hours AS SELECT generate_series('2013-01-01Z', '2013-01-02Z', '1 hour'::interval) AS at"
    )
    sql = "SELECT at FROM hours WHERE at >= TIMESTAMPTZ :window_start AND at < TIMESTAMPTZ :window_end ORDER BY at"
    sql = query.in_window(sql, ("2013-01-01T03:00:00+00:00", "2013-01-01T08:00:00+02:00"), "x")
    for client, hook in all_postgres_database.hooks.items():
        table = read(hook, sql, tmp_path / client)
        assert table["at"].to_pylist() == [datetime(2013, 1, 1, hour, tzinfo=UTC) for hour in (3, 4, 5)], client


@dataclass(frozen=True)
class Java:
    """A field of ``java.sql.Types``, a row of a result, and its column."""

    name: str
    number: int = 0
    text: str | None = None

    def __getattr__(self, name: str) -> Any:
        values = {"getName": self.name, "getInt": self.number, "getString": self.text, "getMetaData": self}
        return lambda *_: values.get(name, self.name)


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        ("TIMESTAMP", "2013-01-01 10:00:00.0", datetime(2013, 1, 1, 10)),
        ("TIMESTAMP", "2013-01-01 10:00:00.123456000", datetime(2013, 1, 1, 10, 0, 0, 123456)),
        ("TIMESTAMP", "2013-01-01 10:00:00.1234567", None),
        ("TIMESTAMP_WITH_TIMEZONE", "2013-01-01 10:00:00.000000001+02", None),
        ("TIMESTAMP", "20000-01-01 00:00:00", None),
        ("TIME", "10:00:00.1234567", None),
        ("DATE", "0044-03-15 BC", None),
        ("BIGINT", "9223372036854775807", 2**63 - 1),
        ("DECIMAL", "12345678901234567890.10", D("12345678901234567890.10")),
        ("DOUBLE", "0.1", 0.1),
        ("VARCHAR", "2013-01-01 10:00:00.1234567", "2013-01-01 10:00:00.1234567"),
    ],
)
def test_texts_of_jdbc_become_exact_values_or_are_refused(
    type_: str, text: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = "TINYINT SMALLINT INTEGER BIGINT REAL FLOAT DOUBLE DECIMAL NUMERIC CHAR NCHAR VARCHAR NVARCHAR LONGVARCHAR "
    names += (
        "LONGNVARCHAR OTHER SQLXML TIMESTAMP TIMESTAMP_WITH_TIMEZONE DATE TIME BINARY VARBINARY LONGVARBINARY BLOB "
    )
    fields = [Java(name, number) for number, name in enumerate(f"{names} BIT BOOLEAN".split())]
    types = SimpleNamespace(class_=SimpleNamespace(getFields=lambda: fields))
    monkeypatch.setitem(sys.modules, "jpype", SimpleNamespace(JClass=lambda name: types))
    connection = SimpleNamespace()
    return_exact_values(connection, "x")
    [number] = [field.number for field in fields if field.name == type_]
    with pytest.raises(BadInput, match="which Python does not hold") if value is None else contextlib.nullcontext():
        assert connection._converters[number](Java(type_, text=text), 1) == value


class Stranger:
    """A connection of a driver and a database that nobody knows."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


def test_batch_that_an_unknown_database_takes_for_another_is_refused(tmp_path: Path) -> None:
    hook = Sqlite()
    hook.path = tmp_path / "db"
    hook.get_conn = lambda: Stranger(sqlite3.connect(hook.path))  # type: ignore[method-assign]
    with contextlib.closing(hook.get_conn()) as connection:
        connection.execute("CREATE TABLE kept (id INTEGER, hops_batch TEXT COLLATE NOCASE, hops_folder TEXT)")
        store, rows = ArtifactStore(str(tmp_path / "store")), pa.table({"id": [1, 2]})
        for batch in ("b1", "b1", "c"):
            assert refusal(store, rows, hook, batch) is None
        assert "takes batch 'b1' for 'B1'" in str(refusal(store, rows, hook, "B1"))
        zoned = pa.table({"id": pa.array([0], pa.timestamp("us", "UTC"))})
        assert "get UTC; convert it to a time without a zone" in str(refusal(store, zoned, hook, "c"))
        counts = connection.execute("SELECT hops_batch, count(*) FROM kept GROUP BY 1").fetchall()
    assert counts == [("b1", 2), ("c", 2)]


class Dying:
    """A connection or cursor whose server ends the session before the n-th call of a kind that speaks to it."""

    calls = left = 0

    def __init__(self, inner: Any, end: Callable[[], None]) -> None:
        self._inner, self._end = inner, end

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if name == "cursor":
            return lambda *args: Dying(value(*args), self._end)
        if name in ("execute", "executemany", "commit", "fetchmany"):
            Dying.left -= 1
            if Dying.left == 0:
                self._end()
        return value

    def __enter__(self) -> Dying:
        return self

    def __exit__(self, *_: object) -> None:
        self._inner.close()


def check_lost_sessions(
    hook: Any, connection_type: type, end: Callable[[Any], None], execute: Any, folder: Path
) -> int:
    """Writes a batch, and then over sessions that end ever later; returns the number of these."""
    dying = type("Connection", (Dying,), {"__module__": connection_type.__module__})
    get_conn, store = hook.get_conn, ArtifactStore(str(folder))
    old, new = pa.table({"id": [1, 2, 3]}), pa.table({"id": [4, 5, 6, 7]})
    execute("CREATE TABLE kept (id BIGINT, hops_batch VARCHAR(200), hops_folder VARCHAR(200))")

    def connect() -> Any:
        connection = get_conn()
        return dying(connection, lambda: end(connection))

    for number in range(1, 100):
        assert refusal(store, old, hook, "b") is None
        hook.get_conn, Dying.left = connect, number
        try:
            write(store, new, hook, batch="b")
            return number
        except HopsError as error:
            failure = error
        finally:
            hook.get_conn = get_conn
        ids = [id for (id,) in execute("SELECT id FROM kept ORDER BY id")]
        assert failure.retryable and ids in ([1, 2, 3], [4, 5, 6, 7]), (number, ids, failure)
        assert refusal(store, new, hook, "b") is None
        assert [id for (id,) in execute("SELECT id FROM kept ORDER BY id")] == [4, 5, 6, 7]
    raise AssertionError("no write came to its end")


@pytest.mark.server
def test_session_that_postgres_ends_loses_and_doubles_nothing(
    postgres_database: Database, postgres: Any, tmp_path: Path
) -> None:
    import psycopg

    def end(connection: Any) -> None:
        postgres.execute("SELECT pg_terminate_backend(%s, 5000)", (connection.info.backend_pid,))

    hook = postgres_database.hooks["psycopg"]
    assert check_lost_sessions(hook, psycopg.Connection, end, postgres_database.execute, tmp_path) > 8


@pytest.mark.scheduled(part="databases")
def test_session_that_mariadb_ends_loses_and_doubles_nothing(
    mariadb_database: Database, mariadb: Any, tmp_path: Path
) -> None:
    hook = mariadb_database.hooks["pymysql"]
    connection_type = importlib.import_module("pymysql.connections").Connection

    def end(connection: Any) -> None:
        mariadb.execute(f"KILL CONNECTION {connection.thread_id()}")

    assert check_lost_sessions(hook, connection_type, end, mariadb_database.execute, tmp_path) > 8


@pytest.mark.scheduled(part="databases")
def test_mariadb_is_written_in_transactions_alone(mariadb_database: Database, tmp_path: Path) -> None:
    execute, hook = mariadb_database.execute, mariadb_database.hooks["pymysql"]
    hook.options = {"autocommit": True}
    store, rows = ArtifactStore(str(tmp_path / "store")), pa.table({"name": ["a"]})
    for engine, message in (
        ("InnoDB", "'name' does not keep|too long"),
        ("MyISAM", "engine MyISAM has no transactions"),
    ):
        execute("DROP TABLE IF EXISTS kept")
        columns = "name VARCHAR(3), hops_batch VARCHAR(200), hops_folder VARCHAR(200)"
        execute(f"CREATE TABLE kept ({columns}) ENGINE={engine}")
        execute("INSERT INTO kept VALUES ('old', 'b', 'eval')")
        long = pa.table({"name": ["a", "too long"]})
        assert re.search(message, refusal(store, long, hook, "b") or "")
        assert list(execute("SELECT name FROM kept")) == [("old",)]
        assert (refusal(store, rows, hook, "b") is None) == (engine == "InnoDB")

"""Ingest of tables: queries of PostgreSQL and SQLite."""

from __future__ import annotations

import datetime
import socket
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_hops.core.errors import BadInput, StepFailed
from airflow_hops.extensions.tables import QuerySource
from airflow_hops.extensions.tables.runner.states import database_options_of

pytestmark = pytest.mark.runtime

RUN, STATES = "airflow_hops.ml.ingest:run", "airflow_hops.extensions.tables.ml.read.tables:states_of"
UTC = datetime.UTC


@pytest.fixture
def ingest(run_step: Any, warm_launcher: Any) -> Callable[..., Any]:
    """Ingests the table ``rows`` from a query; returns the artifact and the table."""

    def run(sql: str, window: tuple[str | None, str | None] = (None, None), **fields: Any) -> tuple[Any, pa.Table]:
        source = QuerySource(conn_id="warehouse", sql=sql, **fields).to_dict()
        params = {"sources": {"rows": source}, "window_start": window[0], "window_end": window[1]}
        artifact = run_step(RUN, params=params, kind="snapshot", launcher=warm_launcher)
        return artifact, pq.read_table(run_step.store.local(artifact) / "rows")

    return run


def refused(ingest: Any, *arguments: Any, retryable: bool = False, **fields: Any) -> str:
    """The message with which a step fails."""
    with pytest.raises(StepFailed) as failure:
        ingest(*arguments, **fields)
    assert failure.value.retryable == retryable, failure.value
    assert "warehouse" in str(failure.value)
    return str(failure.value)


def test_postgres_types_survive(postgres: Any, ingest: Any) -> None:
    postgres.execute("""
        CREATE TABLE many (small int2, big int8, ratio float8, price numeric(12, 3), exact numeric, flag bool,
            raw bytea, zoned timestamptz, plain timestamp, day date, noon time, id uuid, doc jsonb, list int4[],
            address inet, span interval, empty text, name varchar(9), tiny numeric(2, 4), cost money, number oid,
            "select ""All"" %s" text[]);
        INSERT INTO many VALUES
            (1, 9007199254740993, 0.1, 123456789.125, 12345678901234567890.123456789, true, '\\x00ff',
             '2013-01-01 10:00+02', '2013-01-01 10:00', '2013-01-01', '12:00', '00000000-0000-0000-0000-00000000000a',
             '{"a": 1}', '{1,2}', '10.0.0.7', '1 day', NULL, 'ü''"', 0.0012, 1234.5, 4000000000, '{"a,b",NULL}');
        INSERT INTO many (price, exact) VALUES (-0.001, -7)
    """)
    _, table = ingest("SELECT *, ROW(7, 'x%s') AS pair FROM many -- all of it")
    first, second = table.to_pylist()
    assert first == {
        "small": 1,
        "big": 9007199254740993,
        "ratio": 0.1,
        "price": Decimal("123456789.125"),
        "exact": Decimal("12345678901234567890.123456789"),
        "flag": True,
        "raw": b"\x00\xff",
        "zoned": datetime.datetime(2013, 1, 1, 8, tzinfo=UTC),
        "plain": datetime.datetime(2013, 1, 1, 10),
        "day": datetime.date(2013, 1, 1),
        "noon": "12:00:00.000000",
        "id": "00000000-0000-0000-0000-00000000000a",
        "doc": '{"a": 1}',
        "list": [1, 2],
        "address": "10.0.0.7/32",
        "span": "1 day",
        "empty": None,
        "name": "ü'\"",
        "tiny": Decimal("0.0012"),
        "cost": "$1,234.50",
        "number": 4_000_000_000,
        'select "All" %s': ["a,b", None],
        "pair": "(7,x%s)",
    }
    assert {name: value for name, value in second.items() if value is not None} == {
        "price": Decimal("-0.001"),
        "exact": Decimal("-7.000000000"),
        "pair": "(7,x%s)",
    }
    assert table.schema.field("price").type == pa.decimal128(12, 3)
    assert table.schema.field("exact").type == pa.decimal128(29, 9)
    assert table.schema.field("zoned").type == pa.timestamp("us", "UTC")


FLIGHTS = """
    CREATE TABLE flights (id int8, at timestamptz, day date, delay numeric);
    INSERT INTO flights
        SELECT n, '2013-01-01Z'::timestamptz + n * interval '1 minute', '2013-01-01'::date + n / 1440, n / 8.0
        FROM generate_series(0, 9999) AS n;
    INSERT INTO flights VALUES (NULL, '2013-01-01 12:00Z', NULL, NULL), (10000, NULL, NULL, NULL);
"""


@pytest.mark.parametrize("column", ["id", "at", "day", "delay"])
def test_ranges_hold_every_row_once(postgres: Any, ingest: Any, column: str) -> None:
    postgres.execute(FLIGHTS)
    artifact, table = ingest("SELECT * FROM flights", partition_column=column, num_partitions=4)
    assert sorted(table["id"].to_pylist(), key=lambda id: -1 if id is None else id) == [None, *range(10_001)]
    expected = {tuple(row) for row in postgres.execute("SELECT * FROM flights").fetchall()}
    assert {tuple(row.values()) for row in table.to_pylist()} == expected
    assert artifact.rows["rows"].rows_out == 10_002


@pytest.mark.parametrize("expression", ["at", "at AT TIME ZONE 'UTC'", "extract(epoch FROM at)::int8"])
def test_window_selects_in_the_database(postgres: Any, ingest: Any, expression: str) -> None:
    postgres.execute(FLIGHTS)
    window = ("2013-01-02T00:00:00+00:00", "2013-01-03T02:00:00+02:00")
    source = f"SELECT id, {expression} AS at FROM flights;"
    artifact, table = ingest(
        source, window, time_column="at", columns=("id",), partition_column="id", num_partitions=3, key=("id",)
    )
    assert sorted(table["id"].to_pylist()) == list(range(1440, 2880))
    rows = artifact.rows["rows"]
    assert (rows.rows_in, rows.rows_out, rows.rejected) == (1441, 1440, {"at is missing": 1})
    assert "from 2013-01-01" in refused(ingest, "SELECT * FROM flights", ("2020-01-01", None), time_column="at")


def test_keys_are_compared_by_bytes(postgres: Any, ingest: Any) -> None:
    postgres.execute("CREATE EXTENSION IF NOT EXISTS citext; CREATE TABLE many (k citext, n numeric)")
    postgres.execute("INSERT INTO many VALUES ('b1', 1), ('B1', 1), ('b1 ', 1.0), ('b1', 2)")
    _, table = ingest("SELECT * FROM many", key=("k", "n"))
    assert sorted(table["k"].to_pylist()) == ["B1", "b1", "b1", "b1 "]
    postgres.execute("INSERT INTO many VALUES ('b1', 1.00)")
    assert "occurs 2 times" in refused(ingest, "SELECT * FROM many", key=("k", "n"))


def test_ranges_share_a_snapshot(postgres: Any, ingest: Any) -> None:
    # Each row read by one range deletes what the others would read, were they not of one snapshot.
    postgres.execute(FLIGHTS)
    postgres.execute("""
        CREATE EXTENSION IF NOT EXISTS dblink;
        CREATE FUNCTION disturb(id int8) RETURNS int8 VOLATILE LANGUAGE plpgsql AS $$ BEGIN
            IF id % 2500 = 1 THEN
                PERFORM dblink_exec('host=127.0.0.1 user=airflow dbname=postgres port=' || current_setting('port'),
                    'UPDATE flights SET id = id + 1000000; DELETE FROM flights WHERE id % 3 = 0');
            END IF;
            RETURN id;
        END $$;
    """)
    _, table = ingest(
        "SELECT id, disturb(id) AS same FROM flights WHERE id < 10000", partition_column="id", num_partitions=4
    )
    assert sorted(table["id"].to_pylist()) == list(range(10_000))
    assert postgres.execute("SELECT count(*) FROM flights WHERE id BETWEEN 0 AND 10000").fetchone() == (0,)


def test_bad_queries_name_connection_and_cause(postgres: Any, ingest: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    postgres.execute(FLIGHTS + "CREATE SEQUENCE numbers;")
    postgres.execute(
        "CREATE FUNCTION fail() RETURNS int LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no flights'; END $$"
    )
    assert "no flights" in refused(ingest, "SELECT fail() AS x")
    assert 'relation "gone" does not exist' in refused(ingest, "SELECT * FROM gone")
    assert "syntax error" in refused(ingest, "SELEC 1")
    assert "division by zero" in refused(ingest, "SELECT 1 / (n - 5000) AS x FROM generate_series(1, 9999) AS n")
    assert "read-only transaction" in refused(ingest, "SELECT nextval('numbers')")
    assert "there is no column 'when'" in refused(
        ingest, "SELECT * FROM flights", ("2013-01-01", None), time_column="when"
    )
    assert "the key delay=None occurs 2 times" in refused(
        ingest, "SELECT id, round(delay, -3) AS delay FROM flights", key=("delay",)
    )
    assert "such as NaN or infinity" in refused(ingest, "SELECT 'NaN'::numeric AS x")
    assert "with 39 digits left of the point" in refused(ingest, "SELECT 1e38::numeric AS x")
    assert "holds arrays of 2 dimensions" in refused(ingest, "SELECT ARRAY[[1, 2]] AS x UNION ALL SELECT ARRAY[3]")
    assert "of type _oid, whose items" in refused(ingest, "SELECT ARRAY[4000000000::oid] AS x")
    assert "of type flights, whose items" in refused(ingest, "SELECT f AS x FROM flights AS f")
    assert "'<value out of range: 86400000000>' does not fit" in refused(ingest, "SELECT '24:00'::time AS x")
    assert "the type 'int64'" in refused(ingest, "SELECT timestamp 'infinity' AS x")
    assert "holds NaN or infinity" in refused(
        ingest, "SELECT date 'infinity' AS x UNION SELECT '2013-01-01'", partition_column="x", num_partitions=2
    )
    assert "more than one row" in refused(ingest, "SELECT (SELECT id FROM flights) AS x")
    assert "must be at the top level" in refused(ingest, "WITH x AS (DELETE FROM flights RETURNING 1) SELECT * FROM x")
    assert "there are no columns" in refused(ingest, "SELECT FROM flights")
    assert "'columns' names; its columns are id, at" in refused(ingest, "SELECT * FROM flights", columns=("id", "x"))
    assert "an earlier one's name" in refused(ingest, "SELECT 1 AS a, 2 AS a")
    assert "has no rows" in refused(ingest, "SELECT * FROM flights WHERE false")
    assert "of type text" in refused(ingest, "SELECT 'x'::text AS x", partition_column="x", num_partitions=2)
    random = "SELECT (random() * 1e6)::int8 AS x FROM generate_series(1, 5000) WHERE random() < 0.5"
    assert "the same rows each time" in refused(ingest, random, partition_column="x", num_partitions=2, retryable=True)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", f"postgres://airflow:S%27ecret%5C1@127.0.0.1:{port}/postgres")
    message = refused(ingest, "SELECT 1 AS x", retryable=True)
    assert "refused" in message and "ecret" not in message


def test_version_query_identifies_the_state(postgres: Any, run_step: Any, warm_launcher: Any) -> None:
    postgres.execute("CREATE TABLE many AS SELECT 7 AS changed")

    def state(version: str | None) -> str:
        source = QuerySource(conn_id="warehouse", sql="SELECT * FROM many", version=version).to_dict()
        result = run_step(STATES, params={"sources": {"rows": source}}, launcher=warm_launcher)
        return str(result["rows"])

    assert state("SELECT max(changed) FROM many") == "7"
    assert state(None) != state(None)
    with pytest.raises(StepFailed, match="expected one row with one value"):
        state("SELECT changed FROM many WHERE false")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sql": "SELECT 1"}, "a query needs 'conn_id' and 'sql'"),
        ({"uri": "sql://other", "conn_id": "warehouse", "sql": "SELECT 1"}, "no other 'uri'"),
        ({"conn_id": "warehouse", "sql": "SELECT 1", "num_partitions": 2}, "needs both"),
        ({"conn_id": "warehouse", "sql": "SELECT 1", "num_partitions": 0}, "num_partitions is 0"),
        ({"conn_id": "warehouse", "sql": " "}, "a query needs 'conn_id' and 'sql'"),
        ({"uri": "sql://warehouse"}, "a query needs 'conn_id' and 'sql'"),
        ({"uri": "/a.csv", "sql": "SELECT 1"}, "a query needs 'conn_id' and 'sql'"),
        ({"conn_id": "warehouse", "sql": "SELECT 1", "columns": ()}, "columns is empty"),
        ({"conn_id": "warehouse", "sql": "SELECT 1", "schema": {"at": "%d/%m/%Y"}}, "only CSV and JSON"),
    ],
)
def test_queries_refuse_fields_that_have_no_effect(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        QuerySource(**fields)


def test_connection_fields_without_effect_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", "postgres://u:p@host/db?cursor=dictcursor")
    with pytest.raises(BadInput, match="cannot use the field 'cursor'"):
        database_options_of("warehouse")
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", "mysql://u:p@host/db?cursor=dictcursor")
    assert database_options_of("warehouse") == {"dialect": "fetched"}  # no credentials for the step

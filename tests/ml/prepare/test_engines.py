"""Engines of prepare: each passes the contract and hashes alike, and the page of the docs shows one on each."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from test_prepare import COLUMNS, NEWEST, ORDERS, write_snapshot

from airflow_hops.core.artifacts.artifact import RowCounts
from airflow_hops.core.errors import BadInput
from airflow_hops.ml.prepare import stage
from airflow_hops.ml.prepare.hashes import partitions, xxhash64
from airflow_hops.testing.prepare_engines import PrepareEngineContract
from tests.ml.world import World

PAGE = Path(__file__).parents[3] / "docs/howto/prepare.md"
Prepared = tuple[Any, pa.Table]


class TestDuckDB(PrepareEngineContract):
    engine = "duckdb"

    @staticmethod
    def whole(connection: Any, tables: Any) -> Any:
        return tables["rows"]

    @staticmethod
    def reversed(connection: Any, tables: Any) -> Any:
        return connection.sql('SELECT * FROM rows ORDER BY "at" DESC')

    @staticmethod
    def doubled(connection: Any, tables: Any) -> Any:
        return tables["rows"].union(tables["rows"])


class TestPandasOnDuckDB(TestDuckDB):
    @staticmethod
    def whole(connection: Any, tables: Any) -> Any:
        return tables["rows"].to_arrow_table()

    @staticmethod
    def reversed(connection: Any, tables: Any) -> Any:
        return tables["rows"].order('"at" DESC').to_arrow_reader(100)

    @staticmethod
    def doubled(connection: Any, tables: Any) -> Any:
        rows = tables["rows"].df()
        return pd.concat([rows, rows])


@pytest.mark.usefixtures("spark")
class TestSpark(PrepareEngineContract):
    engine = "spark"

    @staticmethod
    def whole(spark: Any, tables: Any) -> Any:
        return tables["rows"]

    @staticmethod
    def reversed(spark: Any, tables: Any) -> Any:
        return tables["rows"].repartition(3).orderBy("at", ascending=False)

    @staticmethod
    def doubled(spark: Any, tables: Any) -> Any:
        return tables["rows"].union(tables["rows"])


@pytest.fixture
def on_duckdb(world: World, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Prepared]:
    """Runs the stage with a function for DuckDB; returns the artifact and its rows by number."""
    snapshot = write_snapshot(world)

    def run(function: Callable[..., Any], **options: Any) -> Prepared:
        monkeypatch.setitem(sys.modules, "m", SimpleNamespace(f=function))
        artifact = world.run(stage, tables=snapshot, **{"prepare": "m:f", "engine": "duckdb", **COLUMNS, **options})
        tables = [world.rows(artifact, split) for split in artifact.properties["splits"]]
        return artifact, pa.concat_tables(tables).sort_by("number")

    return run


def test_types_of_duckdb_become_those_of_examples(on_duckdb: Callable[..., Prepared]) -> None:
    _, rows = on_duckdb(
        lambda connection, tables: connection.sql(
            """
            SELECT number AS order_id, placed_at::DATE AS placed_at, returned = 1 AS returned, number,
                sum(number) OVER (PARTITION BY customer) AS total, 0.3 + number AS exact,
                customer::VARCHAR::ENUM('0','1','2','3','4','5','6','7','8','9') AS who, [1, number] AS list,
                array_value(1.5::FLOAT, 2) AS pair, uuid()::VARCHAR || '' AS id, NULL AS reject_reason
            FROM orders
            """
        )
    )
    assert {name: str(type_) for name, type_ in zip(rows.column_names, rows.schema.types, strict=True)} == {
        "order_id": "string",
        "placed_at": "int64",
        "returned": "int64",
        "number": "int64",
        "total": "int64",
        "exact": "double",
        "who": "string",
        "list": "list<element: double>",
        "pair": "list<element: float>",
        "id": "string",
    }
    assert rows["exact"].to_pylist() == [float(f"{n}.3") for n in range(ORDERS)]
    assert rows["placed_at"][0].as_py() == datetime(2024, 1, 1, tzinfo=UTC).timestamp()
    assert rows["list"][7].as_py() == [1.0, 7.0]


def test_a_frame_may_have_half_floats_and_nanoseconds(on_duckdb: Callable[..., Prepared]) -> None:
    def prepare(connection: Any, tables: Any) -> Any:
        frame = tables["orders"].df()
        times = frame["placed_at"].dt.tz_localize(None).astype("datetime64[ns]") + pd.Timedelta(1, "ns")
        return frame.assign(placed_at=times, half=(frame["number"] / 4).where(frame["number"] > 0).astype("float16"))

    _, rows = on_duckdb(prepare)
    assert rows.schema.field("half").type == pa.float32()
    assert rows["half"][:3].to_pylist() == [None, 0.25, 0.5]
    assert rows["placed_at"][1].as_py() == datetime(2024, 1, 1, 1, tzinfo=UTC).timestamp()


def test_a_frame_of_polars_may_have_categories(on_duckdb: Callable[..., Prepared]) -> None:
    def prepare(connection: Any, tables: Any) -> Any:
        text = pl.col("text").cast(pl.Categorical)
        return tables["orders"].pl().with_columns(text, size=pl.lit("s").cast(pl.Enum(["s", "m"])))

    _, rows = on_duckdb(prepare)
    assert rows.schema.field("text").type == rows.schema.field("size").type == pa.string()
    assert rows["text"][:2].to_pylist() == [None, "text of 1"]


def test_bad_sql_is_named(on_duckdb: Callable[..., Prepared]) -> None:
    for sql, expected in (
        ("SELECT * FROM orders JOIN orders o USING (order_id)", "prepare returned two columns 'placed_at'; rename"),
        ('SELECT *, 1 AS "Text" FROM orders', "DuckDB does not tell the columns 'text' and 'Text' apart; rename one"),
        ("SELECT * REPLACE (text::INTEGER AS number) FROM orders", "m:f raised ConversionException: Conversion Error"),
        ("SELECT * FROM order_lines", "m:f raised CatalogException: Catalog Error: Table with name order_lines does"),
        ("SELECT *, placed_at::TIME AS hour FROM orders", "prepare's column 'hour' is of type time64[us]; expected a "),
    ):
        with pytest.raises(BadInput, match=re.escape(expected)):
            on_duckdb(lambda connection, tables, sql=sql: connection.sql(sql))


def test_tables_whose_columns_differ_in_case_are_refused(world: World) -> None:
    options = {"prepare": "prepare_cases:good", "label": "a", "engine": "duckdb"}
    with pytest.raises(BadInput, match="table 't': DuckDB does not tell the columns 'a' and 'A' apart"):
        world.run(stage, tables=world.snapshot({"t": {"a": [1], "A": [2]}}), **options)


def test_duckdb_spills_within_its_memory_limit(on_duckdb: Callable[..., Prepared]) -> None:
    def prepare(connection: Any, tables: Any) -> Any:
        connection.execute("SET memory_limit = '100MB'")
        wide = "SELECT o.*, repeat(o.order_id, 20) || c.i AS wide, c.i FROM orders o, range(400) c(i) ORDER BY wide"
        return connection.sql(f"SELECT * EXCLUDE (wide, i), count(*) OVER () AS n FROM ({wide}) WHERE i = 0")

    assert on_duckdb(prepare)[1]["n"].to_pylist() == [ORDERS] * ORDERS


def test_page_shows_one_preparation_on_each_engine(spark: Any, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot, fingerprints = write_snapshot(world), set()
    for title, engine in {"SQL on DuckDB": "duckdb", "Polars on DuckDB": "duckdb", "PySpark": "spark"}.items():
        (code,) = re.findall(rf"^```python\n(# orders/prepare.py, {title}\n.*?)^```", PAGE.read_text(), re.M | re.S)
        names: dict[str, Any] = {}
        exec(code, names)
        monkeypatch.setitem(sys.modules, "m", SimpleNamespace(f=names["prepare"]))
        result = world.run(stage, tables=snapshot, prepare="m:f", engine=engine, **COLUMNS, **NEWEST)
        assert result.rows["orders"] == RowCounts(ORDERS, ORDERS - 18, {"too large": 18}), title
        fingerprints.add(result.fingerprint)
    assert len(fingerprints) == 1


HASHED = 300
HASHES = pa.table(
    {
        "text": [
            "é" * (n % 3) + "abcdefghij" * (n % 9) + str(n) if n % 7 else ("" if n % 2 else None) for n in range(HASHED)
        ],
        "integer": pa.array([(-1) ** n * (2**62 + n) if n % 5 else None for n in range(HASHED)]),
        "double": [(0.0, -0.0, 1.5, None, -1e300)[n % 5] for n in range(HASHED)],
        "float": pa.array([(0.5, None, -0.0)[n % 3] for n in range(HASHED)], pa.float32()),
        "vector": [[0.1 * n, -0.0, 7.0][: n % 4] if n % 6 else None for n in range(HASHED)],
        "nothing": pa.array([None] * HASHED, pa.string()),
    }
)


def test_hashes_equal_those_of_spark(spark: Any) -> None:
    rows = [tuple(row.values()) for row in HASHES.to_pylist()]
    frame = spark.createDataFrame(rows, from_arrow_schema(HASHES.schema))
    names = HASHES.column_names
    expected = frame.select(
        F.xxhash64(*names).alias("all"),
        *(F.xxhash64(name).alias(f"of {name}") for name in names),
        *(F.expr(f"pmod(hash({name}), 13)").alias(f"part by {name}") for name in ("text", "integer")),
    ).toPandas()
    columns = [HASHES[name].combine_chunks() for name in names]
    assert xxhash64(columns).tolist() == expected["all"].tolist()
    for name, column in zip(names, columns, strict=True):
        assert xxhash64([column]).tolist() == expected[f"of {name}"].tolist(), name
    for name, column in zip(("text", "integer"), columns, strict=False):
        assert partitions(column, 13).tolist() == expected[f"part by {name}"].tolist()
    assert xxhash64([column.slice(11, 200) for column in columns]).tolist() == expected["all"].tolist()[11:211]
    assert xxhash64([column.slice(0, 0) for column in columns]).tolist() == []


# SQL that DuckDB and Spark read differently: a page has what each answers, and SQL on which they agree.
SQL_PAGE = PAGE.parents[1] / "reference/sql.md"
NAN, DAY = "CAST('NaN' AS DOUBLE)", "DATE '2024-02-29'"
ZONED = "CAST('2024-01-01T00:00:00+02:00' AS {})"
FIRST = "(SELECT sum(x) FROM (SELECT x FROM (SELECT 1 AS x UNION ALL SELECT NULL) AS r ORDER BY x{} LIMIT 1) AS s)"
# An expression; what to write instead, on both engines or on DuckDB and on Spark.
CASES = [
    ("1 / 0", "1 / nullif(0, 0)"),
    ("ln(0)", "ln(nullif(0, 0))"),
    ("log(100)", "ln(100)"),
    ("2 ^ 3", "power(2, 3)"),
    ("CAST(2.7 AS INT)", "CAST(floor(2.7) AS INT)"),
    ("CAST('3.7' AS INT)", "CAST(floor(CAST('3.7' AS DOUBLE)) AS INT)"),
    ("CAST(1.25 AS DECIMAL(10, 2)) / 3", "CAST(1.25 AS DOUBLE) / 3"),
    ("isnan(NULL)", "coalesce(isnan(NULL), false)"),
    (f"floor({NAN})", f"CASE WHEN NOT isnan({NAN}) THEN floor({NAN}) END"),
    (f"sign({NAN})", f"CASE WHEN NOT isnan({NAN}) THEN sign({NAN}) END"),
    (f"CAST({NAN} AS STRING)", f"lower(CAST({NAN} AS STRING))"),
    ("concat('a', NULL)", "'a' || NULL"),
    ("substr('abc', 0, 2)", "substr('abc', 1, 2)"),
    ("left('abc', -1)", "substr('abc', 1, length('abc') - 1)"),
    ("right('abc', -1)", "substr('abc', 2)"),
    ("split('a b', ' ')[1]", "split_part('a b', ' ', 1)"),
    ("split('a.b', '.')", "split('a.b', '.')", "split('a.b', '[.]')"),
    ("regexp_replace('aa', 'a', 'x')", "regexp_replace('aa', 'a', 'x', 'g')", "regexp_replace('aa', 'a', 'x')"),
    ("regexp_extract('ab', 'a(b)')", "regexp_extract('ab', 'a(b)', 1)"),
    ("hash('a') > 4294967296", "md5('a')"),
    (f"dayofweek({DAY})", f"isodow({DAY})", f"weekday({DAY}) + 1"),
    (f"weekday({DAY})", f"isodow({DAY}) - 1", f"weekday({DAY})"),
    ("extract(second FROM TIMESTAMP '2024-01-01 00:00:01.5')", "second(TIMESTAMP '2024-01-01 00:00:01.5')"),
    (f"{DAY} + INTERVAL 1 DAY", f"{DAY} + 1"),
    (f"{DAY} - DATE '2024-01-01'", f"{DAY} - DATE '2024-01-01'", f"datediff({DAY}, DATE '2024-01-01')"),
    (ZONED.format("TIMESTAMP"), ZONED.format("TIMESTAMPTZ"), ZONED.format("TIMESTAMP")),
    (FIRST.format(""), FIRST.format(" NULLS LAST")),
]


def literal(value: Any) -> str:
    """Returns a value as the page shows it; numbers of all types look alike."""
    if isinstance(value, list):
        return f"[{', '.join(map(literal, value))}]"
    if isinstance(value, datetime):
        return f"the time {value.replace(tzinfo=value.tzinfo or UTC).astimezone(UTC):%Y-%m-%d %H:%M}"
    if isinstance(value, date):
        return f"the date {value}"
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        return f"{float(value):.10g}"
    return {None: "null", True: "true", False: "false"}.get(value) or f"'{value}'"


def answer_of_spark(spark: Any, expression: str) -> str:
    try:
        return literal(spark.sql(f"SELECT {expression} AS x").first().x)
    except (Py4JJavaError, PySparkException):
        return "an error"


def answer_of_duckdb(connection: duckdb.DuckDBPyConnection, expression: str) -> str:
    try:
        return literal(connection.sql(f"SELECT {expression} AS x").to_arrow_table()["x"][0].as_py())
    except duckdb.Error:
        return "an error"


def test_page_has_what_differs_and_what_agrees(spark: Any) -> None:
    expressions = [expression for case in CASES for expression in (case[0], case[-1])]
    of_spark = [answer_of_spark(spark, expression) for expression in expressions]
    lines = []
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for case, differs, agrees in zip(CASES, of_spark[::2], of_spark[1::2], strict=True):
            assert answer_of_duckdb(connection, case[1]) == agrees, case[1:]
            value = answer_of_duckdb(connection, case[0])
            assert value != differs, case[0]
            instead = f"`{case[1]}`" if case[1] == case[-1] else f"DuckDB `{case[1]}`, Spark `{case[-1]}`"
            cells = (f"`{case[0]}`", value, differs, instead)
            lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    table = "\n".join(lines)
    assert table in SQL_PAGE.read_text(), f"the table of {SQL_PAGE.name} is now:\n{table}"

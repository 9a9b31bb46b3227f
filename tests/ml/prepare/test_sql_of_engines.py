"""SQL that DuckDB and Spark read differently: a page has what each answers, and SQL on which they agree."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb

PAGE = Path(__file__).parents[3] / "docs/reference/sql.md"
NAN, DAY = "CAST('NaN' AS DOUBLE)", "DATE '2024-02-29'"
ZONED = "CAST('2024-01-01T00:00:00+02:00' AS {})"
FIRST = "(SELECT sum(x) FROM (SELECT x FROM (SELECT 1 AS x UNION ALL SELECT NULL) AS r ORDER BY x{} LIMIT 1) AS s)"
# An expression; what to write instead, on both engines or on DuckDB and on Spark.
CASES = [
    ("1 / 0", "1 / nullif(0, 0)"),
    ("5 % 0", "5 % nullif(0, 0)"),
    ("ln(0)", "ln(nullif(0, 0))"),
    ("log(100)", "ln(100)"),
    ("2 ^ 3", "power(2, 3)"),
    ("CAST(2.7 AS INT)", "CAST(floor(2.7) AS INT)"),
    ("CAST('3.7' AS INT)", "CAST(floor(CAST('3.7' AS DOUBLE)) AS INT)"),
    ("CAST('many' AS INT)", "TRY_CAST('many' AS INT)"),
    ("'many' = 1", "'many' = '1'"),
    ("CAST(3000000000 AS INT)", "CAST(3000000000 AS BIGINT)"),
    ("9223372036854775807 + 1", "CAST(9223372036854775807 AS DOUBLE) + 1"),
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
    ("CAST('2024-02-30' AS DATE)", "TRY_CAST('2024-02-30' AS DATE)"),
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


def on_duckdb(connection: duckdb.DuckDBPyConnection, expression: str) -> str:
    try:
        return literal(connection.sql(f"SELECT {expression} AS x").to_arrow_table()["x"][0].as_py())
    except duckdb.Error:
        return "an error"


def test_page_has_what_differs_and_what_agrees(spark: Any) -> None:
    expressions = [expression for case in CASES for expression in (case[0], case[-1])]
    row = spark.sql("SELECT " + ", ".join(f"{text} AS x{number}" for number, text in enumerate(expressions))).first()
    of_spark = [literal(value) for value in row]
    lines = []
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for case, differs, agrees in zip(CASES, of_spark[::2], of_spark[1::2], strict=True):
            assert on_duckdb(connection, case[1]) == agrees, case[1:]
            value = on_duckdb(connection, case[0])
            assert value != differs, case[0]
            instead = f"`{case[1]}`" if case[1] == case[-1] else f"DuckDB `{case[1]}`, Spark `{case[-1]}`"
            cells = (f"`{case[0]}`", value, differs, instead)
            lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    table = "\n".join(lines)
    assert table in PAGE.read_text(), f"the table of {PAGE.name} is now:\n{table}"

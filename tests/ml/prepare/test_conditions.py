"""Conditions in SQL on the store's Parquet, and on that of others, agree with a loop in Python."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from campaigns import campaign

from airflow_hops.core.errors import BadInput
from airflow_hops.core.parquet_writer import write_parquet
from airflow_hops.ml.prepare.duckdb import read_table
from airflow_hops.ml.prepare.spark import read_table as read_on_spark
from airflow_hops.ml.readers import scan

NAN, INF = math.nan, math.inf
FLOATS = [0.0, -0.0, 1.5, -2.0, 1000.0, NAN, INF, -INF, 5e-324, None]
INTEGERS = [0, 1, -1, 2**63 - 1, -(2**63), None]
COMPARED = {
    "=": lambda a, b: a == b,
    "<>": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def random_table(random: Random) -> pa.Table:
    """Returns columns of floats, also within structs and lists, and of integers and text."""
    rows = random.choice([1, 3, 20])

    def column(values: list[Any]) -> list[Any]:
        some = random.sample(values, random.randint(1, len(values)))
        return [random.choice(some) for _ in range(rows)]

    floats = column(FLOATS)
    return pa.table(
        {
            "r": range(rows),
            "f": pa.array(floats, pa.float64()),
            "g": pa.array([value if value != 5e-324 else 0 for value in column(FLOATS)], pa.float32()),
            "s": pa.array([{"x": value} for value in floats], pa.struct([("x", pa.float64())])),
            "l": pa.array([[value] for value in floats], pa.list_(pa.float64())),
            "i": pa.array(column(INTEGERS), pa.int64()),
            "t": pa.array(column(["", "a", "A", "é", "z" * 300, None]), pa.string()),
        }
    )


def order(value: Any) -> Any:
    """Returns a number's place in SQL, where NaN equals itself and is greater than all others."""
    return (
        isinstance(value, float) and math.isnan(value),
        0 if isinstance(value, float) and math.isnan(value) else value,
    )


def conditions() -> dict[str, Callable[[dict[str, Any]], bool]]:
    """Returns conditions in SQL that DuckDB and Spark share, with the same in Python."""
    values: dict[str, Callable[[dict[str, Any]], Any]] = {
        "f": lambda row: row["f"],
        "g": lambda row: row["g"],
        "s.x": lambda row: row["s"]["x"],
        "i": lambda row: row["i"],
    }
    result: dict[str, Callable[[dict[str, Any]], bool]] = {}
    for (name, value), (sign, compare) in itertools.product(values.items(), COMPARED.items()):
        for number in (0.0, 1.0, 990.0, NAN):
            if name != "i" or number == number:
                text = f"{number:.0f}" if name == "i" else f"CAST('{number}' AS DOUBLE)"
                result[f"{name} {sign} {text}"] = lambda row, value=value, compare=compare, number=number: (
                    value(row) is not None and compare(order(value(row)), order(number))
                )
    for name in ("f", "g", "s.x"):
        value = values[name]
        result[f"isnan({name})"] = lambda row, value=value: value(row) is not None and math.isnan(value(row))
        result[f"{name} IS NULL"] = lambda row, value=value: value(row) is None
    result["t > 'a'"] = lambda row: row["t"] is not None and row["t"].encode() > b"a"
    return result


def by_loop(table: pa.Table, condition: Callable[[dict[str, Any]], bool]) -> list[int]:
    return [row["r"] for row in table.to_pylist() if condition(row)]


@campaign("tables", 4, 300)
def test_duckdb_agrees_with_a_loop(tmp_path: Path, tables: int) -> None:
    for seed, write in itertools.product(range(tables), (write_parquet, pq.write_table)):
        folder, scratch = (tmp_path / f"{seed}-{write.__name__}" / name for name in ("t", "scratch"))
        folder.mkdir(parents=True)
        scratch.mkdir()
        table = random_table(Random(seed))
        write(table, folder / "0.parquet")
        with duckdb.connect() as connection:
            read_table(connection, folder, scratch).create_view("t")
            for condition, holds in conditions().items():
                expected = by_loop(table, holds)
                filtered = connection.sql(f"SELECT r FROM t WHERE {condition} ORDER BY r").fetchall()
                cases = connection.sql(f"SELECT r, CASE WHEN {condition} THEN 1 END FROM t ORDER BY r").fetchall()
                counted = connection.sql(f"SELECT coalesce(sum(({condition})::INT), 0) FROM t").fetchall()
                assert [r for (r,) in filtered] == expected, (seed, write.__name__, condition)
                assert [r for r, case in cases if case] == expected, (seed, write.__name__, condition)
                assert counted == [(len(expected),)], (seed, write.__name__, condition)


def test_spark_agrees_with_a_loop(spark: Any, tmp_path: Path) -> None:
    for number, write in enumerate((write_parquet, pq.write_table)):
        (tmp_path / str(number)).mkdir()
        table = pa.concat_tables([random_table(Random(seed)) for seed in range(4)])
        table = table.set_column(0, "r", [pa.array(range(len(table)))])
        write(table, tmp_path / str(number) / "0.parquet")
        frame = read_on_spark(spark, tmp_path / str(number))
        for condition, holds in list(conditions().items())[::9]:
            rows = frame.filter(condition).select("r").collect()
            assert sorted(row.r for row in rows) == by_loop(table, holds), (write.__name__, condition)


def test_only_bounds_of_floats_are_left_out(tmp_path: Path) -> None:
    table = random_table(Random(3))
    write_parquet(table.append_column("s.x", table["i"]), tmp_path / "t.parquet")
    group = pq.read_metadata(tmp_path / "t.parquet").row_group(0)
    columns = [group.column(index) for index in range(group.num_columns)]
    assert {column.path_in_schema for column in columns if column.is_stats_set} == {"r", "i", "t"}
    assert not scan.has_float_bounds(tmp_path / "t.parquet")


def test_durations_are_intervals(tmp_path: Path) -> None:
    lasting = pa.array([1_500_000, None], pa.duration("us"))
    for name, column in (("flat", lasting), ("nested", pa.StructArray.from_arrays([lasting], ["x"]))):
        (tmp_path / name).mkdir()
        write_parquet(pa.table({"lasts": column, "n": [1, 2]}), tmp_path / name / "0.parquet")
    with duckdb.connect() as connection:
        relation = read_table(connection, tmp_path / "flat", tmp_path)
        assert relation.project("epoch(lasts), n").fetchall() == [(1.5, 1), (None, 2)]
        assert str(relation.types[0]) == "INTERVAL"
        with pytest.raises(BadInput, match=r"table 'nested': column 'lasts' is struct<x: duration\[us\]>"):
            read_table(connection, tmp_path / "nested", tmp_path)

"""Hashes of NumPy are those of Spark, whose splits and files are the same on every engine."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from airflow_hops.ml.stages.prepare.hashes import partitions, xxhash64

pytestmark = pytest.mark.runtime

ROWS = 300
TABLE = pa.table(
    {
        "text": [
            "é" * (n % 3) + "abcdefghij" * (n % 9) + str(n) if n % 7 else ("" if n % 2 else None) for n in range(ROWS)
        ],
        "integer": pa.array([(-1) ** n * (2**62 + n) if n % 5 else None for n in range(ROWS)]),
        "double": [(0.0, -0.0, 1.5, None, -1e300)[n % 5] for n in range(ROWS)],
        "float": pa.array([(0.5, None, -0.0)[n % 3] for n in range(ROWS)], pa.float32()),
        "vector": [[0.1 * n, -0.0, 7.0][: n % 4] if n % 6 else None for n in range(ROWS)],
        "nothing": pa.array([None] * ROWS, pa.string()),
    }
)


def test_hashes_equal_those_of_spark(spark: Any) -> None:
    rows = [tuple(row.values()) for row in TABLE.to_pylist()]
    frame = spark.createDataFrame(rows, from_arrow_schema(TABLE.schema))
    names = TABLE.column_names
    expected = frame.select(
        F.xxhash64(*names).alias("all"),
        *(F.xxhash64(name).alias(f"of {name}") for name in names),
        *(F.expr(f"pmod(hash({name}), 13)").alias(f"part by {name}") for name in ("text", "integer")),
    ).toPandas()
    columns = [TABLE[name].combine_chunks() for name in names]
    assert xxhash64(columns).tolist() == expected["all"].tolist()
    for name, column in zip(names, columns, strict=True):
        assert xxhash64([column]).tolist() == expected[f"of {name}"].tolist(), name
    for name, column in zip(("text", "integer"), columns, strict=False):
        assert partitions(column, 13).tolist() == expected[f"part by {name}"].tolist()
    assert xxhash64([column.slice(11, 200) for column in columns]).tolist() == expected["all"].tolist()[11:211]
    assert xxhash64([column.slice(0, 0) for column in columns]).tolist() == []

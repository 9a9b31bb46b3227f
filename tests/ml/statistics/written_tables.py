"""Tables written in the formats that statistics are computed from."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq


def table_of(rows: int, start: int = 0) -> pa.Table:
    """A table whose values every format can hold: no float that float32 has not, no text that is empty."""
    numbers = range(start, start + rows)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "ratio": pa.array([None if n % 5 == 0 else n / 4 + 0.5 for n in numbers], pa.float32()),
            "text": pa.array([None if n % 7 == 0 else f'é,"{n}"' + "\nnext" * (n % 3 == 0) for n in numbers]),
            "whole": pa.array([None if n % 11 == 0 else -n for n in numbers], pa.int64()),
        }
    )


def generated_columns(rows: int = 600) -> pa.Table:
    """Columns that every format can hold: dense, sparse, constant, unique, long, late, and a weight."""
    random = np.random.default_rng(8)
    numbers, missing = random.integers(-50, 50, rows), random.random(rows) < 0.3
    texts = np.array([f'é,"{int(n)}"' + "\nnext" * (int(n) % 3 == 0) for n in random.exponential(5, rows)])
    return pa.table(
        {
            "integer": pa.array(numbers),
            "sparse integer": pa.array(numbers, mask=missing),
            "float": pa.array(numbers / 4 + 0.5, pa.float32()),
            "sparse float": pa.array(numbers / 4 + 0.5, pa.float32(), mask=missing),
            "constant": pa.array([7] * rows),
            "extremes": pa.array([-(2**40), 5, 2**41] * (rows // 3)),
            "text": pa.array(texts),
            "sparse text": pa.array(texts, mask=missing),
            "unique": pa.array([f"u-{i}" for i in range(rows)]),
            "long": pa.array(["x" * (i % 5 * 250 + 1) for i in range(rows)]),
            "late": pa.array([None] * (rows - 100) + ["a", "b"] * 50),
            "weight": pa.array(random.integers(1, 9, rows) / 4, pa.float32()),
        }
    )


def write(table: pa.Table, path: Path) -> Path:
    """Writes a table in the format of the file's name."""
    name = path.name.removesuffix(".gz")
    plain = path if path.name == name else path.with_name(f"plain-{name}")
    if name.endswith(".csv"):
        pa.csv.write_csv(table, plain)
    elif name.endswith(".jsonl"):
        plain.write_text("".join(json.dumps(without_nulls(row)) + "\n" for row in table.to_pylist()))
    else:
        pq.write_table(table, plain, row_group_size=100)
    if path != plain:
        path.write_bytes(gzip.compress(plain.read_bytes()))
        plain.unlink()
    return path


def without_nulls(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row without its missing values."""
    return {name: value for name, value in row.items() if value is not None}

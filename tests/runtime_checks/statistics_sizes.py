"""Statistics of sources of awkward sizes, and the memory that they take."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_hops.runtime.context import StepContext
from airflow_hops.runtime.statistics import generate_statistics
from airflow_hops.runtime.statistics.summary import summarize


def sizes(context: StepContext) -> dict[str, Any]:
    """Facts of each source, by name."""
    folder = context.scratch
    return {
        # Peaks of memory only rise: the largest source comes first.
        "megabytes": _facts(_megabytes(folder / "megabytes.parquet")),
        "one_row": _facts(_written(folder, "one", pa.table({"x": [1.5], "s": ["a"], "none": pa.nulls(1)}))),
        "million_strings": _facts(
            _written(folder, "million", pa.table({"s": pa.array(np.arange(1_000_000).astype(str))}))
        ),
        "columns": _facts(
            _written(folder, "columns", pa.table({f"c{i}": np.arange(50) + i for i in range(5000)})), lean=True
        ),
    }


def _written(folder: Path, name: str, table: pa.Table) -> Path:
    path = folder / f"{name}.parquet"
    pq.write_table(table, path, row_group_size=100_000)
    return path


def _megabytes(path: Path) -> Path:
    """300 strings of a megabyte each, in one row group."""
    row = "é" * 500_000
    table = pa.table({"s": pa.array([f"{i % 3}{row}" for i in range(300)], pa.large_string()), "i": range(300)})
    pq.write_table(table, path, use_dictionary=False, compression="zstd")
    return path


def _facts(path: Path, *, lean: bool = False) -> dict[str, Any]:
    before = _peak_bytes()
    statistics = generate_statistics(path)
    taken = _peak_bytes() - before
    summary = summarize(statistics)
    features = {} if lean else summary["features"]
    return {"rows": summary["rows"], "count": len(summary["features"]), "features": features, "bytes": taken}


def _peak_bytes() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

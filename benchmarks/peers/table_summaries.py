"""The peers of large statistics: DuckDB's ``SUMMARIZE`` and Polars' ``describe``, in an environment of their own.

``python -m benchmarks.peers.table_summaries <way> <path>``, for :mod:`benchmarks.measurement.timing`. Both give a few
figures of each column, and no histogram, top values or number of values that are missing in lists.
"""

from __future__ import annotations

from benchmarks.measurement.worker import Work, perform, twice


def duckdb(path: str) -> Work:
    """On all cores, straight from the file."""
    import duckdb

    def summarize() -> dict[str, int]:
        columns = duckdb.sql(f"SUMMARIZE FROM '{path}'").fetchall()
        return {"rows": int(columns[0][-2]), "features": len(columns)}

    return twice(summarize)


def polars(path: str) -> Work:
    """On all cores, from a frame that it reads itself."""
    import polars

    def describe() -> dict[str, int]:
        frame = polars.read_parquet(path)
        return {"rows": len(frame), "features": frame.describe().width - 1}

    return twice(describe)


if __name__ == "__main__":
    perform({"duckdb": duckdb, "polars": polars})

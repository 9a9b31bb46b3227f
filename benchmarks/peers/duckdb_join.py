"""The limit of joining labels: DuckDB's join of the same files, in an environment of its own.

``python -m benchmarks.peers.duckdb_join join <folder>``, for :mod:`benchmarks.measurement.timing`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.measurement.worker import Work, perform, twice


def join(folder: str) -> Work:
    """Every captured prediction with the newest label that it has, as NumPy arrays."""
    import duckdb

    captured, labels = Path(folder) / "late" / "*.parquet", Path(folder) / "labels.parquet"

    def run() -> Mapping[str, Any]:
        found = duckdb.sql(
            f"""select version, captured_at, "output.probability" as output, newest.late as label, newest.known_at
            from '{captured}' left join (
                select request_id, "row", arg_max(late, known_at) as late, max(known_at) as known_at
                from '{labels}' group by all
            ) newest using (request_id, "row")"""
        ).fetchnumpy()
        known = ~found["label"].mask
        return {"rows": len(known), "joined": int(known.sum()), "sum": int(found["label"][known].sum())}

    return twice(run)


if __name__ == "__main__":
    perform({"join": join})

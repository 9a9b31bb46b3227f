"""A prepare on DuckDB, and DuckDB's own ``COPY`` of its query, each in a process of its own.

``python -m benchmarks.measurement.prepare_ways <way> <folder> <rows>``, for :mod:`benchmarks.measurement.timing`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.measurement.worker import Work, perform

QUERY = """
    SELECT id, placed_at, amount > 30 AS late, amount, amount * quantity AS total, quantity, customer, city, product,
        discount
    FROM {orders}
"""


def write(folder: str, rows: str) -> None:
    """Writes the raw table, ten columns, unless it is there."""
    import duckdb

    path = Path(folder) / f"orders-{rows}.parquet"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        duckdb.execute(
            f"""
            COPY (
                SELECT 'order-' || range AS id, 1700000000 + range * 7 AS placed_at,
                    round(100 * random(), 2) AS amount, (10 * random())::INTEGER AS quantity,
                    (1e6 * random())::BIGINT AS customer, 'city ' || (300 * random())::INTEGER AS city,
                    'product ' || (5000 * random())::INTEGER AS product, random() AS discount
                FROM range({rows})
            ) TO '{path}' (ROW_GROUP_SIZE 131072)
            """
        )


def ours(folder: str, rows: str) -> Work:
    """The stage, from a snapshot to committed examples; a small table is prepared before the clock starts."""
    import duckdb

    from airflow_hops.core.artifacts.artifact import Producer, RowCounts
    from airflow_hops.core.steps.protocol import Output, StepSpec
    from airflow_hops.core.store import ArtifactStore
    from airflow_hops.ml.prepare import stage
    from airflow_hops.ml.step.context import StepContext

    def prepare(connection: Any, tables: Any) -> Any:
        return connection.sql(QUERY.format(orders="orders"))

    sys.modules["orders"] = SimpleNamespace(prepare=prepare)  # type: ignore[assignment]
    store = ArtifactStore(f"{folder}/store")

    def run(count: int) -> dict[str, Any]:
        producer = Producer("prepare", f"{count}-{Path(folder).name}", "prepare")
        with store.create(store.address(producer, "snapshot"), "snapshot", producer) as writer:
            (writer.path / "orders").mkdir()
            target = writer.path / "orders" / "part-00000.parquet"
            if count == int(rows):
                target.hardlink_to(Path(folder) / f"orders-{rows}.parquet")
            else:
                duckdb.execute(f"COPY (FROM '{folder}/orders-{rows}.parquet' LIMIT {count}) TO '{target}'")
            snapshot = writer.commit(
                rows={"orders": RowCounts(count, count)}, properties={"window": None, "tables": ["orders"]}
            )
        options = {"prepare": "orders:prepare", "engine": "duckdb", "label": "late", "key": "id", "time": "placed_at"}
        output = Output(store.address(producer, "examples"), "examples")
        spec = StepSpec("prepare", "", {}, {"tables": (snapshot,)}, output, store.root, producer=producer)
        scratch = Path(folder) / f"scratch-{count}"
        scratch.mkdir()
        return {"rows": stage.run(StepContext(spec, scratch), **options).rows["orders"].rows_out}

    run(1000)
    return lambda: run(int(rows))


def copy(folder: str, rows: str) -> Work:
    """The same query, written to one file by DuckDB itself."""
    import duckdb

    def run() -> dict[str, Any]:
        query = QUERY.format(orders=f"'{folder}/orders-{rows}.parquet'")
        return {"rows": duckdb.execute(f"COPY ({query}) TO '{folder}/copy.parquet'").fetchall()[0][0]}

    return run


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(*sys.argv[2:])
    else:
        perform({"ours": ours, "copy": copy})

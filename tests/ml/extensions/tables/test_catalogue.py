"""Tables in the catalogue of a Spark session, copied to Parquet files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_hops.core.artifacts.artifact import Producer
from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.profiles import BASE, own_profile
from airflow_hops.core.sources.sources import RowSource
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.tables import QuerySource, TableSource
from airflow_hops.extensions.tables.ml.read.tables import copy_table, state_of
from airflow_hops.ml.ingest.window import Window
from airflow_hops.ml.readers.artifact_files import OutputFolder
from airflow_hops.ml.spark.pools import IN_PROCESS
from airflow_hops.testing.sources import ReaderContract, SourceContract

Ingest = Callable[..., tuple[Any, pa.Table]]


@pytest.fixture
def ingest(tmp_path: Path) -> Ingest:
    """Copies a table's rows of two days, or until another time; returns their counts and the rows."""

    def run(source: TableSource, state: str | None = None, end: str = "2013-01-07") -> tuple[Any, pa.Table]:
        folder = tmp_path / f"copy-{len(list(tmp_path.iterdir()))}"
        window, output = Window.parse("2013-01-05", end), OutputFolder(str(folder))
        counts, _ = copy_table("rows", source, state, window, output, IN_PROCESS, lambda share, text: None)
        return counts, pq.read_table(folder / "rows")

    return run


@pytest.fixture
def shop(spark: Any, tmp_path: Path) -> Iterator[Path]:
    """``shop.rows``: 192 rows, one an hour, partitioned by day; ``shop.odd`` has odd names and types."""
    spark.sql(f"CREATE DATABASE shop LOCATION '{tmp_path}/shop'")
    spark.sql(
        f"CREATE TABLE shop.rows USING parquet PARTITIONED BY (day) LOCATION '{tmp_path}/rows' AS SELECT id, "
        "CAST(id / 4 AS DECIMAL(10, 2)) AS price, timestamp_seconds(1356998400 + id * 3600) AS at, "
        "IF(id % 3 = 0, NULL, id % 2 = 0) AS flag, date_add(DATE'2013-01-01', CAST(floor(id / 24) AS INT)) AS day "
        "FROM range(192)"
    )
    spark.sql(
        "CREATE TABLE shop.odd USING parquet AS SELECT CAST(id AS INT) AS a, id * 2 AS `a.b`, 'ü' AS `Ti``ck ü%`, "
        "CAST(1356998400 + id * 86400 AS INT) AS `select`, map('k', id) AS count, make_ym_interval(1) AS span "
        "FROM range(9)"
    )
    spark.sql("CREATE VIEW shop.uncast AS SELECT CAST(`Ti``ck ü%` AS INT) AS number FROM shop.odd")
    yield tmp_path
    spark.sql("DROP DATABASE shop CASCADE")


def test_table_is_pruned_to_the_window_and_changes_are_seen(shop: Path, ingest: Ingest) -> None:
    pruned = TableSource("spark://shop.rows", time_column="day", key=("id",))
    state = state_of(pruned)
    _, table = ingest(pruned, state)
    rows = sorted(table.to_pylist(), key=lambda row: row["id"])
    assert [row["id"] for row in rows] == list(range(96, 144))
    assert rows[1]["price"] == Decimal("24.25")
    assert [row["flag"] for row in rows[:3]] == [None, False, True]
    assert str(table.schema.field("at").type) == "timestamp[us, tz=UTC]"
    _, table = ingest(TableSource("spark://shop.rows", time_column="at", columns=("id",)))
    assert sorted(table["id"].to_pylist()) == list(range(96, 144))

    # A file outside the window is damaged: only a read that prunes does not notice.
    next((shop / "rows" / "day=2013-01-08").glob("part-*")).write_bytes(b"damaged")
    changed = r"spark://shop\.rows: the table has changed since its read was planned"
    with pytest.raises(HopsError, match=changed) as failure:
        ingest(pruned, state)
    assert not isinstance(failure.value, BadInput), "a retry may succeed"
    assert ingest(pruned)[0].rows_out == 48


def test_columns_may_have_any_name_and_faults_are_named(shop: Path, ingest: Ingest) -> None:
    odd = TableSource("spark://shop.odd", columns=("a.b", "Ti`ck ü%"), time_column="select", key=("a.b",))
    _, table = ingest(odd, end="2050-01-01")
    expected = [{"a.b": 2 * n, "Ti`ck ü%": "ü"} for n in range(4, 9)]
    assert sorted(table.to_pylist(), key=lambda row: row["a.b"]) == expected
    for name, fields, message in (
        ("gone", {}, "TABLE_OR_VIEW_NOT_FOUND"),
        ("a-b", {}, "INVALID_IDENTIFIER"),
        ("odd", {}, "YearMonthIntervalType"),
        ("uncast", {}, "The value 'ü' of the type"),
        *[("odd", {"columns": ("a",), "key": ("count",)}, "MAP")] * (own_profile() is BASE),  # Spark 4 groups by maps
    ):
        with pytest.raises(BadInput, match=rf"spark://shop\.{name}: .*{message}"):
            ingest(TableSource(f"spark://shop.{name}", **fields))
    with pytest.raises(BadInput, match=r"hive://shop\.rows: the Spark session was started without Hive"):
        ingest(TableSource("hive://shop.rows"))


class TestQuery(SourceContract, ReaderContract):
    fields = {"uri": "sql://warehouse", "sql": "SELECT * FROM flights", "key": ["id"], "time_column": "at"}
    rows = 3

    @pytest.fixture
    def source(self, tmp_path: Path) -> RowSource:
        store = ArtifactStore(str(tmp_path))
        with store.create(store.uri("d", "r", "fetch", "rows"), "rows", Producer("d", "r", "fetch")) as writer:
            pq.write_table(pa.table({"id": [1, 2, 3], "at": [100, 200, 300]}), writer.path / "part-00000.parquet")
            rows = writer.commit()
        query = QuerySource.from_value("flights", self.fields)
        options = {"dialect": "fetched", "store": store.root, "store_options": {}, "rows": {query.sql: rows.to_dict()}}
        return query.with_options({"warehouse": options})

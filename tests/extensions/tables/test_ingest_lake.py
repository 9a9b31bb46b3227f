"""Ingest of Iceberg and Delta tables, in a named environment without Spark."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_hops.core.contract.artifacts import BadInput, Producer
from airflow_hops.core.registered_sources import row_source
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.tables import TableSource
from airflow_hops.extensions.tables.hooks import first_state
from airflow_hops.hooks.runtime import StepFailed
from airflow_hops.launchers.local import LocalLauncher
from airflow_hops.operators import IngestOperator
from airflow_hops.testing.sources import SourceContract

pytestmark = pytest.mark.runtime

DAGS = "tests/extensions/tables/dags"
RUN, STATES = "airflow_hops.ml.stages.ingest:run", "airflow_hops.extensions.tables.ml.read.tables:states_of"
SCRIPT = Path(__file__).with_name("make_lake.py")


@pytest.fixture
def change(lake_runtime: Path, tmp_path: Path) -> Callable[[str], None]:
    """Changes the tables, which exist at first."""

    def run(what: str) -> None:
        subprocess.run([lake_runtime / "bin" / "python", SCRIPT, tmp_path, what], check=True)

    run("new")
    return run


@pytest.fixture
def source(tmp_path: Path, change: Any) -> Callable[..., TableSource]:
    """Makes a source of the table in a format."""

    def make(kind: str, **fields: Any) -> TableSource:
        if kind == "delta":
            return TableSource(f"delta://{tmp_path}/delta", **fields)
        catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/iceberg"}
        return TableSource("iceberg://lake/shop.rows", storage_options=catalog, **fields)

    return make


@pytest.fixture
def ingest(run_step: Any, lake_runtime: Path) -> Callable[..., tuple[Any, pa.Table]]:
    def run(
        source: TableSource, window: tuple[str | None, str | None] = (None, None), states: dict[str, str] | None = None
    ) -> tuple[Any, pa.Table]:
        params = {"sources": {"rows": source.to_dict()}, "window_start": window[0], "window_end": window[1]}
        launcher = LocalLauncher(lake_runtime, None)
        artifact = run_step(RUN, params={**params, "plans": states}, kind="snapshot", launcher=launcher)
        return artifact, pq.read_table(run_step.store.local(artifact) / "rows")

    return run


@pytest.mark.parametrize("kind", ["iceberg", "delta"])
def test_table_is_read_at_the_planned_state(
    kind: str, ingest: Any, source: Any, change: Any, run_step: Any, lake_runtime: Path, tmp_path: Path
) -> None:
    launcher = LocalLauncher(lake_runtime, None)
    states = run_step(STATES, params={"sources": {"rows": source(kind).to_dict()}}, launcher=launcher)
    change("more")
    artifact, table = ingest(source(kind), states=states)
    assert sorted(table["id"].to_pylist()) == list(range(1000))
    assert artifact.properties["plans"] == states
    assert artifact.rows["rows"].rows_in == 1000
    assert [str(kind) for kind in table.schema.types] == [
        *("int64", "timestamp[us, tz=UTC]", "decimal128(10, 2)", "string", "int32", "list<element: string>")
    ]
    assert ingest(source(kind))[1].num_rows == 1001
    assert ingest(source(kind, version=states["rows"]))[1].num_rows == 1000

    window = ("2013-01-01T00:00:00Z", "2013-01-02T00:00:00Z")
    artifact, table = ingest(source(kind, time_column="at", columns=("id",), key=("id",)), window)
    assert table.to_pydict() == {"id": list(range(1, 24))}
    assert artifact.rows["rows"].rejected == {"at is missing": 1}
    far = ("2013-01-01T01:30:00Z", "2050-01-01T00:00:00Z")
    _, table = ingest(source(kind, time_column="epoch", columns=("id",), version=int(states["rows"])), far)
    assert sorted(table["id"].to_pylist()) == list(range(2, 1000))

    def refused(source: TableSource, *arguments: Any) -> str:
        with pytest.raises(StepFailed) as failure:
            ingest(source, *arguments)
        assert not failure.value.retryable
        assert source.uri in str(failure.value)
        return str(failure.value)

    message = refused(source(kind, time_column="at"), ("2020-01-01", None))
    assert "goes from 2013-01-01 01:00:00+00:00 to 2013-02-11 16:00:00+00:00" in message
    assert "the key name='n" in refused(source(kind, key=("name",)))
    assert "the columns of 'key' cannot be compared: Keys of type list" in refused(source(kind, key=("tags",)))
    assert "there is no column 'when'" in refused(source(kind, time_column="when"), window)
    unknown = {"delta": "'x'; expected the number of a version", "iceberg": "there is no snapshot x"}
    assert unknown[kind] in refused(source(kind, version="x"))
    assert "77" in refused(source(kind, version="77"))
    change("gone") if kind == "iceberg" else shutil.rmtree(tmp_path / "delta")
    assert "exist" in refused(source(kind), (None, None), states)


@pytest.mark.parametrize(
    ("kind", "what", "message"),
    [
        ("delta", "vectors", "deletion vectors, which only Spark reads"),
        ("delta", "mapping", "column mapping, which only Spark reads"),
        ("iceberg", "equality", "equality deletes"),
    ],
)
def test_row_level_deletes_are_refused_for_spark(
    kind: str, what: str, message: str, ingest: Any, source: Any, change: Any
) -> None:
    change(what)
    with pytest.raises(StepFailed, match=message):
        ingest(source(kind))


@pytest.mark.parametrize(
    ("name", "message"),
    [("rows", "expected iceberg://catalog/namespace.table"), ("shop.empty", "the table has no snapshot")],
)
def test_iceberg_errors_are_named(name: str, message: str, ingest: Any, source: Any) -> None:
    with pytest.raises(StepFailed, match=message) as failure:
        ingest(replace(source("iceberg"), uri=f"iceberg://lake/{name}"))
    assert not failure.value.retryable


def test_iceberg_schema_matches_the_table(source: Any, change: Any, run_step: Any, lake_runtime: Path) -> None:
    launcher = LocalLauncher(lake_runtime, None)

    def state(**fields: Any) -> str:
        params = {"sources": {"rows": source("iceberg", **fields).to_dict()}}
        return str(run_step(STATES, params=params, launcher=launcher)["rows"])

    before = state()
    change("columns")
    now = state()
    assert now != before
    sources = {
        "old": source("iceberg", version=before, time_column="epoch", columns=("id", "name")),
        "new": source("iceberg", version=now, time_column="id"),
    }
    params = {
        "sources": {name: each.to_dict() for name, each in sources.items()},
        "window_start": "2013-01-01T01:30:00Z",
    }
    artifact = run_step(RUN, params=params, kind="snapshot", launcher=launcher)
    old, new = (pq.read_table(run_step.store.local(artifact) / name) for name in sources)
    assert old.schema.names == ["id", "name"]
    assert new.schema.names == ["epoch", "at", "price", "id", "tags", "when"]
    assert sorted(old["id"].to_pylist()) == sorted(new["epoch"].to_pylist()) == list(range(2, 1000))
    assert str(new.schema.field("id").type) == "int64"
    assert new["when"].null_count == 998
    with pytest.raises(StepFailed, match=r"there is no schema 77; its schemas are 0, 1, 2, 3, 4") as failure:
        state(version=f"{before}@77")
    assert not failure.value.retryable


def test_each_run_reads_the_newest_version(run_dag: Any, change: Any, tmp_path: Path) -> None:
    def states() -> dict[str, str]:
        (task,) = run_dag("ingest_lake", {"table": str(tmp_path / "delta")}, DAGS).get_task_instances()
        return dict(task.xcom_pull(task_ids="ingest")["properties"]["plans"])

    assert states() == {"rows": "1"}
    change("more")
    assert states() == {"rows": "2"}


def test_all_tries_of_a_run_read_one_version(tmp_path: Path) -> None:
    store = ArtifactStore(str(tmp_path / "store"))

    def state(run: str, attempt: int, version: str | None, found: str) -> str:
        producer = Producer("shop", run, "ingest", -1, attempt)
        return first_state(store, producer, "rows", TableSource("delta:///rows", version=version), found)

    assert [state("monday", 1, None, "1"), state("monday", 2, None, "2")] == ["1", "1"]
    assert [state("tuesday", 1, None, "2"), state("monday", 3, "7", "7")] == ["2", "7"]


def test_missing_library_is_named(run_step: Any, warm_launcher: Any) -> None:
    params = {"sources": {"rows": TableSource("delta:///tmp/none").to_dict()}}
    with pytest.raises(StepFailed, match="lacks deltalake; make one with 'airflow hops runtime create"):
        run_step(STATES, params=params, launcher=warm_launcher)


def test_table_named_like_the_folder_of_rejected_records_is_refused() -> None:
    with pytest.raises(BadInput, match="a table 'rejected', which is the folder of records"):
        IngestOperator(task_id="ingest", sources={"rejected": "/data/rejected.csv"})


class TestTable(SourceContract):
    fields = {"uri": "delta://s3://raw/planes", "key": ["id"], "version": "7", "storage_conn_id": "aws_default"}


def test_fields_of_queries_are_refused() -> None:
    with pytest.raises(BadInput, match=r"sources\['rows'\] has no field 'partition_column'"):
        row_source("rows", {"uri": "delta:///rows", "partition_column": "id"})
    with pytest.raises(BadInput, match="'version' is for tables of Iceberg and Delta"):
        TableSource("hive://shop.rows", version="7")

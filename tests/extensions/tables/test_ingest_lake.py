"""Ingest of Iceberg and Delta tables, in a named environment without Spark."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_hops.core.artifacts.artifact import Producer
from airflow_hops.core.errors import BadInput, StepFailed
from airflow_hops.core.sources.sources import row_source
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.tables import TableSource
from airflow_hops.extensions.tables.runner.states import first_state
from airflow_hops.operators import IngestOperator
from airflow_hops.testing.sources import SourceContract

pytestmark = [pytest.mark.runtime, pytest.mark.server]

RUN, STATES = "airflow_hops.ml.ingest:run", "airflow_hops.extensions.tables.ml.read.tables:states_of"
SCRIPT = Path(__file__).with_name("make_lake.py")


@dataclass(frozen=True)
class Lake:
    """Tables of both formats, to which a row was added after their states were taken."""

    folder: Path
    states: dict[str, str]

    def source(self, kind: str, table: str = "rows", **fields: Any) -> TableSource:
        return lake_source(self.folder, kind, table, **fields)


def lake_source(folder: Path, kind: str, table: str = "rows", **fields: Any) -> TableSource:
    if kind == "delta":
        return TableSource(f"delta://{folder}/{'delta' if table == 'rows' else table}", **fields)
    catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/iceberg"}
    return TableSource(f"iceberg://lake/shop.{table}", storage_options=catalog, **fields)


@pytest.fixture(scope="module")
def lake(lake_runtime: Path, lake_launcher: Any, shared_run_step: Any, tmp_path_factory: Any) -> Lake:
    folder = tmp_path_factory.mktemp("lake")
    subprocess.run([lake_runtime / "bin" / "python", SCRIPT, folder], check=True)
    sources = {kind: lake_source(folder, kind).to_dict() for kind in ("iceberg", "delta")}
    sources["columns"] = lake_source(folder, "iceberg", "columns").to_dict()
    states = shared_run_step(STATES, params={"sources": sources}, launcher=lake_launcher)
    subprocess.run([lake_runtime / "bin" / "python", SCRIPT, folder, "more"], check=True)
    return Lake(folder, states)


@pytest.fixture
def ingest(run_step: Any, lake_launcher: Any) -> Callable[..., tuple[Any, pa.Table]]:
    def run(
        source: TableSource, window: tuple[str | None, str | None] = (None, None), state: str | None = None
    ) -> tuple[Any, pa.Table]:
        params = {"sources": {"rows": source.to_dict()}, "window_start": window[0], "window_end": window[1]}
        plans = {"plans": state and {"rows": state}}
        artifact = run_step(RUN, params=params | plans, kind="snapshot", launcher=lake_launcher)
        return artifact, pq.read_table(run_step.store.local(artifact) / "rows")

    return run


@pytest.mark.parametrize("kind", ["iceberg", "delta"])
def test_table_is_read_at_the_planned_state(kind: str, ingest: Any, lake: Lake) -> None:
    state = lake.states[kind]
    artifact, table = ingest(lake.source(kind), state=state)
    assert sorted(table["id"].to_pylist()) == list(range(1000))
    assert artifact.properties["plans"] == {"rows": state}
    assert artifact.rows["rows"].rows_in == 1000
    assert [str(kind) for kind in table.schema.types] == [
        *("int64", "timestamp[us, tz=UTC]", "decimal128(10, 2)", "string", "int32", "list<element: string>")
    ]
    assert ingest(lake.source(kind))[1].num_rows == 1001
    assert ingest(lake.source(kind, version=state))[1].num_rows == 1000

    window = ("2013-01-01T00:00:00Z", "2013-01-02T00:00:00Z")
    artifact, table = ingest(lake.source(kind, time_column="at", columns=("id",), key=("id",)), window)
    assert table.to_pydict() == {"id": list(range(1, 24))}
    assert artifact.rows["rows"].rejected == {"at is missing": 1}
    far = ("2013-01-01T01:30:00Z", "2050-01-01T00:00:00Z")
    _, table = ingest(lake.source(kind, time_column="epoch", columns=("id",), version=int(state)), far)
    assert sorted(table["id"].to_pylist()) == list(range(2, 1000))


@pytest.mark.parametrize("kind", ["iceberg", "delta"])
def test_unusable_source_of_a_lake_is_refused(kind: str, ingest: Any, lake: Lake) -> None:
    window = ("2020-01-01", None)
    span = "goes from 2013-01-01 01:00:00+00:00 to 2013-02-11 16:00:00+00:00"
    unknown = {"delta": "'x'; expected the number of a version", "iceberg": "there is no snapshot x"}[kind]
    own: dict[str, list[tuple[TableSource, str]]] = {
        "iceberg": [
            (lake.source(kind, "deleted"), "equality deletes"),
            (lake.source(kind, "none"), "the table has no snapshot"),
            (replace(lake.source(kind), uri="iceberg://lake/rows"), "expected iceberg://catalog/namespace.table"),
        ],
        "delta": [
            (lake.source(kind, "vectors"), "deletion vectors, which only Spark reads"),
            (lake.source(kind, "mapping"), "column mapping, which only Spark reads"),
        ],
    }
    for source, arguments, message in (
        (lake.source(kind, time_column="at"), {"window": window}, span),
        (lake.source(kind, key=("name",)), {}, "the key name='n"),
        (lake.source(kind, key=("tags",)), {}, "the columns of 'key' cannot be compared: Keys of type list"),
        (lake.source(kind, time_column="when"), {"window": window}, "there is no column 'when'"),
        (lake.source(kind, version="x"), {}, unknown),
        (lake.source(kind, version="77"), {}, "77"),
        (lake.source(kind, "gone"), {"state": lake.states[kind]}, "exist"),
        *((source, {}, message) for source, message in own[kind]),
    ):
        with pytest.raises(StepFailed) as failure:
            ingest(source, **arguments)
        assert not failure.value.retryable
        assert source.uri in str(failure.value) and message in str(failure.value)


def test_iceberg_schema_matches_the_table(lake: Lake, ingest: Any, run_step: Any, lake_launcher: Any) -> None:
    def state(**fields: Any) -> str:
        params = {"sources": {"rows": lake.source("iceberg", "columns", **fields).to_dict()}}
        return str(run_step(STATES, params=params, launcher=lake_launcher)["rows"])

    version, now, window = lake.states["columns"], state(), ("2013-01-01T01:30:00Z", None)
    assert now != version
    old = lake.source("iceberg", "columns", version=version, time_column="epoch", columns=("id", "name"))
    (_, old), (_, new) = (
        ingest(source, window) for source in (old, lake.source("iceberg", "columns", version=now, time_column="id"))
    )
    assert old.schema.names == ["id", "name"]
    assert new.schema.names == ["epoch", "at", "price", "id", "tags", "when"]
    assert sorted(old["id"].to_pylist()) == sorted(new["epoch"].to_pylist()) == list(range(2, 1000))
    assert str(new.schema.field("id").type) == "int64"
    assert new["when"].null_count == 998
    with pytest.raises(StepFailed, match=r"there is no schema 77; its schemas are 0, 1, 2, 3, 4") as failure:
        state(version=f"{version}@77")
    assert not failure.value.retryable


def test_run_reads_the_newest_version_in_the_named_environment(run_dag: Any, lake: Lake) -> None:
    conf = {"table": str(lake.folder / "delta")}
    (task,) = run_dag("ingest_lake", conf, "tests/extensions/tables/dags").get_task_instances()
    assert dict(task.xcom_pull(task_ids="ingest")["properties"]["plans"]) == {"rows": "2"}


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


class TestTable(SourceContract):
    fields = {"uri": "delta://s3://raw/planes", "key": ["id"], "version": "7", "storage_conn_id": "aws_default"}


def test_unsuitable_fields_and_names_are_refused() -> None:
    with pytest.raises(BadInput, match=r"sources\['rows'\] has no field 'partition_column'"):
        row_source("rows", {"uri": "delta:///rows", "partition_column": "id"})
    with pytest.raises(BadInput, match="'version' is for tables of Iceberg and Delta"):
        TableSource("hive://shop.rows", version="7")
    with pytest.raises(BadInput, match="a table 'rejected', which is the folder of records"):
        IngestOperator(task_id="ingest", sources={"rejected": "/data/rejected.csv"})

"""Rows of artifacts, written to tables of PostgreSQL, Iceberg and Delta."""

from __future__ import annotations

import datetime
import json
import subprocess
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.dataset import partitioning

from airflow_hops.core.artifacts.artifact import Artifact, Producer, RowCounts
from airflow_hops.core.errors import BadInput, StepFailed
from airflow_hops.core.sources.sources import RowSource
from airflow_hops.extensions.tables import QuerySource, TableSource
from airflow_hops.extensions.tables.core.tables import Table

pytestmark = [pytest.mark.runtime, pytest.mark.server]

LAKES = ["iceberg", "delta"]
WRITE, INGEST = "airflow_hops.extensions.tables.ml.write.stage:run", "airflow_hops.ml.ingest:run"
MAKE_NAMESPACE = (
    "import sys; from pyiceberg.catalog.sql import SqlCatalog as C; C('lake', uri=sys.argv[1]).create_namespace('shop')"
)


class Target:
    """A table, which does not exist yet if it is a lake's."""

    def __init__(self, table: Table, source: RowSource, launcher: Any, run_step: Any) -> None:
        self.table, self.source, self.launcher, self.run_step = table, source, launcher, run_step

    def write(self, rows: Artifact, **params: Any) -> Artifact:
        params, inputs = {"table": self.table.to_dict(), **params}, {"rows": rows}
        written = self.run_step(WRITE, params=params, inputs=inputs, kind="table_write", launcher=self.launcher)
        assert isinstance(written, Artifact)
        return written

    def read(self) -> pa.Table:
        params = {"sources": {"rows": self.source.to_dict()}}
        artifact = self.run_step(INGEST, params=params, kind="snapshot", launcher=self.launcher)
        return pq.read_table(self.run_step.store.local(artifact) / "rows")

    def ids(self) -> list[tuple[str, str, int]]:
        table = self.read()
        return sorted(zip(*(table[name].to_pylist() for name in ("hops_batch", "hops_folder", "id")), strict=True))

    def refused(self, rows: Artifact, *, retryable: bool = False, **params: Any) -> str:
        with pytest.raises(StepFailed) as failure:
            self.write(rows, **params)
        assert failure.value.retryable == retryable, failure.value
        return str(failure.value)


class ParquetTarget(Target):
    def read(self) -> pa.Table:
        batches = partitioning(pa.schema([("hops_batch", pa.string())]), flavor="hive")
        return pq.read_table(self.table.uri.removeprefix("parquet://"), partitioning=batches)


@pytest.fixture(scope="module")
def lake(lake_runtime: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an empty catalogue of Iceberg."""
    folder = tmp_path_factory.mktemp("lake")
    make_namespace(lake_runtime, folder)
    return folder


def make_namespace(lake_runtime: Path, folder: Path) -> None:
    subprocess.run(
        [lake_runtime / "bin" / "python", "-c", MAKE_NAMESPACE, f"sqlite:///{folder}/catalog.db"], check=True
    )


@pytest.fixture
def target(request: pytest.FixtureRequest, tmp_path: Path, run_step: Any) -> Target:
    kind = request.param
    if kind == "postgres":
        connection = request.getfixturevalue(kind)
        connection.execute('CREATE TABLE "late ""rows""" (id int8, hops_batch text, hops_folder text)')
        source = QuerySource(conn_id="warehouse", sql='SELECT * FROM "late ""rows"""')
        table = Table(conn_id="warehouse", name='late "rows"')
        return Target(table, source, request.getfixturevalue("warm_launcher"), run_step)
    if kind == "parquet":
        table = Table(f"parquet://{tmp_path}/late")
        return ParquetTarget(table, RowSource("unread"), request.getfixturevalue("warm_launcher"), run_step)
    uri, options = f"delta://{tmp_path}/late", {}
    if kind == "iceberg":
        lake = request.getfixturevalue("lake")
        uri = f"iceberg://lake/shop.{tmp_path.name}"
        options = {"type": "sql", "uri": f"sqlite:///{lake}/catalog.db", "warehouse": f"file://{lake}"}
    source = TableSource(uri, storage_options=options)
    return Target(Table(uri, storage_options=options), source, request.getfixturevalue("lake_launcher"), run_step)


@pytest.fixture
def artifact(store: Any) -> Callable[..., Artifact]:
    """Makes the artifact of a run, with a Parquet file for each folder."""

    def make(tables: dict[str, pa.Table], *, run: str = "monday", kind: str = "predictions") -> Artifact:
        producer = Producer("shop", run, "predict")
        with store.create(store.address(producer, kind), kind, producer) as writer:
            for folder, table in tables.items():
                (writer.path / folder).mkdir(parents=True)
                pq.write_table(table, writer.path / folder / "part-00000.parquet")
            made: Artifact = writer.commit(rows={f: RowCounts(len(t), len(t)) for f, t in tables.items()})
            return made

    return make


def ids(numbers: Sequence[int]) -> pa.Table:
    return pa.table({"id": pa.array(numbers, pa.int64())})


@pytest.mark.parametrize("target", ["postgres", "parquet", *LAKES], indirect=True)
def test_each_row_is_written_once(target: Target, artifact: Any) -> None:
    batch = "shop/monday/predict/predictions"
    first = target.write(artifact({"train": ids(range(3)), "eval": ids([7])}))
    expected = [(batch, "eval", 7), *((batch, "train", n) for n in range(3))]
    assert target.ids() == expected
    assert first.properties["table"] == target.table.uri
    assert first.rows[target.table.uri].rows_out == 4
    assert list(first.properties["columns"]) == ["id", "hops_batch", "hops_folder"]

    again = target.write(artifact({"train": ids(range(3)), "eval": ids([7])}))
    if target.table.uri.startswith(("iceberg", "delta")):
        assert again.properties["version"] not in (None, first.properties["version"])

    tuesday = artifact({"train": ids([1])}, run="tuesday")
    target.write(tuesday)
    target.write(tuesday, batch="it's me")
    others = [("it's me", "train", 1), ("shop/tuesday/predict/predictions", "train", 1)]
    assert target.ids() == sorted([*expected, *others])
    target.write(artifact({"train": ids([2]), "eval": ids([7])}))
    assert target.ids() == sorted([expected[0], expected[-1], *others])


@pytest.mark.parametrize("target", ["parquet", *LAKES], indirect=True)
def test_types_survive(target: Target, artifact: Any) -> None:
    utc = datetime.UTC
    columns = {
        "n'\"%$1": pa.array([2**62 + 1, None], pa.int64()),
        "input.small": pa.array([-7, None], pa.int16()),
        "real": pa.array([0.5, None], pa.float32()),
        "double": pa.array([0.1, None], pa.float64()),
        "flag": pa.array([True, None]),
        "text": pa.array(["ü'\"\\\n\t", None]),
        "raw": pa.array([b"\x00\xff", None]),
        "price": pa.array([Decimal("-123456789012345678.125"), None], pa.decimal128(24, 3)),
        "day": pa.array([datetime.date(1913, 2, 28), None]),
        "plain": pa.array([datetime.datetime(1913, 1, 1, 1, 2, 3, 4), None], pa.timestamp("us")),
        "zoned": pa.array([datetime.datetime(2013, 1, 1, 1, 2, 3, 4, utc), None], pa.timestamp("us", "UTC")),
    }
    target.write(artifact({"train": pa.table(columns)}))
    table = target.read().drop(["hops_batch", "hops_folder"])
    expected = pa.table(columns)
    assert table.to_pylist() == expected.to_pylist()
    kinds = {name: str(kind) for name, kind in zip(table.schema.names, table.schema.types, strict=True)}
    wanted = {name: str(column.type) for name, column in columns.items()}
    assert kinds == (wanted | {"input.small": "int32"} if target.table.uri.startswith("iceberg") else wanted)


@pytest.mark.parametrize("target", ["parquet", *LAKES], indirect=True)
def test_refused_rows_change_nothing(target: Target, artifact: Any) -> None:
    """Also where a part of them was written before."""
    target.write(artifact({"train": ids([1])}))
    many = pa.table({"id": pa.array([2, 2**63], pa.uint64())})
    span = pa.table({"span": pa.array([{"of": datetime.timedelta(1)}])})
    for tables, message in (
        ({"a": ids([8]), "b": many}, f"{target.table.uri!r}: column 'id' has {2**63}, which does not fit int64"),
        ({"train": pa.table({"id": [1.5]})}, "column 'id' is"),
        ({"train": pa.table({"id": [1], "score": [0.5]})}, "column 'score' is missing"),
        ({"train": span}, "cannot hold column 'span', which is struct<of: duration"),
    ):
        assert message in target.refused(artifact(tables, run="monday"))
    assert target.ids() == [("shop/monday/predict/predictions", "train", 1)]


@pytest.mark.parametrize("target", ["delta"], indirect=True)
def test_unsuitable_columns_are_refused(target: Target, artifact: Any) -> None:
    days = pa.table({"day": pa.array([0, -800_000], pa.date32())})
    for tables, message in (
        ({"train": ids([1]), "eval": days}, "name folders with the same columns"),
        ({"train": pa.table({"hops_batch": ["x"]})}, "which is reserved by the table"),
        ({"train": days}, "column 'day' has '-0221-09-04', which does not fit date32"),
    ):
        assert message in target.refused(artifact(tables))


@pytest.mark.parametrize("kind", ["iceberg", "delta"])
def test_lakes_on_s3_take_credentials_of_a_connection(
    kind: str,
    artifact: Any,
    lake_runtime: Path,
    lake_launcher: Any,
    s3_endpoint: str,
    tmp_path: Path,
    run_step: Any,
    monkeypatch: Any,
) -> None:
    import s3fs

    s3fs.S3FileSystem(endpoint_url=s3_endpoint).mkdir(f"lake-{kind}")
    extra = {"endpoint_url": s3_endpoint, "region_name": "us-east-1"}
    connection = {"conn_type": "aws", "login": "testing", "password": "testing-secret", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(connection))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name)
    options: dict[str, Any] = {}
    uri = f"delta://s3://lake-{kind}/late"
    if kind == "iceberg":
        make_namespace(lake_runtime, tmp_path)
        uri = "iceberg://lake/shop.late"
        options = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"s3://lake-{kind}"}
    values = {"storage_options": options, "storage_conn_id": "lake"}
    target = Target(Table(uri, **values), TableSource(uri, **values), lake_launcher, run_step)
    rows = artifact({"train": ids([1, 2])})
    target.write(rows)
    assert [id for _, _, id in target.ids()] == [1, 2]
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", '{"conn_type": "google_cloud_platform", "extra": {"project": "p"}}')
    assert "take only connections of type 'aws'" in target.refused(rows)


@pytest.mark.parametrize("target", ["parquet", "delta"], indirect=True)
def test_quarantined_and_rejected_rows_are_written(target: Target, artifact: Any) -> None:
    some = {"quarantine/train": ids([1]), "quarantine/eval": ids([2])}
    target.write(artifact(some, kind="anomalies"), batch="b")
    assert target.ids() == [("b", "quarantine/eval", 2), ("b", "quarantine/train", 1)]
    target.write(artifact({}, kind="anomalies", run="tuesday"), batch="none")
    target.write(artifact({"rows": ids([3]), "rejected/rows": ids([4])}, kind="snapshot"), batch="c")
    target.write(artifact({"rows": ids([3])}, kind="snapshot"), folders=["rejected/rows"], batch="d")
    target.write(artifact({}, kind="anomalies"), batch="b")
    assert target.ids() == [("c", "rows", 3)]
    assert "rows are in eval" in target.refused(artifact({"eval": ids([1])}), folders=["train"])
    for folders in ("eval", []):
        assert "expected a list of folders" in target.refused(artifact({"eval": ids([1])}), folders=folders)
    assert "predictions has no rows" in target.refused(artifact({}))


@pytest.mark.parametrize("target", ["delta"], indirect=True)
def test_delta_refusals_are_reported(target: Target, artifact: Any, lake_runtime: Path) -> None:
    assert "Duplicate field name" in target.refused(artifact({"train": pa.table({"a": [1], "A": [2]})}))
    make = "import sys, pyarrow as pa; from deltalake import write_deltalake; write_deltalake(sys.argv[1], "
    make += "pa.table({'id': [1]}), configuration={'delta.columnMapping.mode': 'name', 'delta.minReaderVersion': '2'})"
    path = target.table.uri.removeprefix("delta://")
    subprocess.run([lake_runtime / "bin" / "python", "-c", make, path], check=True)
    assert "column mapping, which only Spark" in target.refused(artifact({"train": ids([1])}))


STRICT_TABLES = """
import sys
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog.sql import SqlCatalog

folder, uri, warehouse, name = sys.argv[1:]
texts = [("hops_batch", pa.string()), ("hops_folder", pa.string())]
rows = pa.schema([("id", pa.int64()), *texts]).empty_table()
write_deltalake(f"{folder}/check", rows)
DeltaTable(f"{folder}/check").alter.add_constraint({"small": "id < 9"})
write_deltalake(f"{folder}/append", rows, configuration={"delta.appendOnly": "true"})
catalog = SqlCatalog("lake", uri=uri, warehouse=warehouse)
catalog.create_table(name, schema=pa.schema([pa.field("id", pa.int64(), nullable=False), *texts]))
"""


@pytest.mark.parametrize("target", ["iceberg"], indirect=True)
def test_rows_that_break_a_lakes_rules_are_refused(
    target: Target, artifact: Any, lake_runtime: Path, tmp_path: Path
) -> None:
    options = target.table.storage_options
    name = target.table.uri.removeprefix("iceberg://lake/")
    program = [lake_runtime / "bin" / "python", "-c", STRICT_TABLES]
    subprocess.run([*program, tmp_path, options["uri"], options["warehouse"], name], check=True)
    target.write(artifact({"train": ids([1])}))
    nulls = artifact({"train": pa.table({"id": pa.array([9, None], pa.int64())})}, run="tuesday")
    assert f"{target.table.uri!r}: 'id' is required, and null in 1 rows" in target.refused(nulls)
    assert [id for _, _, id in target.ids()] == [1]
    for name, message in (("check", "rows break a constraint of the table (id < 9)"), ("append", "is append-only")):
        assert message in target.refused(nulls, table=Table(f"delta://{tmp_path}/{name}").to_dict())


@pytest.mark.parametrize(
    "fields",
    [{}, {"uri": "s3://lake/late"}, {"conn_id": "warehouse"}, {"uri": "delta:///late", "name": "late"}, {"table": "x"}],
)
def test_tables_need_one_address(fields: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=r"expected a (uri iceberg://|Table, a URI)"):
        Table.from_value(fields)

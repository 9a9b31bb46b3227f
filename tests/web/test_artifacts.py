"""Artifacts through the API: of a run, one of them, what is not there any more, and rows of one to be placed."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_hops.core.contract.artifacts import MANIFEST_NAME, Producer, RowCounts
from airflow_hops.core.contract.profiles import BASE, CURRENT, profile_of
from web.conftest import Api

pytestmark = pytest.mark.runtime


def test_a_run_lists_its_artifacts_in_the_pipelines_order(api: Api) -> None:
    path = f"/api/dags/pages/runs/{quote(api.pages.run_id, safe='')}/artifacts"
    result = api.get(path, "viewer").json()
    assert [(entry["task_id"], entry["kind"], entry["state"]) for entry in result] == [
        ("examples", "examples", "present"),
        ("statistics", "statistics", "present"),
        ("schema", "schema", "present"),
        ("validate", "anomalies", "present"),
    ]
    examples = result[0]
    assert examples["rows"]["train"] == {"rows_in": 800, "rows_out": 800, "rejected": {}}
    # Neither a table and its splits, nor a row of a split, is counted twice.
    assert [entry["total_rows"] and entry["total_rows"]["rows_out"] for entry in result] == [1000, 1000, None, 1000]
    assert examples["created_at"].endswith("Z")


def test_runs_are_listed_by_artifact_kind(api: Api) -> None:
    page = api.get("/api/dags/pages/runs?with=statistics").json()
    assert page["total_entries"] == 1
    assert [artifact["kind"] for artifact in page["entries"][0]["artifacts"]] == ["statistics"]
    assert api.get("/api/dags/pages/runs?with=model").json() == {"total_entries": 0, "entries": [], "problems": []}
    assert len(api.get("/api/dags/pages/runs").json()["entries"][0]["artifacts"]) == 4
    assert api.get("/api/dags/pages/runs?with=a%25").status_code == 422


def test_artifact_lists_its_inputs(api: Api) -> None:
    detail = api.get(api.artifact_path("statistics", "statistics")).json()
    (examples,) = detail["inputs"]["examples"]
    assert (examples["state"], examples["address"]["task_id"]) == ("present", "examples")
    assert {file["path"] for file in detail["files"]} >= {"train/FeatureStats.pb", "eval/statistics.json"}


def test_foreign_artifact_is_hidden_without_the_right(api: Api) -> None:
    store = api.store
    other = store.address(Producer("pages_other", api.other.run_id, "examples"), "examples")
    mine = Producer("pages", api.pages.run_id, "validate")
    uri = store.address(mine, "made_here")
    with store.create(uri, "made_here", mine, inputs={"rows": (store.manifest(other).reference(other),)}) as writer:
        writer.commit(metrics={"none": float("nan")})
    path = api.artifact_path("validate", "made_here")
    detail = api.get(path, "only:pages").json()
    assert detail["metrics"] == {"none": None}
    assert detail["inputs"]["rows"] == [{"kind": "examples", "state": "hidden", "fingerprint": None, "address": None}]
    (shown,) = api.get(path, "only:pages,pages_other").json()["inputs"]["rows"]
    assert shown["address"]["dag_id"] == "pages_other"


def test_foreign_artifact_requires_the_right_to_its_dag(api: Api) -> None:
    from airflow.models.xcom import XComModel

    uri = api.store.address(Producer("pages_other", api.other.run_id, "examples"), "examples")
    value = api.store.manifest(uri).reference(uri).to_dict()
    XComModel.set(key="borrowed", value=value, task_id="validate", dag_id="pages", run_id=api.pages.run_id)
    path = api.artifact_path("validate", "examples")
    assert api.get(path, "only:pages").status_code == 403
    assert api.get(path, "only:pages,pages_other").json()["maker"]["dag_id"] == "pages_other"


@pytest.mark.parametrize(
    ("path", "status", "says"),
    [
        ("/api/dags/no_such/runs", 404, "DAG 'no_such' does not exist"),
        ("/api/dags/~/runs", 404, "DAG '~' does not exist"),
        ("/api/dags/pages/runs/no_such/artifacts", 404, "DAG 'pages' has no run 'no_such'"),
        ("/api/dags/pages/runs/{run}/artifacts/no_such/-1/examples", 404, "no task instance 'no_such'"),
        ("/api/dags/pages/runs/{run}/artifacts/examples/0/examples", 404, "no task instance 'examples@0'"),
        ("/api/dags/pages/runs/{run}/artifacts/examples/-2/examples", 422, "instance"),
        ("/api/dags/pages/runs/{run}/artifacts/examples/-1/model", 404, "has not made an artifact of kind 'model'"),
        ("/api/dags/pages/runs/{run}/artifacts/examples/-1/Model", 422, "kind"),
        ("/api/dags/pages/runs/{other}/artifacts/examples/-1/examples", 404, "has no run"),
    ],
)
def test_missing_artifact_is_named(api: Api, path: str, status: int, says: str) -> None:
    runs = {"run": quote(api.pages.run_id, safe=""), "other": quote(api.other.run_id, safe="")}
    answer = api.get(path.format(**runs))
    assert answer.status_code == status
    assert says in answer.text


def test_deleted_and_replaced_artifacts_are_410(api: Api, folder_of: Any) -> None:
    folder: Path = folder_of("validate", "anomalies")
    path = api.artifact_path("validate", "anomalies")
    away = folder.with_name("away")
    folder.rename(away)
    try:
        gone = api.get(path)
        assert (gone.status_code, "was deleted" in gone.json()["detail"]) == (410, True)
        listed = api.get(path.rpartition("/artifacts")[0] + "/artifacts").json()
        assert [entry["state"] for entry in listed if entry["kind"] == "anomalies"] == ["deleted"]
    finally:
        away.rename(folder)
    manifest = (folder / "manifest.json").read_text()
    changed = json.loads(manifest)
    changed["files"][0]["sha256"] = "0" * 64
    (folder / "manifest.json").write_text(json.dumps(changed))
    try:
        assert "was replaced" in api.get(path).json()["detail"]
    finally:
        (folder / "manifest.json").write_text(manifest)
    assert api.get(path).status_code == 200


def test_unreadable_store_is_named_as_the_cause(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"key": "a", "secret": "b", "endpoint_url": "http://127.0.0.1:9"}
    options["config_kwargs"] = {"retries": {"max_attempts": 0}}
    elsewhere = {"conn_type": "hops", "extra": {"store": "s3://no-such/hops", "storage_options": options}}
    monkeypatch.setenv("AIRFLOW_CONN_HOPS_DEFAULT", json.dumps(elsewhere))
    answer = api.get(api.artifact_path())
    assert answer.status_code == 502
    assert "s3://no-such/hops" in answer.json()["detail"]


def _columns(body: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    (length,) = struct.unpack("<I", body[:4])
    header = json.loads(body[4 : 4 + length])
    data = body[4 + length :]
    assert (4 + length) % 8 == 0
    columns = {}
    for column in header["columns"]:
        assert column["offset"] % 8 == 0
        values = np.frombuffer(data, np.dtype(column["type"]).newbyteorder("<"), header["rows"], column["offset"])
        columns[column["name"]] = column, values
    return header, columns


def _values(body: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    header, columns = _columns(body)
    return header, {name: values for name, (_, values) in columns.items()}


def test_all_rows_are_sent_as_they_are(api: Api, folder_of: Any) -> None:
    header, columns = _columns(api.get(api.artifact_path() + "/rows?split=train").content)
    table = pq.read_table(folder_of("examples", "examples") / "train" / "part-00000.parquet")
    assert (header["rows"], header["total_rows"]) == (800, 800)
    assert list(header["left_out"]) == ["vector"]
    np.testing.assert_array_equal(columns["size"][1], np.float32(table["size"]))  # digits enough to place them
    assert columns["label"][0]["type"] == "int8"
    assert columns["large"][1].tolist() == table["large"].to_pylist()
    described, maybe = columns["maybe"]
    assert described["nulls"] == np.isnan(maybe).sum() == table["maybe"].null_count > 100
    described, words = columns["word"]
    assert [described["values"][code] for code in words] == table["word"].to_pylist()
    assert described["values"][0] == "a"
    assert "<img src=x onerror=alert(1)>" in columns


def test_a_split_without_rows_has_columns(api: Api) -> None:
    producer = Producer("pages", api.pages.run_id, "validate")
    with api.store.create(api.store.address(producer, "empty"), "empty", producer) as writer:
        (writer.path / "train").mkdir()
        schema = pa.schema([("size", pa.float64()), ("word", pa.string())])
        pq.ParquetWriter(writer.path / "train" / "part-00000.parquet", schema).close()  # as Spark writes one
        writer.commit()
    path = api.artifact_path("validate", "empty")
    assert api.get(f"{path}/splits").json()["train"]["rows"] == 0
    answer = api.get(f"{path}/rows?split=train")
    assert answer.status_code == 200, answer.text
    header, columns = _columns(answer.content)
    assert (header["rows"], list(columns)) == (0, ["size", "word"])


def test_a_sample_is_repeatable_and_of_the_requested_columns(api: Api, folder_of: Any) -> None:
    path = api.artifact_path() + "/rows?split=train&rows=50&column=id&column=size"
    first = api.get(path).content
    assert api.get(path).content == first
    header, columns = _columns(first)
    assert list(columns) == ["id", "size"]
    ids = [columns["id"][0]["values"][code] for code in columns["id"][1]]
    assert len(set(ids)) == header["rows"] == 50
    table = pq.read_table(folder_of("examples", "examples") / "train" / "part-00000.parquet")
    sizes = dict(zip(table["id"].to_pylist(), table["size"].to_pylist(), strict=True))
    np.testing.assert_array_equal(columns["size"][1], np.float32([sizes[name] for name in ids]))


def test_statistics_show_their_sample_of_the_rows(api: Api) -> None:
    producer = Producer("pages", api.pages.run_id, "validate")
    with api.store.create(api.store.address(producer, "statistics"), "statistics", producer) as writer:
        (writer.path / "train").mkdir()
        pq.write_table(pa.table({"size": [1.5, 2.5]}), writer.path / "train" / "sample.parquet")
        writer.commit(rows={"train": RowCounts(9, 7, {"not sampled": 2})})
    path = api.artifact_path("validate", "statistics")
    assert api.get(f"{path}/splits").json()["train"]["rows"] == 2
    header, columns = _values(api.get(f"{path}/rows?split=train").content)
    assert (header["rows"], header["total_rows"]) == (2, 7)
    assert columns["size"].tolist() == [1.5, 2.5]


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("split=../eval", "split is '../eval', expected one of eval, train"),
        ("split=train&column=no", "column 'no' is not in split 'train'; it has id, label"),
        ("split=train&rows=0", "greater_than_equal"),
    ],
)
def test_missing_rows_are_named(api: Api, query: str, says: str) -> None:
    answer = api.get(f"{api.artifact_path()}/rows?{query}")
    assert answer.status_code == 422
    assert says in answer.text


def test_failure_names_the_newer_profile_of_the_workers(api: Api, folder_of: Any, runtime: Path) -> None:
    """Holds under an API server of the profile ``base``; that of ``current`` is the newest."""
    file = folder_of("examples", "examples") / MANIFEST_NAME
    manifest = file.read_text()
    file.write_text(json.dumps({**json.loads(manifest), "profile": CURRENT.name}))
    try:
        answer = api.get(f"{api.artifact_path()}/rows?split=train&column=no")
    finally:
        file.write_text(manifest)
    named = "was written under the profile 'current', and the runtime environment here is of 'base'"
    assert answer.status_code == 422
    assert (named in answer.json()["detail"]) == (profile_of(runtime) is BASE)


def test_query_server_requires_the_token(api: Api) -> None:
    import httpx

    from airflow_hops.web import queries as inspection

    assert api.get(api.artifact_path("statistics", "statistics") + "/splits").status_code == 200
    (server,) = inspection._servers._servers.values()
    answer = httpx.post(f"{server.address}/examples/splits", json={}, headers={"Authorization": "Bearer guess"})
    assert answer.status_code == 401
    listening = {c.laddr.ip for c in psutil.Process(server.process.pid).net_connections() if c.status == "LISTEN"}
    assert listening == {"127.0.0.1"}


NUMERIC = [[1.0, 2.5], [3.0, None], [None, 7.0], [0.1, -4.0]]


@pytest.fixture(scope="module")
def placed(api: Api) -> str:
    """An artifact like those of a transform: vectors of fixed width, lists of any, bytes."""
    table = pa.table(
        {
            "numeric": pa.array(NUMERIC, pa.list_(pa.float32(), 2)),
            "ids": pa.array([[1], [], None, [2, 3]], pa.list_(pa.int64())),
            "image": pa.array([b"1", b"2", b"3", b"4"]),
            "wide": pa.array([[0] * 600] * 4, pa.list_(pa.int8(), 600)),
            "day": pa.array([0, 1, None, 3], pa.date32()),
            "late": pa.array([True, None, False, True]),
            "at": pa.array([1_500, None, 0, 2_999_999], pa.timestamp("us")),
        }
    )
    producer = Producer("pages", api.pages.run_id, "validate")
    with api.store.create(api.store.address(producer, "placed"), "placed", producer) as writer:
        (writer.path / "train").mkdir()
        pq.write_table(table, writer.path / "train" / "part-00000.parquet", row_group_size=3)
        writer.commit()
    return api.artifact_path("validate", "placed")


def test_split_lists_its_displayable_parts(api: Api, placed: str) -> None:
    train = api.get(f"{placed}/splits").json()["train"]
    assert train["rows"] == 4
    assert {column["name"]: column["role"] for column in train["columns"]} == {
        "numeric[0]": "number",
        "numeric[1]": "number",
        "ids": None,
        "image": None,
        "wide": None,
        "day": "time",
        "late": "boolean",
        "at": "time",
    }


def test_vector_elements_are_columns_with_missing_counts(api: Api, placed: str) -> None:
    header, columns = _values(api.get(f"{placed}/rows?split=train").content)
    assert set(header["left_out"]) == {"ids", "image", "wide"}
    np.testing.assert_array_equal(columns["numeric[0]"], np.float32([1, 3, np.nan, 0.1]))
    np.testing.assert_array_equal(columns["numeric[1]"], np.float32([2.5, np.nan, 7, -4]))
    np.testing.assert_array_equal(columns["day"], [0, 86_400_000, np.nan, 3 * 86_400_000])
    assert columns["late"].tolist() == [1, -1, 0, 1]
    np.testing.assert_array_equal(columns["at"], [1, np.nan, 0, 2_999])  # finer than a millisecond is cut off


def test_columns_are_paged_consistently(api: Api, placed: str) -> None:
    # The page asks for what the plot needs first: the rows must be the same in each answer.
    whole = _values(api.get(f"{placed}/rows?split=train&rows=2").content)[1]
    for name in ("numeric[1]", "day"):
        part = _values(api.get(f"{placed}/rows?split=train&rows=2&column={name}").content)[1]
        assert list(part) == [name]
        np.testing.assert_array_equal(part[name], whole[name])


def test_bulk_numbers_are_rounded_and_single_rows_exact(api: Api, placed: str) -> None:
    random = np.random.default_rng(3)
    exact = {
        "wide": random.normal(0, 1, 100),
        "narrow": 1e6 + random.normal(0, 1e-3, 100),  # as float32 they would all be the same
        "huge": np.linspace(-1e300, 1e300, 100),
        "missing": np.where(np.arange(100) % 2, np.nan, random.normal(0, 1, 100)),
    }
    producer = Producer("pages", api.pages.run_id, "validate")
    with api.store.create(api.store.address(producer, "rounded"), "rounded", producer) as writer:
        (writer.path / "train").mkdir()
        pq.write_table(pa.table(exact), writer.path / "train" / "part-00000.parquet", row_group_size=30)
        writer.commit()
    rows = f"{api.artifact_path('validate', 'rounded')}/rows?split=train"
    header, columns = _values(api.get(rows).content)
    types = {column["name"]: column["type"] for column in header["columns"]}
    assert types == {"wide": "float32", "narrow": "float64", "huge": "float64", "missing": "float32"}
    for name, values in exact.items():
        np.testing.assert_allclose(columns[name], values, rtol=0, atol=1e-5 * (np.nanmax(values) - np.nanmin(values)))
    drawn = _values(api.get(f"{rows}&rows=40&column=narrow").content)[1]["narrow"]
    for row in (0, 39):
        header, columns = _values(api.get(f"{rows}&rows=40&row={row}").content)
        (place,) = np.flatnonzero(exact["narrow"] == drawn[row])
        assert (header["rows"], header["total_rows"]) == (1, 100)
        assert all(np.array_equal(columns[name], values[[place]], equal_nan=True) for name, values in exact.items())
    answer = api.get(f"{rows}&rows=40&row=40")
    assert (answer.status_code, answer.json()["detail"]) == (422, "row is 40, expected 0 to 39, as 40 are sampled")


def test_column_name_of_a_whole_vector_is_refused(api: Api, placed: str) -> None:
    answer = api.get(f"{placed}/rows?split=train&column=numeric")
    assert (answer.status_code, "column 'numeric' is not in split 'train'" in answer.json()["detail"]) == (422, True)

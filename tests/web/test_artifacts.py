"""Artifacts through the API: of a run, one of them, what is not there any more, and rows of one to be placed."""

from __future__ import annotations

import json
import struct
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow.parquet as pq
import pytest
from world import World

from airflow_hops.core.artifacts.artifact import RowCounts
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


def test_artifact_lists_its_inputs(api: Api) -> None:
    detail = api.get(api.artifact_path("statistics", "statistics")).json()
    (examples,) = detail["inputs"]["examples"]
    assert (examples["state"], examples["address"]["task_id"]) == ("present", "examples")
    assert {file["path"] for file in detail["files"]} >= {"train/FeatureStats.pb", "eval/statistics.json"}


def test_foreign_artifact_is_hidden_without_the_right(api: Api) -> None:
    rows = api.reference("examples", "examples", api.other)
    api.write("made_here", inputs={"rows": rows}, metrics={"none": float("nan")})
    path = api.artifact_path("validate", "made_here")
    detail = api.get(path, "only:pages").json()
    assert detail["metrics"] == {"none": None}
    hidden = {"kind": "examples", "state": "hidden"}
    assert detail["inputs"]["rows"] == [{**hidden, "detail": None, "fingerprint": None, "address": None}]
    (shown,) = api.get(path, "only:pages,pages_other").json()["inputs"]["rows"]
    assert shown["address"]["dag_id"] == "pages_other"


def test_foreign_artifact_requires_the_right_to_its_dag(api: Api) -> None:
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session

    of_the_task = {"key": "borrowed", "task_id": "validate", "dag_id": "pages", "run_id": api.pages.run_id}
    XComModel.set(value=api.reference("examples", "examples", api.other).to_dict(), **of_the_task)
    path = api.artifact_path("validate", "examples")
    try:
        api.refused(path, 403, user="only:pages")
        assert api.get(path, "only:pages,pages_other").json()["maker"]["dag_id"] == "pages_other"
    finally:
        with create_session() as session:
            session.query(XComModel).filter_by(**of_the_task).delete()


def test_deleted_and_replaced_artifacts_are_410(api: Api) -> None:
    folder, path = api.folder("validate", "anomalies"), api.artifact_path("validate", "anomalies")
    with api.without(folder):
        api.refused(path, 410, "was deleted")
        listed = api.get(f"{api.run_path()}/artifacts").json()
        assert [entry["state"] for entry in listed if entry["kind"] == "anomalies"] == ["deleted"]
    manifest = (folder / "manifest.json").read_text()
    changed = json.loads(manifest)
    changed["files"][0]["sha256"] = "0" * 64
    (folder / "manifest.json").write_text(json.dumps(changed))
    try:
        api.refused(path, 410, "was replaced")
    finally:
        (folder / "manifest.json").write_text(manifest)
    assert api.get(path).status_code == 200


def test_unreadable_store_is_named_as_the_cause(api: Api, world: World) -> None:
    options: dict[str, Any] = {"key": "a", "secret": "b", "endpoint_url": "http://127.0.0.1:9"}
    options["config_kwargs"] = {"retries": {"max_attempts": 0}}
    world.connect(store="s3://no-such/hops", storage_options=options)
    api.refused(api.artifact_path(), 502, "s3://no-such/hops")


@pytest.fixture(scope="module")
def rows(api: Api) -> str:
    """The path of the sampled rows of a split."""
    return api.artifact_path("statistics", "statistics") + "/rows?split=train"


def _columns(body: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """Reads rows as the page does; categories become their words."""
    (length,) = struct.unpack("<I", body[:4])
    header, data = json.loads(body[4 : 4 + length]), body[4 + length :]
    assert (4 + length) % 8 == 0
    columns: dict[str, Any] = {}
    for column in header["columns"]:
        assert column["offset"] % 8 == 0
        values = np.frombuffer(data, np.dtype(column["type"]).newbyteorder("<"), header["rows"], column["offset"])
        columns[column["name"]] = values
        if words := column.get("words"):
            known = json.loads(data[words[0] : sum(words)])
            columns[column["name"]] = [known[code] if code >= 0 else None for code in values]
    return header, columns


def test_rows_are_the_statistics_sample(api: Api, rows: str) -> None:
    header, columns = _columns(api.get(rows).content)
    sample = pq.read_table(api.folder("statistics", "statistics") / "train" / "sample.parquet")
    assert (header["rows"], header["total_rows"]) == (800, 800)
    for name in ("label", "size", "large", "maybe"):
        np.testing.assert_array_equal(columns[name], sample[name].to_pandas())
    assert columns["word"] == sample["word"].to_pylist()
    assert [*columns["vector[1]"]] == [2.0] * 800
    assert "<img src=x onerror=alert(1)>" in columns
    (maybe,) = [each for each in header["columns"] if each["name"] == "maybe"]
    assert (maybe["role"], maybe["kind"], maybe["nulls"]) == ("number", "double", sample["maybe"].null_count)


def test_columns_and_single_rows_are_parts_of_the_same_sample(api: Api, rows: str) -> None:
    whole = _columns(api.get(rows).content)[1]
    header, part = _columns(api.get(f"{rows}&column=word&column=size").content)
    assert list(part) == ["word", "size"]
    assert part["word"] == whole["word"]
    np.testing.assert_array_equal(part["size"], whole["size"])
    for row in (0, 799):
        header, one = _columns(api.get(f"{rows}&row={row}").content)
        assert (header["rows"], header["total_rows"]) == (1, 800)
        assert all(one[name][0] == values[row] or np.isnan(values[row]) for name, values in whole.items())


def test_splits_list_their_columns(api: Api) -> None:
    splits = api.get(api.artifact_path("statistics", "statistics") + "/splits").json()
    assert {name: split["rows"] for name, split in splits.items()} == {"train": 800, "eval": 200}
    roles = {column["name"]: column["role"] for column in splits["train"]["columns"]}
    assert (roles["size"], roles["word"], roles["vector[0]"]) == ("number", "category", "number")
    assert api.get(api.artifact_path() + "/splits").json() == {}


def test_statistics_of_an_older_version_name_the_task_to_clear(api: Api) -> None:
    rows = {"train": RowCounts(9, 7, {"not sampled": 2})}
    api.write("statistics", {"train/FeatureStats.pb": ""}, rows=rows)
    path = api.artifact_path("validate", "statistics")
    (known,) = api.get(f"{path}/statistics").json()["datasets"]
    assert (known["name"], known["rows"]) == ("train", 7)
    for part in ("/splits", "/statistics/features?dataset=train", "/statistics/feature?dataset=train&feature=a"):
        api.refused(path + part, 409, "clear task 'validate' of run")

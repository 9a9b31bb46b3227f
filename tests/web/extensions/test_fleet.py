"""The segments of a fleet through the API: those that matter first, and one segment's story."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from airflow_hops.core.models.model_record import record_uri
from airflow_hops.extensions.fleet.core.options import FleetSkewProperties
from airflow_hops.extensions.fleet.core.summary import SegmentTable
from tests.extensions.fleet.hostile_keys import hostile_keys
from web.conftest import Api

pytestmark = pytest.mark.runtime

DAG, DAGS = "pages_fleet", "tests/extensions/fleet/dags"
PATH = f"/api/dags/{DAG}/models/shops/fleet"
KEYS = ["A1", "B/2", "a1", "new", "Ö & <b>"]
FIRST = SegmentTable(
    "shop",
    "squared error",
    segment=KEYS[:3],
    state=["own", "pooled", "continued"],
    reason=["better", "too few rows", "better"],
    rows=[1000, 20, 500],
    loss=[1.0, 9.0, 3.0],
    pooled_loss=[2.0, 9.0, 4.0],
    digest=["f1", None, "f3"],
)
SECOND = SegmentTable(
    "shop",
    "squared error",
    segment=KEYS,
    state=["own", "own", "continued", "pooled", "pooled"],
    reason=["better", "better now", "better", "too few rows", "failed: ValueError: x"],
    rows=[1000, 400, 500, 1, 2],
    loss=[1.5, 2.0, 3.0, 7.0, None],
    pooled_loss=[2.0, 9.0, 4.0, 7.0, None],
    digest=["f1", "f2", "f3", None, None],
)
DRIFT = {"group": "", "segments": ["B/2"], "columns": ["price"], "words": "'B/2': price moved", "q_value": 0.01}
GROUP = {
    "group": "region=North",
    "segments": ["A1", "B/2"],
    "columns": ["stock"],
    "words": "North moved",
    "q_value": 0.02,
}


@dataclass
class Served:
    run: Any
    folders: list[Path]


@pytest.fixture(scope="module")
def served(api: Api, run_dag: Any) -> Iterator[Served]:
    """Version 1, a drift, and version 2, which was tried as a canary and promoted."""
    report = {"segments": 3, "tests": 9, "rate": 0.05, "findings": [DRIFT, GROUP]}
    properties = FleetSkewProperties("shops", 1, "drift", ("A1", "B/2"), ("region=North: stock",), 9).to_dict()
    other = {**properties, "model_name": "others", "segments": ["a1"]}
    run_dag(DAG, {"content": report, "properties": other}, DAGS)
    run = run_dag(DAG, {"content": report, "properties": properties}, DAGS)
    models = [
        api.write(
            "model",
            {"summary.json": json.dumps(table.to_dict()), "statistics/000.json": "{}"},
            task_id=f"train{number}",
            run=run,
        )
        for number, table in enumerate((FIRST, SECOND), 1)
    ]
    plain = api.write("model", {"model.txt": ""}, task_id="train0", run=run)

    def event(day: int, event: str, version: int, model: Any = None, why: str = "") -> dict[str, Any]:
        facts = {} if model is None else {"model": model.uri, "fingerprint": model.fingerprint}
        return {"at": f"2026-11-{day:02}T00:00:00+00:00", "event": event, "version": version, "why": why, **facts}

    history = [
        event(1, "deployed", 7, plain),
        event(2, "deployed", 8, models[0]),
        event(3, "canary", 9, models[1]),
        event(4, "promoted", 9, models[1], "no worse"),
    ]
    api.store.write_text(record_uri(api.store, "shops"), json.dumps({"history": history}))
    yield Served(run, [Path(model.uri.removeprefix("file://")) for model in models])
    api.store.remove_text(record_uri(api.store, "shops"))


def test_segments_that_matter_come_first(api: Api, served: Served) -> None:
    page = api.get(PATH, "viewer").json()
    assert (page["segment"], page["loss"], page["version"], page["drifted"]) == ("shop", "squared error", 9, 2)
    assert [(each["version"], each["states"]) for each in page["versions"]] == [
        (8, {"own": 1, "pooled": 1, "continued": 1}),
        (9, {"own": 2, "continued": 1, "pooled": 2}),
    ]
    # By rows x loss: 1500, then 1500 by name, 800, 7, and none
    assert [each["segment"] for each in page["entries"]] == ["A1", "a1", "B/2", "new", "Ö & <b>"]
    assert page["entries"][2] == {
        "segment": "B/2",
        "state": "own",
        "reason": "better now",
        "rows": 400,
        "loss": 2.0,
        "pooled_loss": 9.0,
        "losses": [9.0, 2.0],
        "drifted": True,
        "failed": False,
    }
    assert page["failed"] == 1
    assert page["entries"][3]["losses"] == [None, 7.0]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"search": "A1"}, ["A1", "a1"]),
        ({"search": "ö & <"}, ["Ö & <b>"]),
        ({"state": ["pooled", "continued"]}, ["a1", "new", "Ö & <b>"]),
        ({"only_drifted": True}, ["A1", "B/2"]),
        ({"only_failed": True}, ["Ö & <b>"]),
        ({"only_failed": True, "version": 8}, []),
        ({"version": 8}, ["a1", "A1", "B/2"]),
        ({"version": 8, "search": "new"}, []),
        ({"limit": 2, "offset": 1}, ["a1", "B/2"]),
    ],
)
def test_segments_are_searched_and_filtered(api: Api, served: Served, query: Any, expected: list[str]) -> None:
    page = api.get(PATH, params=query).json()
    assert [each["segment"] for each in page["entries"]] == expected
    assert page["total_entries"] == (5 if "limit" in query else len(expected))


def test_story_goes_from_drift_to_promotion(api: Api, served: Served) -> None:
    story = api.get(f"{PATH}/segment", params={"key": "B/2"}).json()
    assert [(each["version"], each["state"], each["is_new_model"]) for each in story["versions"]] == [
        (8, "pooled", True),
        (9, "own", True),
    ]
    assert [(each["words"], each["group"], each["run_id"]) for each in story["drifts"]] == [
        ("'B/2': price moved", "", served.run.run_id),
        ("North moved", "region=North", served.run.run_id),
    ]
    assert [(each["event"], each["version"], each["why"]) for each in story["decisions"]] == [
        ("deployed", 8, ""),
        ("canary", 9, ""),
        ("promoted", 9, "no worse"),
    ]
    unchanged = api.get(f"{PATH}/segment", params={"key": "a1"}).json()
    assert [each["is_new_model"] for each in unchanged["versions"]] == [True, False]
    assert [each["event"] for each in unchanged["decisions"]] == ["deployed"]
    assert unchanged["drifts"] == []  # the comparison that names it is of another model


def test_any_key_is_found_and_has_a_story(api: Api, served: Served) -> None:
    keys = sorted(hostile_keys(80), key=str.encode)
    count = len(keys)
    lists = {"loss": [1.0] * count, "pooled_loss": [2.0] * count, "digest": ["f"] * count}
    table = SegmentTable("shop", "log loss", keys, ["own"] * count, ["better"] * count, [9] * count, **lists)
    with replaced(served.folders[1] / "summary.json", json.dumps(table.to_dict())):
        page = api.get(PATH, params={"limit": 100}).json()
        assert [each["segment"] for each in page["entries"]] == keys
        for key in keys:
            matching = api.get(PATH, params={"search": key[:200], "limit": 100}).json()["entries"]
            assert key in [each["segment"] for each in matching]
            story = api.get(f"{PATH}/segment", params={"key": key}).json()
            assert (story["segment"], story["versions"][-1]["state"]) == (key, "own")


def test_unknown_model_version_or_segment_is_named(api: Api, served: Served) -> None:
    for path, query, says in (
        (PATH, {"version": 7}, "version 7 of model 'shops' is not among 8, 9"),
        (f"{PATH}/segment", {"key": "B"}, "no version of model 'shops' has the segment 'B'"),
    ):
        answer = api.get(path, params=query)
        assert (answer.status_code, answer.json()["detail"]) == (404, says)


def test_models_without_segments_have_no_page(api: Api) -> None:
    page = api.get("/api/dags/pages_training/models/pages_model/fleet").json()
    assert (page["segment"], page["versions"], page["entries"]) == (None, [], [])
    assert api.get("/api/dags/pages_training/models/pages_model/fleet/applies").json() is False
    assert api.get(f"{PATH}/applies").json() is True


def test_versions_of_an_unreadable_dag_are_hidden(api: Api, served: Served) -> None:
    assert api.get(PATH, f"only:{DAG}").json()["version"] == 9
    for user in ("only:pages", "nobody"):
        assert api.get(PATH, user).status_code == 403


DAMAGED = ("{", "[]", "{}", *(json.dumps({**FIRST.to_dict(), "rows": rows}) for rows in (3, [1], [1, "2", 3])))


@contextlib.contextmanager
def replaced(file: Path, content: str) -> Iterator[None]:
    text = file.read_text()
    file.write_text(content)
    try:
        yield
    finally:
        file.write_text(text)


@pytest.mark.parametrize("content", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_summary_is_named(api: Api, served: Served, content: str) -> None:
    with replaced(served.folders[1] / "summary.json", content):
        for path, query in ((PATH, {}), (f"{PATH}/segment", {"key": "A1"})):
            answer = api.get(path, params=query)
            assert (answer.status_code, "summary.json" in answer.json()["detail"]) == (502, True), answer.text


def test_a_deleted_version_is_left_out(api: Api, served: Served) -> None:
    manifest = served.folders[1] / "manifest.json"
    manifest.rename(hidden := manifest.with_name("kept"))
    try:
        assert api.get(PATH).json()["version"] == 8
    finally:
        hidden.rename(manifest)


def test_statistics_of_a_segment_are_those_of_its_version(api: Api, served: Served) -> None:
    numbers = {
        "edges": [1.5, 2.0],
        "counts": [3, 4, 5],
        "missing": 1,
        "mean": 2.1,
        "deviation": 0.5,
        "least": 1.0,
        "greatest": 9.0,
    }
    texts = {"values": ["Mon"], "counts": [7, 2], "missing": 4}
    known = {"B/2": {"groups": {"region": "North"}, "statistics": {"price": numbers, "day": texts}}}
    with replaced(served.folders[1] / "statistics" / "000.json", json.dumps(known)):
        answer = api.get(f"{PATH}/statistics", params={"key": "B/2"}).json()
        assert (answer["version"], answer["groups"]) == (9, {"region": "North"})
        assert {name: answer["statistics"]["price"][name] for name in numbers} == numbers
        assert {name: answer["statistics"]["day"][name] for name in texts} == texts
        assert answer["statistics"]["day"]["mean"] is None
        for query, says in (
            ({"key": "A1"}, "version 9 of model 'shops' has no statistics of the segment 'A1'"),
            ({"key": "gone"}, "has no statistics of the segment 'gone'"),
            ({"key": "B/2", "version": 7}, "version 7 of model 'shops' is not among 8, 9"),
        ):
            answer = api.get(f"{PATH}/statistics", params=query)
            assert (answer.status_code, says in answer.json()["detail"]) == (404, True), answer.text

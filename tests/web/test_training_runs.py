"""Training runs through the API: a list in any order, one of them, its curves, and whose they are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_hops.core.artifacts.artifact import Artifact, Producer, cache_key
from airflow_hops.core.steps.run_record import TRAIN_ENTRY, RunRecord, UserCode, write_record
from airflow_hops.core.training.record import (
    MetricFigures,
    MetricPoint,
    RankTimes,
    RunModelVersion,
    SlowestRank,
    StoredCurve,
    TrainingCurves,
    TrainingRecord,
    TrainingTry,
    training_id,
    training_uri,
    write_training,
)
from airflow_hops.runner.runtime import RuntimeHook
from web.conftest import Api

pytestmark = pytest.mark.runtime
RUNS = "/api/dags/pages_training/training-runs"
HOSTILE = "<img src=x onerror=alert(1)>"
RANKS = (RankTimes("a", 60, 2.0, 0.1, 7.1), RankTimes("b", 40, 2.0, 7.0, 0.2))
SLOWEST = SlowestRank(2, 1, 2.0, 7.0, 0.2, "rows", 3.4, RANKS)


def write(store: Any, number: int, dag_id: str = "pages_training", **fields: Any) -> TrainingRecord:
    """Writes the record of a training with two epochs."""
    auc, start = (60 + number) / 100, 1_700_000_000_000 + number * 1000
    record = TrainingRecord(
        run_id=training_id(Producer(dag_id, f"run-{number}", "train"), {}, {}),
        name=f"run-{number} train",
        start_time=start,
        dag_run_id=f"run-{number}",
        task_id="train",
        tries=(TrainingTry(1, start, start + 500),),
        **{
            "status": "FINISHED",
            "end_time": start + 5000 - number * 10,
            "params": {"units": str(2**number), "note": HOSTILE},
            "tags": {"hops.dag_id": dag_id},
            "figures": {
                "auc": MetricFigures(MetricPoint(auc, 2), MetricPoint(0.5, 1), MetricPoint(auc, 2), 2),
                "loss": MetricFigures(MetricPoint(0.4, 2), MetricPoint(0.4, 2), MetricPoint(1.0, 1), 2),
            },
            **fields,
        },
    )
    curves = {"auc": [0.5, auc], "loss": [1.0, 0.4]}
    times = [start, start + 1]
    content = TrainingCurves({name: StoredCurve([1, 2], values, times) for name, values in curves.items()})
    write_training(store, dag_id, record, content)
    return record


@pytest.fixture(scope="module")
def runs(api: Api) -> list[dict[str, Any]]:
    """Twelve trainings of ``pages_training`` by number, with markup in a parameter; two are in MLflow."""
    store = RuntimeHook().store
    for number in range(12):
        fields: dict[str, Any] = {}
        if number in (2, 9):
            fields["mlflow"] = {"experiment": f"{number}", "run": f"r{number}"}
        if number == 0:
            fields["versions"] = (RunModelVersion("pages_model", 7),)
        elif number == 5:
            fields["slowest"] = (SlowestRank(1, 0, 2.0, 0.1, 0.2, "computing", 1.1), SLOWEST)
        write(store, number, **fields)
    result = api.get(f"{RUNS}?limit=50").json()["entries"]
    return sorted(result, key=lambda run: int(run["dag_run_id"].removeprefix("run-")))


def test_runs_are_ordered_by_any_column_and_found_by_id(api: Api, runs: Any) -> None:
    page = api.get(RUNS, params={"sort": "-metrics.auc", "limit": 4}).json()
    assert [run["metrics"]["auc"] for run in page["entries"]] == [0.71, 0.7, 0.69, 0.68]
    rest = api.get(RUNS, params={"sort": "-metrics.auc", "offset": 10}).json()
    assert ([run["metrics"]["auc"] for run in rest["entries"]], rest["total_entries"]) == ([0.61, 0.6], 12)
    by_name = [run["run_id"] for run in api.get(RUNS, params={"sort": "run_name"}).json()["entries"]]
    assert by_name == [run["run_id"] for run in runs]  # run-2 before run-10
    some = api.get(RUNS, params={"run_id": [*by_name[3:5], "f" * 32]}).json()
    assert ([run["run_id"] for run in some["entries"]], some["total_entries"]) == ([by_name[4], by_name[3]], 2)
    run = runs[3]
    assert (run["task_id"], run["dag_run_state"], run["map_index"], run["versions"]) == ("train", None, -1, [])
    assert runs[0]["versions"] == [{"name": "pages_model", "version": 7}]


def test_parameters_are_ordered_as_numbers_and_durations_too(api: Api, runs: Any) -> None:
    first = api.get(RUNS, params={"sort": "params.units", "limit": 5}).json()
    units = [run["params"]["units"] for run in first["entries"]]
    assert units == ["1", "2", "4", "8", "16"]
    then = api.get(RUNS, params={"sort": "params.units", "offset": 5}).json()["entries"]
    assert [run["params"]["units"] for run in then] == ["32", "64", "128", "256", "512", "1024", "2048"]
    longest = api.get(RUNS, params={"sort": "-duration"}).json()["entries"]
    lasted = [run["end_time"] - run["start_time"] for run in longest]
    assert lasted == sorted(lasted, reverse=True)


def test_one_run_has_its_best_values_and_its_curves(api: Api, runs: Any) -> None:
    path = f"{RUNS}/{runs[5]['run_id']}"
    run = api.get(path).json()
    assert run["figures"]["loss"] == {
        "last": {"value": 0.4, "step": 2},
        "min": {"value": 0.4, "step": 2},
        "max": {"value": 1.0, "step": 1},
        "count": 2,
    }
    assert run["params"]["note"] == HOSTILE
    assert [(each["rank"], each["waits_for"]) for each in run["slowest"]] == [(0, "computing"), (1, "rows")]
    assert [each["ranks"] for each in run["slowest"]] == [[], [rank.to_dict() for rank in RANKS]]
    (curve,) = api.get(f"{path}/curves?metric=auc").json()
    assert (curve["steps"], curve["values"]) == ([1, 2], [0.5, 0.65])


def test_runs_lead_to_mlflow(api: Api, runs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    database = RuntimeHook().settings.tracking_uri
    for uri, server in (
        (database, None),
        ("https://user:secret@mlflow.example/base/", "https://mlflow.example/base/#/experiments"),
        ("postgresql://user:secret@db/mlflow", None),
        ("databricks", None),
        ("/srv/ml runs", None),
    ):
        settings = replace(RuntimeHook().settings, tracking_uri=uri)
        monkeypatch.setattr(RuntimeHook, "settings", settings)
        page = api.get(RUNS, params={"limit": 1}).json()
        commands = {database: database, "/srv/ml runs": "'/srv/ml runs'"}
        command = f"mlflow ui --backend-store-uri {commands[uri]}" if uri in commands else None
        assert (page["mlflow_url"], page["mlflow_command"]) == (server and f"{server}/9", command)
        one = api.get(f"{RUNS}/{runs[2]['run_id']}").json()
        assert (one["mlflow_url"], one["mlflow_run_id"]) == (server and f"{server}/2/runs/r2", "r2")
        assert api.get(f"{RUNS}/{runs[3]['run_id']}").json()["mlflow_url"] is None


def test_killed_training_and_damaged_record_are_shown(api: Api, runs: Any) -> None:
    store = RuntimeHook().store
    killed = write(store, 20, "pages_other", status="RUNNING", end_time=None)
    lives = write(store, 21, "pages_other", status="RUNNING", end_time=None)
    path = "/api/dags/pages_other/training-runs"
    damaged = training_uri(store, "pages_other", "f" * 32)
    store.write_text(damaged, '{"run_id": ')
    try:
        page = api.get(path).json()
        states = {run["run_id"]: run["status"] for run in page["entries"]}
        assert states == {killed.run_id: "KILLED", lives.run_id: "KILLED"}
        assert len(page["problems"]) == 1 and damaged in page["problems"][0]
        assert api.get(f"{path}/{'f' * 32}").status_code == 502
    finally:
        store.remove_folder(store.internal("_trainings", "pages_other"))
    assert api.get(path).json()["entries"] == []


def test_run_of_another_dag_is_not_found(api: Api, runs: Any) -> None:
    run_id = runs[0]["run_id"]
    for path in ("", "/curves", "/provenance"):
        answer = api.get(f"/api/dags/pages_other/training-runs/{run_id}{path}", "only:pages_other")
        assert (answer.status_code, HOSTILE in answer.text) == (404, False)
    others = api.get("/api/dags/pages_other/training-runs", params={"run_id": run_id}).json()
    assert others["entries"] == []


def test_code_and_libraries_of_runs_without_a_record_are_not_known(api: Api, runs: Any) -> None:
    one, other = (runs[number]["run_id"] for number in (3, 4))
    result = api.get(f"{RUNS}/{one}/code-differences/{other}").json()
    assert (result["files"], result["lacking"]) == ([], [one, other])
    provenance = api.get(f"{RUNS}/{one}/provenance").json()
    assert (provenance["packages"], provenance["data"]) == (None, [])
    assert api.get(f"{RUNS.replace('pages_training', 'pages_other')}/{one}/provenance").status_code in (404, 410)


def test_two_runs_are_compared_by_their_records(api: Api, runs: Any) -> None:
    store = RuntimeHook().store
    examples = Artifact(f"{store.root}/elsewhere/run/examples", "examples", "e" * 64)
    model, data, key_file = "0/shop/model.py", "0/shop/data.bin", "0/shop/key.json"
    retained: list[dict[str, bytes]] = [
        {model: b"import keras\n", data: b"\0\1", key_file: b'{"key": "hidden"}', "0/shop/gone.py": b"<b>x</b>\n"},
        {model: b"import keras\n", data: b"\0\2", key_file: b"{}", "0/shop/long.py": b"x = 1\n" * 6000},
    ]
    for number, files in enumerate(retained, start=7):
        code = UserCode(f"{number}" * 64, files)
        shipped = {"source": f"def model():\n    return {number}\n", "function": "model"}
        record = RunRecord(
            dag_id="pages_training", step="train", entry=TRAIN_ENTRY, params={"training": {"shipped": shipped}},
            inputs={"examples": [examples.to_dict()]}, parts={}, package_version="0.1.0", python="3.11.7",
            packages={"numpy": f"1.26.{number}"}, started="2013-01-01T00:00:00+00:00",
            code=code.fingerprint, code_paths=1,
        )  # fmt: skip
        key = cache_key({"number": str(number)})
        write_record(store, key, record, code)
        write(store, number, record=key)
    one, other = (runs[number]["run_id"] for number in (7, 8))
    provenance = api.get(f"{RUNS}/{one}/provenance").json()
    assert (provenance["python"], provenance["packages"]) == ("3.11.7", {"numpy": "1.26.7"})
    (origin,) = provenance["data"]
    assert (origin["role"], origin["fingerprint"], origin["made_by"]) == ("examples", "e" * 64, None)
    result = api.get(f"{RUNS}/{one}/code-differences/{other}").json()
    assert (result["same"], result["whole"], result["lacking"]) == (1, True, [])
    assert [(each["path"], each["change"], each["diff"], each["why"]) for each in result["files"]] == [
        ("<model>.py", "changed", "@@ -1,2 +1,2 @@\n def model():\n-    return 7\n+    return 8", None),
        ("shop/data.bin", "changed", None, "only .py and .ipynb files are shown"),
        ("shop/gone.py", "removed", "@@ -1 +0,0 @@\n-<b>x</b>", None),
        ("shop/key.json", "changed", None, "only .py and .ipynb files are shown"),
        ("shop/long.py", "added", None, "it has more than 2,000 lines"),
    ]

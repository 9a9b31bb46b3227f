"""The demo, run as a user runs it: a real Airflow, a real model server, real data."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from prometheus_process import missing_panels
from rich.console import Console
from shown_demo import REPOSITORY, demo_environment, processes_below
from waiting import wait_for

from airflow_hops.core.schema.history import schema_history
from airflow_hops.core.store import ArtifactStore
from demo.airflow_api import AirflowApi
from demo.follow import RunFailed, follow
from demo.showing import forget_serving

pytestmark = [pytest.mark.runtime, pytest.mark.airflow, pytest.mark.server]

of_the_shown, of_others = pytest.mark.xdist_group("demo"), pytest.mark.xdist_group("demo ends")


def artifacts(home: Path, task_id: str) -> list[dict]:
    """Manifests of the demo's runs, in the order of their times; the pages' tests may have added a season of weeks."""
    manifests = sorted(home.glob(f"store/flights_*/*/{task_id}/*/manifest.json"), key=lambda path: path.stat().st_mtime)
    return [json.loads(path.read_text()) for path in manifests if "week-" not in str(path)]


@of_the_shown
def test_demo_succeeds_with_summary_link_and_tables(shown_demo):
    assert shown_demo.code is None, shown_demo.printed[-5000:]
    *_, served, refused, drift, promoted, figures, _, link = shown_demo.printed.splitlines()
    assert [line.partition(":")[0] for line in (served, refused, drift, promoted)] == [
        "Served", "Refused", "Drift", "Promoted",
    ]  # fmt: skip
    assert "/plugin/hops/overview?dag=flights_training" in link
    tables = Path(figures.rpartition(" ")[2]).read_text()
    for title in ("Rows and seconds of each stage", "Anomalies", "Training-serving skew", "Evaluation", "What serves"):
        assert title in tables
        assert title not in shown_demo.printed


@of_the_shown
def test_the_demo_retrains_once_on_the_wider_window_when_requests_have_drifted(shown_demo, some_flights):
    home = shown_demo.home
    *stable, drift = artifacts(home, "skew")
    assert len(stable) >= 2
    assert {skew["properties"]["verdict"] for skew in stable} == {"stable"}
    assert drift["properties"]["verdict"] == "drift"
    moved = [skew["properties"]["scores"]["temp"][0] for skew in (*stable, drift)]
    assert moved == sorted(moved)
    measured = [each["properties"]["versions"][0] for each in artifacts(home, "performance")]
    assert len(measured) == len(stable) + 1
    # The labels of flights that have not landed by the end are not there.
    assert all(0.85 * each["rows"] < each["labelled"] < each["rows"] and "auc" in each["drop"] for each in measured)
    until = drift["properties"]["window_end"][:10]
    # The run with a single epoch has its snapshot from the cache.
    windows = [[day[:10] for day in snapshot["properties"]["window"]] for snapshot in artifacts(home, "ingest")]
    assert windows == [["2013-01-01", "2013-04-01"], ["2013-01-01", until]]
    with zipfile.ZipFile(some_flights / "flights.csv.zip") as archive, archive.open("flights.csv") as table:
        hours = [row["time_hour"] for row in csv.DictReader(io.TextIOWrapper(table))]
    asked = sum(skew["rows"]["captured"]["rows_in"] for skew in (*stable, drift))
    assert asked == sum("2013-04-01" <= hour < until for hour in hours)


@of_the_shown
def test_demo_refuses_the_candidate_of_one_epoch(shown_demo):
    evaluations = artifacts(shown_demo.home, "evaluate")
    assert [evaluation["properties"]["blessed"] for evaluation in evaluations] == [True, False, True]
    assert len(artifacts(shown_demo.home, "deploy")) == 2


@of_the_shown
def test_demo_asks_about_new_destinations_and_continues(shown_demo):
    store = ArtifactStore((shown_demo.home / "store").as_uri())
    inferred, approved = schema_history(store, store.frozen_schema("flights_training", "schema"))
    assert (inferred.approved_by, inferred.in_force) == ("", False)
    assert approved.approved_by and approved.in_force
    assert "make demo" in approved.note
    *known, asked = artifacts(shown_demo.home, "validate")
    assert [each["metrics"]["warnings"] for each in known] == [0, 0]
    assert asked["metrics"]["warnings"]
    used = [made["inputs"]["schema"][0]["fingerprint"] for made in artifacts(shown_demo.home, "transform")]
    assert used == [inferred.fingerprint, approved.fingerprint]


@of_the_shown
def test_each_panel_of_grafanas_dashboard_has_data(shown_demo, demo_prometheus):
    if demo_prometheus is None:
        pytest.skip("there is no prometheus in PATH (Debian: apt-get install prometheus)")
    assert missing_panels(demo_prometheus, "pipelines", "10m") == {}
    drifted = demo_prometheus.query('airflow_hops_artifact_metric{dag_id="flights_monitoring", metric="drifted"}')
    assert len(drifted) == 1
    for name in ("airflow_hops_artifact_time", "airflow_hops_retraining_refused", "airflow_hops_store_free_percent"):
        assert demo_prometheus.query(f'{name}{{dag_id="flights_monitoring"}}'), name


@of_the_shown
def test_demo_traces_the_served_version_to_raw_tables(shown_demo):
    home = shown_demo.home
    record = json.loads((home / "store" / "_models" / "flights.json").read_text())
    uri = record["champion"]["model"]["uri"]
    kinds = []
    while uri:
        manifest = json.loads((Path(uri.removeprefix("file://")) / "manifest.json").read_text())
        kinds.append(manifest["kind"])
        inputs = manifest["inputs"]
        uri = next((inputs[role][0]["uri"] for role in ("examples", "tables") if inputs.get(role)), None)
    assert kinds == ["model", "transformed_examples", "examples", "snapshot"]
    runs = [json.loads(path.read_text()) for path in home.glob("store/_runs/flights_training/*.json")]
    assert "dags-folder" in {run["bundle"] for run in runs}


@of_others
def test_second_demo_keeps_cached_artifacts_and_resets_serving(tmp_path):
    retained = [tmp_path / name for name in ("mlflow.db", "store/flights_training/run/model", "store/_cache/note")]
    forgotten = [tmp_path / name for name in ("serving/models.config", "store/_models/a.json", "store/_state/job")]
    for path in (*retained, *forgotten):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    forget_serving(tmp_path)
    assert [path.exists() for path in (*retained, *forgotten)] == [True] * 3 + [False] * 3


@of_the_shown
@pytest.mark.last(1)  # before the pictures are there
def test_a_failing_stage_fails_the_demo_with_the_task_s_log(shown_demo):
    shown_demo.go_on()
    api = AirflowApi(shown_demo.airflow_settings()["AIRFLOW__API__BASE_URL"])
    with pytest.raises(RunFailed) as failed:
        follow(api, "fashion_mnist", api.trigger("fashion_mnist"), Console(file=io.StringIO()))
    assert "--- find (try 1)" in str(failed.value) and "there is no such file" in str(failed.value)


@of_the_shown
@pytest.mark.last(3)
def test_ctrl_c_stops_all_demo_processes(shown_demo):
    assert len(processes_below(shown_demo.home)) > 3
    shown_demo.stop()
    assert shown_demo.code == 130
    assert "stopping Airflow" in shown_demo.printed and "stopping model server" in shown_demo.printed
    assert processes_below(shown_demo.home) == []


def start_demo(home: Path, runtime: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "demo", "--home", str(home), "--runtime", str(runtime)],
        cwd=REPOSITORY,
        env=demo_environment(),
        stdout=subprocess.PIPE,
        text=True,
    )


@of_others
def test_failed_start_fails_the_demo_and_stops_the_rest(tmp_path):
    home = tmp_path / "home"
    process = start_demo(home, tmp_path / "none")
    try:
        printed, _ = process.communicate()
    finally:
        process.kill()
    assert process.returncode == 1
    # Both are started of that environment, and either may be found first.
    assert re.search(r"(model server|warm process) ended with exit code 127", printed)
    assert "cannot be started" in printed
    assert "stopping warm process" in printed and "stopping Airflow" in printed
    assert processes_below(home) == []


@of_others
def test_killed_demo_leaves_no_process(tmp_path):
    home, python = tmp_path / "home", tmp_path / "runtime" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\nexec sleep 3600\n")  # for the model server, which is not waited for
    python.chmod(0o755)
    process = start_demo(home, tmp_path / "runtime")
    try:
        wait_for(lambda: len(processes_below(home)) > 4, lambda: str(processes_below(home)))
    finally:
        process.kill()
        process.wait()
    wait_for(lambda: not processes_below(home), lambda: str(processes_below(home)), 60, poll_s=0.5)

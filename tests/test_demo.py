"""The demo, run as a user runs it: a real Airflow, a real model server, real data."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from rich.console import Console
from shown_demo import REPOSITORY, TIMEOUT_S, demo_environment, processes_below
from waiting import wait_for

from demo.airflow_api import AirflowApi
from demo.follow import RunFailed, follow

pytestmark = [pytest.mark.runtime, pytest.mark.airflow, pytest.mark.server]

of_the_shown, of_others = pytest.mark.xdist_group("demo"), pytest.mark.xdist_group("demo ends")


def artifacts(home: Path, task_id: str) -> list[dict]:
    manifests = sorted(home.glob(f"store/flights_*/*/{task_id}/*/manifest.json"), key=lambda path: path.stat().st_mtime)
    return [json.loads(path.read_text()) for path in manifests]


@of_the_shown
def test_the_demo_ends_well_and_shows_its_summary(shown_demo):
    assert shown_demo.code is None, shown_demo.printed[-5000:]
    for title in ("Rows and seconds of each stage", "Anomalies", "Training-serving skew", "Evaluation", "What serves"):
        assert title in shown_demo.printed


@of_the_shown
def test_the_demo_retrains_once_on_the_wider_window_when_requests_have_drifted(shown_demo, some_flights):
    home = shown_demo.home
    snapshots = artifacts(home, "ingest")
    (skew,) = artifacts(home, "skew")
    if skew["properties"]["verdict"] != "drift":
        assert len(snapshots) == 1
        return
    assert [s["properties"]["window"][0][:10] for s in snapshots] == ["2013-01-01", "2013-01-01"]
    assert [s["properties"]["window"][1][:10] for s in snapshots] == ["2013-04-01", "2013-07-01"]
    with zipfile.ZipFile(some_flights / "flights.csv.zip") as archive, archive.open("flights.csv") as table:
        hours = [row["time_hour"] for row in csv.DictReader(io.TextIOWrapper(table))]
    assert skew["rows"]["captured"]["rows_in"] == sum("2013-04-01" <= hour < "2013-07-01" for hour in hours)


@of_the_shown
def test_the_demo_leads_from_the_served_version_back_to_the_raw_tables(shown_demo):
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


@of_the_shown
@pytest.mark.last
def test_a_failing_stage_fails_the_demo_with_the_task_s_log(shown_demo, some_flights):
    (some_flights / "weather.csv").write_text("origin,temp\nEWR,39\n")
    shown_demo.go_on()
    api = AirflowApi(shown_demo.airflow_settings()["AIRFLOW__API__BASE_URL"])
    with pytest.raises(RunFailed) as failed:
        follow(api, "flights_training", api.trigger("flights_training"), Console(file=io.StringIO()))
    assert "weather.csv" in str(failed.value) and "time_hour" in str(failed.value)


@of_the_shown
@pytest.mark.last
def test_ctrl_c_stops_all_that_the_demo_has_started(shown_demo):
    assert len(processes_below(shown_demo.home)) > 3
    shown_demo.stop()
    assert shown_demo.code == 130
    assert "stopping Airflow" in shown_demo.printed and "stopping model server" in shown_demo.printed
    assert processes_below(shown_demo.home) == []


@of_others
def test_what_does_not_start_fails_the_demo_and_what_did_is_stopped(tmp_path):
    home = tmp_path / "home"
    answer = subprocess.run(
        [sys.executable, "-m", "demo", "--home", str(home), "--runtime", str(tmp_path / "none")],
        cwd=REPOSITORY,
        env=demo_environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert answer.returncode == 1
    assert "model server ended with exit code 127" in answer.stdout and "cannot be started" in answer.stdout
    assert "stopping warm process" in answer.stdout
    assert processes_below(home) == []


@of_others
def test_what_a_killed_demo_started_ends_with_it(tmp_path, runtime):
    home = tmp_path / "home"
    process = subprocess.Popen(
        [sys.executable, "-m", "demo", "--home", str(home), "--runtime", str(runtime)],
        cwd=REPOSITORY,
        env=demo_environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        wait_for(lambda: len(processes_below(home)) > 4, lambda: str(processes_below(home)))
    finally:
        process.kill()
        process.wait()
    wait_for(lambda: not processes_below(home), lambda: str(processes_below(home)), 60, poll_s=0.5)

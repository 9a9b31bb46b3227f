"""The demo, run as a user runs it: a real Airflow, a real model server, real data."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from shown_demo import REPOSITORY, TIMEOUT_S, demo_environment, processes_below

pytestmark = [pytest.mark.runtime, pytest.mark.spark]


def artifacts(home: Path, task_id: str) -> list[dict]:
    manifests = sorted(home.glob(f"store/flights_*/*/{task_id}/*/manifest.json"), key=lambda path: path.stat().st_mtime)
    return [json.loads(path.read_text()) for path in manifests]


def test_the_demo_ends_well_and_shows_its_summary(shown_demo):
    answer = shown_demo.answer
    assert answer.returncode == 0, answer.stdout[-5000:]
    for title in ("Rows and seconds of each stage", "Anomalies", "Training-serving skew", "Evaluation", "What serves"):
        assert title in answer.stdout


def test_the_demo_retrains_once_on_the_wider_window_when_requests_have_drifted(shown_demo):
    home = shown_demo.home
    snapshots = artifacts(home, "ingest")
    (skew,) = artifacts(home, "skew")
    if skew["properties"]["verdict"] != "drift":
        assert len(snapshots) == 1
        return
    assert [s["properties"]["window"][0][:10] for s in snapshots] == ["2013-01-01", "2013-01-01"]
    assert [s["properties"]["window"][1][:10] for s in snapshots] == ["2013-04-01", "2013-07-01"]
    assert skew["rows"]["captured"]["rows_in"] == 85367  # every flight that was scheduled from April to June


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


def test_the_demo_stops_all_that_it_started(shown_demo):
    assert shown_demo.left == []


def test_a_failing_stage_fails_the_demo_with_the_task_s_log(tmp_path, runtime, flights_raw):
    data = tmp_path / "data"
    shutil.copytree(flights_raw, data)
    (data / "weather.csv").write_text("origin,temp\nEWR,39\n")
    home = tmp_path / "home"
    answer = subprocess.run(
        [sys.executable, "-m", "demo", "--home", str(home), "--runtime", str(runtime), "--exit"],
        cwd=REPOSITORY,
        env=demo_environment(FLIGHTS_DATA=str(data)),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert answer.returncode == 1
    assert "weather.csv" in answer.stdout and "time_hour" in answer.stdout
    assert not list(home.glob("store/*/*/*/*/manifest.json"))
    assert processes_below(home) == []


@pytest.fixture
def starting(tmp_path, runtime):
    """A demo whose model server is up and whose Airflow is starting; and its folder."""
    home = tmp_path / "home"
    process = subprocess.Popen(
        [sys.executable, "-m", "demo", "--home", str(home), "--runtime", str(runtime)],
        cwd=REPOSITORY,
        env=demo_environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("model server: "):
            break
    time.sleep(2)
    assert len(processes_below(home)) > 3
    yield process, home
    process.kill()
    process.wait()


def test_ctrl_c_ends_the_demo_and_what_it_started(starting):
    process, home = starting
    process.send_signal(signal.SIGINT)
    output = process.stdout.read()
    assert process.wait(60) == 130
    assert "stopping Airflow" in output and "stopping model server" in output
    assert processes_below(home) == []


def test_what_a_killed_demo_started_ends_with_it(starting):
    process, home = starting
    process.kill()
    deadline = time.monotonic() + 60
    while processes_below(home) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert processes_below(home) == []

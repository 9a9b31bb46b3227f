"""The statistics benchmark: its tables, its timed processes, and what it makes of what they tell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from waiting import wait_for

from benchmarks.measurement.memory_account import MemoryAccount
from benchmarks.measurement.statistics_figures import Measurements, figures_of, marks_of, ratios_of
from benchmarks.measurement.timing import Timed


def test_ratios_use_medians_and_the_fastest_peer() -> None:
    result = Measurements(rows=100, large_rows=1_000)
    for way, seconds in {
        "ours": (1.0, 9.0, 2.0),
        "beam": (70.0,),
        "dataframe": (5.0,),
        "dataframe_all_cores": (3.0,),
        "decode": (0.1,),
    }.items():
        for one in seconds:
            result.add("100.csv", way, Timed(one, one, {"rows": 100}))
            result.add("100.parquet", way, Timed(one, one, {"rows": 100}))
    result.add("100.parquet", "ours", Timed(2.0, 2.0, {"rows": 100}))
    result.add("1000.parquet", "ours", Timed(19.0, 19.0, {"rows": 1_000}))
    result.shapes = ["float.parquet"]
    for way, one in {"ours": 0.5, "dataframe": 1.0, "dataframe_all_cores": 0.9, "decode": 0.03}.items():
        result.add("float.parquet", way, Timed(one, one, {"rows": 5}))
    result.memory["1000.parquet"] = {"ours": Timed(19.0, 19.0, {"rows": 1_000}, idle_mib=500.0, peak_mib=1_000.0)}
    assert ratios_of(result)["100.csv_times_faster_than_beam"] == 35.0
    assert ratios_of(result)["100.parquet_times_less_cpu_than_dataframe_all_cores"] == 1.5
    marks = {mark.name: (mark.value, mark.reached) for mark in marks_of(result)}
    assert marks["times faster than TFDV on Beam, 100.csv"] == (35.0, True)
    assert marks["times faster than TFDV's best from a frame, 100.parquet"] == (1.5, False)
    assert marks["times faster than TFDV's best from a frame, 1000.parquet"] == (None, None)
    assert marks["times what decoding takes, 100.csv"] == (20.0, False)
    assert marks["times faster than TFDV's best, float.parquet"] == (1.8, True)
    assert marks["times what decoding takes, float.parquet"] == (16.667, False)
    assert marks["seconds a row, 1000.parquet over 100.parquet"] == (0.95, True)
    assert marks["peak memory in GB, libraries included, 1000.parquet"] == (1.049, False)
    figures = json.loads(json.dumps(figures_of(result, 2)))
    assert figures["every_run_s"]["100.csv"]["ours"] == [1.0, 9.0, 2.0]
    assert figures["memory_mib"]["1000.parquet"]["ours"] == {"idle": 500, "peak": 1_000}


@pytest.mark.slow
@pytest.mark.parametrize("script", ["pipeline.py", "skew.py", "statistics.py"])
def test_benchmarks_start_despite_a_standard_library_name(script: str) -> None:
    path = Path(__file__).parent.parent / "benchmarks" / script
    done = subprocess.run([sys.executable, path, "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--rounds" in done.stdout


def test_peak_memory_is_reported_by_process_role() -> None:
    command = [sys.executable, "-c", "import time; held = b'x' * (64 << 20); time.sleep(60)", "airflow_hops.serving"]
    server = subprocess.Popen(command)
    try:
        results = [psutil.Process(server.pid), psutil.Process(os.getpid())]
        with MemoryAccount(lambda: results, interval_s=0.05) as account:
            wait_for(lambda: account.peak.get("model server", 0.0) >= 64, "its memory", 90)
    finally:
        server.kill()
        server.wait()
    assert 64 <= account.peak["model server"] < 100
    assert sum(account.peak.values()) > account.peak["model server"] + 20

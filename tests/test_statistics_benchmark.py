"""The statistics benchmark: its tables, its timed processes, and what it makes of what they tell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from benchmarks.measurement.flights_tables import FLIGHTS_ROWS, ROW_GROUP_ROWS, write_csv, write_parquet
from benchmarks.measurement.memory_account import MemoryAccount
from benchmarks.measurement.statistics_figures import Measurements, figures_of, marks_of, ratios_of
from benchmarks.measurement.timing import REPOSITORY, Timed, time_work

WAYS = "benchmarks.measurement.statistics_ways"
LARGE_ROWS = FLIGHTS_ROWS + 100


@pytest.fixture(scope="module")
def tables(flights_raw: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    for rows in (1_000, LARGE_ROWS):
        write_csv(flights_raw, folder / f"flights-{rows}.csv", rows)
        write_parquet(flights_raw, folder / f"flights-{rows}.parquet", rows)
    return folder


def test_repeated_flights_are_the_same_rows_in_both_formats(tables: Path) -> None:
    parquet = pq.ParquetFile(tables / f"flights-{LARGE_ROWS}.parquet")
    table = parquet.read()
    assert table.num_rows == LARGE_ROWS
    assert parquet.metadata.row_group(0).num_rows == ROW_GROUP_ROWS
    assert table.slice(FLIGHTS_ROWS).equals(table.slice(0, 100))
    options = pyarrow.csv.ConvertOptions(
        strings_can_be_null=True, column_types={name: table.schema.field(name).type for name in table.column_names}
    )
    assert pyarrow.csv.read_csv(tables / f"flights-{LARGE_ROWS}.csv", convert_options=options).equals(table)
    assert not list(tables.glob("*.unfinished"))


@pytest.mark.runtime
def test_timed_process_reports_seconds_memory_and_rows(runtime: Path, tables: Path) -> None:
    timed = time_work(runtime, WAYS, "decode", tables / "flights-1000.parquet", with_memory=True)
    assert timed.facts["rows"] == 1_000
    assert timed.seconds > 0
    assert timed.peak_mib >= timed.idle_mib > 20


@pytest.mark.runtime
@pytest.mark.slow
def test_benchmark_tables_are_read_completely_by_both_programs(runtime: Path, tmp_path: Path) -> None:
    # By its own process: this one has another PyArrow.
    lines = [
        "from pathlib import Path",
        "from benchmarks.measurement.shaped_tables import SHAPES",
        "for shape in ('mixed', 'lists'):",
        "    for rows in (1000, 3000):",
        f"        SHAPES[shape].write(Path({str(tmp_path)!r}) / f'{{shape}}-{{rows}}.parquet', rows)",
    ]
    subprocess.run([runtime / "bin" / "python", "-c", "\n".join(lines)], cwd=REPOSITORY, check=True)
    for shape, way, features in (("mixed", "ours", 16), ("lists", "tfdv_batch", 3)):
        timed = time_work(runtime, WAYS, way, tmp_path / f"{shape}-3000.parquet")
        assert (timed.facts["rows"], timed.facts["features"]) == (3000, features)


@pytest.mark.runtime
def test_failed_timed_process_is_explained(runtime: Path, tables: Path) -> None:
    (tables / "flights-2.csv").touch()
    with pytest.raises(RuntimeError, match=r"(?s)decode .*flights-2\.csv' ended with 1.*Empty CSV file"):
        time_work(runtime, WAYS, "decode", tables / "flights-2.csv")


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
            deadline = time.monotonic() + 20
            while account.peak.get("model server", 0.0) < 64 and time.monotonic() < deadline:
                time.sleep(0.02)
    finally:
        server.kill()
        server.wait()
    assert 64 <= account.peak["model server"] < 100
    assert sum(account.peak.values()) > account.peak["model server"] + 20

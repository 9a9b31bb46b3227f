"""An inference table of Databricks: a Delta table, whose rows move to other files when it is compacted."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from step_runner import warm_launcher_in

from airflow_hops.core.errors import StepFailed
from airflow_hops.extensions.captured_logs import CapturedSource
from airflow_hops.extensions.captured_logs.core.records import LogRecords
from airflow_hops.extensions.captured_logs.core.windows import WindowPlan

SCRIPT = Path(__file__).with_name("append_delta.py")
BEGIN = datetime.fromtimestamp(1_790_002_800, UTC)


@pytest.fixture(scope="module")
def delta_runtime(runtime: Path) -> Path:
    """The named environment with deltalake beside the runtime environment."""
    from airflow_hops.cli.runtime import find_uv
    from airflow_hops.runner.environments.named import make_named
    from airflow_hops.runner.environments.runtime import pins_file

    make_named(runtime, "test-delta", ["deltalake==1.6.*"], pins_file(), uv=find_uv(), say=lambda line: None)
    return runtime.with_name(f"{runtime.name}-test-delta")


def test_rows_of_a_compacted_table_arrive_once(delta_runtime: Path, run_step: Any, tmp_path: Path) -> None:
    launcher = warm_launcher_in(Path(os.environ["AIRFLOW_HOME"], "warm-delta"), delta_runtime)
    source = CapturedSource(f"delta://{tmp_path}/log", model="m", layout="databricks", versions={"e1": 1})
    sources = {"log": source.to_dict()}

    def change(*command: str) -> None:
        subprocess.run([delta_runtime / "bin" / "python", SCRIPT, tmp_path / "log", *command], check=True)

    def ingest(hour: int) -> tuple[list[str], Any]:
        window = [(BEGIN + timedelta(hours=each)).isoformat() for each in (hour, hour + 1)]
        entry = "airflow_hops.extensions.captured_logs.ml.plan:plan_logs"
        params = {"sources": sources, "window": window}
        plans = run_step(entry, params=params, task_id="ingest", run_id=f"h{hour}", launcher=launcher)
        params = {"sources": sources, "plans": plans, "window_start": window[0], "window_end": window[1]}
        artifact = run_step(
            "airflow_hops.ml.ingest:run", params=params, kind="snapshot", task_id="ingest", launcher=launcher
        )
        plan = WindowPlan.from_dict(plans["log"])
        LogRecords.of_plan(run_step.store, plan).commit(plan)
        table = pq.read_table(run_step.store.local(artifact) / "log")
        if len(table):
            assert table["output.prediction"].to_pylist() == [age / 2 for age in table["input.age"].to_pylist()]
        return sorted(table["request_id"].to_pylist()), artifact.rows["log"]

    change("1,2,9")
    change("61")
    ids, rows = ingest(0)
    assert ids == ["r1", "r2"] and rows.rejected == {"answered with status 500": 1}
    change("3,62,1")
    change("compact")
    ids, rows = ingest(1)
    assert ids == ["r3", "r61", "r62"]
    assert ingest(1) == (ids, rows)
    assert ingest(2)[0] == []  # without requests
    entry = "airflow_hops.extensions.captured_logs.ml.plan:plan_logs"

    # A deleted row of a file, in the words of the protocol's section "Deletion Vectors".
    log = max((tmp_path / "log" / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    vector = {
        "storageType": "i",
        "pathOrInlineDv": "^Bg9^0rr910000000000iXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L",
        "sizeInBytes": 44,
        "cardinality": 6,
    }
    for action in actions:
        if "add" in action:
            action["add"] |= {"deletionVector": vector, "stats": '{"numRecords": 30}'}
    log.write_text("\n".join(map(json.dumps, actions)))
    window = [BEGIN.isoformat(), (BEGIN + timedelta(hours=1)).isoformat()]
    with pytest.raises(StepFailed, match="has deletion vectors of 1 files, which only Spark reads; purge them"):
        run_step(entry, params={"sources": sources, "window": window}, launcher=launcher)


PLACES = ["a b", "x:y", "50%", "ü/é", "a%20b", "a+b", "#?&", "c\\d"]


def test_paths_in_the_table_are_those_of_uris(delta_runtime: Path, run_step: Any, tmp_path: Path) -> None:
    """Files of all partitions are read, and none outside of the table."""
    launcher = warm_launcher_in(Path(os.environ["AIRFLOW_HOME"], "warm-delta"), delta_runtime)
    source = CapturedSource(f"delta://{tmp_path}/log", model="m", layout="databricks", versions={"e1": 1})
    entry = "airflow_hops.extensions.captured_logs.ml.plan:plan_logs"
    params: dict[str, Any] = {"sources": {"log": source.to_dict()}, "window": [None, None]}
    for number, place in enumerate(PLACES):
        command = [delta_runtime / "bin" / "python", SCRIPT, tmp_path / "log", str(number), place]
        subprocess.run(command, check=True)
    plans = run_step(entry, params=params, task_id="ingest", run_id="first", launcher=launcher)
    assert len(plans["log"]["parts"]) == len(PLACES)
    ingest = {"sources": params["sources"], "plans": plans}
    artifact = run_step("airflow_hops.ml.ingest:run", params=ingest, kind="snapshot", launcher=launcher)
    table = pq.read_table(run_step.store.local(artifact) / "log")
    assert sorted(table["request_id"].to_pylist()) == [f"r{number}" for number in range(len(PLACES))]

    log = max((tmp_path / "log" / "_delta_log").glob("*.json"))
    text = log.read_text()
    (path,) = (json.loads(line)["add"]["path"] for line in text.splitlines() if '"add"' in line)
    (tmp_path / "secret").mkdir()
    shutil.copy(
        next(tmp_path.glob("log/place=a b*/*.parquet"), next(tmp_path.rglob("*.parquet"))),
        tmp_path / "secret" / "s.parquet",
    )
    for other in (
        "../secret/s.parquet",
        "%2e%2e/secret/s.parquet",
        f"{tmp_path}/secret/s.parquet",
        "file:///etc/passwd",
    ):
        log.write_text(text.replace(json.dumps(path), json.dumps(other)))
        with pytest.raises(StepFailed, match=r"names the file '.*', which is outside of the table|cannot be read"):
            run_step(entry, params=params, run_id=other[-9:], launcher=launcher)

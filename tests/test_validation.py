"""Effects of anomalies on a DAG run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flights_examples
import pandas as pd
import pytest

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.models.model_record import ModelRecord, ServedVersion
from airflow_hops.core.models.model_records import write_record

pytestmark = pytest.mark.runtime

Change = Callable[[pd.DataFrame], pd.DataFrame]


@pytest.fixture(scope="module")
def statistics_of(shared_run_step: Any, warm_launcher: Any, flights_raw: Path) -> Any:
    """Makes statistics of January's flights, changed."""
    # Every fourth flight, as in the statistics that the schema was inferred from: no value is new.
    january = flights_examples.months(flights_raw, 1, 1).iloc[::4].reset_index(drop=True)

    def make(change: Change | None = None) -> Any:
        splits = {"train": january, "eval": change(january) if change else january}
        return flights_examples.statistics_of(shared_run_step, warm_launcher, splits)

    return make


def _some(name: str, value: Any, share: float) -> Change:
    """Gives a share of the rows another value."""

    def change(frame: pd.DataFrame) -> pd.DataFrame:
        return frame.assign(**{name: frame[name].where(frame.index >= share * len(frame), value)})

    return change


@pytest.fixture
def run_validation(run_dag: Any, shared_run_step: Any, flights_schema: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a DAG of one validation; returns the states and the task instances."""
    connection = {"conn_type": "hops", "extra": {"store": shared_run_step.store.root}}
    monkeypatch.setenv("AIRFLOW_CONN_HOPS_DEFAULT", json.dumps(connection))

    def run(dag_id: str, statistics: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        run = run_dag(dag_id, {"statistics": statistics.to_dict(), "schema": flights_schema.to_dict()})
        tasks = {ti.task_id: ti for ti in run.get_task_instances()}
        return {name: str(ti.state) for name, ti in tasks.items()}, tasks

    return run


def test_error_fails_the_task_and_its_anomalies_are_stored(
    run_validation: Any, statistics_of: Any, shared_run_step: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    broken = statistics_of(lambda f: f.drop(columns="temp"))
    states, tasks = run_validation("validation_fail", broken)
    assert states == {"validation": "failed", "good": "upstream_failed", "bad": "upstream_failed"}
    assert tasks["validation"].try_number == 1  # of three
    value = tasks["validation"].xcom_pull(task_ids="validation")
    assert value["kind"] == "anomalies"
    assert (shared_run_step.store.local(_artifact(value)) / "eval.pbtxt").exists()
    output = capfd.readouterr()
    assert "1 anomalies, see" in output.out + output.err
    assert "error in split 'eval', feature 'temp': Column dropped" in output.out + output.err


def test_warning_does_not_stop_the_run(run_validation: Any, statistics_of: Any) -> None:
    states, _ = run_validation("validation_fail", statistics_of(_some("dest", "ZZZ", 0.02)))
    assert set(states.values()) == {"success"}


def test_training_data_is_compared_with_the_champions(
    run_validation: Any,
    statistics_of: Any,
    shared_run_step: Any,
    flights_statistics: Any,
    flights_schema: Any,
    capfd: pytest.CaptureFixture[str],
) -> None:
    store = shared_run_step.store

    def half_in_celsius(frame: pd.DataFrame) -> pd.DataFrame:
        return frame.assign(temp=frame["temp"].where(frame.index % 2 == 0, (frame["temp"] - 32) / 1.8))

    write_record(store, "validated", ModelRecord())
    states, _ = run_validation("validation_champion", statistics_of(half_in_celsius))
    assert states == {"validation": "success"}  # nothing serves that the data could be compared with

    def serve(**properties: Any) -> None:
        trained = {"statistics": flights_statistics.uri, "schema": flights_schema.uri, **properties}
        model = Artifact(f"{store.root}/models/1", "model", "f" * 64, properties=trained)
        write_record(store, "validated", ModelRecord(champion=ServedVersion.of(model, 4, "/models/4", 100)))

    serve(statistics_fingerprint=flights_statistics.fingerprint)
    states, tasks = run_validation("validation_champion", statistics_of(half_in_celsius))
    assert states == {"validation": "failed"}
    (error,) = tasks["validation"].xcom_pull(task_ids="validation")["properties"]["errors"]
    assert error.startswith(
        "error in split 'eval', feature 'temp': Looks like a pipeline fault: unit change (Fahrenheit"
    )
    assert "in about 5" in error and "training data of version 4 of 'validated'" in error
    output = capfd.readouterr()
    assert "Correct the source and run again" in output.out + output.err

    states, tasks = run_validation("validation_champion", statistics_of(lambda f: f.assign(humid=f["humid"] / 2 + 10)))
    assert states == {"validation": "success"}  # though warnings fail this task
    drift = tasks["validation"].xcom_pull(task_ids="validation")["properties"]["drift"]
    assert any("feature 'humid': Drift since the champion was trained" in sentence for sentence in drift)

    serve(statistics_fingerprint="0" * 64)
    states, tasks = run_validation("validation_champion", statistics_of(half_in_celsius))
    assert states == {"validation": "success"}
    (note,) = tasks["validation"].xcom_pull(task_ids="validation")["properties"]["drift"]
    assert "Not compared with the champion's training data" in note and "was computed again since" in note


def test_errors_follow_the_configured_branch(run_validation: Any, statistics_of: Any) -> None:
    states, _ = run_validation("validation_branch", statistics_of())
    assert states == {"validation": "success", "good": "success", "bad": "skipped"}
    states, _ = run_validation("validation_branch", statistics_of(lambda f: f.drop(columns="temp")))
    assert states == {"validation": "success", "good": "skipped", "bad": "success"}


def test_rows_violating_the_schema_are_quarantined(
    run_dag: Any, shared_run_step: Any, flights_schema: Any, flights_raw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = shared_run_step.store
    monkeypatch.setenv("AIRFLOW_CONN_HOPS_DEFAULT", json.dumps({"conn_type": "hops", "extra": {"store": store.root}}))
    january = flights_examples.months(flights_raw, 1, 1).iloc[::4].reset_index(drop=True)
    broken = _some("late", 2, 0.01)(_some("dest", "ZZZ", 0.02)(january))
    examples = flights_examples.write_examples(store, {"train": january, "eval": broken}, run_id="split")
    run = run_dag("validation_split", {"examples": examples.to_dict(), "schema": flights_schema.to_dict()})
    tasks = {ti.task_id: ti for ti in run.get_task_instances()}
    assert {name: str(ti.state) for name, ti in tasks.items()} == dict.fromkeys(tasks, "success")
    anomalies = _artifact(tasks["validation"].xcom_pull(task_ids="validation"))
    # An error of which its rows are rid of is a warning, as long as few rows have it.
    assert anomalies.metrics["errors"] == 0
    assert len(anomalies.properties["warnings"]) == 2
    bad = int((january.index < 0.02 * len(january)).sum())
    late = int((january.index < 0.01 * len(january)).sum())
    assert anomalies.metrics["quarantined"] == bad
    assert anomalies.rows["eval"].rejected == {
        "late INT_TYPE_BIG_INT": late, "dest ENUM_TYPE_UNEXPECTED_STRING_VALUES": bad - late
    }  # fmt: skip
    folder = store.local(anomalies)
    assert not (folder / "quarantine" / "train").exists()
    quarantined = pd.read_parquet(folder / "quarantine" / "eval")
    assert list(quarantined["flight_id"]) == list(broken["flight_id"][:bad])
    assert set(quarantined["dest"]) == {"ZZZ"}
    assert list(quarantined["anomaly_reasons"][0]) == [
        "late: INT_TYPE_BIG_INT: 2, expected at most 1",
        "dest: ENUM_TYPE_UNEXPECTED_STRING_VALUES: 'ZZZ', not in the domain",
    ]
    good = _artifact(tasks["validation"].xcom_pull(task_ids="validation", key="examples"))
    assert good.kind == "examples"
    assert good.properties == {**examples.properties, "splits": ["train", "eval"]}
    assert good.rows["eval"].rows_out == len(broken) - bad
    assert set(tasks["after"].xcom_pull(task_ids="after")["metrics"].values()) == {0}


def _artifact(value: dict[str, Any]) -> Any:
    from airflow_hops.core.artifacts.artifact import Artifact

    return Artifact.from_dict(value)

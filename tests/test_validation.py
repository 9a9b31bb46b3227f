"""Effects of anomalies on a DAG run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import flights_examples
import pandas as pd
import pytest
from world import World, results, states

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.models.model_record import ModelRecord, ServedVersion, write_record

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
def run_validation(
    run_dag: Any, shared_run_step: Any, flights_schema: Any, world: World, capfd: pytest.CaptureFixture[str]
) -> Any:
    """Runs a DAG of one validation; returns the states of its tasks, its value, and what was logged."""
    world.connect(store=shared_run_step.store.root)

    def run(dag_id: str, **artifacts: Artifact) -> tuple[dict[str, str], Any, str]:
        capfd.readouterr()
        made = run_dag(dag_id, {name: each.to_dict() for name, each in {**artifacts, "schema": flights_schema}.items()})
        assert {ti.try_number for ti in made.get_task_instances() if ti.task_id == "validation"} == {1}  # of three
        return states(made), results(made), "".join(capfd.readouterr())

    return run


def test_error_fails_the_task_and_its_anomalies_are_stored(
    run_validation: Any, statistics_of: Any, shared_run_step: Any
) -> None:
    broken = statistics_of(lambda f: f.drop(columns="temp"))
    tasks, values, output = run_validation("validation_fail", statistics=broken)
    assert tasks == {"validation": "failed", "good": "upstream_failed", "bad": "upstream_failed"}
    anomalies = Artifact.from_dict(values["validation"])
    assert anomalies.kind == "anomalies" and (shared_run_step.store.local(anomalies) / "eval.pbtxt").exists()
    assert "1 anomalies, see" in output
    assert "error in split 'eval', feature 'temp': Column dropped" in output


def test_warning_does_not_stop_the_run(run_validation: Any, statistics_of: Any) -> None:
    tasks, *_ = run_validation("validation_fail", statistics=statistics_of(_some("dest", "ZZZ", 0.02)))
    assert set(tasks.values()) == {"success"}


def test_training_data_is_compared_with_the_champions(
    run_validation: Any, statistics_of: Any, shared_run_step: Any, flights_statistics: Any, flights_schema: Any
) -> None:
    store = shared_run_step.store
    in_celsius = statistics_of(lambda f: f.assign(temp=f["temp"].where(f.index % 2 == 0, (f["temp"] - 32) / 1.8)))
    humid = statistics_of(lambda f: f.assign(humid=f["humid"] / 2 + 10))

    def validated(statistics: Any) -> tuple[str, Any, str]:
        tasks, values, output = run_validation("validation_champion", statistics=statistics)
        return tasks["validation"], values["validation"]["properties"], output

    def serve(fingerprint: str) -> None:
        trained = {"statistics": flights_statistics.uri, "schema": flights_schema.uri}
        properties = {**trained, "statistics_fingerprint": fingerprint}
        model = Artifact(f"{store.root}/models/1", "model", "f" * 64, properties=properties)
        write_record(store, "validated", ModelRecord(champion=ServedVersion.of(model, 4, "/models/4", 100)))

    write_record(store, "validated", ModelRecord())
    assert validated(in_celsius)[0] == "success"  # nothing serves that the data could be compared with

    serve(flights_statistics.fingerprint)
    state, properties, output = validated(in_celsius)
    (error,) = properties["errors"]
    fault = "error in split 'eval', feature 'temp': Looks like a pipeline fault: unit change (Fahrenheit"
    assert state == "failed" and error.startswith(fault)
    assert "in about 5" in error and "training data of version 4 of 'validated'" in error
    assert "Correct the source and run again" in output

    state, properties, _ = validated(humid)
    assert state == "success"  # though warnings fail this task
    drift = "feature 'humid': Drift since the champion was trained"
    assert any(drift in sentence for sentence in properties["drift"])

    serve("0" * 64)
    state, properties, _ = validated(in_celsius)
    (note,) = properties["drift"]
    assert state == "success"
    assert "Not compared with the champion's training data" in note and "was computed again since" in note


def test_errors_follow_the_configured_branch(run_validation: Any, statistics_of: Any) -> None:
    for change, branch in ((None, "good"), (lambda f: f.drop(columns="temp"), "bad")):
        tasks, *_ = run_validation("validation_branch", statistics=statistics_of(change))
        assert tasks == {"validation": "success", "good": "skipped", "bad": "skipped", branch: "success"}


def test_rows_violating_the_schema_are_quarantined(
    run_dag: Any, shared_run_step: Any, flights_schema: Any, flights_raw: Path, world: World
) -> None:
    store = shared_run_step.store
    world.connect(store=store.root)
    january = flights_examples.months(flights_raw, 1, 1).iloc[::4].reset_index(drop=True)
    broken = _some("late", 2, 0.01)(_some("dest", "ZZZ", 0.02)(january))
    examples = flights_examples.write_examples(store, {"train": january, "eval": broken}, run_id="split")
    run = run_dag("validation_split", {"examples": examples.to_dict(), "schema": flights_schema.to_dict()})
    assert set(states(run).values()) == {"success"}
    (validation,) = (ti for ti in run.get_task_instances() if ti.task_id == "validation")
    values = results(run)
    anomalies = Artifact.from_dict(values["validation"])
    # An error of which its rows are rid of is a warning, as long as few rows have it.
    assert anomalies.metrics["errors"] == 0
    assert len(anomalies.properties["warnings"]) == 2
    bad = int((january.index < 0.02 * len(january)).sum())
    late = int((january.index < 0.01 * len(january)).sum())
    assert anomalies.metrics["quarantined"] == bad
    rejected = {"late INT_TYPE_BIG_INT": late, "dest ENUM_TYPE_UNEXPECTED_STRING_VALUES": bad - late}
    assert anomalies.rows["eval"].rejected == rejected
    folder = store.local(anomalies)
    assert not (folder / "quarantine" / "train").exists()
    quarantined = pd.read_parquet(folder / "quarantine" / "eval")
    assert list(quarantined["flight_id"]) == list(broken["flight_id"][:bad])
    assert set(quarantined["dest"]) == {"ZZZ"}
    assert list(quarantined["anomaly_reasons"][0]) == [
        "late: INT_TYPE_BIG_INT: 2, expected at most 1",
        "dest: ENUM_TYPE_UNEXPECTED_STRING_VALUES: 'ZZZ', not in the domain",
    ]
    good = Artifact.from_dict(validation.xcom_pull(task_ids="validation", key="examples"))
    assert good.kind == "examples"
    assert good.properties == {**examples.properties, "splits": ["train", "eval"]}
    assert good.rows["eval"].rows_out == len(broken) - bad
    assert set(values["after"]["metrics"].values()) == {0}

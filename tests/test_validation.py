"""The validation stage: which anomalies are found, how severe they are, and what they do to a DAG run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flights_examples
import numpy as np
import pandas as pd
import pytest

from airflow_hops.hooks.runtime import StepFailed
from airflow_hops.operators.validation import ValidateExamplesOperator

pytestmark = pytest.mark.runtime
CHECKS = (str(Path(__file__).parent / "runtime_checks"),)
ENTRY = "airflow_hops.runtime.validation:run"

Change = Callable[[pd.DataFrame], pd.DataFrame]


@pytest.fixture(scope="module")
def statistics_of(shared_run_step: Any, warm_launcher: Any, flights_raw: Path) -> Any:
    """Makes statistics of January's flights, changed."""
    # Every fourth flight, as in the statistics that the schema was inferred from: no value is new.
    january = flights_examples.months(flights_raw, 1, 1).iloc[::4].reset_index(drop=True)

    def make(change: Change | None = None) -> Any:
        examples = flights_examples.write_examples(
            shared_run_step.store, {"train": january, "eval": change(january) if change else january}
        )
        return shared_run_step(
            "airflow_hops.runtime.statistics:run",
            inputs={"examples": examples},
            kind="statistics",
            launcher=warm_launcher,
        )

    return make


@pytest.fixture(scope="module")
def validate(shared_run_step: Any, warm_launcher: Any, flights_schema: Any) -> Any:
    def run(statistics: Any, params: dict[str, Any] | None = None, **inputs: Any) -> Any:
        artifact = shared_run_step(
            ENTRY,
            params=params or {},
            inputs={"statistics": statistics, "schema": flights_schema, **inputs},
            kind="anomalies",
            launcher=warm_launcher,
        )
        return artifact, json.loads((shared_run_step.store.local(artifact) / "anomalies.json").read_text())

    return run


def _some(name: str, value: Any, share: float) -> Change:
    """Gives a share of the rows another value."""

    def change(frame: pd.DataFrame) -> pd.DataFrame:
        return frame.assign(**{name: frame[name].where(frame.index >= share * len(frame), value)})

    return change


def test_data_like_the_schema_has_no_anomaly(statistics_of: Any, validate: Any) -> None:
    artifact, report = validate(statistics_of())
    assert report["anomalies"] == []
    assert artifact.metrics == {"errors": 0, "warnings": 0}
    assert set(artifact.rows) == {"train", "eval"}


@pytest.mark.parametrize(
    ("change", "feature", "severity", "kind", "words"),
    [
        (lambda f: f.drop(columns="temp"), "temp", "error", "SCHEMA_MISSING_COLUMN", "completely missing"),
        (lambda f: f.assign(temp=np.nan), "temp", "error", "FEATURE_TYPE_NOT_PRESENT", "not present in any examples"),
        (lambda f: f.assign(distance=f["distance"].astype(str)), "distance", "error", "UNEXPECTED_DATA_TYPE", "FLOAT"),
        (
            lambda f: f.assign(weekday=f["weekday"] + 0.5),
            "weekday",
            "error",
            "UNEXPECTED_DATA_TYPE",
            "INT but got FLOAT",
        ),
        (_some("dest", "ZZZ", 0.02), "dest", "warning", "ENUM_TYPE_UNEXPECTED_STRING_VALUES", "ZZZ"),
        (_some("dest", "ZZZ", 0.5), "dest", "error", "ENUM_TYPE_UNEXPECTED_STRING_VALUES", "ZZZ"),
        (_some("carrier", None, 0.02), "carrier", "warning", "FEATURE_TYPE_LOW_FRACTION_PRESENT", "fewer examples"),
        (_some("carrier", None, 0.5), "carrier", "error", "FEATURE_TYPE_LOW_FRACTION_PRESENT", "fewer examples"),
        (lambda f: f.assign(tailwind=1.0), "tailwind", "warning", "SCHEMA_NEW_COLUMN", "New column"),
        (lambda f: f.assign(late=0), "late", "error", "CUSTOM_VALIDATION", "rows have the label 0; expected both 0"),
        (lambda f: f.assign(late=f["late"] * 2), "late", "error", "INT_TYPE_BIG_INT", "large value: 2"),
    ],
)
def test_anomalies_have_a_severity(
    statistics_of: Any, validate: Any, change: Change, feature: str, severity: str, kind: str, words: str
) -> None:
    artifact, report = validate(statistics_of(change))
    (anomaly,) = report["anomalies"]
    assert (anomaly["split"], anomaly["feature"], anomaly["severity"]) == ("eval", feature, severity)
    assert kind in anomaly["types"]
    (message,) = artifact.properties[f"{severity}s"]
    assert f"{severity} in split 'eval', feature '{feature}'" in message
    assert words in message
    assert (report["errors"], report["warnings"]) == ((1, 0) if severity == "error" else (0, 1))


def test_drift_from_an_earlier_span_is_a_warning(statistics_of: Any, validate: Any) -> None:
    earlier = statistics_of()
    _, report = validate(statistics_of(lambda f: f.assign(temp=f["temp"] + 40)), previous=earlier)
    assert [(a["feature"], a["severity"], a["types"]) for a in report["anomalies"]] == [
        ("temp", "warning", ["COMPARATOR_JENSEN_SHANNON_DIVERGENCE_HIGH"])
    ]
    assert report["drift"]["eval"]["temp"] > 0.5
    assert max(report["drift"]["train"].values()) == 0


def test_the_label_may_be_absent_from_examples_of_the_serving_environment(statistics_of: Any, validate: Any) -> None:
    served = statistics_of(lambda frame: frame.drop(columns="late"))
    _, report = validate(served)
    assert [(a["split"], a["feature"], a["severity"]) for a in report["anomalies"]] == [("eval", "late", "error")]
    _, report = validate(served, params={"environment": "SERVING", "splits": ["eval"]})
    assert report["anomalies"] == []
    with pytest.raises(StepFailed, match="environment 'NIGHT' is not in the schema; there are TRAINING, SERVING"):
        validate(served, params={"environment": "NIGHT"})


def test_a_change_in_the_number_of_rows_is_a_warning_and_too_few_are_an_error(
    shared_run_step: Any, warm_launcher: Any
) -> None:
    found = shared_run_step("validation_checks:numbers_of_rows", code_paths=CHECKS, launcher=warm_launcher)
    assert found == {
        "fewer": [["", "warning", "COMPARATOR_LOW_NUM_EXAMPLES"]],
        "more": [["", "warning", "COMPARATOR_HIGH_NUM_EXAMPLES"]],
        "too few": [["", "error", "DATASET_LOW_NUM_EXAMPLES"]],
    }


def test_features_with_a_dot_in_their_names_are_known_by_them(shared_run_step: Any, warm_launcher: Any) -> None:
    found = shared_run_step("validation_checks:dotted_names", code_paths=CHECKS, launcher=warm_launcher)
    assert found == [
        ["y.z", "error", "UNEXPECTED_DATA_TYPE", "CUSTOM_VALIDATION"],
        ["a.b", "warning", "INT_TYPE_BIG_INT"],
    ]


def test_a_damaged_schema_is_named_and_leaves_no_artifact(
    shared_run_step: Any, warm_launcher: Any, flights_statistics: Any
) -> None:
    from airflow_hops.artifacts import Producer

    store = shared_run_step.store
    with store.create(store.uri("tests", "bad", "schema"), "schema", Producer()) as writer:
        (writer.path / "schema.pbtxt").write_text("feature { name: 'temp' kind: ??? }")
        schema = writer.commit()
    with pytest.raises(StepFailed, match=r"schema\.pbtxt:1:24: not a schema in protobuf text.*kind") as failure:
        shared_run_step(
            ENTRY,
            inputs={"statistics": flights_statistics, "schema": schema},
            kind="anomalies",
            launcher=warm_launcher,
        )
    assert not failure.value.retryable
    assert not store.exists(shared_run_step.last_uri)


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


def test_an_error_fails_the_task_at_once_and_its_anomalies_are_kept(
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


def test_a_warning_lets_the_run_go_on(run_validation: Any, statistics_of: Any) -> None:
    states, _ = run_validation("validation_fail", statistics_of(_some("dest", "ZZZ", 0.02)))
    assert set(states.values()) == {"success"}


def test_errors_branch_where_they_are_told_to(run_validation: Any, statistics_of: Any) -> None:
    states, _ = run_validation("validation_branch", statistics_of())
    assert states == {"validation": "success", "good": "success", "bad": "skipped"}
    states, _ = run_validation("validation_branch", statistics_of(lambda f: f.drop(columns="temp")))
    assert states == {"validation": "success", "good": "skipped", "bad": "success"}


def test_data_that_does_not_fit_gets_a_schema_proposed(statistics_of: Any, validate: Any, shared_run_step: Any) -> None:
    artifact, report = validate(statistics_of(_some("dest", "Z`Z", 0.5)))
    folder = shared_run_step.store.local(artifact)
    (change,) = report["proposed"]["changes"]
    assert (change["feature"], change["aspect"], change["text"]) == ("dest", "domain", "domain gains 'Z`Z'")
    assert "Z`Z" in (folder / "proposed.pbtxt").read_text()
    assert set(artifact.properties["proposed_features"]) == {"late", "scheduled_at", *flights_examples.FEATURES}
    page = (folder / "proposal.md").read_text()
    assert "### 1 anomaly" in page
    assert "- **dest**: domain gains 'Z\\`Z'" in page


def test_where_no_schema_would_help_none_is_proposed(statistics_of: Any, validate: Any, shared_run_step: Any) -> None:
    artifact, report = validate(statistics_of(lambda f: f.assign(late=0)))
    assert report["proposed"] is artifact.properties["proposed_features"] is None
    folder = shared_run_step.store.local(artifact)
    assert not (folder / "proposed.pbtxt").exists()
    assert "No change of the schema would let this data through" in (folder / "proposal.md").read_text()


def test_rows_that_break_the_schema_are_put_apart_and_the_good_ones_go_on(
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
    assert tasks["after"].xcom_pull(task_ids="after")["metrics"] == {"errors": 0, "warnings": 0}


def test_rows_are_split_also_where_the_statistics_are_of_a_sample(
    shared_run_step: Any, warm_launcher: Any, flights_schema: Any, flights_raw: Path
) -> None:
    january = flights_examples.months(flights_raw, 1, 1).iloc[::40].reset_index(drop=True)
    examples = flights_examples.write_examples(shared_run_step.store, {"train": january}, run_id="sampled")
    statistics = shared_run_step(
        "airflow_hops.runtime.statistics:run",
        params={"options": {"sample_rate": 0.5}},
        inputs={"examples": examples},
        kind="statistics",
        launcher=warm_launcher,
    )
    assert statistics.metrics["train_rows"] < len(january)
    inputs = {"statistics": statistics, "schema": flights_schema, "examples": examples}
    artifact = shared_run_step(
        ENTRY, params={"split_anomalous": True}, inputs=inputs, kind="anomalies", launcher=warm_launcher
    )
    assert artifact.rows["train"].rows_in == len(january)


def test_examples_that_the_statistics_are_not_of_are_refused(
    statistics_of: Any, shared_run_step: Any, warm_launcher: Any, flights_schema: Any, flights_raw: Path
) -> None:
    store = shared_run_step.store
    few = flights_examples.months(flights_raw, 1, 1).head(100)
    statistics = statistics_of()
    with pytest.raises(StepFailed, match=r"split 'train' has 100 rows, and its statistics are of \d+") as failure:
        shared_run_step(
            ENTRY,
            params={"split_anomalous": True},
            inputs={
                "statistics": statistics,
                "schema": flights_schema,
                "examples": flights_examples.write_examples(store, {"train": few, "eval": few}, run_id="few"),
            },
            kind="anomalies",
            launcher=warm_launcher,
        )
    assert not failure.value.retryable
    assert not store.exists(shared_run_step.last_uri)
    assert not store.exists(shared_run_step.last_uri.replace("/anomalies", "/examples"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"on_anomaly": "explode"}, "on_anomaly has 'error': 'explode'"),
        ({"on_anomaly": {"fatal": "fail"}}, "on_anomaly has 'fatal': 'fail'"),
        ({"on_anomaly": "branch"}, "needs the task ids"),
        ({"on_anomaly": "ask", "on_timeout": "approve"}, "on_timeout is 'approve'"),
        ({"split_anomalous": True}, "needs the rows: examples="),
    ],
)
def test_wrong_arguments_are_refused_when_the_dag_is_parsed(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ValidateExamplesOperator(task_id="validation", statistics={}, schema={}, **arguments)


def _artifact(value: dict[str, Any]) -> Any:
    from airflow_hops.artifacts import Artifact

    return Artifact.from_dict(value)

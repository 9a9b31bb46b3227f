"""The schema stage: what is inferred, and that the first run freezes it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import flights_examples
import pytest

from airflow_hops.hooks.runtime import StepFailed

pytestmark = pytest.mark.runtime
CHECKS = (str(Path(__file__).parent / "runtime_checks"),)
ENTRY = "airflow_hops.runtime.schema:run"


@pytest.fixture(scope="module")
def described(shared_run_step: Any, warm_launcher: Any, flights_schema: Any) -> Any:
    return shared_run_step(
        "tfdv_checks:describe_schema", inputs={"schema": flights_schema}, code_paths=CHECKS, launcher=warm_launcher
    )


def test_schema_has_every_feature_with_its_type(described: Any) -> None:
    assert set(described) == {"late", "scheduled_at", *flights_examples.FEATURES}
    assert described["carrier"]["type"] == "BYTES"
    assert described["weekday"]["type"] == described["late"]["type"] == "INT"
    assert described["temp"]["type"] == "FLOAT"


def test_label_is_absent_in_serving_and_is_0_or_1(described: Any) -> None:
    assert [name for name, feature in described.items() if feature["not_in"]] == ["late"]
    assert described["late"]["not_in"] == ["SERVING"]
    assert described["late"]["int_domain"] == [0, 1]


def test_a_feature_that_was_never_missing_is_required_and_others_may_be_missing_a_little_more(described: Any) -> None:
    assert described["carrier"]["min_fraction"] == described["distance"]["min_fraction"] == 1.0
    assert 0.7 < described["plane_manufacturer"]["min_fraction"] < 0.8
    assert 0.85 < described["temp"]["min_fraction"] < 0.9


def test_small_vocabularies_become_domains(described: Any) -> None:
    assert described["origin"]["domain"] == ["EWR", "JFK", "LGA"]
    assert len(described["dest"]["domain"]) > 80


def test_comparators_are_in_the_schema_for_all_but_label_and_time(described: Any) -> None:
    for name in flights_examples.FEATURES:
        expected = ["infinity_norm", 0.05] if described[name]["type"] == "BYTES" else ["jensen_shannon_divergence", 0.2]
        assert described[name]["skew"] == described[name]["drift"] == expected, name
    for name in ("late", "scheduled_at"):
        assert described[name]["skew"] is None and described[name]["drift"] is None


def test_thresholds_come_from_the_arguments(shared_run_step: Any, warm_launcher: Any, flights_statistics: Any) -> None:
    schema = shared_run_step(
        ENTRY,
        params={"infinity_norm": 0.01, "jensen_shannon": 0.3, "max_domain_values": 10},
        inputs={"statistics": flights_statistics},
        kind="schema",
        launcher=warm_launcher,
    )
    described = shared_run_step(
        "tfdv_checks:describe_schema", inputs={"schema": schema}, code_paths=CHECKS, launcher=warm_launcher
    )
    assert described["carrier"]["skew"] == ["infinity_norm", 0.01]
    assert described["temp"]["drift"] == ["jensen_shannon_divergence", 0.3]
    assert described["origin"]["domain"] and not described["dest"]["domain"]


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"infinity_norm": 1.5}, "infinity_norm is 1.5, expected 0 to 1"),
        ({"presence_tolerance": -1}, "presence_tolerance is -1, expected 0 to 1"),
    ],
)
def test_bad_thresholds_give_a_clear_error_and_no_artifact(
    shared_run_step: Any, warm_launcher: Any, flights_statistics: Any, params: dict[str, Any], words: str
) -> None:
    with pytest.raises(StepFailed, match=words) as failure:
        shared_run_step(
            ENTRY, params=params, inputs={"statistics": flights_statistics}, kind="schema", launcher=warm_launcher
        )
    assert not failure.value.retryable
    assert not shared_run_step.store.exists(shared_run_step.last_uri)


def test_statistics_without_a_train_split_or_the_label_are_refused(run_step: Any, warm_launcher: Any) -> None:
    import pyarrow as pa

    for splits, words in (("eval", "no statistics of the split 'train'"), ("train", "label 'late' is not in")):
        examples = flights_examples.write_examples(run_step.store, {splits: pa.table({"x": [1, 2]})})
        statistics = run_step(
            "airflow_hops.runtime.statistics:run",
            inputs={"examples": examples},
            kind="statistics",
            launcher=warm_launcher,
        )
        with pytest.raises(StepFailed, match=words):
            run_step(ENTRY, inputs={"statistics": statistics}, kind="schema", launcher=warm_launcher)
        assert not run_step.store.exists(run_step.last_uri)


def test_schema_and_validation_do_not_import_tensorflow(shared_run_step: Any) -> None:
    found = shared_run_step("tfdv_checks:imports_of_schema_and_validation", code_paths=CHECKS)
    assert found == ["0"]


def test_the_step_returns_a_frozen_schema_untouched(
    shared_run_step: Any, warm_launcher: Any, flights_statistics: Any
) -> None:
    step = {"inputs": {"statistics": flights_statistics}, "kind": "schema", "launcher": warm_launcher}
    first = shared_run_step(ENTRY, run_id="frozen", **step)
    again = shared_run_step(ENTRY, params={"infinity_norm": 0.9}, run_id="frozen", **step)
    assert again.uri == first.uri
    assert again.fingerprint == first.fingerprint
    assert shared_run_step.store.manifest(first.uri).created_at


def test_first_dag_run_freezes_and_the_second_starts_no_process(
    run_dag: Any, shared_run_step: Any, flights_raw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = shared_run_step.store
    sample = flights_examples.months(flights_raw, 1, 1).iloc[::20]
    examples = flights_examples.write_examples(store, {"train": sample}, run_id="january")
    found = []
    schema = Path(store.uri("schema", "_frozen", "flights", "schema").removeprefix("file://")) / "schema.pbtxt"
    for runtime in (str(shared_run_step.runtime), os.devnull, os.devnull):
        if len(found) == 2:
            schema.write_text(schema.read_text() + "# thresholds are right as they are\n")
        connection = {"conn_type": "hops", "extra": {"store": store.root, "runtime": runtime}}
        monkeypatch.setenv("AIRFLOW_CONN_HOPS_DEFAULT", json.dumps(connection))
        run = run_dag("schema", {"examples": examples.to_dict()})
        tasks = {ti.task_id: ti for ti in run.get_task_instances()}
        assert {name: ti.state for name, ti in tasks.items()} == {"statistics": "success", "schema": "success"}
        found.append(tasks["schema"].xcom_pull(task_ids="schema"))
    first, second, edited = found
    assert first["uri"] == store.uri("schema", "_frozen", "flights", "schema")
    assert second["fingerprint"] == first["fingerprint"]
    assert (first["cached"], second["cached"]) == (False, True)
    assert edited["fingerprint"] != first["fingerprint"], "what was validated before is not taken from the cache"
    assert "carrier" in first["properties"]["features"]

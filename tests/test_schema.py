"""The schema stage: what is inferred, and that the first run freezes it."""

from __future__ import annotations

import dataclasses
import getpass
import json
import os
import re
from argparse import Namespace
from pathlib import Path
from typing import Any

import flights_examples
import pytest
from airflow.sdk import DAG
from test_cli import airflow

from airflow_hops.artifacts import Artifact, Producer
from airflow_hops.cli import schema as commands
from airflow_hops.decorators.schema import schema_task
from airflow_hops.hooks.runtime import StepFailed
from airflow_hops.operators.schema import SchemaOperator
from airflow_hops.schema_history import freeze_schema, publish_schema, schema_history, schema_text

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
        ({"comparators": {"temp": {"jensen_shannon": 2}}}, r"comparators\['temp'\]\['jensen_shannon'\] is 2, expected"),
        ({"comparators": {"tmp": {}}}, "comparators: feature 'tmp' is not in the statistics; there are carrier, dest"),
        ({"comparators": {"temp": {"psi": 0.1}}}, "unknown measure 'psi', expected one of infinity_norm, jensen_sha"),
        ({"comparators": {"temp": {"infinity_norm": 0.1}}}, r"comparators\['temp'\]: infinity_norm is for strings"),
        ({"infinity_norm": "0.1"}, "infinity_norm is '0.1', expected 0 to 1"),
        ({"max_domain_values": 1.5}, "max_domain_values is 1.5, expected a number of values"),
        ({"comparators": {"temp": 0.1}}, r"comparators\['temp'\] is 0.1, expected thresholds by measure"),
        ({"environments": ["SERVING"]}, r"environments is \['SERVING'\], expected a mapping"),
        ({"environments": {"SERVING": "late"}}, r"environments\['SERVING'\] is 'late', expected a name with the list"),
        ({"environments": {"SERVING": ["lat"]}}, r"environments\['SERVING'\]: feature 'lat' is not in the statistics"),
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


def test_a_schema_of_a_source(run_step: Any, warm_launcher: Any, tmp_path: Path) -> None:
    (tmp_path / "flights.csv").write_text("carrier,delay\nUA,1.5\nAA,2\n")
    source = {"source": {"uri": str(tmp_path / "flights.csv")}, "split": "data"}
    statistics = run_step(
        "airflow_hops.runtime.statistics:run", params={"source": source}, kind="statistics", launcher=warm_launcher
    )
    schema = run_step(ENTRY, inputs={"statistics": statistics}, kind="schema", launcher=warm_launcher)
    assert schema.properties["features"] == ["carrier", "delay"]


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


class Pipeline:
    """Runs DAGs whose task ``schema`` is of the schema stage."""

    def __init__(self, run_dag: Any, store: Any, runtime: Path, conf: Any, patch: Any, capture: Any) -> None:
        self._run_dag, self.store, self._runtime, self._conf = run_dag, store, runtime, conf
        self._patch, self._capture = patch, capture

    def __call__(self, dag_id: str, *, runtime: str | None = None, **conf: Any) -> tuple[str, Any, str]:
        """The schema task's state, its value, and what was logged."""
        self.connect(runtime)
        self._capture.readouterr()
        run = self._run_dag(dag_id, {**self._conf, **conf})
        (task,) = [ti for ti in run.get_task_instances() if ti.task_id == "schema"]
        return task.state, task.xcom_pull(task_ids="schema"), "".join(self._capture.readouterr())

    def connect(self, runtime: str | None = None) -> None:
        extra = {"store": self.store.root, "runtime": runtime or str(self._runtime)}
        self._patch.setenv("AIRFLOW_CONN_HOPS_DEFAULT", json.dumps({"conn_type": "hops", "extra": extra}))

    def file(self, dag_id: str, name: str = "schema") -> Path:
        return Path(self.store.uri(dag_id, "_frozen", name, "schema").removeprefix("file://")) / "schema.pbtxt"

    def notes(self, dag_id: str, name: str = "schema") -> list[str]:
        uri = self.store.uri(dag_id, "_frozen", name, "schema")
        return [re.sub(r"run \S+?(?=,|$)", "run …", version.note) for version in schema_history(self.store, uri)]


@pytest.fixture
def pipeline(
    run_dag: Any,
    shared_run_step: Any,
    flights_statistics: Any,
    flights_raw: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Pipeline:
    store = shared_run_step.store
    sample = flights_examples.months(flights_raw, 1, 1).iloc[::20]
    examples = flights_examples.write_examples(store, {"train": sample}, run_id="january")
    conf = {"examples": examples.to_dict(), "statistics": flights_statistics.to_dict()}
    return Pipeline(run_dag, store, shared_run_step.runtime, conf, monkeypatch, capsys)


def test_first_run_freezes_the_second_starts_no_process_and_a_hand_edit_becomes_a_version(
    pipeline: Pipeline,
) -> None:
    _, first, _ = pipeline("schema")
    state, second, _ = pipeline("schema", runtime=os.devnull)
    assert state == "success"
    assert first["uri"] == pipeline.store.uri("schema", "_frozen", "flights", "schema")
    assert second["fingerprint"] == first["fingerprint"]
    assert (first["cached"], second["cached"]) == (False, True)
    assert "carrier" in first["properties"]["features"]

    file = pipeline.file("schema", "flights")
    before = file.read_text()
    file.write_text("# thresholds are right as they are\n" + before + 'feature { name: "mine" type: INT }\n')
    state, edited, _ = pipeline("schema")
    assert state == "success"
    assert edited["fingerprint"] != first["fingerprint"], "what was validated before is not taken from the cache"
    assert edited["properties"]["features"] == [*first["properties"]["features"], "mine"]
    assert pipeline.notes("schema", "flights") == ["inferred by run …", "edited by hand"]
    assert pipeline("schema", runtime=os.devnull)[1]["fingerprint"] == edited["fingerprint"]

    file.write_text(before + "feature {\n  nam: 1\n}\n")
    line = before.count("\n") + 2
    state, _, log = pipeline("schema")
    assert state == "failed"
    expected = (
        rf"schema.pbtxt:{line}:3: not a schema in protobuf text: .*no field named \"nam\".*; "
        r"the last good version is 2, of .*'airflow hops schema revert schema flights 2'"
    )
    assert re.search(expected, log), log
    assert pipeline.notes("schema", "flights") == ["inferred by run …", "edited by hand"]


def test_a_function_amends_the_inferred_schema_once_and_a_change_of_it_is_told(
    pipeline: Pipeline, shared_run_step: Any, warm_launcher: Any
) -> None:
    state, value, log = pipeline("schema_function")
    assert state == "success"
    described = shared_run_step(
        "tfdv_checks:describe_schema",
        inputs={"schema": Artifact.from_dict(value)},
        code_paths=CHECKS,
        launcher=warm_launcher,
    )
    assert described["origin"]["domain"] == ["EWR", "JFK", "LGA", "HPN"]
    assert described["temp"]["min_fraction"] == 0.25
    assert described["temp"]["skew"] == ["jensen_shannon_divergence", 0.3]
    assert described["dewp"]["skew"] is None
    assert described["late"]["not_in"] == ["SERVING", "BATCH"]
    assert pipeline.notes("schema_function") == ["inferred by run …, curated by schema()"]
    assert "Curated: origin: domain gains 'HPN'" in log

    _, again, log = pipeline("schema_function", runtime=os.devnull)
    assert again["fingerprint"] == value["fingerprint"]
    assert "changed since the schema was frozen" not in log
    manifest = pipeline.store.manifest(value["uri"])
    parts = {**manifest.cache_key_parts, "schema function": "of another source"}
    pipeline.store.write_text(
        f"{value['uri']}/manifest.json", dataclasses.replace(manifest, cache_key_parts=parts).to_json()
    )
    state, _, log = pipeline("schema_function", runtime=os.devnull)
    assert state == "success"
    assert "The schema function changed since the schema was frozen, without effect" in log


@pytest.mark.parametrize(
    ("dag_id", "words"),
    [
        ("schema_function_returns_text", r"schema\(\) returned a builtins.str; expected the Schema"),
        ("schema_function_two_of_a_name", "expected a name of its own, a second one named 'temp'"),
    ],
)
def test_a_function_that_makes_no_schema_fails_and_freezes_nothing(pipeline: Pipeline, dag_id: str, words: str) -> None:
    state, _, log = pipeline(dag_id)
    assert state == "failed"
    assert re.search(words, log), log
    assert not pipeline.file(dag_id).exists()


def test_a_schema_kept_by_hand_is_imported_and_published_again_when_it_changes(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    kept = tmp_path / "flights.pbtxt"
    kept.write_text('feature {\n  name: "temp"\n  type: FLOT\n}\n')
    state, _, log = pipeline("schema_file", path=str(kept))
    assert state == "failed"
    assert f"{kept}:3:9: not a schema in protobuf text" in log
    state, _, log = pipeline("schema_file", path=str(tmp_path / "none.pbtxt"))
    assert state == "failed"
    assert f"{tmp_path / 'none.pbtxt'}: cannot be read" in log
    assert not pipeline.file("schema_file").exists()

    kept.write_text('# of ours\nfeature { name: "temp" type: FLOAT }\n')
    state, first, _ = pipeline("schema_file", path=str(kept))
    assert (state, first["properties"]["features"], first["properties"]["label"]) == ("success", ["temp"], "late")
    assert pipeline.file("schema_file").read_text() == kept.read_text()
    assert pipeline("schema_file", path=str(kept), runtime=os.devnull)[1]["fingerprint"] == first["fingerprint"]

    publish_schema(pipeline.store, first["uri"], 'feature { name: "dewp" type: FLOAT }\n', approved_by="ann")
    assert pipeline("schema_file", path=str(kept), runtime=os.devnull)[1]["fingerprint"] != first["fingerprint"]
    kept.write_text('feature { name: "humid" type: FLOAT }\n')
    state, changed, _ = pipeline("schema_file", path=str(kept))
    assert (state, changed["properties"]["features"]) == ("success", ["humid"])
    imported = f"imported from {kept} by run …"
    assert pipeline.notes("schema_file") == [imported, "", imported]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "expected statistics to infer the schema from, or a schema's path"),
        ({"schema": "x.pbtxt", "infinity_norm": 0.1}, "schema is given, so that infinity_norm has no effect"),
    ],
)
def test_arguments_that_contradict_each_other_are_refused_when_the_dag_is_parsed(
    arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        SchemaOperator(task_id="schema", **arguments)


def test_a_function_without_the_schema_is_refused_when_the_dag_is_parsed() -> None:
    @schema_task(statistics={})
    def amend() -> None:
        pass

    @schema_task(statistics={})
    def with_context(context, schema):  # type: ignore[no-untyped-def]
        pass

    for function, found in ((amend, "none"), (with_context, "'context'")):
        with pytest.raises(ValueError, match=f"gets the inferred schema, found {found}"), DAG("refused", schedule=None):
            function()


def test_versions_on_the_command_line(pipeline: Pipeline, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipeline.connect()
    text = 'feature { name: "temp" type: FLOAT presence { min_fraction: 1.0 } }\n'
    uri = pipeline.store.uri("by_hand", "_frozen", "flights", "schema")
    freeze_schema(pipeline.store, uri, text, producer=Producer("by_hand", "run-1", "flights"), note="inferred")
    name = ("by_hand", "flights")
    new = tmp_path / "new.pbtxt"
    new.write_text(text.replace("1.0", "0.5"))

    approved = airflow("hops", "schema", "approve", *name, str(new), "--by", "ann", "--note", "seldom there")
    assert approved.returncode == 0, approved.stderr
    difference = "temp: presence is in at least 50% of the rows, was in at least 100% of the rows"
    assert approved.stdout.splitlines() == [difference, "In force: version 2, approved by ann."]
    assert schema_text(pipeline.store, uri) == new.read_text()

    reverted = airflow("hops", "schema", "revert", *name, "1")
    assert f"In force: version 3, approved by {getpass.getuser()}." in reverted.stdout, reverted.stderr
    listed = json.loads(airflow("hops", "schema", "history", *name, "--output", "json").stdout)
    shown = [[version[key] for key in ("version", "in_force", "approved_by", "note")] for version in listed]
    assert shown == [
        ["1", "False", "", "inferred"],
        ["2", "False", "ann", "seldom there"],
        ["3", "True", getpass.getuser(), "back to version 1"],
    ]

    new.write_text("feature {\n nam: 3 }")
    refused = airflow("hops", "schema", "approve", *name, str(new))
    assert refused.returncode == 1
    assert f"{new}:2:2: not a schema in protobuf text" in refused.stderr and "Traceback" not in refused.stderr
    arguments = {
        "dag_id": "by_hand",
        "name": "flights",
        "hops_conn_id": "hops_default",
        "by": None,
        "note": "",
        "verbose": False,
    }
    for command, given, words in (
        (commands.approve, {"file": os.devnull}, f"{os.devnull}: no feature in it"),
        (commands.approve, {"file": str(tmp_path / "none")}, "cannot be read"),
        (commands.revert, {"version": 99}, "there is no version 99; there are 1 to 3"),
        (commands.show, {"name": "other", "version": None}, "the first run of DAG 'by_hand' makes it"),
    ):
        with pytest.raises(SystemExit, match=words):
            command(Namespace(**{**arguments, **given}))
    assert len(schema_history(pipeline.store, uri)) == 3
    pipeline.file("by_hand", "flights").write_bytes(b"# caf\xe9\n")
    commands.revert(Namespace(**{**arguments, "version": 1}))
    assert pipeline.notes("by_hand", "flights")[3:] == ["edited by hand", "back to version 1"]
    capsys.readouterr()
    for command, given, printed in (
        (commands.diff, {"before": 1, "after": 3}, "no difference\n"),
        (commands.diff, {"before": 1, "after": 2}, f"{difference}\n"),
        (commands.show, {"version": None}, text),
        (commands.show, {"version": 2}, text.replace("1.0", "0.5")),
    ):
        command(Namespace(**{**arguments, **given}))
        assert capsys.readouterr().out == printed

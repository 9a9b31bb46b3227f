"""The schema stage in DAGs and on the command line: the first run freezes a schema, and people change it."""

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

from airflow_hops.cli import schema as commands
from airflow_hops.core.artifacts.artifact import Artifact, Producer
from airflow_hops.core.errors import HopsError
from airflow_hops.core.models.model_record import ModelRecord, ServedVersion
from airflow_hops.core.models.model_records import write_record
from airflow_hops.core.schema.history import freeze_schema, publish_schema, schema_history, schema_text
from airflow_hops.decorators.hops import schema_task

pytestmark = pytest.mark.runtime


class Pipeline:
    """Runs DAGs whose task ``schema`` is of the schema stage."""

    def __init__(
        self, run_dag: Any, store: Any, runtime: Path, lifeless: Path, conf: Any, patch: Any, capture: Any
    ) -> None:
        self._run_dag, self.store, self._runtime, self._conf = run_dag, store, runtime, conf
        self._patch, self._capture = patch, capture
        self.lifeless = lifeless
        """The same environment without a Python that could be started."""
        lifeless.mkdir()
        for each in runtime.iterdir():
            if each.name != "bin":
                (lifeless / each.name).symlink_to(each)

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
        return Path(self.store.frozen_schema(dag_id, name).removeprefix("file://")) / "schema.pbtxt"

    def notes(self, dag_id: str, name: str = "schema") -> list[str]:
        uri = self.store.frozen_schema(dag_id, name)
        return [re.sub(r"run \S+?(?=,| \(|$)", "run …", version.note) for version in schema_history(self.store, uri)]


@pytest.fixture
def pipeline(
    run_dag: Any,
    shared_run_step: Any,
    flights_statistics: Any,
    flights_raw: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Pipeline:
    store = shared_run_step.store
    sample = flights_examples.months(flights_raw, 1, 1).iloc[::20]
    examples = flights_examples.write_examples(store, {"train": sample}, run_id="january")
    conf = {"examples": examples.to_dict(), "statistics": flights_statistics.to_dict()}
    lifeless = tmp_path / "lifeless"
    return Pipeline(run_dag, store, shared_run_step.runtime, lifeless, conf, monkeypatch, capsys)


def test_schema_is_frozen_once_and_hand_edits_become_versions(
    pipeline: Pipeline,
) -> None:
    _, first, _ = pipeline("schema")
    state, second, _ = pipeline("schema", runtime=str(pipeline.lifeless))
    assert state == "success"
    assert first["uri"] == pipeline.store.frozen_schema("schema", "flights")
    assert second["fingerprint"] == first["fingerprint"]
    assert (first["cached"], second["cached"]) == (False, True)
    assert "carrier" in first["properties"]["features"]

    file = pipeline.file("schema", "flights")
    text = file.read_text()
    file.write_text("# thresholds are right as they are\n" + text + 'feature { name: "mine" type: INT }\n')
    state, edited, _ = pipeline("schema")
    assert state == "success"
    assert edited["fingerprint"] != first["fingerprint"], "what was validated before is not taken from the cache"
    assert edited["properties"]["features"] == [*first["properties"]["features"], "mine"]
    assert pipeline.notes("schema", "flights") == ["inferred by run …", "edited by hand"]
    assert pipeline("schema", runtime=str(pipeline.lifeless))[1]["fingerprint"] == edited["fingerprint"]

    file.write_text(text + "feature {\n  nam: 1\n}\n")
    line = text.count("\n") + 2
    state, _, log = pipeline("schema")
    assert state == "failed"
    expected = (
        rf"schema.pbtxt:{line}:3: not a schema in protobuf text: .*no field named \"nam\".*; "
        r"the last good version is 2, of .*'airflow hops schema revert schema flights 2'"
    )
    assert re.search(expected, log), log
    assert pipeline.notes("schema", "flights") == ["inferred by run …", "edited by hand"]


def test_function_amends_the_schema_once_and_changes_are_reported(pipeline: Pipeline) -> None:
    state, value, log = pipeline("schema_function")
    assert state == "success", log
    # The features by name, as text; the domains after them.
    blocks = re.split(r"^(?=feature|string_domain)", schema_text(pipeline.store, value["uri"]), flags=re.MULTILINE)
    text = {(block.split()[0], block.split('"')[1]): block for block in blocks if block}
    assert re.findall(r'value: "(\w+)"', text["string_domain", "origin"]) == ["EWR", "JFK", "LGA", "HPN"]
    temp = text["feature", "temp"]
    assert "min_fraction: 0.25" in temp
    assert re.search(r"skew_comparator {\s+jensen_shannon_divergence {\s+threshold: 0.3", temp)
    assert "skew_comparator" not in text["feature", "dewp"]
    assert re.findall(r'not_in_environment: "(\w+)"', text["feature", "late"]) == ["SERVING", "BATCH"]
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
    assert "The schema function changed since the schema was frozen, but this has no effect" in log


def test_invalid_schema_function_fails_and_freezes_nothing(pipeline: Pipeline) -> None:
    state, _, log = pipeline("schema_function_returns_text")
    assert state == "failed"
    assert re.search(r"schema\(\) returned a builtins.str; expected the Schema", log), log
    assert not pipeline.file("schema_function_returns_text").exists()


def test_hand_written_schema_is_imported_and_republished_on_change(pipeline: Pipeline, tmp_path: Path) -> None:
    retained = tmp_path / "flights.pbtxt"
    retained.write_text('feature {\n  name: "temp"\n  type: FLOT\n}\n')
    state, _, log = pipeline("schema_file", path=str(retained))
    assert state == "failed"
    assert f"{retained}:3:9: not a schema in protobuf text" in log
    state, _, log = pipeline("schema_file", path=str(tmp_path / "none.pbtxt"))
    assert state == "failed"
    assert f"{tmp_path / 'none.pbtxt'}: cannot be read" in log
    assert not pipeline.file("schema_file").exists()

    retained.write_text('# of ours\nfeature { name: "temp" type: FLOAT }\n')
    state, first, _ = pipeline("schema_file", path=str(retained))
    assert (state, first["properties"]["features"], first["properties"]["label"]) == ("success", ["temp"], "late")
    assert pipeline.file("schema_file").read_text() == retained.read_text()
    assert pipeline("schema_file", path=str(retained), runtime=os.devnull)[1]["fingerprint"] == first["fingerprint"]

    publish_schema(pipeline.store, first["uri"], 'feature { name: "dewp" type: FLOAT }\n', approved_by="ann")
    assert pipeline("schema_file", path=str(retained), runtime=os.devnull)[1]["fingerprint"] != first["fingerprint"]
    retained.write_text('feature { name: "humid" type: FLOAT }\n')
    state, changed, _ = pipeline("schema_file", path=str(retained))
    assert (state, changed["properties"]["features"]) == ("success", ["humid"])
    imported = f"imported from {retained} by run …"
    assert pipeline.notes("schema_file") == [imported, "", imported]


def test_a_function_without_the_schema_is_refused_when_the_dag_is_parsed() -> None:
    @schema_task(statistics={})
    def amend() -> None:
        pass

    @schema_task(statistics={})
    def with_context(context, schema):  # type: ignore[no-untyped-def]
        pass

    for function, result in ((amend, "none"), (with_context, "'context'")):
        with (
            pytest.raises(ValueError, match=f"gets the inferred schema, found {result}"),
            DAG("refused", schedule=None),
        ):
            function()


def trained_with(schema: str) -> ServedVersion:
    return ServedVersion.of(Artifact("file:///m", "model", "f", properties={"schema": schema}), 1, "", 100)


def test_schema_follows_the_data_until_deployment_and_after_a_reset(
    pipeline: Pipeline, shared_run_step: Any, warm_launcher: Any, flights_raw: Path
) -> None:
    dag_id, dropped = "schema_until_deployed", ["temp", "dewp", "precip"]
    january = flights_examples.months(flights_raw, 1, 1).iloc[::4].drop(columns=dropped)
    splits = {"train": january, "eval": january}
    other = flights_examples.statistics_of(shared_run_step, warm_launcher, splits, run_id="january-twice").to_dict()

    state, first, _ = pipeline(dag_id)
    assert state == "success"
    assert set(dropped) <= set(first["properties"]["features"])
    _, second, _ = pipeline(dag_id, statistics=other)
    assert set(second["properties"]["features"]) == set(first["properties"]["features"]) - set(dropped)
    notes = ["inferred by run …", "inferred by run … (no model was deployed with the previous one)"]
    assert pipeline.notes(dag_id) == notes
    write_record(pipeline.store, "of_another_schema", ModelRecord(trained_with("file:///another")))
    _, third, _ = pipeline(dag_id)
    assert third["fingerprint"] == first["fingerprint"]

    write_record(pipeline.store, "until_deployed", ModelRecord(trained_with(first["uri"])))
    _, retained, log = pipeline(dag_id, statistics=other)
    assert retained["fingerprint"] == first["fingerprint"]
    name, proposed = f"{dag_id} schema", r"'file:\S+/validate/anomalies/proposed.pbtxt'"
    assert re.search(r"6 anomalies, see file:\S+/validate/anomalies:", log), log
    assert (
        "error in 2 splits ('train', 'eval'), 3 features ('dewp', 'precip', 'temp'): Column dropped: Column is "
        "completely missing" in log
    )
    assert log.count("Column is completely missing") <= 3, "once from the step, and in the task's error"
    assert re.search(f"airflow hops schema diff {name} {proposed} .*\n.*schema approve {name} {proposed} ", log), log
    assert f"airflow hops schema reset {name} " in log
    assert "No deployed model was trained with it" not in log

    arguments = {"dag_id": dag_id, "name": "schema", "hops_conn_id": "hops_default", "verbose": False}
    commands.reset(Namespace(**arguments, by="ann", note="first iteration"))
    assert schema_text(pipeline.store, first["uri"]) == pipeline.file(dag_id).read_text(), "it is in force until then"
    for _ in range(2):
        _, anew, _ = pipeline(dag_id, statistics=other)
        assert anew["fingerprint"] == second["fingerprint"]
    assert pipeline.notes(dag_id)[3:] == ["inferred by run … (reset by ann: first iteration)"]


def test_schema_versions_are_managed_on_the_command_line(
    pipeline: Pipeline, hops: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline.connect()
    text = 'feature { name: "temp" type: FLOAT presence { min_fraction: 1.0 } }\n'
    uri = pipeline.store.frozen_schema("by_hand", "flights")
    freeze_schema(pipeline.store, uri, text, producer=Producer("by_hand", "run-1", "flights"), note="inferred")
    name = ("by_hand", "flights")
    new = tmp_path / "new.pbtxt"
    new.write_text(text.replace("1.0", "0.5"))

    code, approved, errors = hops("schema", "approve", *name, str(new), "--by", "ann", "--note", "seldom there")
    assert code == 0, errors
    difference = "temp: presence is in at least 50% of the rows, was in at least 100% of the rows"
    assert approved.splitlines() == [difference, "In force: version 2, approved by ann."]
    assert schema_text(pipeline.store, uri) == new.read_text()

    _, reverted, errors = hops("schema", "revert", *name, "1")
    assert f"In force: version 3, approved by {getpass.getuser()}." in reverted, errors
    listed = json.loads(hops("schema", "history", *name, "--output", "json")[1])
    shown = [[version[key] for key in ("version", "in_force", "approved_by", "note")] for version in listed]
    assert shown == [
        ["1", "False", "", "inferred"],
        ["2", "False", "ann", "seldom there"],
        ["3", "True", getpass.getuser(), "back to version 1"],
    ]

    new.write_text("feature {\n nam: 3 }")
    code, _, errors = hops("schema", "approve", *name, str(new))
    assert code == 1
    assert f"{new}:2:2: not a schema in protobuf text" in errors and "Traceback" not in errors
    arguments = {
        "dag_id": "by_hand",
        "name": "flights",
        "hops_conn_id": "hops_default",
        "by": None,
        "note": "",
        "verbose": False,
    }
    for command, values, words in (
        (commands.approve, {"file": os.devnull}, f"{os.devnull}: no feature in it"),
        (commands.approve, {"file": str(tmp_path / "none")}, "cannot be read"),
        (commands.revert, {"version": 99}, "there is no version 99; there are 1 to 3"),
        (commands.show, {"name": "other", "version": None}, "the first run of DAG 'by_hand' makes it"),
    ):
        with pytest.raises(HopsError, match=words):
            command(Namespace(**{**arguments, **values}))
    assert len(schema_history(pipeline.store, uri)) == 3
    pipeline.file("by_hand", "flights").write_bytes(b"# caf\xe9\n")
    commands.revert(Namespace(**{**arguments, "version": 1}))
    assert pipeline.notes("by_hand", "flights")[3:] == ["edited by hand", "back to version 1"]
    capsys.readouterr()
    seldom = tmp_path / "seldom.pbtxt"
    seldom.write_text(text.replace("1.0", "0.5"))
    for command, values, printed in (
        (commands.diff, {"before": "1", "after": "3"}, "no difference\n"),
        (commands.diff, {"before": "1", "after": "2"}, f"{difference}\n"),
        (commands.diff, {"before": str(seldom), "after": None}, f"{difference}\n"),
        (commands.diff, {"before": f"{uri}/schema.pbtxt", "after": None}, "no difference\n"),
        (commands.show, {"version": None}, text),
        (commands.show, {"version": 2}, text.replace("1.0", "0.5")),
    ):
        command(Namespace(**{**arguments, **values}))
        assert capsys.readouterr().out == printed

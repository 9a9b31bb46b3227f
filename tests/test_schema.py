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
from world import World, path_of, results, states

from airflow_hops.cli import schema as commands
from airflow_hops.core.artifacts.artifact import Artifact, Producer
from airflow_hops.core.models.model_record import ModelRecord, ServedVersion, write_record
from airflow_hops.core.schema.history import freeze_schema, publish_schema, schema_history, schema_text
from airflow_hops.decorators.hops import schema_task

pytestmark = pytest.mark.runtime


class Pipeline:
    """Runs DAGs whose task ``schema`` is of the schema stage."""

    def __init__(self, run_dag: Any, world: World, runtime: Path, conf: Any, capture: Any) -> None:
        self._run_dag, self.world, self.store, self._conf = run_dag, world, world.store, conf
        self._runtime, self._capture = str(runtime), capture

    def __call__(self, dag_id: str, *, runtime: str | None = None, **conf: Any) -> tuple[str, Any, str]:
        """The schema task's state, its value, and what was logged."""
        self.world.connect(runtime=runtime or self._runtime)
        self._capture.readouterr()
        run = self._run_dag(dag_id, {**self._conf, **conf})
        return states(run)["schema"], results(run)["schema"], "".join(self._capture.readouterr())

    def file(self, dag_id: str, name: str = "schema") -> Path:
        return path_of(self.store.frozen_schema(dag_id, name)) / "schema.pbtxt"

    def notes(self, dag_id: str, name: str = "schema") -> list[str]:
        uri = self.store.frozen_schema(dag_id, name)
        return [re.sub(r"run \S+?(?=,| \(|$)", "run …", version.note) for version in schema_history(self.store, uri)]


@pytest.fixture
def pipeline(
    run_dag: Any,
    shared_run_step: Any,
    flights_statistics: Any,
    flights_raw: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Pipeline:
    world = World(shared_run_step.store, monkeypatch)
    sample = flights_examples.months(flights_raw, 1, 1).iloc[::20]
    examples = flights_examples.write_examples(world.store, {"train": sample}, run_id="january")
    conf = {"examples": examples.to_dict(), "statistics": flights_statistics.to_dict()}
    return Pipeline(run_dag, world, shared_run_step.runtime, conf, capsys)


@pytest.fixture
def lifeless(runtime: Path, tmp_path: Path) -> str:
    """The runtime environment without a Python that could be started."""
    folder = tmp_path / "lifeless"
    folder.mkdir()
    for each in runtime.iterdir():
        if each.name != "bin":
            (folder / each.name).symlink_to(each)
    return str(folder)


def test_schema_is_frozen_once_and_hand_edits_become_versions(pipeline: Pipeline, lifeless: str) -> None:
    _, first, _ = pipeline("schema")
    state, second, _ = pipeline("schema", runtime=lifeless)
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
    assert pipeline("schema", runtime=lifeless)[1]["fingerprint"] == edited["fingerprint"]

    file.write_text(text + "feature {\n  nam: 1\n}\n")
    state, _, log = pipeline("schema")
    assert state == "failed"
    expected = (
        rf"schema.pbtxt:{text.count(chr(10)) + 2}:3: not a schema in protobuf text: .*no field named \"nam\".*; "
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
    def imported(file: Path, **options: Any) -> tuple[str, Any, str]:
        return pipeline("schema_file", path=str(file), **options)

    retained, none = tmp_path / "flights.pbtxt", tmp_path / "none.pbtxt"
    retained.write_text('feature {\n  name: "temp"\n  type: FLOT\n}\n')
    for file, words in (
        (retained, f"{retained}:3:9: not a schema in protobuf text"),
        (none, f"{none}: cannot be read"),
    ):
        state, _, log = imported(file)
        assert (state, words in log) == ("failed", True)
    assert not pipeline.file("schema_file").exists()

    retained.write_text('# of ours\nfeature { name: "temp" type: FLOAT }\n')
    state, first, _ = imported(retained)
    assert (state, first["properties"]["features"], first["properties"]["label"]) == ("success", ["temp"], "late")
    assert pipeline.file("schema_file").read_text() == retained.read_text()
    assert imported(retained, runtime=os.devnull)[1]["fingerprint"] == first["fingerprint"]
    publish_schema(pipeline.store, first["uri"], 'feature { name: "dewp" type: FLOAT }\n', approved_by="ann")
    assert imported(retained, runtime=os.devnull)[1]["fingerprint"] != first["fingerprint"]

    retained.write_text('feature { name: "humid" type: FLOAT }\n')
    state, changed, _ = imported(retained)
    assert (state, changed["properties"]["features"]) == ("success", ["humid"])
    note = f"imported from {retained} by run …"
    assert pipeline.notes("schema_file") == [note, "", note]


TEXT = 'feature { name: "temp" type: FLOAT presence { min_fraction: 1.0 } }\n'


SELDOM = TEXT.replace("1.0", "0.5")


DIFFERENCE = "temp: presence is in at least 50% of the rows, was in at least 100% of the rows"


NAME = ("by_hand", "flights")


@pytest.fixture
def frozen(world: World, tmp_path: Path) -> str:
    """The address of a frozen schema; ``seldom.pbtxt`` in the test's folder has another text."""
    (tmp_path / "seldom.pbtxt").write_text(SELDOM)
    uri: str = world.connect().store.frozen_schema(*NAME)
    freeze_schema(world.store, uri, TEXT, producer=Producer("by_hand", "run-1", "flights"), note="inferred")
    return uri


def test_commands_approve_revert_and_list_versions(frozen: str, world: World, hops: Any, tmp_path: Path) -> None:
    file = str(tmp_path / "seldom.pbtxt")
    code, approved, errors = hops("schema", "approve", *NAME, file, "--by", "ann", "--note", "seldom there")
    assert code == 0, errors
    assert approved.splitlines() == [DIFFERENCE, "In force: version 2, approved by ann."]
    assert schema_text(world.store, frozen) == SELDOM
    _, reverted, errors = hops("schema", "revert", *NAME, "1")
    assert f"In force: version 3, approved by {getpass.getuser()}." in reverted, errors
    listed = json.loads(hops("schema", "history", *NAME, "--output", "json")[1])
    assert [[version[key] for key in ("version", "in_force", "approved_by", "note")] for version in listed] == [
        ["1", "False", "", "inferred"],
        ["2", "False", "ann", "seldom there"],
        ["3", "True", getpass.getuser(), "back to version 1"],
    ]
    (path_of(frozen) / "schema.pbtxt").write_bytes(b"# caf\xe9\n")
    assert hops("schema", "revert", *NAME, "1")[0] == 0
    notes = [version.note for version in schema_history(world.store, frozen)]
    assert notes[3:] == ["edited by hand", "back to version 1"]


def test_commands_refuse_what_is_no_schema_or_version(frozen: str, world: World, hops: Any, tmp_path: Path) -> None:
    wrong, nowhere = tmp_path / "wrong.pbtxt", tmp_path / "none"
    wrong.write_text("feature {\n nam: 3 }")
    for command, words in (
        (("approve", *NAME, str(wrong)), f"{wrong}:2:2: not a schema in protobuf text"),
        (("approve", *NAME, os.devnull), f"{os.devnull}: no feature in it"),
        (("approve", *NAME, str(nowhere)), "cannot be read"),
        (("revert", *NAME, "99"), "there is no version 99; there are 1 to 1"),
        (("show", "by_hand", "other"), "the first run of DAG 'by_hand' makes it"),
    ):
        code, _, errors = hops("schema", *command)
        assert (code, words in errors, "Traceback" in errors) == (1, True, False), errors
    assert len(schema_history(world.store, frozen)) == 1


def test_commands_show_versions_and_their_differences(frozen: str, hops: Any, tmp_path: Path) -> None:
    seldom = str(tmp_path / "seldom.pbtxt")
    hops("schema", "approve", *NAME, seldom)
    hops("schema", "revert", *NAME, "1")
    for command, printed in (
        (("diff", *NAME, "1", "3"), "no difference\n"),
        (("diff", *NAME, "1", "2"), f"{DIFFERENCE}\n"),
        (("diff", *NAME, seldom), f"{DIFFERENCE}\n"),
        (("diff", *NAME, f"{frozen}/schema.pbtxt"), "no difference\n"),
        (("show", *NAME), TEXT),
        (("show", *NAME, "--version", "2"), SELDOM),
    ):
        assert hops("schema", *command)[:2] == (0, printed)


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

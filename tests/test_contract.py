"""Messages between the sides: typed, and readable whichever version of the package wrote them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.artifacts.properties import (
    AnomaliesProperties,
    BlessingProperties,
    DeploymentProperties,
    ExamplesProperties,
    ModelProperties,
    Properties,
    RolloutProperties,
    SchemaProperties,
    SnapshotProperties,
    StatisticsProperties,
    TransformedExamplesProperties,
)
from airflow_hops.core.errors import BadInput
from airflow_hops.core.evaluation import EvaluationProperties, EvaluationReport
from airflow_hops.core.models.model_record import (
    ModelEvent,
    ModelRecord,
    ServedVersion,
    find_record,
    read_record,
    read_records,
    record_uri,
    write_record,
)
from airflow_hops.core.performance import LabelAge, LabelCounts, PerformanceReport, VersionPerformance
from airflow_hops.core.skew import SkewProperties, SkewVerdict
from airflow_hops.core.store import ArtifactStore

KINDS: dict[str, type[Properties]] = {
    "anomalies": AnomaliesProperties,
    "deployment": DeploymentProperties,
    "evaluation": EvaluationProperties,
    "examples": ExamplesProperties,
    "infra_blessing": BlessingProperties,
    "model": ModelProperties,
    "rollout": RolloutProperties,
    "schema": SchemaProperties,
    "skew": SkewProperties,
    "snapshot": SnapshotProperties,
    "statistics": StatisticsProperties,
    "transformed_examples": TransformedExamplesProperties,
}


def written_before(name: str) -> dict[str, Any]:
    """JSON as it was written before there was a contract."""
    value: dict[str, Any] = json.loads((Path(__file__).parent / "written_before" / f"{name}.json").read_text())
    return value


@pytest.fixture
def old_record() -> dict[str, Any]:
    """A record with a canary under way, and one decision of each sort."""
    return written_before("model_record")


def test_old_record_round_trips(old_record: dict[str, Any]) -> None:
    record = ModelRecord.from_dict(old_record)
    assert (record.traffic, record.champions()) == ({1: 50, 2: 50}, [])
    assert list(record.serving) == ["champion", "challenger"]
    canary, step = record.challenger, record.history[2]
    assert canary is not None and canary.rollout is not None and step.decision is not None
    assert (canary.rollout.number, canary.rollout.passed) == (2, ("errors: none",))
    assert canary.rollout.counts(2).requests == 50
    assert (step.traffic, step.decision.percent, step.decision.canary.requests) == ({1: 50, 2: 50}, 20, 112)
    assert [finding.verdict for finding in step.decision.findings] == ["ok", "ok", "not_judged", "ok"]
    began, approved = record.began(2), record.history[3]
    assert began is not None and (began.event, began.made_by["task_id"]) == ("canary", "deploy")
    assert (approved.by, approved.note, approved.made_by) == ("Ada", "go", {})
    assert json.loads(json.dumps(record.to_dict())) == {**old_record, "owners": []}


def test_unknown_fields_of_newer_versions_are_preserved(old_record: dict[str, Any]) -> None:
    step = old_record["history"][2]
    for place in (old_record, old_record["champion"], old_record["challenger"]["rollout"], step, step["findings"][0]):
        place["ticket"] = {"number": 7}
    assert json.loads(json.dumps(ModelRecord.from_dict(old_record).to_dict())) == {**old_record, "owners": []}


@pytest.mark.parametrize("kind", KINDS)
def test_old_properties_round_trip(kind: str) -> None:
    value = written_before("properties")[kind]
    properties = KINDS[kind].of(Artifact("file:///a", kind, "f", properties=value))
    written = properties.to_dict().items()
    # What a later version has added is empty.
    assert {name: item for name, item in written if name in value or item not in (None, [])} == value
    assert KINDS[kind].from_dict({**value, "ticket": 7}).to_dict()["ticket"] == 7


def test_invalid_properties_are_refused_with_their_address() -> None:
    for kind, value in (("evaluation", {"champion": "v1"}), ("skew", {"reference": "v1"})):
        with pytest.raises(BadInput, match=rf"^file:///a: properties are .*'v1'.*; expected those of {kind}"):
            KINDS[kind].of(Artifact("file:///a", kind, "f", properties=value))


@pytest.mark.parametrize(
    ("damaged", "message"),
    [
        ({"history": {}}, "history: expected a list, found {}"),
        ({"history": [{"at": "2013-04-01", "event": "deployed"}]}, "history: version is missing"),
        ({"champion": 3}, "champion: expected an object, found 3"),
        ({"history": "x" * 10**6}, "^history: expected a list, found '.{79}…$"),
    ],
)
def test_json_errors_name_the_field(damaged: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        ModelRecord.from_dict(damaged)


def test_json_objects_are_read_by_the_types_of_their_fields() -> None:
    assert ModelRecord.from_dict({"champion": {}, "history": None}) == ModelRecord()
    measured = VersionPerformance(3, "2013-04-01", "2013-05-01", figures={"auc": (0.7, 0.6, 0.8)}, drop={})
    report = PerformanceReport(versions=(measured,), ages=(LabelAge(0.0, None, 4, 2),), delay_s=(1.0, 2.0))
    read = PerformanceReport.from_dict(json.loads(json.dumps(report.to_dict())))
    assert read == report and hash(read.labels) == hash(LabelCounts())


def test_fixed_length_lists_are_checked() -> None:
    figures = {"figures": {"auc": [0.7, 0.6]}}
    with pytest.raises(TypeError, match=re.escape("versions: figures: expected a list of 3, found [0.7, 0.6]")):
        PerformanceReport.from_dict({"versions": [{"version": 3, "start": "", "end": "", **figures}]})


def test_unknown_fields_keep_their_order_and_are_not_derived() -> None:
    newer = [f"field_{number}" for number in range(20)]
    event = {"at": "2013-04-01", "event": "deployed", "version": 1, "why": "", **dict.fromkeys(newer, 1)}
    assert [name for name in ModelEvent.from_dict(event).to_dict() if name in newer] == newer
    assert ModelEvent.from_dict({**event, "decision": {"who": "a later version"}}).decision is None


def test_only_drift_triggers_retraining() -> None:
    why = {verdict: SkewProperties(verdict).why_not_learnt for verdict in get_args(SkewVerdict)}
    assert why == {"drift": None, "pipeline_fault": "pipeline_fault", "stable": "verdict", "insufficient": "verdict"}


def test_old_evaluation_report_round_trips() -> None:
    value = written_before("evaluation")
    report = EvaluationReport.from_dict(value)
    assert report.to_dict() == value
    (figures,) = report.splits.values()
    assert figures.gain is not None and figures.gain.metric == report.metric == "auc"
    assert report.properties.to_dict() == {
        name: value[name] for name in ("blessed", "reasons", "candidate", "champion", "model_name")
    }


def test_records_are_found_by_the_models_name(store: ArtifactStore) -> None:
    nothing = (find_record(store, "flights"), read_record(store, "flights"), dict(read_records(store)))
    assert nothing == (None, ModelRecord(), {})
    served = ServedVersion.of(Artifact("file:///m", "model", "f", properties={"schema": "file:///s"}), 1, "/m/1", 100)
    record = ModelRecord(champion=served).after("deployed", 1, "the first model", traffic={1: 100})
    write_record(store, "flights", record)
    assert dict(read_records(store)) == {"flights": record}
    assert (read_record(store, "flights").champions(), served.schema) == ([1], "file:///s")
    for name in ("", "../flights", "a/b"):
        with pytest.raises(BadInput, match="expected letters, digits"):
            record_uri(store, name)
    for text in ("{", "[]", '{"champion": {"version": 1}}', '{"history": [{}]}'):
        store.write_text(record_uri(store, "broken"), text)
        with pytest.raises(BadInput, match=r"broken\.json: not a model record"):
            read_record(store, "broken")


def test_rolled_back_version_counts_as_former_champion() -> None:
    artifact = Artifact("file:///m", "model", "f")
    record = ModelRecord(champion=ServedVersion.of(artifact, 1, "", 100)).after("deployed", 1, "")
    promoted = record.after("canary", 2, "").after("promoted", 2, "")
    assert promoted.champions() == [2, 1]
    assert promoted.after("rolled_back", 2, "").champions() == [1]
    assert promoted.after("rolled_back", 2, "").after("promoted", 2, "").champions() == [2, 1]
    last = promoted.last_event(2)
    assert last is not None and last.event == "promoted" and replace(promoted).last_event(3) is None

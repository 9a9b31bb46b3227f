"""Deploying: real server, real MLflow, real SavedModels."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from served_models import Pipeline, Processes, new_pipeline
from step_runner import StepRunner
from world import refused, states

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.models.model_record import ModelRecord, record_uri
from airflow_hops.operators.deploy import DeployModelOperator

pytestmark = pytest.mark.runtime


@dataclass
class First:
    """The first deployment of a model, and what it deployed."""

    pipeline: Pipeline
    model: Artifact
    deployment: Artifact


@pytest.fixture(scope="module")
def first(
    runtime: Path, processes: Processes, tracking_uri: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[First]:
    with new_pipeline(tmp_path_factory.mktemp("first"), runtime, processes, tracking_uri) as pipeline:
        model = pipeline.model("first")
        verdicts = {role: pipeline.verdict(role, model) for role in ("evaluation", "infra_blessing")}
        yield First(pipeline, model, pipeline.deploy(model, **verdicts))


def document(pipeline: Pipeline, deployment: Artifact) -> Any:
    return json.loads((pipeline.store.local(deployment) / "deployment.json").read_text())


def test_first_model_is_the_champion_with_all_the_traffic(first: First) -> None:
    champion = {"model_name": first.pipeline.name, "version": 1, "mode": "champion", "champion": 1}
    assert first.deployment.properties == {**champion, "traffic": {"1": 100}}
    assert first.deployment.kind == "deployment" and document(first.pipeline, first.deployment)["published"] is True
    first.pipeline.expect(aliases={"champion": 1}, events=[("deployed", 1)])


def test_deployment_ends_when_the_version_answers(first: First) -> None:
    pipeline = first.pipeline
    assert pipeline.server.available(pipeline.name) == [1]
    pipeline.expect(traffic={1: 100})
    assert pipeline.server.ask(pipeline.name, 3) == 0


def test_record_names_the_champions_model_and_data(first: First) -> None:
    record, properties = first.pipeline.record(), first.model.properties
    expected = {
        "version": 1,
        "fingerprint": first.model.fingerprint,
        "statistics": properties["statistics"],
        "schema": properties["schema"],
        "serving_path": str(first.pipeline.server.base_path / first.pipeline.name / "1"),
    }
    assert expected.items() <= record["champion"].items() and record["champion"]["model"]["uri"] == first.model.uri
    assert datetime.fromisoformat(record["champion"]["since"]).tzinfo is not None
    assert record["challenger"] is None


def test_equal_model_is_not_registered_again(first: First) -> None:
    pipeline = first.pipeline
    again = pipeline.deploy(pipeline.model("first"))
    assert (again.properties["mode"], again.properties["version"]) == ("champion", 1)
    assert not any("MLflow" in line.text for line in pipeline.runner.lines)
    pipeline.expect(events=[("deployed", 1)])
    assert [entry["version"] for entry in pipeline.registry("versions")] == [1]


REFUSED: list[tuple[dict[str, str], dict[str, tuple[str, str, bool]], str]] = [
    ({"serving_base_path": ""}, {}, "field 'serving_base_path' is empty"),
    ({"serving_config_file": "x"}, {}, "'serving_config_file' is 'x'; expected an absolute"),
    ({"serving_port": "http"}, {}, "'serving_port' is 'http'; expected a port"),
    ({"tracking_uri": "sqlite:///mlflow.db"}, {}, "expected sqlite:////absolute/path"),
    ({}, {"evaluation": ("evaluation", "first", True)}, "pass the evaluation of the same model"),
    ({}, {"evaluation": ("infra_blessing", "second", True)}, "of kind 'infra_blessing'; expected 'evaluation'"),
    ({}, {"infra_blessing": ("infra_blessing", "second", False)}, "blessed is False; expected true"),
]
"""Settings and verdicts (kind, model and word) with which the model ``second`` is not deployed."""


@pytest.mark.parametrize(("services", "roles", "words"), REFUSED)
def test_wrong_setting_or_verdict_is_refused(
    pipeline: Pipeline, services: dict[str, str], roles: dict[str, tuple[str, str, bool]], words: str
) -> None:
    models = {kind: pipeline.model(kind) for kind in ("first", "second")}
    verdicts = {
        role: pipeline.verdict(kind, models[model], blessed=blessed) for role, (kind, model, blessed) in roles.items()
    }
    with refused(words):
        pipeline.deploy(models["second"], services=services, **verdicts)
    assert not pipeline.store.exists(pipeline.runner.last_uri)


def test_second_model_becomes_a_canary_and_a_retry_changes_nothing(pipeline: Pipeline) -> None:
    pipeline.deploy(pipeline.model("first"))
    unowned = json.dumps({**pipeline.record(), "owners": []})  # as an earlier version wrote it
    pipeline.store.write_text(record_uri(pipeline.store, pipeline.name), unowned)
    second = pipeline.model("onnx")
    canary = {"mode": "canary", "version": 2, "champion": 1, "traffic": {"1": 75, "2": 25}}
    for _ in range(2):
        assert canary.items() <= pipeline.deploy(second, canary_percent=25).properties.items()
        assert pipeline.server.available(pipeline.name) == [1, 2]
        pipeline.expect(traffic={1: 75, 2: 25}, aliases={"champion": 1, "challenger": 2})
        pipeline.expect(events=[("deployed", 1), ("canary", 2)], labels={"stable": 1, "canary": 2})
    record = pipeline.record()
    assert record["owners"] == ["tests"]
    assert [record[role]["traffic_percent"] for role in ("champion", "challenger")] == [75, 25]
    assert sorted(p.name for p in (pipeline.server.base_path / pipeline.name).iterdir()) == [".lock", "1", "2"]
    assert [entry["version"] for entry in pipeline.registry("versions")] == [1, 2]


def test_next_model_supersedes_a_canary(pipeline: Pipeline) -> None:
    for kind in ("first", "second"):
        pipeline.deploy(pipeline.model(kind))
    assert pipeline.deploy(pipeline.model("third")).properties["traffic"] == {"1": 80, "3": 20}
    pipeline.expect(loaded=[1, 3])
    assert pipeline.events()[-2:] == [("rolled_back", 2), ("canary", 3)]
    assert "superseded by version 3" in pipeline.record()["history"][-2]["why"]


def test_canary_with_other_inputs_than_the_champion_is_refused(pipeline: Pipeline) -> None:
    pipeline.deploy(pipeline.model("first", time="at"))
    other = pipeline.model("second", inputs=["carrier", "wind"])
    with refused(r"does not take 'at', 'distance' and also needs 'wind'.*extra_inputs"):
        pipeline.deploy(other, canary_percent=99)
    with refused(r"takes 'distance' as float \[\?, 3\] and not float \[\?\] and takes"):
        pipeline.deploy(pipeline.model("wider", time="at"), canary_percent=99)
    pipeline.expect(events=[("deployed", 1)])
    assert [entry["version"] for entry in pipeline.registry("versions")] == [1]
    same = pipeline.model("third", inputs=["distance", "carrier", "at"])
    assert pipeline.deploy(same, canary_percent=99).properties["mode"] == "canary"
    assert pipeline.deploy(other, canary_percent=100).properties["traffic"] == {"1": 0, "3": 100}


def test_first_deployment_survives_a_kill(pipeline: Pipeline) -> None:
    """Decisions are recorded first, and applied second."""
    first = pipeline.model("first")
    assert pipeline.kill(pipeline.deploy, first, before="record") == ["folder", "versions"]
    with pytest.raises(FileNotFoundError):
        pipeline.record()
    assert pipeline.kill(pipeline.deploy, first, before="labels") == ["folder", "versions", "record"]
    pipeline.expect(events=[("deployed", 1)])
    assert pipeline.deploy(first).properties["mode"] == "champion"
    assert pipeline.state()[1] == {"1": 100}
    pipeline.expect(labels={"stable": 1}, aliases={"champion": 1})
    assert [entry["version"] for entry in pipeline.registry("versions")] == [1]
    assert sorted(p.name for p in (pipeline.server.base_path / pipeline.name).iterdir()) == [".lock", "1"]


def test_canary_serves_until_its_successor(pipeline: Pipeline) -> None:
    pipeline.deploy(pipeline.model("first"))
    pipeline.deploy(pipeline.model("second"), canary_percent=30)
    pipeline.expect(traffic={1: 70, 2: 30})
    third = pipeline.model("third")

    def state() -> tuple[Any, ...]:
        return pipeline.record(), pipeline.state()[1], pipeline.labels(), pipeline.aliases()

    state_then = state()
    for wrong in (pipeline.model("broken"), pipeline.model("third", inputs=["wind"])):
        with refused():
            pipeline.deploy(wrong)
        assert state() == state_then
    passed = pipeline.kill(pipeline.deploy, third, before="record")
    assert passed == ["traffic", "folder", "versions"], "the old shares are set before the new version is loaded"
    assert state() == state_then
    assert pipeline.server.ask(pipeline.name, 20) == 0
    assert pipeline.server.traffic(pipeline.name) == {1: 70, 2: 30}
    pipeline.kill(pipeline.deploy, third, before="labels")
    assert pipeline.events()[1:] == [("canary", 2), ("rolled_back", 2), ("canary", 4)]
    assert pipeline.deploy(third).properties["traffic"] == {"1": 80, "4": 20}
    pipeline.expect(traffic={1: 80, 4: 20}, loaded=[1, 4])
    pipeline.expect(labels={"stable": 1, "canary": 4}, aliases={"champion": 1, "challenger": 4})


def test_rolled_back_model_returns_only_if_allowed(pipeline: Pipeline) -> None:
    pipeline.deploy(pipeline.model("first"))
    second = pipeline.model("second")
    pipeline.deploy(second)
    pipeline.decide("roll_back", to_version=None, reason="its errors")
    record = pipeline.record()
    for model, percent in ((second, 20), (pipeline.model("second"), 100)):  # the next run's is equal to the last
        with refused(r"version 2, and was rolled back on 20.* \(its errors\); train .*allow_rolled_back=True"):
            pipeline.deploy(model, canary_percent=percent)
        assert pipeline.record() == record
    assert pipeline.server.available(pipeline.name) == [1]

    assert pipeline.deploy(second, allow_rolled_back=True).properties["traffic"] == {"1": 80, "2": 20}
    pipeline.deploy(second)  # a retry that finds it serving
    why = pipeline.record()["history"][-1]["why"]
    assert why.startswith("20% of the traffic, beside champion 1; allowed although it was rolled back on")
    pipeline.deploy(pipeline.model("third"))
    pipeline.decide("promote", version=2)  # by its number: whoever does that knows
    assert pipeline.record()["champion"]["version"] == 2
    assert "(its errors)" in pipeline.record()["history"][-1]["why"]


def test_rollback_counts_for_the_model_until_its_promotion() -> None:
    record = ModelRecord().after("deployed", 1, "", fingerprint="a").after("canary", 2, "", fingerprint="b")
    superseded = record.after("rolled_back", 2, "superseded by version 3")
    assert superseded.rollback_of(2, "b") is None, "nobody decided on it"
    judged = record.after("rolled_back", 2, "its errors", to=1, fingerprint="b")
    for later in (judged, judged.after("canary", 2, "", fingerprint="b").after("rolled_back", 2, "superseded")):
        for version in (2, 3):  # another registry gives the same model another number
            rollback = later.rollback_of(version, "b")
            assert rollback is not None and (rollback.version, rollback.why) == (2, "its errors")
    assert judged.rollback_of(1, "a") is None
    assert judged.after("promoted", 2, "", fingerprint="b").rollback_of(2, "b") is None


def test_concurrent_tasks_publish_and_record_once(pipeline: Pipeline) -> None:
    pipeline.deploy(pipeline.model("first"))
    second = pipeline.model("second")

    def deploy(run: int) -> Any:
        task = replace(pipeline, runner=StepRunner(pipeline.store.root, pipeline.runner.runtime))
        task.runner.count = 100 * run
        return document(pipeline, task.deploy(second))

    with ThreadPoolExecutor(2) as workers:
        both = list(workers.map(deploy, (1, 2)))
    assert [each["version"] for each in both] == [2, 2]
    assert sorted(each["published"] for each in both) == [False, True]
    pipeline.expect(events=[("deployed", 1), ("canary", 2)])
    assert [entry["version"] for entry in pipeline.registry("versions")] == [1, 2]


def test_unloadable_model_changes_nothing(pipeline: Pipeline) -> None:
    with refused("does not load"):
        pipeline.deploy(pipeline.model("broken"))
    assert pipeline.state() == ({}, None, "", {})
    pipeline.deploy(pipeline.model("first"))
    state = pipeline.state()
    with refused(f"does not load model '{pipeline.name}' version 1") as caught:
        pipeline.deploy(pipeline.model("broken"), allow_older=True)
    assert "saved_model.pb" in str(caught.value)
    assert not pipeline.store.exists(pipeline.runner.last_uri)
    assert pipeline.state() == state and state[3] == {"champion": 2}
    assert not (pipeline.server.base_path / pipeline.name / "1").exists()
    assert pipeline.server.ask(pipeline.name, 5) == 0


def test_server_that_does_not_answer_is_named_and_the_task_may_retry(pipeline: Pipeline) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = str(taken.getsockname()[1])
        with refused(f"model server 127.0.0.1:{port} does not answer", retried=True):
            pipeline.deploy(pipeline.model("first"), services={"serving_port": port})
    assert not (pipeline.server.base_path / pipeline.name).exists()
    assert not pipeline.store.exists(pipeline.runner.last_uri)


def test_blessing_for_another_name_or_champion_is_refused(pipeline: Pipeline) -> None:
    first, second = pipeline.model("first"), pipeline.model("second")
    elsewhere = replace(pipeline, name=f"{pipeline.name}-elsewhere").verdict("evaluation", first)
    with refused(rf"as '{pipeline.name}-elsewhere', but it is to be deployed as"):
        pipeline.deploy(first, evaluation=elsewhere)
    alone, of_second = pipeline.verdict("evaluation", first), pipeline.verdict("evaluation", second)
    pipeline.deploy(first, evaluation=alone)
    with refused(r"with no champion, but now version 1 is the champion.*clear"):
        pipeline.deploy(second, evaluation=of_second)
    pipeline.expect(events=[("deployed", 1)])
    assert pipeline.deploy(first, evaluation=alone).properties["mode"] == "champion", "a cleared task"

    third, compared = pipeline.model("third"), pipeline.verdict("evaluation", second)
    evaluation = pipeline.verdict("evaluation", third)
    pipeline.deploy(second, evaluation=compared)
    pipeline.decide("promote", version=None)
    with refused("with champion 1, but now version 2 is the champion"):
        pipeline.deploy(third, evaluation=evaluation)
    pipeline.decide("undeploy", version=None, force=True)
    with refused("with champion 1, but now there is no champion"):
        pipeline.deploy(third, evaluation=evaluation)


def test_a_model_belongs_to_the_dag_that_deployed_it_first(pipeline: Pipeline) -> None:
    pipeline.deploy(pipeline.model("first"))
    second, name = pipeline.model("second"), pipeline.name
    words = rf"model '{name}' belongs to DAG 'tests', and this is DAG 'others'.*airflow hops models owners {name} DAG"
    with refused(words):
        pipeline.deploy(second, dag_id="others")
    pipeline.deploy(second)
    others = {"dag_id": "others", "user": "eve", "request_id": "0"}
    decisions: dict[str, dict[str, Any]] = {
        "promote": {"version": None},
        "set_traffic": {"percents": {"1": 0, "2": 100}},
        "roll_back": {"to_version": None},
        "undeploy": {"version": None, "force": True},
    }
    for function, options in decisions.items():
        with refused(words):
            pipeline.decide(function, by=others, **options)
    pipeline.expect(events=[("deployed", 1), ("canary", 2)])

    with refused("owners are empty; name at least one DAG"):
        pipeline.decide("set_owners", owners=[])
    changed = [pipeline.decide("set_owners", owners=["others", "third"])["changed"] for _ in range(2)]
    assert changed == [True, False]
    with refused("belongs to DAG 'others' and 'third', and this is DAG 'tests'"):
        pipeline.decide("promote", version=None)
    pipeline.decide("promote", version=None, by=others)
    pipeline.decide("undeploy", version=None, force=True, by=others)
    with refused("belongs to DAG 'others' and 'third'"):
        pipeline.deploy(pipeline.model("third"))
    assert pipeline.deploy(pipeline.model("third"), dag_id="third").properties["mode"] == "champion"
    assert pipeline.record()["owners"] == ["others", "third"]


def test_artifact_without_saved_model_and_folder_of_another_model_are_refused(pipeline: Pipeline) -> None:
    real = pipeline.saved_models
    empty = real.parent / f"empty-{pipeline.name}"
    empty.mkdir()
    pipeline.saved_models = real.parent
    with refused(r"no model; expected one of saved_model\.pb"):
        pipeline.deploy(pipeline.model(empty.name))
    pipeline.saved_models = real
    folder = pipeline.server.base_path / pipeline.name / "1"
    folder.mkdir(parents=True)
    with refused("holds another model"):
        pipeline.deploy(pipeline.model("first"))
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("role", ["evaluation", "infra_blessing"])
def test_unblessed_model_is_skipped_with_the_reason(role: str, tmp_path: Path) -> None:
    verdict = {"uri": "file:///v", "kind": role, "fingerprint": "f"}
    with DAG("d", schedule=None):
        operator = DeployModelOperator(
            task_id="deploy",
            model_name="d",
            model={"uri": "file:///m", "kind": "model", "fingerprint": "f"},
            ungated=None if role == "evaluation" else "a test",
            **{role: {**verdict, "properties": {"blessed": False, "reasons": ["auc 0.5 is below 0.6"]}}},
        )
    with pytest.raises(AirflowSkipException, match=rf"{role}: not blessed: auc 0.5 is below 0.6"):
        operator.execute({"ti": SimpleNamespace(xcom_push=lambda key, value: None)})
    for damaged, message in (
        ({"blessed": False, "reasons": "bad"}, "reasons: expected a list, found 'bad'"),
        ({"blessed": "false"}, 'blessed is "false", expected true or false'),
    ):
        setattr(operator, role, {**verdict, "properties": damaged})
        with pytest.raises(AirflowFailException, match=f"{role}: properties: {message}"):
            operator.execute({})


def test_operators_deploy_blessed_models_and_skip_others(
    pipeline: Pipeline, run_dag: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.connect(monkeypatch)
    model = pipeline.model("first")
    for blessed, state in ((False, "skipped"), (True, "success")):
        evaluation = pipeline.verdict("evaluation", model, blessed=blessed).to_dict()
        conf = {"model": model.to_dict(), "model_name": pipeline.name, "evaluation": evaluation}
        run = run_dag("serving", conf)
        assert states(run) == {"deploy": state, "rollout": state}
        assert pipeline.server.available(pipeline.name) == [1] * blessed
    rollout = pipeline.store.manifest(pipeline.store.uri("serving", run.run_id, "rollout", "rollout"))
    assert rollout.properties["decision"] == "champion"
    assert [a.kind for a in rollout.inputs["deployment"]] == ["deployment"]

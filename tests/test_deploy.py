"""Deploying: real server, real MLflow, real SavedModels."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from served_models import Pipeline
from step_runner import StepRunner
from waiting import wait_for

from airflow_hops.core.errors import StepFailed
from airflow_hops.core.models.model_record import ModelRecord
from airflow_hops.core.models.model_records import record_uri
from airflow_hops.operators.deploy import DeployModelOperator

pytestmark = pytest.mark.runtime


def test_first_model_becomes_the_champion_and_gets_all_the_traffic(pipeline: Pipeline) -> None:
    model = pipeline.model("first")
    deployment = pipeline.deploy(
        model,
        evaluation=pipeline.verdict("evaluation", model),
        infra_blessing=pipeline.verdict("infra_blessing", model),
    )
    assert deployment.kind == "deployment"
    assert deployment.properties == {
        "model_name": pipeline.name,
        "version": 1,
        "mode": "champion",
        "champion": 1,
        "traffic": {"1": 100},
    }
    assert pipeline.server.available(pipeline.name) == [1]
    wait_for(lambda: pipeline.server.traffic(pipeline.name) == {1: 100}, "all the traffic")
    assert pipeline.server.ask(pipeline.name, 3) == 0
    champion = pipeline.record()["champion"]
    assert champion["version"] == 1
    assert champion["model"]["uri"] == model.uri
    assert champion["fingerprint"] == model.fingerprint
    assert champion["statistics"] == model.properties["statistics"]
    assert champion["schema"] == model.properties["schema"]
    assert champion["serving_path"] == str(pipeline.server.base_path / pipeline.name / "1")
    assert datetime.fromisoformat(champion["since"]).tzinfo is not None
    assert pipeline.record()["challenger"] is None
    assert pipeline.events() == [("deployed", 1)]
    assert pipeline.aliases() == {"champion": 1}
    document = json.loads((pipeline.store.local(deployment) / "deployment.json").read_text())
    assert document["published"] is True

    again = pipeline.deploy(pipeline.model("first"))
    assert again.properties["mode"] == "champion"
    assert again.properties["version"] == 1
    assert not any("MLflow" in line.text for line in pipeline.runner.lines)
    assert pipeline.events() == [("deployed", 1)]
    assert [entry["version"] for entry in pipeline.registry("versions")] == [1]


def test_second_model_becomes_a_canary_and_a_retry_changes_nothing(pipeline: Pipeline) -> None:
    pipeline.deploy(pipeline.model("first"))
    unowned = json.dumps({**pipeline.record(), "owners": []})  # as an earlier version wrote it
    pipeline.store.write_text(record_uri(pipeline.store, pipeline.name), unowned)
    second = pipeline.model("onnx")
    for _ in range(2):
        deployment = pipeline.deploy(second, canary_percent=25)
        assert deployment.properties["mode"] == "canary"
        assert deployment.properties["version"] == 2
        assert deployment.properties["champion"] == 1
        assert deployment.properties["traffic"] == {"1": 75, "2": 25}
        assert pipeline.server.available(pipeline.name) == [1, 2]
        wait_for(lambda: pipeline.server.traffic(pipeline.name) == {1: 75, 2: 25}, "the split")
        assert pipeline.aliases() == {"champion": 1, "challenger": 2}
        assert pipeline.events() == [("deployed", 1), ("canary", 2)]
    record = pipeline.record()
    assert record["owners"] == ["tests"]
    assert record["champion"]["traffic_percent"] == 75
    assert record["challenger"]["traffic_percent"] == 25
    assert pipeline.labels() == {"stable": 1, "canary": 2}
    assert sorted(p.name for p in (pipeline.server.base_path / pipeline.name).iterdir()) == [".lock", "1", "2"]
    assert [entry["version"] for entry in pipeline.registry("versions")] == [1, 2]

    third = pipeline.deploy(pipeline.model("third"))
    assert third.properties["traffic"] == {"1": 80, "3": 20}
    wait_for(lambda: pipeline.server.available(pipeline.name) == [1, 3], "the superseded canary's end")
    assert pipeline.events()[-2:] == [("rolled_back", 2), ("canary", 3)]
    assert "superseded by version 3" in pipeline.record()["history"][-2]["why"]


def test_canary_with_other_inputs_than_the_champion_is_refused(pipeline: Pipeline) -> None:
    pipeline.deploy(pipeline.model("first", time="at"))
    other = pipeline.model("second", inputs=["carrier", "wind"])
    for refused, message in (
        (other, r"does not take 'at', 'distance' and also needs 'wind'.*extra_inputs"),
        (pipeline.model("wider", time="at"), r"takes 'distance' as float \[\?, 3\] and not float \[\?\] and takes"),
    ):
        with pytest.raises(StepFailed, match=message) as caught:
            pipeline.deploy(refused, canary_percent=99)
        assert not caught.value.retryable
    assert pipeline.events() == [("deployed", 1)]
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
    assert pipeline.events() == [("deployed", 1)]
    assert pipeline.deploy(first).properties["mode"] == "champion"
    assert json.loads(pipeline.server.traffic_file.read_text())["models"][pipeline.name] == {"1": 100}
    assert pipeline.labels() == {"stable": 1}
    assert pipeline.aliases() == {"champion": 1}
    assert [entry["version"] for entry in pipeline.registry("versions")] == [1]
    assert sorted(p.name for p in (pipeline.server.base_path / pipeline.name).iterdir()) == [".lock", "1"]


def test_canary_serves_until_its_successor(pipeline: Pipeline) -> None:
    pipeline.deploy(pipeline.model("first"))
    pipeline.deploy(pipeline.model("second"), canary_percent=30)
    wait_for(lambda: pipeline.server.traffic(pipeline.name) == {1: 70, 2: 30}, "the canary's share")
    third = pipeline.model("third")

    def state() -> tuple[Any, ...]:
        traffic = json.loads(pipeline.server.traffic_file.read_text())["models"][pipeline.name]
        return pipeline.record(), traffic, pipeline.labels(), pipeline.aliases()

    state_then = state()
    for refused in (pipeline.model("broken"), pipeline.model("third", inputs=["wind"])):
        with pytest.raises(StepFailed) as caught:
            pipeline.deploy(refused)
        assert not caught.value.retryable
        assert state() == state_then
    passed = pipeline.kill(pipeline.deploy, third, before="record")
    assert passed == ["traffic", "folder", "versions"], "the old shares are set before the new version is loaded"
    assert state() == state_then
    assert pipeline.server.ask(pipeline.name, 20) == 0
    assert pipeline.server.traffic(pipeline.name) == {1: 70, 2: 30}
    pipeline.kill(pipeline.deploy, third, before="labels")
    assert pipeline.events()[1:] == [("canary", 2), ("rolled_back", 2), ("canary", 4)]
    assert pipeline.deploy(third).properties["traffic"] == {"1": 80, "4": 20}
    wait_for(lambda: pipeline.server.traffic(pipeline.name) == {1: 80, 4: 20}, "the successor's share")
    wait_for(lambda: pipeline.server.available(pipeline.name) == [1, 4], "the end of the canary")
    assert pipeline.labels() == {"stable": 1, "canary": 4}
    assert pipeline.aliases() == {"champion": 1, "challenger": 4}


def test_rolled_back_model_returns_only_if_allowed(pipeline: Pipeline) -> None:
    pipeline.deploy(pipeline.model("first"))
    second = pipeline.model("second")
    pipeline.deploy(second)
    pipeline.decide("roll_back", to_version=None, reason="its errors")
    record = pipeline.record()
    refused = r"version 2, and was rolled back on 20.* \(its errors\); train .*allow_rolled_back=True"
    for model, percent in ((second, 20), (pipeline.model("second"), 100)):  # the next run's is equal to the last
        with pytest.raises(StepFailed, match=refused) as caught:
            pipeline.deploy(model, canary_percent=percent)
        assert not caught.value.retryable
        assert pipeline.record() == record
    assert pipeline.server.available(pipeline.name) == [1]

    assert pipeline.deploy(second, allow_rolled_back=True).properties["traffic"] == {"1": 80, "2": 20}
    pipeline.deploy(second)  # a retry that finds it serving
    assert pipeline.record()["history"][-1]["why"].startswith(
        "20% of the traffic, beside champion 1; allowed although it was rolled back on"
    )
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
        deployed = task.deploy(second)
        return json.loads((pipeline.store.local(deployed) / "deployment.json").read_text())

    with ThreadPoolExecutor(2) as workers:
        both = list(workers.map(deploy, (1, 2)))
    assert [document["version"] for document in both] == [2, 2]
    assert sorted(document["published"] for document in both) == [False, True]
    assert pipeline.events() == [("deployed", 1), ("canary", 2)]
    assert [entry["version"] for entry in pipeline.registry("versions")] == [1, 2]


def test_unloadable_model_changes_nothing(pipeline: Pipeline) -> None:
    with pytest.raises(StepFailed, match="does not load"):
        pipeline.deploy(pipeline.model("broken"))
    assert pipeline.name not in pipeline.server.config_file.read_text()
    with pytest.raises(FileNotFoundError):
        pipeline.record()
    assert pipeline.aliases() == {}

    pipeline.deploy(pipeline.model("first"))
    state_then = pipeline.server.config_file.read_text(), pipeline.server.traffic_file.read_text(), pipeline.record()
    with pytest.raises(StepFailed) as caught:
        pipeline.deploy(pipeline.model("broken"), allow_older=True)
    assert not caught.value.retryable
    assert f"does not load model '{pipeline.name}' version 1" in str(caught.value)
    assert "saved_model.pb" in str(caught.value)
    after = pipeline.server.config_file.read_text(), pipeline.server.traffic_file.read_text(), pipeline.record()
    assert after == state_then
    assert not (pipeline.server.base_path / pipeline.name / "1").exists()
    assert not pipeline.store.exists(pipeline.runner.last_uri)
    assert pipeline.aliases() == {"champion": 2}
    assert pipeline.server.ask(pipeline.name, 5) == 0


def test_server_that_does_not_answer_is_named_and_the_task_may_retry(pipeline: Pipeline) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = str(taken.getsockname()[1])
        with pytest.raises(StepFailed) as caught:
            pipeline.deploy(pipeline.model("first"), services={"serving_port": port})
    assert caught.value.retryable
    assert f"model server 127.0.0.1:{port} does not answer" in str(caught.value)
    assert not (pipeline.server.base_path / pipeline.name).exists()
    assert not pipeline.store.exists(pipeline.runner.last_uri)


def test_bad_settings_are_named(pipeline: Pipeline) -> None:
    model = pipeline.model("first")
    for services, message in (
        ({"serving_base_path": ""}, "field 'serving_base_path' is empty"),
        ({"serving_config_file": "x"}, "'serving_config_file' is 'x'; expected an absolute"),
        ({"serving_port": "http"}, "'serving_port' is 'http'; expected a port"),
        ({"tracking_uri": "sqlite:///mlflow.db"}, "expected sqlite:////absolute/path"),
    ):
        with pytest.raises(StepFailed) as caught:
            pipeline.deploy(model, services=services)
        assert message in str(caught.value)
        assert not caught.value.retryable
        assert not pipeline.store.exists(pipeline.runner.last_uri)


def test_blessing_of_another_model_is_refused(pipeline: Pipeline) -> None:
    first, second = pipeline.model("first"), pipeline.model("second")
    with pytest.raises(StepFailed, match="pass the evaluation of the same model"):
        pipeline.deploy(second, evaluation=pipeline.verdict("evaluation", first))
    with pytest.raises(StepFailed, match="blessed is False; expected true"):
        pipeline.deploy(second, infra_blessing=pipeline.verdict("infra_blessing", second, blessed=False))
    with pytest.raises(StepFailed, match="is an artifact of kind 'infra_blessing'; expected 'evaluation'"):
        pipeline.deploy(second, evaluation=pipeline.verdict("infra_blessing", second))


def test_blessing_for_another_name_or_champion_is_refused(pipeline: Pipeline) -> None:
    first, second = pipeline.model("first"), pipeline.model("second")
    elsewhere = replace(pipeline, name=f"{pipeline.name}-elsewhere").verdict("evaluation", first)
    with pytest.raises(StepFailed, match=rf"as '{pipeline.name}-elsewhere', but it is to be deployed as") as caught:
        pipeline.deploy(first, evaluation=elsewhere)
    assert not caught.value.retryable
    alone, of_second = pipeline.verdict("evaluation", first), pipeline.verdict("evaluation", second)
    pipeline.deploy(first, evaluation=alone)
    with pytest.raises(StepFailed, match=r"with no champion, but now version 1 is the champion.*clear") as caught:
        pipeline.deploy(second, evaluation=of_second)
    assert not caught.value.retryable
    assert pipeline.events() == [("deployed", 1)]
    assert pipeline.deploy(first, evaluation=alone).properties["mode"] == "champion", "a cleared task"

    third, compared = pipeline.model("third"), pipeline.verdict("evaluation", second)
    evaluation = pipeline.verdict("evaluation", third)
    pipeline.deploy(second, evaluation=compared)
    pipeline.decide("promote", version=None)
    with pytest.raises(StepFailed, match="with champion 1, but now version 2 is the champion"):
        pipeline.deploy(third, evaluation=evaluation)
    pipeline.decide("undeploy", version=None, force=True)
    with pytest.raises(StepFailed, match="with champion 1, but now there is no champion"):
        pipeline.deploy(third, evaluation=evaluation)


def test_a_model_belongs_to_the_dag_that_deployed_it_first(pipeline: Pipeline) -> None:
    pipeline.deploy(pipeline.model("first"))
    second, name = pipeline.model("second"), pipeline.name
    refused = rf"model '{name}' belongs to DAG 'tests', and this is DAG 'others'.*airflow hops models owners {name} DAG"
    with pytest.raises(StepFailed, match=refused) as caught:
        pipeline.deploy(second, dag_id="others")
    assert not caught.value.retryable
    pipeline.deploy(second)
    others = {"dag_id": "others", "user": "eve", "request_id": "0"}
    for function, options in (
        ("promote", {"version": None}),
        ("set_traffic", {"percents": {"1": 0, "2": 100}}),
        ("roll_back", {"to_version": None}),
        ("undeploy", {"version": None, "force": True}),
    ):
        with pytest.raises(StepFailed, match=refused):
            pipeline.decide(function, by=others, **options)
    assert pipeline.events() == [("deployed", 1), ("canary", 2)]

    with pytest.raises(StepFailed, match="owners are empty; name at least one DAG"):
        pipeline.decide("set_owners", owners=[])
    assert pipeline.decide("set_owners", owners=["others", "third"])["changed"]
    assert not pipeline.decide("set_owners", owners=["others", "third"])["changed"]
    with pytest.raises(StepFailed, match="belongs to DAG 'others' and 'third', and this is DAG 'tests'"):
        pipeline.decide("promote", version=None)
    pipeline.decide("promote", version=None, by=others)
    pipeline.decide("undeploy", version=None, force=True, by=others)
    with pytest.raises(StepFailed, match="belongs to DAG 'others' and 'third'"):
        pipeline.deploy(pipeline.model("third"))
    assert pipeline.deploy(pipeline.model("third"), dag_id="third").properties["mode"] == "champion"
    assert pipeline.record()["owners"] == ["others", "third"]


def test_artifact_without_saved_model_and_folder_of_another_model_are_refused(pipeline: Pipeline) -> None:
    empty = pipeline.saved_models.parent / f"empty-{pipeline.name}"
    empty.mkdir()
    pipeline.saved_models, real = pipeline.saved_models.parent, pipeline.saved_models
    with pytest.raises(StepFailed, match=r"no model; expected one of saved_model\.pb"):
        pipeline.deploy(pipeline.model(empty.name))
    pipeline.saved_models = real
    folder = pipeline.server.base_path / pipeline.name / "1"
    folder.mkdir(parents=True)
    with pytest.raises(StepFailed, match="holds another model"):
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
    conf = {"model": model.to_dict(), "model_name": pipeline.name}

    run = run_dag("serving", {**conf, "evaluation": pipeline.verdict("evaluation", model, blessed=False).to_dict()})
    assert {ti.task_id: ti.state for ti in run.get_task_instances()} == {"deploy": "skipped", "rollout": "skipped"}
    assert pipeline.server.versions(pipeline.name) == {}

    run = run_dag("serving", {**conf, "evaluation": pipeline.verdict("evaluation", model).to_dict()})
    assert {ti.task_id: ti.state for ti in run.get_task_instances()} == {"deploy": "success", "rollout": "success"}
    assert pipeline.server.available(pipeline.name) == [1]
    rollout = pipeline.store.manifest(pipeline.store.uri("serving", run.run_id, "rollout", "rollout"))
    assert rollout.properties["decision"] == "champion"
    assert [a.kind for a in rollout.inputs["deployment"]] == ["deployment"]

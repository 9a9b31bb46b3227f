"""Decisions on what serves: real server, real MLflow, real SavedModels, tasks through dag.test()."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from served_models import Pipeline
from waiting import wait_for

from airflow_hops.core.errors import StepFailed

pytestmark = pytest.mark.runtime


def test_decisions_change_shares_champion_and_loaded_versions_and_are_recorded(pipeline: Pipeline) -> None:
    name, server = pipeline.name, pipeline.server
    for kind in ("first", "second"):
        pipeline.deploy(pipeline.model(kind))

    result = pipeline.decide("set_traffic", percents={"1": 40, "2": 60})
    assert result == {
        "model_name": name,
        "champion": 1,
        "challenger": 2,
        "traffic": {"1": 40, "2": 60},
        "served": [1, 2],
        "changed": True,
    }
    wait_for(lambda: server.traffic(name) == {1: 40, 2: 60}, "the shares")
    assert pipeline.decide("set_traffic", percents={"1": 40, "2": 60})["changed"] is False
    event = pipeline.record()["history"][-1]
    assert (event["event"], event["version"], event["why"]) == ("traffic", 2, "a test")
    assert event["traffic"] == {"1": 40, "2": 60}
    assert event["by"]["task_id"] == "set_traffic"

    result = pipeline.decide("promote", version=None)
    assert (result["champion"], result["challenger"], result["traffic"]) == (2, None, {"2": 100})
    assert pipeline.aliases() == {"champion": 2}
    wait_for(lambda: server.traffic(name) == {2: 100}, "all to the promoted")
    assert server.available(name) == [1, 2]

    # A former champion that was unloaded, and whose folder was removed, is published and loaded again.
    pipeline.deploy(pipeline.model("third"))
    assert pipeline.decide("promote", version=3, keep_versions=1)["served"] == [3]
    wait_for(lambda: server.available(name) == [3], "the former champions' end")
    (server.base_path / name / "2").rename(server.base_path / name / ".gone")
    result = pipeline.decide("roll_back", to_version=None)
    assert (result["champion"], result["traffic"], result["served"]) == (2, {"2": 100}, [2])
    assert pipeline.aliases() == {"champion": 2}
    wait_for(lambda: server.traffic(name) == {2: 100}, "all to the former champion")
    assert server.ask(name, 3) == 0
    assert pipeline.events()[-2:] == [("rolled_back", 3), ("promoted", 2)]
    assert pipeline.labels() == {"stable": 2}

    with pytest.raises(StepFailed, match="version 2 is the champion, and serves") as caught:
        pipeline.decide("undeploy", version=None, force=False)
    assert not caught.value.retryable
    pipeline.decide("roll_back", to_version=1)
    assert pipeline.decide("undeploy", version=2, force=False)["served"] == [1]
    wait_for(lambda: server.available(name) == [1], "the undeployed version's end")
    result = pipeline.decide("undeploy", version=None, force=True)
    assert (result["champion"], result["served"], result["traffic"]) == (None, [], {})
    assert pipeline.aliases() == {}
    wait_for(lambda: server.available(name) == [], "the model's end")
    assert name not in server.traffic_file.read_text()
    assert pipeline.decide("undeploy", version=None, force=True)["changed"] is False


def test_next_deployment_repairs_aliases_and_refuses_older_models(pipeline: Pipeline) -> None:
    for kind in ("first", "second"):
        pipeline.deploy(pipeline.model(kind))
    pipeline.decide("roll_back", to_version=None)
    pipeline.deploy(pipeline.model("third"))
    pipeline.decide("promote", version=None)
    uri = pipeline.store.internal("_models", f"{pipeline.name}.json")
    promoted = pipeline.store.read_text(uri)
    pipeline.registry("set_aliases", aliases={"champion": 1, "challenger": 2})
    pipeline.deploy(pipeline.model("third"))
    assert pipeline.aliases() == {"champion": 3}
    with pytest.raises(StepFailed, match="was registered as version 2, before the champion 3") as caught:
        pipeline.deploy(pipeline.model("second"))
    assert not caught.value.retryable
    assert pipeline.store.read_text(uri) == promoted
    assert pipeline.deploy(pipeline.model("second"), allow_older=True).properties["mode"] == "canary"


def test_decisions_survive_a_kill(pipeline: Pipeline) -> None:
    """Decisions are recorded first, and applied second; a retry finds them in the record, and only applies them."""
    name, server = pipeline.name, pipeline.server

    def killed(function: str, before: str, event: tuple[str, int], **params: Any) -> dict[str, Any]:
        """Returns the retry's report of a task that is killed before it applies what it has decided."""
        assert pipeline.kill(pipeline.decide, function, run_id=function, before=before, **params)[-1] == "record"
        written = pipeline.record()
        assert pipeline.events()[-1] == event
        result: dict[str, Any] = pipeline.decide(function, run_id=function, **params)
        assert pipeline.record() == written, "the retry decided nothing anew"
        assert result["changed"] is False
        wait_for(lambda: set(server.traffic(name)) <= set(result["served"]), "traffic to what is served alone")
        wait_for(lambda: server.available(name) == result["served"], f"the versions that {function} leaves")
        return result

    for kind in ("first", "second"):
        pipeline.deploy(pipeline.model(kind))
    percents = {"1": 30, "2": 70}
    record = pipeline.record()
    assert pipeline.kill(pipeline.decide, "set_traffic", percents=percents, before="record") == []
    assert pipeline.record() == record, "nothing was decided"
    assert killed("set_traffic", "traffic", ("traffic", 2), percents=percents)["traffic"] == percents
    result = killed("promote", "traffic", ("promoted", 2), version=None)
    assert (result["traffic"], result["served"], pipeline.labels()) == ({"2": 100}, [1, 2], {"stable": 2})
    result = killed("roll_back", "traffic", ("promoted", 1), to_version=None)
    assert (result["traffic"], result["served"]) == ({"1": 100}, [1])
    wait_for(lambda: server.traffic(name) == {1: 100}, "all to the former champion")

    pipeline.deploy(pipeline.model("third"))
    params: dict[str, Any] = {"version": 3, "force": False}
    result = killed("undeploy", "traffic", ("undeployed", 3), **params)
    assert (result["traffic"], result["served"]) == ({"1": 100}, [1])
    assert pipeline.aliases() == {"champion": 1}
    # What the same task would do again, had it not been done: it is not for a canary that came since.
    pipeline.deploy(pipeline.model("third"))
    assert pipeline.decide("undeploy", run_id="undeploy", **params)["challenger"] == 3

    pipeline.decide("roll_back", to_version=None)
    assert killed("undeploy", "withdrawal", ("undeployed", 1), version=None, force=True)["served"] == []


def test_champion_is_replaced_on_request(pipeline: Pipeline, hops: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline.deploy(pipeline.model("first", inputs=["carrier", "distance", "leak"]))
    second, third = pipeline.model("second"), pipeline.model("third")
    with pytest.raises(StepFailed, match="does not take 'leak'"):
        pipeline.deploy(second)
    pipeline.deploy(pipeline.model("onnx", inputs=["carrier", "distance", "leak"]))
    record = pipeline.record()
    with pytest.raises(StepFailed, match="of kind 'evaluation'; expected a 'model'"):
        pipeline.decide("replace_champion", model=pipeline.verdict("evaluation", second).uri)
    with pytest.raises(StepFailed, match="does not load"):
        pipeline.decide("replace_champion", model=pipeline.model("broken").uri)
    assert pipeline.record() == record

    pipeline.connect(monkeypatch)
    replace_it = ("models", "replace", pipeline.name, second.uri, "--reason", "it knew the answer", "--by", "ann")
    code, out, err = hops(*replace_it)
    assert (code, f"is the champion of '{pipeline.name}' now" in out) == (0, True), err
    champion = pipeline.record()["champion"]
    assert champion["fingerprint"] == second.fingerprint
    assert pipeline.events()[-2:] == [("rolled_back", 2), ("promoted", champion["version"])]
    event = pipeline.record()["history"][-1]
    assert event["why"] == "replaces version 1 on purpose, without a comparison: it knew the answer"
    assert event["by"]["user"] == "ann"
    assert pipeline.aliases() == {"champion": champion["version"]}
    wait_for(lambda: pipeline.server.traffic(pipeline.name) == {champion["version"]: 100}, "all the traffic")
    assert pipeline.server.ask(pipeline.name, 5) == 0
    assert "is the champion of" in hops(*replace_it)[1]
    assert hops(*replace_it[:-4], "--reason", " ")[0] == 1
    assert pipeline.record()["history"][-1] == event
    assert pipeline.deploy(third).properties["mode"] == "canary"
    assert pipeline.decide("roll_back", to_version=1)["champion"] == 1


def test_impossible_decision_is_refused_and_changes_nothing(pipeline: Pipeline) -> None:
    pipeline.deploy(pipeline.model("first"))
    record = pipeline.record()
    someone_elses = replace(pipeline, name=f"{pipeline.name}-by-hand")
    with pytest.raises(StepFailed, match="by-hand' is not deployed; use DeployModelOperator first"):
        someone_elses.decide("undeploy", version=None, force=True)
    for function, params, message in (
        ("set_traffic", {"percents": {"1": 90, "2": 20}}, "sum to 110; expected 100"),
        ("set_traffic", {"percents": {"1": 90, "7": 10}}, "version 7; only these can get traffic: version 1"),
        ("set_traffic", {"percents": {"one": 100}}, "percents name version 'one'; expected a positive integer"),
        ("set_traffic", {"percents": "{'1': 100}"}, "expected a mapping of versions to percents"),
        ("promote", {"version": None}, "has no challenger to promote"),
        ("promote", {"version": 7}, "has no version 7 that was deployed; versions: 1"),
        ("roll_back", {"to_version": None}, "has no champion before version 1"),
    ):
        with pytest.raises(StepFailed) as caught:
            pipeline.decide(function, **params)
        assert message in str(caught.value)
        assert not caught.value.retryable
        assert pipeline.record() == record


def test_operators_decide_in_a_dag(
    pipeline: Pipeline, run_dag: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in ("first", "second"):
        pipeline.deploy(pipeline.model(kind))
    pipeline.decide("set_owners", owners=["serving_decisions"])
    pipeline.connect(monkeypatch)
    conf = {"model_name": pipeline.name, "canary": 2, "percents": {"1": 50, "2": 50}}
    run = run_dag("serving_decisions", conf)
    assert {ti.task_id: ti.state for ti in run.get_task_instances()} == dict.fromkeys(
        ("ready", "half", "promote", "roll_back", "undeploy"), "success"
    )
    history = pipeline.record()["history"]
    assert [(e["event"], e["version"]) for e in history[3:]] == [
        ("traffic", 2),
        ("promoted", 2),
        ("rolled_back", 2),
        ("promoted", 1),
        ("undeployed", 1),
    ]
    assert [e["why"] for e in history[3:6]] == [
        "it looks well",
        "asked for by serving_decisions.promote",
        "it was worse",
    ]
    assert history[3]["by"] == {"dag_id": "serving_decisions", "run_id": run.run_id, "task_id": "half"}
    wait_for(lambda: pipeline.server.available(pipeline.name) == [], "the model's end")

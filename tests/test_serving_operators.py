"""Decisions on what serves: real server, real MLflow, real SavedModels, tasks through dag.test()."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from served_models import Pipeline
from world import refused, states

pytestmark = pytest.mark.runtime


def test_decisions_change_shares_champion_and_loaded_versions_and_are_recorded(pipeline: Pipeline) -> None:
    name, server = pipeline.name, pipeline.server
    for kind in ("first", "second"):
        pipeline.deploy(pipeline.model(kind))
    result = pipeline.decide("set_traffic", percents={"1": 40, "2": 60})
    shares = {"traffic": {"1": 40, "2": 60}, "served": [1, 2], "changed": True}
    assert result == {"model_name": name, "champion": 1, "challenger": 2, **shares}
    pipeline.expect(traffic={1: 40, 2: 60})
    assert pipeline.decide("set_traffic", percents={"1": 40, "2": 60})["changed"] is False
    event = pipeline.record()["history"][-1]
    assert (event["event"], event["version"], event["why"]) == ("traffic", 2, "a test")
    assert (event["traffic"], event["by"]["task_id"]) == ({"1": 40, "2": 60}, "set_traffic")

    result = pipeline.decide("promote", version=None)
    assert (result["champion"], result["challenger"], result["traffic"]) == (2, None, {"2": 100})
    pipeline.expect(traffic={2: 100}, aliases={"champion": 2})
    assert server.available(name) == [1, 2]


def test_roll_back_publishes_and_loads_a_former_champion_that_was_removed(pipeline: Pipeline) -> None:
    for kind, options in (("first", {}), ("second", {}), ("third", {"keep_versions": 1})):
        pipeline.deploy(pipeline.model(kind))
        served = pipeline.record()["challenger"] and pipeline.decide("promote", version=None, **options)["served"]
    assert served == [3]
    pipeline.expect(loaded=[3])
    folder = pipeline.server.base_path / pipeline.name
    (folder / "2").rename(folder / ".gone")
    result = pipeline.decide("roll_back", to_version=None)
    assert (result["champion"], result["traffic"], result["served"]) == (2, {"2": 100}, [2])
    pipeline.expect(traffic={2: 100}, aliases={"champion": 2}, labels={"stable": 2})
    assert pipeline.server.ask(pipeline.name, 3) == 0
    assert pipeline.events()[-2:] == [("rolled_back", 3), ("promoted", 2)]


def test_owners_and_a_roll_back_are_decided_without_a_server(pipeline: Pipeline) -> None:
    for kind in ("first", "second"):
        pipeline.deploy(pipeline.model(kind))
    pipeline.decide("promote", version=None)
    pipeline.server.stop()
    try:
        with refused("does not answer", retried=True):
            pipeline.decide("roll_back", to_version=1)
        assert pipeline.decide("set_owners", owners=["tests", "other"])["changed"]
        result = pipeline.decide("roll_back", to_version=1, if_away=True)
        assert (result["champion"], result["traffic"], result["served"]) == (1, {"1": 100}, [1])
    finally:
        pipeline.server.start().wait_until_ready()
    pipeline.expect(traffic={1: 100}, aliases={"champion": 1}, labels={"stable": 1})
    assert pipeline.server.ask(pipeline.name, 3) == 0
    assert pipeline.record()["owners"] == ["tests", "other"]


def test_undeploy_spares_the_champion_unless_forced(pipeline: Pipeline) -> None:
    for kind in ("first", "second"):
        pipeline.deploy(pipeline.model(kind))
    with refused("version 1 is the champion, and serves"):
        pipeline.decide("undeploy", version=1, force=False)
    assert pipeline.decide("undeploy", version=2, force=False)["served"] == [1]
    pipeline.expect(loaded=[1])
    result = pipeline.decide("undeploy", version=None, force=True)
    assert (result["champion"], result["served"], result["traffic"]) == (None, [], {})
    pipeline.expect(loaded=[], aliases={})
    assert pipeline.name not in pipeline.server.traffic_file.read_text()
    assert pipeline.decide("undeploy", version=None, force=True)["changed"] is False


def test_next_deployment_repairs_aliases_and_refuses_older_models(pipeline: Pipeline) -> None:
    for kind in ("first", "second"):
        pipeline.deploy(pipeline.model(kind))
    pipeline.decide("roll_back", to_version=None)
    pipeline.deploy(pipeline.model("third"))
    pipeline.decide("promote", version=None)
    promoted = pipeline.record()
    pipeline.registry("set_aliases", aliases={"champion": 1, "challenger": 2})
    pipeline.deploy(pipeline.model("third"))
    pipeline.expect(aliases={"champion": 3})
    with refused("was registered as version 2, before the champion 3"):
        pipeline.deploy(pipeline.model("second"))
    assert pipeline.record() == promoted
    assert pipeline.deploy(pipeline.model("second"), allow_older=True).properties["mode"] == "canary"


def test_decisions_survive_a_kill(pipeline: Pipeline) -> None:
    """Decisions are recorded first, and applied second; a retry finds them in the record, and only applies them."""

    def killed(function: str, before: str, event: tuple[str, int], **params: Any) -> dict[str, Any]:
        """Returns the retry's report of a task that is killed before it applies what it has decided."""
        assert pipeline.kill(pipeline.decide, function, run_id=function, before=before, **params)[-1] == "record"
        written = pipeline.record()
        assert pipeline.events()[-1] == event
        result: dict[str, Any] = pipeline.decide(function, run_id=function, **params)
        assert pipeline.record() == written, "the retry decided nothing anew"
        assert result["changed"] is False
        traffic = {int(version): share for version, share in result["traffic"].items()}
        pipeline.expect(traffic=traffic, loaded=result["served"])
        return result

    for kind in ("first", "second"):
        pipeline.deploy(pipeline.model(kind))
    percents, record = {"1": 30, "2": 70}, pipeline.record()
    assert pipeline.kill(pipeline.decide, "set_traffic", percents=percents, before="record") == []
    assert pipeline.record() == record, "nothing was decided"
    assert killed("set_traffic", "traffic", ("traffic", 2), percents=percents)["traffic"] == percents
    result = killed("promote", "traffic", ("promoted", 2), version=None)
    assert (result["traffic"], result["served"], pipeline.labels()) == ({"2": 100}, [1, 2], {"stable": 2})
    result = killed("roll_back", "traffic", ("promoted", 1), to_version=None)
    assert (result["traffic"], result["served"]) == ({"1": 100}, [1])

    pipeline.deploy(pipeline.model("third"))
    params: dict[str, Any] = {"version": 3, "force": False}
    result = killed("undeploy", "traffic", ("undeployed", 3), **params)
    assert (result["traffic"], result["served"]) == ({"1": 100}, [1])
    pipeline.expect(aliases={"champion": 1})
    # What the same task would do again, had it not been done: it is not for a canary that came since.
    pipeline.deploy(pipeline.model("third"))
    assert pipeline.decide("undeploy", run_id="undeploy", **params)["challenger"] == 3
    pipeline.decide("roll_back", to_version=None)
    assert killed("undeploy", "withdrawal", ("undeployed", 1), version=None, force=True)["served"] == []


def test_champion_is_replaced_on_request(pipeline: Pipeline, hops: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    leaking = {"inputs": ["carrier", "distance", "leak"]}
    pipeline.deploy(pipeline.model("first", **leaking))
    second, third = pipeline.model("second"), pipeline.model("third")
    with refused("does not take 'leak'"):
        pipeline.deploy(second)
    pipeline.deploy(pipeline.model("onnx", **leaking))
    record = pipeline.record()
    with refused("of kind 'evaluation'; expected a 'model'"):
        pipeline.decide("replace_champion", model=pipeline.verdict("evaluation", second).uri)
    with refused("does not load"):
        pipeline.decide("replace_champion", model=pipeline.model("broken").uri)
    assert pipeline.record() == record

    pipeline.connect(monkeypatch)
    replace_it = ("models", "replace", pipeline.name, second.uri, "--reason", "it knew the answer", "--by", "ann")
    code, out, err = hops(*replace_it)
    assert (code, f"is the champion of '{pipeline.name}' now" in out) == (0, True), err
    champion, event = pipeline.record()["champion"], pipeline.record()["history"][-1]
    assert champion["fingerprint"] == second.fingerprint
    assert pipeline.events()[-2:] == [("rolled_back", 2), ("promoted", champion["version"])]
    why = "replaces version 1 on purpose, without a comparison: it knew the answer"
    assert (event["why"], event["by"]["user"]) == (why, "ann")
    pipeline.expect(traffic={champion["version"]: 100}, aliases={"champion": champion["version"]})
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
    with refused("by-hand' is not deployed; use DeployModelOperator first"):
        someone_elses.decide("undeploy", version=None, force=True)
    for function, params, words in (
        ("set_traffic", {"percents": {"1": 90, "2": 20}}, "sum to 110; expected 100"),
        ("set_traffic", {"percents": {"1": 90, "7": 10}}, "version 7; only these can get traffic: version 1"),
        ("set_traffic", {"percents": {"one": 100}}, "percents name version 'one'; expected a positive integer"),
        ("set_traffic", {"percents": "{'1': 100}"}, "expected a mapping of versions to percents"),
        ("promote", {"version": None}, "has no challenger to promote"),
        ("promote", {"version": 7}, "has no version 7 that was deployed; versions: 1"),
        ("roll_back", {"to_version": None}, "has no champion before version 1"),
    ):
        with refused(words):
            pipeline.decide(function, **params)
        assert pipeline.record() == record


def test_operators_decide_in_a_dag(
    pipeline: Pipeline, run_dag: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in ("first", "second"):
        pipeline.deploy(pipeline.model(kind))
    pipeline.decide("set_owners", owners=["serving_decisions"])
    pipeline.connect(monkeypatch)
    run = run_dag("serving_decisions", {"model_name": pipeline.name, "canary": 2, "percents": {"1": 50, "2": 50}})
    assert states(run) == dict.fromkeys(("ready", "half", "promote", "roll_back", "undeploy"), "success")
    history = pipeline.record()["history"][3:]
    assert [(each["event"], each["version"], each["why"]) for each in history[:3]] == [
        ("traffic", 2, "it looks well"),
        ("promoted", 2, "asked for by serving_decisions.promote"),
        ("rolled_back", 2, "it was worse"),
    ]
    assert pipeline.events()[6:] == [("promoted", 1), ("undeployed", 1)]
    assert history[0]["by"] == {"dag_id": "serving_decisions", "run_id": run.run_id, "task_id": "half"}
    pipeline.expect(loaded=[])

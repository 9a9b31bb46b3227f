"""The operator and the command that rehearse a monitor: arguments, what the step gets, and what is checked after it."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from small_rehearsals import DAY_S, serve, small_rehearsal, write_instead
from world import World, context_of

from airflow_hops import Age, RetrainingPolicy
from airflow_hops.core.artifacts.artifact import Artifact, Producer
from airflow_hops.core.errors import BadInput
from airflow_hops.core.models.model_record import ModelRecord, write_record
from airflow_hops.core.monitor_reports import listed_reports, note_report
from airflow_hops.core.steps.protocol import StepSpec
from airflow_hops.extensions.rehearsal import RehearseOperator
from airflow_hops.extensions.rehearsal.core.rehearsal import RehearsalOptions

Hops = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tries": 4}, "tries is 4, expected at least 5"),
        ({"rows": "live"}, "rows is 'live', expected one of 'captured', 'training'"),
        ({"every": DAY_S}, "every is 86400.0, expected a timedelta above 0"),
        ({"require": ["amount"]}, "require is 'amount', expected FEATURE: FAULT"),
        ({"skew": {"alfa": 0.1}}, "skew is 'alfa', .*did you mean 'alpha'"),
        ({"skew": {"thresholds": {"plan": 2}}}, r"thresholds\['plan'\] is 2, expected a share"),
        ({"skew": {"captured": {}}}, "skew is 'captured', expected one of"),
    ],
)
def test_wrong_argument_of_a_rehearsal_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        RehearseOperator(task_id="t", model_name="churn", **arguments)


def test_step_gets_options_of_monitor_and_policy() -> None:
    policy = RetrainingPolicy(when=Age(timedelta(days=60)))
    skew = {"alpha": 0.05, "silent_after": timedelta(days=1), "model_name": "churn"}
    task = RehearseOperator(
        task_id="r", model_name="churn", every=timedelta(hours=6), policy=policy, skew=skew, features=("plan",)
    )
    options = RehearsalOptions(**task.step_params({}))
    assert (options.every_s, options.features) == (21_600.0, ["plan"])
    assert RetrainingPolicy.from_dict(options.policy) == policy
    assert options.skew == {"alpha": 0.05, "silent_after_s": DAY_S}


def test_rehearsal_updates_no_asset() -> None:
    with DAG("d", schedule=None):
        assert RehearseOperator(task_id="r", model_name="churn").outlets == []


@pytest.mark.parametrize(("require", "fails"), [(["[b]amount: units"], False), (["plan: missing 20%"], True)])
def test_report_is_listed_whether_requirements_hold_or_not(world: World, require: list[str], fails: bool) -> None:
    serve(world)
    write_instead(world, specs := list[StepSpec]())
    record = world.store.read_text(f"{world.store.root}/_models/churn.json")
    captured = world.artifact("snapshot").to_dict()
    task = RehearseOperator(task_id="r", model_name="churn", require=require, captured=captured)
    if fails:
        with pytest.raises(AirflowFailException, match="plan: missing 20%: not found, up to all rows missing"):
            task.execute(context_of("rehearse"))
    else:
        assert Artifact.from_dict(task.execute(context_of("rehearse"))).kind == "rehearsal"
    assert specs[0].inputs["captured"][0].kind == "snapshot"
    assert [dag for dag, _ in listed_reports(world.store, "churn", 2, "rehearsal")] == ["d"]
    assert world.store.read_text(f"{world.store.root}/_models/churn.json") == record


def test_rehearsal_is_skipped_until_a_version_serves(world: World) -> None:
    write_record(world.connect().store, "churn", ModelRecord())
    with pytest.raises(AirflowSkipException, match="no version of model 'churn' serves yet"):
        RehearseOperator(task_id="r", model_name="churn").execute(context_of("rehearse"))


def test_command_prints_what_is_found_and_what_to_do(hops: Hops, world: World, tmp_path: Path) -> None:
    serve(world)
    write_instead(world, specs := list[StepSpec]())
    (tmp_path / "skew.json").write_text('{"alpha": 0.05}')
    (tmp_path / "policy.json").write_text('{"kind": "policy", "cooldown": {"days": 2}}')
    files = [f"--{name}={tmp_path}/{name}.json" for name in ("skew", "policy", "output")]
    code, out, err = hops("rehearse", "churn", "--every", "6h", "--feature", "plan", "--require=plan: missing", *files)
    assert (code, err.splitlines()[-1]) == (1, "  plan: missing: not found, up to all rows missing")
    for text in (
        "plan is weak: Late\n  SkewOperator(min_rows=4000)\n",
        "age is drifting: Called drifted in 27 of 30\n",
        "[b]amount: 40% of the rows times 100\n  after 3 days; called unit change; retrains no; slips through",
        "rows: not found, up to 100% of the labels flip\n",
        "30 windows of captured requests, each 1 day; 3.33% of them are not stable without a fault (1% to 17%)",
        "Note: Few windows\n",
    ):  # fmt: skip
        assert text in out
    assert json.loads((tmp_path / "output.json").read_text()) == json.loads(json.dumps(small_rehearsal().to_dict()))
    options = RehearsalOptions(**specs[0].params)
    assert (options.every_s, options.features, options.skew) == (21_600.0, ["plan"], {"alpha": 0.05})
    assert options.policy is not None
    assert options.policy["cooldown"] == {"days": 2}


def test_report_of_the_command_belongs_to_the_dag_that_compares(hops: Hops, world: World) -> None:
    model = serve(world)
    write_instead(world, specs := list[StepSpec]())
    assert hops("rehearse", "churn")[0] == 0
    monitor = Producer("churn_monitoring", "r", "skew")
    note_report(world.store, "churn", world.artifact("skew", {}, monitor), [2], None, monitor)
    assert hops("rehearse", "churn", "--false-alarms", "1.1/month")[0] == 0
    assert [spec.producer.dag_id for spec in specs] == [world.store.dag_of(model.uri), "churn_monitoring"]
    assert all(spec.producer.run_id.startswith("rehearse__") for spec in specs)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--every", "1 month"], "--every is '1 month', expected a number of hours, days or weeks"),
        (["--tries", "1"], "tries is 1, expected at least 5"),
        (["--require", "plan"], "require is 'plan', expected FEATURE: FAULT"),
        (["--policy", "none.json"], "none.json: not a JSON file"),
    ],
)
def test_wrong_argument_of_the_command_is_refused(hops: Hops, world: World, arguments: list[str], message: str) -> None:
    serve(world)
    code, _, err = hops("rehearse", "churn", *arguments)
    assert code == 1
    assert message in err

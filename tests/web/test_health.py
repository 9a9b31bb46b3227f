"""Health of a pipeline: a table of facts, then the same through the API of pipelines of every health."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any, get_args

import pytest

from airflow_hops.core.performance import PerformanceProperties, VersionPerformance
from airflow_hops.core.skew import SkewProperties, SkewReference
from airflow_hops.web.models.records import ServedModel, VersionShare
from airflow_hops.web.pipelines.health import Facts, Finding, MemberDag, ModelFacts, State, health_of
from airflow_hops.web.runs.states import LastRun, TaskVerdict

NOW = datetime(2026, 11, 3, 12, tzinfo=UTC)
MONDAY = NOW - timedelta(days=1)
STATES = get_args(State)


def run(state: str = "success", verdict: Any = None) -> LastRun:
    """A last run; with a verdict, of the task ``train``."""
    task = verdict and TaskVerdict(task_id="train", map_index=-1, iteration=-1, verdict=verdict, why="a reason")
    times = dict.fromkeys(("run_after", "started_at", "ended_at"), MONDAY)
    refusals, failure = ([], task) if state == "failed" else ([task] if task else [], None)
    return LastRun(
        run_id="r", state=state, run_type="manual", duration_s=1.0, stages=[], refusals=refusals, failure=failure,
        **times,
    )  # fmt: skip


def dag(dag_id: str = "own", last_run: LastRun | None = None, *, paused: bool = False, due: Any = None) -> MemberDag:
    return MemberDag(dag_id=dag_id, is_paused=paused, last_run=last_run, next_run=due)


def model(version: int | None = 2, problem: str | None = None, **facts: Any) -> ModelFacts:
    share = version and VersionShare(version=version, since=MONDAY, traffic_percent=100, fingerprint="f")
    return ModelFacts(
        ServedModel(name="m", champion=share or None, challenger=None, metric=None, problem=problem), **facts
    )


def check(verdict: str, version: int = 2, *drifted: str, unwell: str = "") -> tuple[datetime, SkewProperties]:
    reference = SkewReference(model="m", version=version)
    return NOW, SkewProperties(
        verdict=verdict,  # type: ignore[arg-type]
        drifted=drifted,
        reference=reference,
        unwell=(unwell,) if unwell else (),
    )


def measured(low: float, version: int = 2, *unwell: str) -> tuple[datetime, PerformanceProperties]:
    drop = {"auc": (low + 0.02, low, low + 0.04)}
    figures = VersionPerformance(version, "", "", drop=drop)
    return NOW, PerformanceProperties(model_name="m", metric="auc", versions=(figures,), unwell=unwell)


OWN, WATCHED, BAD = dag(last_run=run()), (dag("watch", run()),), run("failed", "failed")
DRIFT = check("drift", 2, "dewp", "temp", "wind")
CASES: list[tuple[Facts, str, str]] = [
    (Facts(dag(last_run=BAD)), "broken", "train failed Mon: a reason"),
    (Facts(dag(last_run=run("failed"))), "broken", "the run failed Mon"),
    (Facts(OWN, [dag("watch", BAD)]), "broken", "watch: train failed Mon: a reason"),
    (Facts(OWN, scorers=[dag("score", BAD)]), "broken", "score: train failed Mon: a reason"),
    (Facts(dag(last_run=run("success", "rolled back"))), "warning", "train rolled the canary back Mon: a reason"),
    (Facts(dag(last_run=run("success", "not blessed"))), "fine", "its last run succeeded Mon"),
    (Facts(dag(last_run=run("running"))), "fine", "it is running Mon"),
    (Facts(dag()), "idle", "it has not run yet"),
    (Facts(OWN, models=[model(None)]), "idle", "no version of m serves yet"),
    (Facts(OWN, models=[model(None, "m.json: no record")]),
     "unknown", "because the record of m cannot be read: m.json: no record"),
    (Facts(OWN, models=[model()]), "fine", "v2 serves: not monitored"),
    (Facts(OWN, WATCHED, models=[model()]), "fine", "v2 serves: v2 is not checked yet"),
    (Facts(OWN, WATCHED, models=[model(skew=check("stable"))]), "fine", "v2 serves: no drift"),
    (Facts(OWN, WATCHED, models=[model(skew=check("insufficient"))]), "fine", "v2 serves: too few rows for a verdict"),
    (Facts(OWN, WATCHED, models=[model(skew=DRIFT, drifting_since=MONDAY)]),
     "warning", "drift Mon: dewp, temp and 1 more"),
    (Facts(OWN, WATCHED, models=[model(skew=check("drift", 1, "dewp"))]), "fine", "v2 serves: v2 is not checked yet"),
    (Facts(OWN, WATCHED, models=[model(skew=check("pipeline_fault", 2, "dewp"))]),
     "broken", "a source looks broken Tue: dewp"),
    (Facts(OWN, WATCHED, models=[model(skew=check("stable", unwell="no rows"))]),
     "warning", "the monitor cannot tell much Tue: no rows"),
    (Facts(OWN, models=[model(performance=measured(0.01))]),
     "warning", "v2 does worse than in its evaluation Tue: auc by 0.03 (0.01 to 0.05)"),
    (Facts(OWN, models=[model(performance=measured(-0.01))]), "fine", "v2 serves: not monitored"),
    (Facts(OWN, models=[model(performance=measured(0.01, 1))]), "fine", "v2 serves: not monitored"),
    (Facts(OWN, models=[model(performance=measured(-1, 2, "no labels"))]),
     "warning", "the measurement cannot tell much Tue: no labels"),
    (Facts(OWN, questions=[(MONDAY, "approve?")]), "waiting", "a question waits for you Mon: approve?"),
    (Facts(OWN, questions=[(MONDAY, "a?"), (NOW, "b?")], hidden=[("own: skew", "no module")]),
     "waiting", "2 questions wait for you Mon: a?"),
    (Facts(OWN, models=[model()], hidden=[("own: skew", "no module")]),
     "unknown", "because the operator of own: skew cannot be imported: no module"),
    (Facts(OWN, unread=[("validate", "no JSON")]),
     "unknown", "because the proposal of validate cannot be read: no JSON"),
    (Facts(OWN, [dag("watch", run(), paused=True)], models=[model()]),
     "warning", "watch is paused, so nothing watches what serves"),
    (Facts(OWN, scorers=[dag("score", run(), paused=True)], models=[model()]),
     "warning", "score is paused, so no table is scored"),
    (Facts(OWN, [dag("watch", run(), paused=True)], models=[model(None)]), "idle", "no version of m serves yet"),
    (Facts(OWN, scorers=[dag("score", run(), due=MONDAY)], models=[model()]), "warning", "a run of score is due Mon"),
    (Facts(OWN, scorers=[dag("score", run("running"), due=MONDAY)], models=[model()]),
     "fine", "v2 serves: not monitored"),
    (Facts(OWN, scorers=[dag("score", run(), due=NOW)], models=[model(scored=(MONDAY, 41_250))]),
     "fine", "41,250 rows scored Mon: not monitored"),
    (Facts(OWN, models=[model(), model(None)]), "idle", "m: no version of m serves yet"),
]  # fmt: skip


def sentence(finding: Finding) -> str:
    since = f" {finding.since:%a}" if finding.since else ""
    return f"{finding.text}{since}{f': {finding.detail}' if finding.detail else ''}"


@pytest.mark.parametrize(("facts", "state", "text"), CASES, ids=[text for *_, text in CASES])
def test_health_of_one_fact(facts: Facts, state: str, text: str) -> None:
    worst = health_of(facts, NOW)[0]
    assert (worst.state, sentence(worst)) == (state, text)


def test_worst_fact_comes_first_and_none_is_lost() -> None:
    """All pairs of facts about different parts: the worse is the health, and what is wrong with the other is listed."""
    for (one, *_), (other, *_) in product(CASES, CASES):
        names = [[each.dag_id for each in (*facts.monitors, *facts.scorers)] for facts in (one, other)]
        if (one.models and other.models) or {*names[0]} & {*names[1]} or one.own != OWN != other.own:
            continue
        both = Facts(
            other.own if one.own == OWN else one.own,
            (*one.monitors, *other.monitors),
            (*one.scorers, *other.scorers),
            (*one.models, *other.models),
            (*one.questions, *other.questions),
            (*one.hidden, *other.hidden),
            (*one.unread, *other.unread),
        )
        listed = health_of(both, NOW)
        ranks = [STATES.index(each.state) for each in listed]
        assert ranks == sorted(ranks) and (len(listed) == 1 or "fine" not in {each.state for each in listed})
        wrong = {each.about for facts in (one, other) for each in health_of(facts, NOW) if each.state in STATES[:4]}
        assert wrong <= {each.about for each in listed}

"""Policies of retraining: what they say of a comparison, and what no history can bring them to."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from world import write_artifact

from airflow_hops.core.artifacts.artifact import Artifact, Producer
from airflow_hops.core.errors import BadInput
from airflow_hops.core.performance import PerformanceProperties, VersionPerformance
from airflow_hops.core.retraining.conditions import (
    Age,
    AllOf,
    AnyOf,
    Drift,
    NewRows,
    PipelineFault,
    PredictionDrift,
    Rejected,
    RolloutRunning,
)
from airflow_hops.core.retraining.decision import RetrainingDecision, decide
from airflow_hops.core.retraining.decisions import (
    DecisionLog,
    claim_request,
    cost_of,
    found_no_new_rows,
    note_no_new_rows,
)
from airflow_hops.core.retraining.performance import Performance
from airflow_hops.core.retraining.policy import Budget, Expanding, RetrainingPolicy, SinceChange, Sliding
from airflow_hops.core.retraining.situation import Situation
from airflow_hops.core.skew import SkewProperties, SkewReference
from airflow_hops.core.store import ArtifactStore

DAY = timedelta(days=1)
START = datetime(2013, 4, 1, tzinfo=UTC)
OPEN = RetrainingPolicy(cooldown=timedelta(0))
CAREFUL = RetrainingPolicy(
    when=AnyOf(AllOf(Drift(("temp",), consecutive=2, min_effect=0.01), NewRows(2)), Age(60 * DAY)),
    unless=AnyOf(PipelineFault(), RolloutRunning(), Rejected(2)),
    cooldown=7.5 * DAY,
    budget=Budget(6, 90 * DAY, gpu_hours=40),
    window=Sliding(180 * DAY),
    ask=True,
)


def situation(day: float, *drifted: str, verdict: str = "", reference: str = "v1", **known: Any) -> Situation:
    time = START + day * DAY
    verdict = verdict or ("drift" if drifted else "stable")
    skew = SkewProperties(
        verdict=verdict,  # type: ignore[arg-type]
        drifted=drifted,
        causes=dict.fromkeys(drifted, "unit_change") if verdict == "pipeline_fault" else {},
        effects={"temp": -0.05, "dewp": 0.001},
        reference=SkewReference(fingerprint=reference, statistics="file:///s", model="m", version=1),
        scores={"temp": (1.0, 0.5), "dewp": (1.0, 0.5)},
        window_end=time.isoformat(),
    )
    span = ((time - DAY).isoformat(), time.isoformat())
    return replace(Situation(time, "data", skew, (f"file:///{day}", "f"), 100, span, START), **known)


def of_spans(case: Situation) -> Situation:
    return replace(case, skew=replace(case.skew, reference=replace(case.skew.reference, model=None, version=None)))


def predicted(day: float, *prediction: float, **known: Any) -> Situation:
    """A comparison in which the predictions have a distance and its threshold, or were not compared."""
    case = situation(day, **known)
    return replace(case, skew=replace(case.skew, prediction=prediction or None))


def unwell(case: Situation) -> Situation:
    fault = ("the clock is wrong",)
    return replace(case, unwell=fault, skew=replace(case.skew, unwell=fault))


def measured(
    auc: float | None,
    estimate: float | None = 0.6,
    version: int = 1,
    baseline: float | None = 0.75,
    unwell: tuple[str, ...] = (),
) -> dict[str, Any]:
    """A measurement of the AUC, which was 0.75 ± 0.01 at training; None while labels are too few."""

    def interval(value: float, half: float) -> dict[str, tuple[float, float, float]]:
        return {"auc": (value, value - half, value + half)}

    performance = VersionPerformance(
        version, START.isoformat(), (START + 14 * DAY).isoformat(), 1000, 100 if auc else 3,
        figures={} if auc is None else interval(auc, 0.02),
        estimates={} if estimate is None else interval(estimate, 0.01),
        baseline={} if baseline is None else interval(baseline, 0.01),
    )  # fmt: skip
    properties = PerformanceProperties(
        model_name="m", problem="binary", metric="auc", versions=(performance,), unwell=unwell
    )
    return {
        "measured": Artifact("file:///p", "performance", "f", properties=json.loads(json.dumps(properties.to_dict())))
    }


def on(**fields: Any) -> RetrainingPolicy:
    return replace(OPEN, **fields)


def chain(policy: RetrainingPolicy, *situations: Situation) -> list[RetrainingDecision]:
    made: list[RetrainingDecision] = []
    for each in situations:
        # As it is read from the store.
        previous = RetrainingDecision.from_dict(json.loads(json.dumps(made[-1].to_dict()))) if made else None
        assert previous is None or previous.memory == made[-1].memory
        made.append(decide(policy, each, previous))
    return made


@pytest.mark.parametrize(
    ("policy", "situations", "why", "words"),
    [
        (OPEN, [situation(1, "temp")], "", "temp drifted from the training data of version 1"),
        (OPEN, [situation(1)], "verdict", "the verdict is 'stable'"),
        (OPEN, [situation(1, verdict="insufficient")], "verdict", "'insufficient': 100 rows"),
        (OPEN, [situation(1, "temp", verdict="pipeline_fault")], "pipeline_fault", "temp (unit_change)"),
        (OPEN, [situation(1, "temp", rollout="version 2 is tried")], "rollout", "version 2 is tried"),
        (OPEN, [situation(1, "temp", in_flight="run r trains")], "in_flight", "run r trains"),
        (OPEN, [situation(1, unwell=("the clock is wrong",))], "monitor", "the clock is wrong"),
        (OPEN, [situation(n, "temp") for n in range(4)], "rejected", "3 of 3 requested retrainings"),
        (OPEN, [*(situation(n, "temp") for n in range(4)), situation(5, "temp", reference="v2")], "", "temp"),
        (RetrainingPolicy(cooldown=7 * DAY), [situation(26, "temp"), situation(30, "temp")], "cooldown",
         "cooldown until 2013-05-04 (requested at 2013-04-27)"),
        (RetrainingPolicy(cooldown=7 * DAY),
         [situation(1, "temp"), situation(2, "temp", reference="v2")], "cooldown", ""),
        (OPEN, [situation(1, "temp", no_new_rows="no file has changed")], "no_new_rows", "; no file has changed"),
        (RetrainingPolicy(cooldown=7 * DAY, champion_ends_cooldown=True),
         [situation(1, "temp"), situation(2, "temp", reference="v2")], "", ""),
        (on(budget=Budget(1, 9 * DAY)), [situation(1, "temp"), situation(9, "temp")], "budget",
         "temp drifted from the training data of version 1; budget 1 of 1 trainings spent in 9 days"),
        (on(budget=Budget(1, 9 * DAY)), [situation(1, "temp"), situation(10, "temp")], "", "budget 0 of 1"),
        (on(when=Drift("dewp")), [situation(1, "temp")], "verdict", "only temp drifted"),
        (on(when=PredictionDrift()), [predicted(1, 0.2, 0.05)], "", "distance of the predictions is 0.2, above 0.05"),
        (on(when=PredictionDrift()), [predicted(1, 0.04, 0.05)], "verdict", "predictions is 0.04, of 0.05"),
        (on(when=PredictionDrift(0.3)), [predicted(1, 0.2, 0.05)], "verdict", "predictions is 0.2, of 0.3"),
        (on(when=PredictionDrift()), [predicted(1, 0.2, 0.05, verdict="insufficient")], "verdict", "'insufficient'"),
        (on(when=PredictionDrift()), [predicted(1)], "monitor", "the predictions were not compared: see the notes"),
        (on(when=PredictionDrift()), [predicted(1, 0.2, 0.05, verdict="pipeline_fault")], "pipeline_fault", ""),
        (on(when=Drift(min_effect=0.01)), [situation(1, "dewp")], "verdict", "with effects below 0.01"),
        (on(when=Drift(min_effect=0.01)), [situation(1, "temp")], "", ""),
        (on(when=Drift(consecutive=2)), [situation(1, "temp")], "verdict", "1 of 2 comparisons in a row"),
        (on(when=Drift(consecutive=2)), [situation(1, "temp"), situation(2, "dewp")], "verdict", "1 of 2"),
        (on(when=Drift(consecutive=2)),
         [situation(1, "temp"), situation(2, verdict="insufficient"), situation(3, "temp")], "", "2 comparisons"),
        (on(when=Drift(consecutive=2)), [situation(2, "temp"), situation(1, "temp")], "verdict", "1 of 2"),
        (on(when=Drift(consecutive=2)),
         [situation(1, "temp"), situation(2, "temp", reference="v2")], "verdict", "1 of 2"),
        # One comparison is counted once, however often its task is cleared.
        (on(when=Drift(consecutive=2)),
         [situation(1, "temp"), situation(1, verdict="insufficient", report=("b", "b")), situation(1, "temp")],
         "verdict", "1 of 2"),
        (on(when=Drift(consecutive=2)),
         [situation(1, "temp"), situation(1, "temp", report=("b", "b"))], "", "2 comparisons"),
        # A time that was far off is over with the champion; a monitor that says it is wrong is not believed at all.
        (on(when=Drift(consecutive=2)),
         [situation(9999), situation(1, "temp", reference="v2"), situation(2, "temp", reference="v2")], "", "2 comp"),
        (on(when=Drift(consecutive=2)),
         [unwell(situation(9999, "temp")), situation(1, "temp"), situation(2, "temp")], "", "2 comparisons"),
        # Spans that roll have another reference each time, and no champion.
        (on(when=Drift(consecutive=2)),
         [of_spans(situation(n, "temp", reference=f"week {n}")) for n in (1, 2)], "", "2 comparisons"),
        (RetrainingPolicy(cooldown=7 * DAY, champion_ends_cooldown=True),
         [of_spans(situation(n, "temp", reference=f"week {n}")) for n in (1, 2)], "cooldown", "2013-04-09"),
        (OPEN, [of_spans(situation(n, "temp")) for n in range(5)], "", "temp drifted from file:///s"),
        (on(when=Age(DAY)), [situation(1, trained_until=None, in_flight="version 2 has become the champion")],
         "verdict", "not known, as version 2 has become the champion"),
        (on(when=Age(30 * DAY)), [situation(30)], "verdict", "30 days before the compared data (of 30 days)"),
        (on(when=Age(30 * DAY)), [situation(31)], "", "31 days before the compared data (over 30"),
        (on(when=Performance("auc", drop=0.02)), [situation(1, **measured(0.74))], "verdict",
         "auc from 2013-04-01 to 2013-04-15 is 0.74 (0.72 to 0.76), worse than at training by 0.01 (-0.01236 to "
         "0.03236; 0.02 is allowed)"),
        (on(when=Performance("auc", drop=0.02)), [situation(1, **measured(0.72))], "verdict", "by 0.03"),
        (on(when=Performance("auc", drop=0.02)), [situation(1, **measured(0.76))], "verdict",
         "better than at training by 0.01 (-0.01236 to 0.03236; worse by 0.02 is allowed)"),
        (on(when=Performance("auc", drop=0.02, window=14 * DAY)), [situation(1, **measured(0.70))], "", "by 0.05"),
        (on(when=Performance("auc", minimum=0.73)), [situation(1, **measured(0.72))], "verdict", "not surely beyond"),
        (on(when=Performance("auc", minimum=0.75)), [situation(1, **measured(0.72))], "", "beyond the limit of 0.75"),
        (on(when=Performance("auc", drop=0.02)), [situation(1, **measured(None))], "verdict",
         "auc is not known: 3 of 1,000 predictions from 2013-04-01 to 2013-04-15 have labels"),
        (on(when=Performance("auc", drop=0.02, estimates=True)), [situation(1, **measured(None))], "",
         "is estimated as 0.6"),
        (on(when=Performance("auc", drop=0.02, estimates=True)), [situation(1, **measured(0.75))], "verdict", "0.75"),
        (on(when=Performance("auc", drop=0.02)), [situation(1, **measured(0.5, version=2))], "verdict",
         "version 1 has answered nothing"),
        (on(when=Performance("auc", drop=0.02)), [situation(1, **measured(0.74, baseline=None))], "monitor",
         "are gone"),
        (on(when=Performance("auc", drop=0.02)), [situation(1, **measured(0.74, unwell=("Labels have stopped",)))],
         "monitor", "Labels have stopped"),
        (on(when=Performance("auc", drop=0.02, estimates=True)),
         [situation(1, **measured(None, estimate=None, unwell=("No label has come",)))], "monitor",
         "No label has come"),
        (on(when=AnyOf(Drift(), Performance("auc", drop=0.02))), [situation(1, unmeasured="its task failed")],
         "monitor", "its task failed"),
        (on(when=AnyOf(Drift(), Performance("auc", drop=0.02))), [situation(1, "temp", unmeasured="it failed")],
         "", "temp drifted"),
        (on(when=NewRows(150)), [situation(1)], "verdict", "100 of 150 new rows"),
        (on(when=NewRows(150)), [situation(1), situation(2)], "", "200 of 150 new rows"),
        (on(when=AllOf(Drift(), NewRows(150))), [situation(1, "temp")], "verdict", "100 of 150"),
        (on(when=AnyOf(Drift(), NewRows(150))), [situation(1, "temp")], "", "temp drifted"),
    ],
)  # fmt: skip
def test_decision_has_its_reason(policy: RetrainingPolicy, situations: list[Situation], why: str, words: str) -> None:
    last = chain(policy, *situations)[-1]
    assert (last.why, last.requested) == (why, not why), last.reason
    assert words in last.reason


def test_empty_comparison_changes_nothing() -> None:
    policy = on(when=AnyOf(Drift(consecutive=2), NewRows(150), Age(300 * DAY)))
    empty = situation(5000, verdict="insufficient", clock="clock", rows=0, span=(None, None))
    empty = replace(empty, skew=replace(empty.skew, window_end=None))
    assert chain(policy, empty)[-1].reason == "there was nothing to compare"
    first, between, after = chain(policy, situation(1, "temp"), empty, situation(2, "temp"))
    assert (between.reason, between.at, between.memory) == ("there was nothing to compare", first.at, first.memory)
    assert after.reason.startswith(
        "temp drifted from the training data of version 1, 2 comparisons in a row; 200 of 150"
    )
    late = chain(OPEN, situation(2, "temp"), situation(1, "temp"))[-1]
    assert late.limits == ("older than the newest comparison, of 2013-04-03: not counted in a row",)


def test_policy_sets_the_window_start() -> None:
    ticks = [situation(1), situation(5, "temp"), situation(6, verdict="insufficient"), situation(7, "temp", "dewp")]

    def start(window: Any, *situations: Situation) -> str | None:
        last = chain(on(window=window), *situations)[-1]
        assert last.window[1] == situations[-1].at.isoformat()
        return last.window[0]

    assert start(Expanding(), *ticks) is None
    assert start(Sliding(30 * DAY), *ticks) == (START + 7 * DAY - 30 * DAY).isoformat()
    assert start(SinceChange(), *ticks) == (START + 4 * DAY).isoformat()
    assert start(SinceChange(), *ticks, situation(8)) is None
    assert start(SinceChange(), replace(ticks[1], span=(None, None))) is None  # when the data begins is not known
    times = {"captured_from": (START - DAY).isoformat(), "captured_until": START.isoformat(), "window_end": None}
    skew = replace(ticks[1].skew, **times)
    asked = Situation.of(Artifact("file:///s", "skew", "f", properties=skew.to_dict()), START + DAY)
    assert (asked.clock, asked.span) == ("requests", ((START - DAY).isoformat(), START.isoformat()))


_VERDICTS = st.sampled_from(["drift", "stable", "insufficient"])
_TICKS = st.lists(
    st.tuples(st.integers(0, 60), _VERDICTS, st.sampled_from("ab"), st.booleans()),
    max_size=40,
)  # fmt: skip


@pytest.mark.slow
@given(_TICKS, st.integers(0, 12), st.integers(1, 3), st.integers(1, 20))
def test_no_history_violates_cooldown_or_budget(ticks: Any, cooldown: int, trainings: int, per: int) -> None:
    """Also where comparisons come late, champions change, and requests are lost and made again."""
    policy = RetrainingPolicy(unless=PipelineFault(), cooldown=cooldown * DAY, budget=Budget(trainings, per * DAY))
    previous, requests, unsent = None, dict[str, datetime](), frozenset[str]()
    for number, (day, verdict, reference, lost) in enumerate(ticks):
        drifted = ("temp",) if verdict == "drift" else ()
        now = situation(day, *drifted, verdict=verdict, reference=reference, unsent=unsent, report=(str(number), "f"))
        previous = decide(policy, now, previous)
        if previous.requested:
            unsent = frozenset([previous.cause] if lost else [])
            if not lost:
                assert previous.cause not in requests  # one event a cause
                requests[previous.cause] = now.at
    times = sorted(requests.values())
    assert all(later - earlier >= cooldown * DAY for earlier, later in pairwise(times))
    assert all(sum(time <= other < time + per * DAY for other in times) <= trainings for time in times)


def test_unsent_request_is_repeated_with_its_cause() -> None:
    first, again = chain(CAREFUL_DRIFT, situation(1, "temp")), situation(2, "temp", unsent=frozenset())
    assert decide(CAREFUL_DRIFT, again, first[-1]).why == "cooldown"
    second = decide(CAREFUL_DRIFT, replace(again, unsent=frozenset([first[-1].cause])), first[-1])
    assert second.requested
    assert second.cause == first[-1].cause
    assert [each.at for each in second.requests] == [again.at.isoformat()]
    unsent = frozenset([first[-1].cause])
    stable = decide(CAREFUL_DRIFT, situation(2, unsent=unsent), first[-1])
    third = decide(CAREFUL_DRIFT, situation(3, "temp", unsent=unsent), stable)
    assert (stable.requested, third.requested, third.cause) == (False, True, first[-1].cause)


def test_requests_of_another_clock_count_by_their_creation() -> None:
    first = chain(CAREFUL_DRIFT, situation(1, "temp"))[-1]
    made = datetime(2026, 11, 20, tzinfo=UTC)
    first = replace(first, requests=(replace(first.requests[0], made=made.isoformat()),))

    def after(passed: timedelta) -> RetrainingDecision:
        of_requests = replace(situation(5000, "temp"), clock="requests", now=made + passed)
        return decide(CAREFUL_DRIFT, of_requests, first)

    budget = "budget 1 of 6 trainings, 0 of 40 GPU hours spent in 90 days"
    assert (after(DAY).why, after(8 * DAY).limits) == ("cooldown", (budget,))


CAREFUL_DRIFT = replace(CAREFUL, when=Drift())


def test_rejection_starts_the_cooldown_without_cost() -> None:
    no = chain(CAREFUL_DRIFT, situation(1, "temp"))[-1].refused_by_a_person("Ada refused: not in the holidays")
    assert (no.why, no.reason.partition("; Ada")[2]) == ("person", " refused: not in the holidays")
    after = decide(CAREFUL_DRIFT, situation(3, "temp"), no)
    assert (after.why, after.limits[-1]) == ("cooldown", "budget 0 of 6 trainings, 0 of 40 GPU hours spent in 90 days")
    assert "refused by a person" in after.reason


def test_request_without_new_rows_spends_nothing() -> None:
    policy = replace(CAREFUL_DRIFT, budget=Budget(1, 90 * DAY), unless=Rejected(1))
    first = chain(policy, situation(1, "temp"))[-1]
    assert decide(policy, situation(3, "temp"), first).why == "rejected"
    after = decide(policy, situation(3, "temp", fruitless={first.cause: True}), first)
    assert (after.requested, after.reason.partition("; ")[2]) == (True, "budget 0 of 1 trainings spent in 90 days")
    assert "the request of 2013-04-02 found no new rows, and does not count" in after.limits
    again = RetrainingDecision.from_dict(json.loads(json.dumps(after.to_dict())))
    assert decide(policy, situation(5, "temp", fruitless={after.cause: True}), again).requested
    assert decide(policy, situation(5, "temp", fruitless={after.cause: False}), again).why == "rejected"


def test_cost_of_a_request_is_that_of_the_runs_that_claimed_it(tmp_path: Path) -> None:
    store = ArtifactStore(str(tmp_path))
    for dag_id, run_id, core_s, gpu_s in (("a", "r1", 1.0, 10.0), ("a", "r2", 2.0, 20.0), ("b", "r1", 4.0, 40.0)):
        producer = Producer(dag_id, run_id, "train")
        claim_request(store, "cause", producer)  # of which a's second run comes too late
        write_artifact(store, by=producer, cost={"core_s": core_s, "gpu_s": gpu_s})
    assert cost_of(store, "cause") == (5.0, 50.0) and cost_of(store, "other") == (0.0, 0.0)


def test_newest_decisions_are_those_of_the_run_and_the_one_before(tmp_path: Path) -> None:
    """A cleared task decides from what was known before its run, and repeats its own requests."""
    store = ArtifactStore(str(tmp_path))
    for run_id in ("r1", "r2", "r3", "r3"):
        log = DecisionLog(store, Producer("monitoring", run_id, "ask"))
        log.append(log.names(), RetrainingDecision("2026-11-29T00:00:00+00:00", "data", "refused", "", run_id, ""))
    assert [each.decision.reason for each in log.newest(log.names())] == ["r3", "r3", "r2"]
    other = DecisionLog(store, Producer("monitoring", "r4", "ask"))
    assert [each.decision.reason for each in other.newest(other.names())] == ["r3"]


def test_only_the_run_that_claimed_a_request_says_that_it_found_no_new_rows(tmp_path: Path) -> None:
    store, first, second = ArtifactStore(str(tmp_path)), Producer("a", "r1", "train"), Producer("a", "r2", "train")
    for producer in (first, second):
        claim_request(store, "cause", producer)
    note_no_new_rows(store, "cause", second, True)
    assert not found_no_new_rows(store, "cause")
    note_no_new_rows(store, "cause", first, True)
    assert found_no_new_rows(store, "cause") and not found_no_new_rows(store, "other")


def test_budget_counts_costs_of_deleted_artifacts() -> None:
    policy = on(budget=Budget(per=90 * DAY, gpu_hours=40, core_hours=10.5))
    first = chain(policy, situation(1, "temp"))[-1]
    within = decide(policy, situation(5, "temp", costs={first.cause: (3600.0, 12.4 * 3600)}), first)
    assert within.limits == ("budget 12.4 of 40 GPU hours, 1 of 10.5 core hours spent in 90 days",)
    costs = {first.cause: (3600.0, 12.4 * 3600), within.cause: (0.0, 28 * 3600.0)}
    beyond = decide(policy, situation(30, "temp", costs=costs), within)
    assert (beyond.why, beyond.reason.partition("; ")[2]) == (
        "budget", "budget 40.4 of 40 GPU hours, 1 of 10.5 core hours spent in 90 days",
    )  # fmt: skip
    removed = RetrainingDecision.from_dict(json.loads(json.dumps(beyond.to_dict())))
    assert decide(policy, situation(60, "temp"), removed).limits == beyond.limits
    assert decide(policy, situation(92, "temp"), removed).requested


@pytest.mark.parametrize("policy", [OPEN, CAREFUL, on(window=SinceChange(), champion_ends_cooldown=True)])
def test_policy_round_trips_through_json(policy: RetrainingPolicy) -> None:
    assert RetrainingPolicy.from_json(json.dumps(policy.to_dict()), "policy.json") == policy


def read(text: str) -> RetrainingPolicy:
    return RetrainingPolicy.from_json(text, "p.json")


def _json(**fields: Any) -> str:
    return json.dumps({"kind": "policy", **fields})


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: AnyOf(), "AnyOf: there are no conditions"),
        (lambda: AllOf("drift"), r"AllOf: conditions\[0\] is 'drift', expected a Condition"),
        (lambda: Drift(consecutive=0), "Drift: consecutive is 0, expected an integer of at least 1"),
        (lambda: Drift(features=()), r"Drift: features is \(\)"),
        (lambda: Drift(features=5), "Drift: features is 5, expected"),  # type: ignore[arg-type]
        (lambda: Drift(min_effect=-1.0), "min_effect is -1.0, expected a number above 0"),
        (lambda: Age(-DAY), "Age: limit is .*, expected a duration of more than 0"),
        (lambda: Budget(0, DAY), "Budget: trainings is 0"),
        (lambda: Budget(per=DAY), "trainings, gpu_hours and core_hours are None, expected at least one"),
        (lambda: Budget(6), r"Budget: per is datetime.timedelta\(0\), expected a duration of more than 0"),
        (lambda: Budget(per=DAY, gpu_hours=0), "Budget: gpu_hours is 0, expected a number above 0"),
        (lambda: Sliding(timedelta(0)), "Sliding: length"),
        (lambda: RetrainingPolicy(cooldown=-DAY), "cooldown is .*, expected a duration of 0 or more"),
        (lambda: RetrainingPolicy(when=Expanding()), "when is Expanding.*, expected a Condition"),
        (lambda: Age(60), "Age: limit is 60, expected a duration .*, such as timedelta"),  # type: ignore[arg-type]
        (lambda: Sliding(999999 * DAY), "Sliding: length is .*, expected a duration .* at most 100 years"),
        (lambda: Budget(6, per=90), "Budget: per is 90, expected a duration"),  # type: ignore[arg-type]
        (lambda: Drift(min_effect=DAY), "min_effect is .*, expected a number"),  # type: ignore[arg-type]
        (lambda: Performance("auc", minimum=float("nan")), "minimum is nan, expected a number"),
        (lambda: Performance("auc", minimum=70), r"minimum of 'auc' is 70, .*, 0 to 1 \(70% is 0.7\)"),
        (lambda: Performance("rmse", minimum=-1), "minimum of 'rmse' is -1, expected a finite number, 0 or more"),
        (lambda: read(_json(when={"kind": "performance", "metric": "auc", "minimum": "0.7"})), "minimum is '0.7'"),
        (lambda: read(_json(when={"kind": "performance", "metric": "auc", "drop": 0, "estimates": "false"})),
         "p.json.when: Performance: estimates is 'false', expected True or False"),
        (lambda: read(_json(cooldown={"days": float("nan")})), "p.json.cooldown is .*, expected numbers"),
        (lambda: read("[" * 100_000), "p.json: expected a policy in JSON"),
        (lambda: decide(on(when=NewRows(2)), of_spans(situation(1))), "NewRows counts since a champion's"),
        (lambda: read("{"), "p.json: expected a policy in JSON"),
        (lambda: read('{"kind": "drift"}'), "p.json is .*, expected an object of kind policy"),
        (lambda: read(_json(when={"kind": "drfit"})),
         r"p.json.when: kind is 'drfit', expected one of .*; did you mean 'drift'\?"),
        (lambda: read(_json(when={"kind": "drift", "featurs": "*"})),
         r"p.json.when: drift has no field 'featurs', .* did you mean 'features'\?"),
        (lambda: read(_json(when={"kind": "any_of", "conditions": []})), "p.json.when: AnyOf"),
        (lambda: read(_json(when={"kind": "age"})), "p.json.when: age: .*limit"),
        (lambda: read(_json(cooldown={"days": "7"})), "p.json.cooldown is .*, expected numbers"),
        (lambda: decide(on(when=Drift("tmep")), situation(1, "temp")),
         r"names the feature 'tmep', which is not compared; compared are temp, dewp; did you mean 'temp'\?"),
        (lambda: decide(on(when=Age(DAY)), situation(1, trained_until=None)), "Age needs the end of"),
        (lambda: Performance("auc"), "drop and minimum are None, expected at least one"),
        (lambda: Performance("auc", drop=-1.0), "Performance: drop is -1.0, expected a number of at least 0"),
        (lambda: decide(on(when=Performance("auc", drop=0.1)), situation(1)), "Performance needs a measurement; give"),
        (lambda: decide(on(when=Performance("auc", drop=0.1, window=7 * DAY)), situation(1, **measured(0.7))),
         "the window of Performance is 7 days, but 14 days were measured, from 2013-04-01.* give PerformanceOperator"),
        (lambda: Performance("auc", drop=0.1, window=14), "Performance: window is 14"),  # type: ignore[arg-type]
        (lambda: decide(on(when=Performance("auk", drop=0.1)), situation(1, **measured(0.7))),
         r"names the metric 'auk'; measured are auc; did you mean 'auc'\?"),
    ],
)  # fmt: skip
def test_bad_policy_is_refused_by_name(make: Any, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        make()

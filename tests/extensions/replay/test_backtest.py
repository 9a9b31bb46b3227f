"""The back-test's arithmetic, against brute force; and policies by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import product
from pathlib import Path
from random import Random
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.artifacts.properties import ModelProperties
from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.performance import VersionPerformance
from airflow_hops.core.retraining.conditions import Age, AnyOf, Drift, NewRows
from airflow_hops.core.retraining.performance import Performance
from airflow_hops.core.retraining.policy import Budget, RetrainingPolicy, SinceChange, Sliding
from airflow_hops.core.skew import SkewProperties, SkewReference
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.replay import operators as operator
from airflow_hops.extensions.replay.core.backtest import Assessment, BacktestCandidate, BacktestReport, PeriodAssessment
from airflow_hops.extensions.replay.runner.backtest.candidates import Candidates
from airflow_hops.extensions.replay.runner.backtest.outcomes import BlockBootstrap, Scoreboard, best_schedule, gain_of
from airflow_hops.extensions.replay.runner.backtest.plan import BacktestPlan, moment, named_policies
from airflow_hops.extensions.replay.runner.backtest.replay import AssessedCandidate, Course, Requested, replay
from airflow_hops.extensions.replay.runner.backtest.run import run_backtest

START, WEEK = datetime(2013, 1, 1, tzinfo=UTC), timedelta(days=7)
TICKS = [START + (number + 4) * WEEK for number in range(7)]
"""Six periods, the first of which begins where the first model's training ends."""
WINDOWS = {"long": 2 * WEEK, "short": WEEK, "any": None}
MODEL = ModelProperties(problem="binary", inputs=("temp", "dewp"))


def assessed(
    end: int = 0,
    values: Sequence[float | None] = (0.7,) * 6,
    *,
    start: datetime = START,
    drift: dict[int, str] | None = None,
    rows: Sequence[int] = (100,) * 6,
    lower_is_better: bool = False,
) -> AssessedCandidate:
    """A candidate whose training ends with a tick, and in which periods a feature drifts from it."""
    periods = []
    for number in range(end, len(values)):
        value, feature = values[number], (drift or {}).get(number)
        skew = SkewProperties(
            verdict="drift" if feature else "stable",
            drifted=(feature,) if feature else (),
            scores={"temp": (1.0, 0.5), "dewp": (1.0, 0.5)},
            reference=SkewReference("file:///s", f"learnt {start} to {end}", model="m", version=1),
            window_start=TICKS[number].isoformat(),
            window_end=(TICKS[number + 1] - timedelta(hours=3)).isoformat(),
        )
        late = [each for each in values[end:number] if each is not None]  # labels of the period itself are not there
        measured = {"0": measurement(value), "604800": measurement(late[-1] if late else None)}
        periods.append(
            PeriodAssessment(
                TICKS[number].isoformat(),
                TICKS[number + 1].isoformat(),
                rows[number],
                {} if value is None else {"auc": (value, value - 0.01, value + 0.01)},
                json.loads(json.dumps(skew.to_dict())),
                rows[number],
                measured,
            )
        )
    artifact = {"uri": f"file:///{start:%m%d}-{end}", "kind": "model", "fingerprint": "f"}
    candidate = BacktestCandidate(
        start.isoformat(), TICKS[end].isoformat(), artifact, artifact, artifact, artifact, {"core_s": 3600.0}
    )
    assessment = Assessment("binary", "auc", lower_is_better, tuple(periods))
    # As it is read from the store.
    return AssessedCandidate(candidate, Assessment.from_dict(json.loads(json.dumps(assessment.to_dict()))))


def untimed(candidate: AssessedCandidate) -> AssessedCandidate:
    """As a monitor without ``time_feature`` sees it."""
    times = dict.fromkeys(("window_start", "window_end"))
    periods = [replace(each, skew={**each.skew, **times}) for each in candidate.assessment.periods]
    return replace(candidate, assessment=replace(candidate.assessment, periods=tuple(periods)))


def measurement(value: float | None) -> VersionPerformance:
    figures = {} if value is None else {"auc": (value, value - 0.01, value + 0.01)}
    return VersionPerformance(
        1, "2013-01-01T00:00:00Z", "2013-02-01T00:00:00Z", 100, 100, 100, figures, baseline={"auc": (0.7, 0.69, 0.71)}
    )


def replayed(policy: RetrainingPolicy | None, first: AssessedCandidate, blessed: bool = True, **known: Any) -> Course:
    def train(start: datetime | None, end: datetime) -> AssessedCandidate:
        return assessed(TICKS.index(end), [0.8] * 6, start=start or START)

    gate = lambda candidate, champion: (blessed, ("a reason",))  # noqa: E731
    return replay(policy, TICKS[1:], first, train=train, gate=gate, **known)


def ends(course: Course) -> list[int]:
    return [TICKS.index(datetime.fromisoformat(each.end)) for each in (serving.candidate for serving in course.serving)]


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_best_schedule_matches_brute_force(data: st.DataObject) -> None:
    periods = data.draw(st.integers(1, 4))
    number = data.draw(st.integers(1, 3))
    values = [[data.draw(st.integers(0, 9)) / 10 for _ in range(periods)] for _ in range(number)]
    rows = [data.draw(st.integers(1, 5)) for _ in range(periods)]
    available = [0, *(data.draw(st.integers(1, periods)) for _ in range(number - 1))]
    price = data.draw(st.sampled_from([0.0, 0.05, 0.3]))

    def worth(schedule: Sequence[int]) -> float:
        changes = sum(current != previous for previous, current in zip((0, *schedule), schedule, strict=False))
        weighted = sum(values[number][period] * rows[period] for period, number in enumerate(schedule))
        return weighted / sum(rows) - price * changes

    possible = [
        each
        for each in product(range(number), repeat=periods)
        if all(available[tick] <= period for period, tick in enumerate(each))
    ]
    result = best_schedule(values, rows, available, price)
    assert tuple(result) in possible
    assert worth(result) == pytest.approx(max(map(worth, possible)))


@pytest.mark.slow
@given(st.data())
@settings(max_examples=60, deadline=None)
def test_no_schedule_beats_the_best_in_hindsight(data: st.DataObject) -> None:
    value = st.one_of(st.none(), st.integers(0, 9).map(lambda tenth: tenth / 10))
    rows = [1, *(data.draw(st.integers(0, 3)) for _ in range(5))]
    make = partial(assessed, rows=rows, lower_is_better=data.draw(st.booleans()))
    candidates = [make(0, [0.5] * 6)] + [make(end, [data.draw(value) for _ in range(6)]) for end in range(1, 6)]
    serving, requested = [candidates[0]], []
    for tick in range(5):
        if data.draw(st.booleans()):
            promoted, candidate = data.draw(st.booleans()), candidates[tick + 1]
            requested.append(Requested(tick, "why", candidate, serving[-1], promoted, ()))
            serving.append(candidate if promoted else serving[-1])
        else:
            serving.append(serving[-1])
    course = Course(tuple(serving), (), tuple(requested))
    board = Scoreboard(candidates, TICKS, data.draw(st.sampled_from([0.0, 0.1])))
    outcome = board.outcome("p", None, None, course)
    assert board.earned(board.best) >= board.earned(outcome) - 1e-9
    assert outcome.regret == pytest.approx(board.earned(board.best) - board.earned(outcome))
    counted = [each for each in range(6) if each not in board.uncounted]
    values = [outcome.values[each] for each in counted]
    weighted = sum(value * rows[each] for value, each in zip(values, counted, strict=True) if value is not None)
    assert None not in values
    assert outcome.average[0] == pytest.approx(weighted / (sum(rows[each] for each in counted) or 1))


def test_block_sums_match_single_periods() -> None:
    draw = Random(1)
    rows, values = [draw.randrange(1, 9) for _ in range(30)], [draw.random() for _ in range(30)]
    bootstrap = BlockBootstrap.of(rows, samples=50)
    assert bootstrap.block == 3
    results = []
    for sample in bootstrap.samples:
        taken = [first + each for first in sample for each in range(bootstrap.block)]
        results.append(sum(values[each] * rows[each] for each in taken) / sum(rows[each] for each in taken))
    average = sum(value * count for value, count in zip(values, rows, strict=True)) / sum(rows)
    moved = [each + average - fmean(results) for each in sorted(results)]
    assert bootstrap.average(values) == pytest.approx((average, moved[1], moved[48]))
    assert bootstrap.average([0.25] * 30) == pytest.approx(
        (0.25, 0.25, 0.25)
    )  # pairs: what is the same everywhere is sure


def test_bootstrap_blocks_cover_the_mean_of_correlated_periods() -> None:
    """Intervals of single periods of an autoregression (0.5) of 60 periods hold the mean in some 75 of 100."""
    draw = Random(2)
    in_blocks = one_by_one = 0
    for _ in range(150):
        values, last = [], draw.gauss() / 0.75**0.5
        for _ in range(60):
            last = 0.5 * last + draw.gauss()
            values.append(last)
        bootstrap = BlockBootstrap.of([1] * 60, samples=200)
        single = BlockBootstrap(bootstrap.rows, [[draw.randrange(60) for _ in range(60)] for _ in range(200)], 1)
        in_blocks += bootstrap.average(values)[1] <= 0 <= bootstrap.average(values)[2]
        one_by_one += single.average(values)[1] <= 0 <= single.average(values)[2]
    assert in_blocks / 150 > 0.8 > one_by_one / 150


def test_gain_is_positive_if_better_for_every_metric() -> None:
    candidate, champion = [(0.8, 0.77, 0.83), None], [(0.7, 0.66, 0.74), (0.1, 0.1, 0.1)]
    assert gain_of(candidate, champion, [3, 5], lower_is_better=False) == pytest.approx((0.1, 0.05, 0.15))
    assert gain_of(candidate, champion, [3, 5], lower_is_better=True) == pytest.approx((-0.1, -0.15, -0.05))
    assert gain_of(candidate, champion, [0, 5], lower_is_better=False) is None


def test_candidate_serves_from_the_tick_of_its_request() -> None:
    course = replayed(RetrainingPolicy(when=Age(timedelta(days=6.5))), assessed())
    assert ends(course) == [0, 1, 2, 3, 4, 5]
    assert [decision.requested for decision in course.decisions] == [True] * 6
    assert [request.tick for request in course.requested] == [0, 1, 2, 3, 4]  # after the last there is nothing to serve
    assert ends(replayed(None, assessed())) == [0] * 6
    budget = Budget(core_hours=1.5, per=timedelta(days=90))  # a candidate costs one
    limited = replayed(RetrainingPolicy(when=Age(timedelta(days=6.5)), budget=budget), assessed())
    assert ends(limited) == [0, 1, 2, 2, 2, 2]


def test_a_rejected_candidate_does_not_serve_and_counts_as_rejected() -> None:
    course = replayed(RetrainingPolicy(when=Age(timedelta(days=6.5))), assessed(), blessed=False)
    assert ends(course) == [0] * 6
    assert [decision.why for decision in course.decisions] == ["", "", "", "rejected", "rejected", "rejected"]
    assert [request.gate for request in course.requested] == [("a reason",)] * 3
    board = Scoreboard([assessed(), assessed(1, [0.8] * 6)], TICKS, 0.0)
    once = replace(course, requested=course.requested[:1])
    outcome = board.outcome("p", None, None, once)
    # It would have been better, and was trained: no false alarm, but its cost.
    assert (outcome.false_alarms, outcome.core_hours, outcome.better) == (0, 1.0, (0.0, 0.0, 0.0))
    assert outcome.retrainings[0].gain == pytest.approx(
        (0.1, 0.1 - 0.02**0.5 / 5**0.5 / 10, 0.1 + 0.02**0.5 / 5**0.5 / 10)
    )
    assert outcome.regret == pytest.approx(0.1 * 5 / 6)


def test_drift_of_the_serving_model_starts_the_window() -> None:
    first = assessed(drift={1: "temp", 2: "temp", 3: "temp"})
    course = replayed(RetrainingPolicy(when=Drift(consecutive=2), window=SinceChange()), first)
    assert ends(course) == [0, 0, 0, 3, 3, 3]
    (request,) = course.requested
    assert request.candidate.candidate.start == TICKS[1].isoformat()  # of the first comparison that found it
    assert "training data of version 1, 2 comparisons in a row" in request.reason
    (request,) = replayed(
        RetrainingPolicy(when=Drift(), window=SinceChange()), untimed(assessed(drift={0: "temp"}))
    ).requested
    assert request.candidate.candidate.start == TICKS[0].isoformat()
    assert course.decisions[3].window == (None, TICKS[4].isoformat())
    sliding = replayed(RetrainingPolicy(when=NewRows(150), window=Sliding(2 * WEEK)), assessed())
    assert ends(sliding) == [0, 0, 2, 2, 4, 4]
    assert sliding.requested[0].candidate.candidate.start == TICKS[0].isoformat()


def test_late_labels_are_unknown_before_their_arrival() -> None:
    policy = RetrainingPolicy(when=Performance("auc", drop=0.05))
    first = assessed(values=[0.7, 0.7, 0.5, 0.5, 0.5, 0.5])
    assert ends(replayed(policy, first)) == [0, 0, 0, 3, 3, 3]
    assert ends(replayed(policy, first, label_delay_s=604_800.0)) == [0, 0, 0, 0, 3, 3]  # learnt from what was known
    sliding = RetrainingPolicy(when=NewRows(350), window=Sliding(WEEK))
    (request,) = replayed(sliding, first, label_delay_s=604_800.0).requested
    assert request.candidate.window == (TICKS[2].isoformat(), TICKS[3].isoformat())
    drifts = RetrainingPolicy(when=Drift(), window=SinceChange())
    (request,) = replayed(drifts, assessed(drift={4: "temp"}), label_delay_s=604_800.0).requested
    assert (
        request.candidate.candidate.start == START.isoformat()
        and "no label has come since the change" in request.reason
    )
    assert {request.why for request in replayed(policy, first, label_delay_s=1.0).decisions} == {"monitor"}


def test_ties_prefer_fewer_trainings_and_price_decides() -> None:
    first, better = assessed(), assessed(1, [0.8] * 6)
    never = Course((first,) * 6)
    once = Course((first, *(better,) * 5), (), (Requested(0, "", better, first, True, ()),))
    vain = Course((first,) * 6, (), (Requested(0, "", better, first, False, ()),))
    for price, name in ((0.0, "once"), (0.08, "once"), (0.09, "never")):
        board = Scoreboard([first, better], TICKS, price)
        results = [
            board.outcome(*each)
            for each in (("vain", None, None, vain), ("never", None, None, never), ("once", None, None, once))
        ]
        assert board.chosen(results).name == name
        assert board.chosen(results[:2]).name == "never"


def test_named_policies_match_their_json() -> None:
    result = named_policies(["weekly", "monthly", "drift", "performance"], MODEL)
    for policy in result.values():
        assert policy is not None
        assert RetrainingPolicy.from_json(json.dumps(policy.to_dict()), "policy.json") == policy
    plan = BacktestPlan("m", START, TICKS[-1], result, label_delays=(timedelta(0), WEEK, timedelta(hours=36), WEEK))
    tried = [name for name, *_ in plan.tried()]
    assert tried[:1] == ["never"]
    assert [name for name in tried if "@" in name] == ["performance@0d", "performance@7d", "performance@36h"]
    with pytest.raises(BadInput, match=r"there is no policy 'weakly'.*did you mean 'weekly'"):
        named_policies(["weakly"], MODEL)


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (RetrainingPolicy(when=AnyOf(Age(WEEK), Drift(("tmp",)))), "the feature 'tmp'.*did you mean 'temp'"),
        (
            RetrainingPolicy(when=Performance("rmse", drop=0.1)),
            "the metric 'rmse'; the model has auc, average_precision, accuracy",
        ),
    ],
)
def test_unknown_names_are_found_before_training(store: ArtifactStore, policy: RetrainingPolicy, words: str) -> None:
    plan = BacktestPlan("m", START, TICKS[-1], {"mine": policy})
    candidates = MadeUp(plan, print)
    with pytest.raises(BadInput, match=words):
        run_backtest(store, plan, candidates, {}, print)
    assert (candidates.trained, candidates.kills) == ([], 1)


def test_too_short_history_is_refused_with_its_dates() -> None:
    plan = BacktestPlan("m", START, TICKS[-1], {})
    late = replace(plan, label_delays=(timedelta(0), 4 * WEEK))
    with pytest.raises(BadInput, match="from the first 28d, but labels come after 28d"):
        late.ticks(4 * WEEK)
    assert plan.ticks(4 * WEEK) == TICKS
    with pytest.raises(BadInput, match=r"from 2013-01-01 to 2013-03-12 is too short.*until 2013-03-05, and 1 whole"):
        plan.ticks(9 * WEEK)
    with pytest.raises(BadInput, match="expected from before to"):
        BacktestPlan("m", START, START, {})
    windows = {
        name: RetrainingPolicy(when=Performance("auc", drop=0.1, window=window)) for name, window in WINDOWS.items()
    }
    with pytest.raises(BadInput, match="has the windows 14d, 7d, none in these policies"):
        BacktestPlan("m", START, TICKS[-1], windows)
    one = BacktestPlan("m", START, TICKS[-1], {"long": windows["long"], "drift": RetrainingPolicy(when=Drift())})
    assert one.measured_by == {"estimates": False, "window_s": 1_209_600.0}
    with pytest.raises(BadInput, match="policy 'never' is one that retrains"):
        BacktestPlan("m", START, TICKS[-1], {"never": windows["any"]})
    with pytest.raises(BadInput, match="of which the history has 3,628,800; expected at most 10,000"):
        replace(plan, every=timedelta(seconds=1)).ticks(4 * WEEK)
    with pytest.raises(BadInput, match="expected a time in ISO 8601"):
        moment("--from", "0001-01-01T00:00:00+05:00")
    with pytest.raises(BadInput, match="expected a time in ISO 8601"):
        moment("--from", "2013-13-01")


class MadeUp(Candidates):
    """Candidates that are made up instead of trained: those after the first are better."""

    ticks = TICKS
    dag_id = "m_training"
    _champion = MODEL

    def __init__(self, plan: BacktestPlan, say: Callable[[str], None], fails: int = 9) -> None:
        super().__init__(SimpleNamespace(), plan, say)  # type: ignore[arg-type]
        self.trained: list[tuple[datetime, datetime]] = []
        self.compared: list[tuple[str, str]] = []
        self.kills = 0
        self._fails = fails

    def kill(self) -> None:
        self.kills += 1

    @property
    def _pipeline(self) -> Any:
        def gate(candidate: BacktestCandidate, champion: BacktestCandidate) -> tuple[bool, tuple[str, ...]]:
            self.compared.append((candidate.end, champion.end))
            return True, ()

        own = "No evaluation of the champion is recorded."
        monitor = lambda: ({"model_name": "m"}, {})  # noqa: E731
        return SimpleNamespace(gate=gate, history=lambda start, end: None, monitor=monitor, notes=[own])

    def _trained(self, start: datetime, end: datetime) -> AssessedCandidate:
        self.trained.append((start, end))
        number = TICKS.index(end)
        if number == self._fails:
            raise HopsError("no memory")
        return assessed(number, [0.8 if number else 0.7] * 6, start=start, drift={0: "temp", 2: "temp"})

    def _earliest(self, statistics: Artifact) -> datetime | None:
        return START


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(str(tmp_path / "store"))


def backtested(store: ArtifactStore, **money: Any) -> tuple[str, BacktestReport, MadeUp, list[str]]:
    lines: list[str] = []
    policies = named_policies(["weekly", "drift", "performance"], MODEL)
    plan = BacktestPlan("m", START, TICKS[-1] + timedelta(days=2), policies, price=0.02, **money)
    candidates = MadeUp(plan, lines.append)
    uri, report = run_backtest(store, plan, candidates, {"user": "somebody"}, lines.append)
    return uri, report, candidates, lines


def test_report_covers_each_policy_and_candidates_are_trained_once(store: ArtifactStore) -> None:
    uri, report, candidates, lines = backtested(store)
    assert BacktestReport.from_dict(store.read_json(uri)) == replace(
        BacktestReport.from_dict(json.loads(json.dumps(report.to_dict())))
    )
    assert sorted(candidates.trained) == [(START, tick) for tick in TICKS[:-1]]  # weekly and drift share them
    assert len(set(candidates.compared)) == len(candidates.compared)
    never, weekly, drift, performance = report.policies
    assert [each.name for each in report.policies] == ["never", "weekly", "drift", "performance@0d"]
    assert [len(each.retrainings) for each in report.policies] == [0, 5, 2, 0]
    assert weekly.average[0] == drift.average[0] == pytest.approx((0.7 + 5 * 0.8) / 6)
    assert (weekly.false_alarms, drift.false_alarms) == (4, 1)  # the later ones are as good as the first of them
    assert never.better == performance.better == (0.0, 0.0, 0.0)
    assert drift.regret == pytest.approx(0.02)  # one training more than needed
    assert report.best is not None
    assert report.best.serving == [0, 1, 1, 1, 1, 1]
    assert report.chosen == "drift"
    folder = uri.rpartition("/")[0]
    written = RetrainingPolicy.from_json(store.read_text(f"{folder}/policy.json"), "policy.json")
    assert written == named_policies(["drift"], MODEL)["drift"]
    assert (report.trained, len(report.candidates), report.dag_id) == (6, 6, "m_training")
    assert report.candidates[2].values == [None, None, 0.8, 0.8, 0.8, 0.8]
    assert any("last 2d of the history are shorter than a period" in note for note in report.notes)
    assert report.notes[0].startswith("No evaluation") and report.notes[1].startswith("No measurement")
    assert any(line.startswith("weekly: 2013-02-05, tick 1 of 6: a retraining") for line in lines)


def test_a_policy_that_fails_ends_the_steps_and_leaves_no_report(store: ArtifactStore) -> None:
    plan = BacktestPlan("m", START, TICKS[-1], {"failing": RetrainingPolicy(when=Age(timedelta(days=6.5)))})
    candidates = MadeUp(plan, print, fails=2)
    with pytest.raises(HopsError, match="no memory"):
        run_backtest(store, plan, candidates, {}, print)
    assert candidates.trained == [(START, tick) for tick in TICKS[:3]] and candidates.kills
    assert store.names(store.internal("_backtests", "m")) == []


def test_the_operator_returns_the_chosen_policy_and_its_table(
    store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operator, "RuntimeHook", lambda conn_id: SimpleNamespace(store=store))
    monkeypatch.setattr(
        "airflow_hops.extensions.replay.runner.backtest.candidates.champion_properties", lambda hook, model: MODEL
    )
    monkeypatch.setattr(
        "airflow_hops.extensions.replay.runner.backtest.candidates.Candidates",
        lambda hook, plan, say: MadeUp(plan, say),
    )
    backtest = partial(
        operator.BacktestOperator, task_id="backtest", model_name="m", start="2013-01-01", end="2013-03-12"
    )
    ti = SimpleNamespace(dag_id="d", run_id="r", task_id="backtest", map_index=-1, try_number=1)
    context: Any = {"ti": ti, "dag": SimpleNamespace(fileloc=__file__)}
    own = RetrainingPolicy(when=Drift(("temp",)))
    result = json.loads(json.dumps(backtest(policies={"mine": own, "never": None}, price="0.02").execute(context)))
    assert (result["chosen"], RetrainingPolicy.from_dict(result["policy"])) == ("mine", own)
    assert result["table"]["mine"]["trainings"] == 2
    assert store.read_json(result["report"])["by"] == {"dag_id": "d", "run_id": "r", "task_id": "backtest"}
    assert backtest(policies=["never"]).execute(context)["policy"] is None
    with pytest.raises(BadInput, match="price is None, expected a number"):
        backtest(policies=["never"], price=None)
    with pytest.raises(AirflowFailException, match="price is 'cheap', expected a number"):
        backtest(policies=["never"], price="cheap").execute(context)

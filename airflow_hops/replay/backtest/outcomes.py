"""Outcomes of policies' courses, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.core.contract.backtest import CandidateOutcome, DecisionAtTick, PolicyOutcome, Retraining
from airflow_hops.core.contract.performance import Interval
from airflow_hops.core.contract.retraining.policy import RetrainingPolicy
from airflow_hops.core.contract.retraining.situation import as_utc
from airflow_hops.replay.backtest.averages import BlockBootstrap, gain_of
from airflow_hops.replay.backtest.replay import AssessedCandidate, Course, Requested
from airflow_hops.replay.backtest.schedules import best_schedule

HINDSIGHT = "best in hindsight"


class Scoreboard:
    """All candidates' figures in all periods, by which courses are compared.

    A period counts if there are rows in it, and the metric is defined for all candidates that could serve in it.

    Args:
        candidates: Those that some policy trained; the first serves first.
        ticks: Start of the first period, and the ends of all.
        price: What a training costs, in the metric's unit on average over the whole history.

    Raises:
        BadInput: no period counts.

    Attributes:
        rows: Rows of each period.
        uncounted: Numbers of the periods that do not count.
        best: The best schedule in hindsight, which chooses among the candidates.
    """

    def __init__(self, candidates: Sequence[AssessedCandidate], ticks: Sequence[datetime], price: float) -> None:
        first, starts, ticks = candidates[0].assessment, ticks[:-1], ticks[1:]
        self._sign = -1 if first.lower_is_better else 1
        self._candidates, self._ticks, self._price = candidates, ticks, price
        self.rows = [candidates[0].period(tick).rows for tick in ticks]
        self._available = [
            next((number for number, start in enumerate(starts) if start >= as_utc(each.candidate.end)), len(ticks))
            for each in candidates
        ]
        self._figures = [
            [
                each.period(tick).figures.get(first.metric) if number >= available and self.rows[number] else None
                for number, tick in enumerate(ticks)
            ]
            for each, available in zip(candidates, self._available, strict=True)
        ]
        self._counted = [
            number
            for number in range(len(ticks))
            if all(
                figures[number] is not None
                for figures, available in zip(self._figures, self._available, strict=True)
                if number >= available
            )
        ]
        if not self._counted:
            raise BadInput(f"{first.metric} is defined in no period for all candidates: nothing can be compared")
        self.uncounted = [number for number in range(len(ticks)) if number not in self._counted]
        self._blocks = BlockBootstrap.of([self.rows[number] for number in self._counted])
        self._best_earned = 0.0
        self.best = self.outcome(HINDSIGHT, None, None, self._best_course())
        self._best_earned = self.earned(self.best)

    def outcome(
        self, name: str, policy: RetrainingPolicy | None, label_delay_s: float | None, course: Course
    ) -> PolicyOutcome:
        """Returns the outcome of a policy's course.

        Args:
            name: The policy's name.
            policy: The policy.
            label_delay_s: Seconds from a row to its label; None where it does not depend on them.
            course: What it did.
        """
        serving = [self._number(each) for each in course.serving]
        retrainings = self._retrainings(course)
        values = [self._value(serving[each], each) for each in self._counted]
        never = [self._value(0, each) for each in self._counted]
        trained = [of.candidate.candidate for of in course.requested]
        outcome = PolicyOutcome(
            name,
            policy.to_dict() if policy else None,
            label_delay_s,
            decisions=tuple(
                DecisionAtTick(tick.isoformat(), of.requested, of.why, of.reason)
                for tick, of in zip(self._ticks, course.decisions, strict=False)  # never to retrain is no decision
            ),
            retrainings=retrainings,
            serving=serving,
            values=[_first(self._figures[number][period]) for period, number in enumerate(serving)],
            average=self._blocks.average(values),
            better=self._blocks.average([self._sign * (of - other) for of, other in zip(values, never, strict=True)]),
            core_hours=sum(each.core_s for each in trained) / 3600,
            gpu_hours=sum(each.gpu_s for each in trained) / 3600,
            false_alarms=sum(each.false_alarm for each in retrainings),
        )
        return replace(outcome, regret=max(self._best_earned - self.earned(outcome), 0.0))

    def earned(self, outcome: PolicyOutcome) -> float:
        """Its average metric, more being better, less the price of its trainings."""
        return self._sign * outcome.average[0] - self._price * len(outcome.retrainings)

    def chosen(self, outcomes: Sequence[PolicyOutcome]) -> PolicyOutcome:
        """The policy that earned most; of equal ones that with fewer trainings, and then the first."""
        return max(outcomes, key=lambda each: (round(self.earned(each), 12), -len(each.retrainings)))

    def candidates(self) -> tuple[CandidateOutcome, ...]:
        """The candidates, as a report has them."""
        return tuple(
            CandidateOutcome(
                *of.window,
                str(of.candidate.model["uri"]),
                of.candidate.core_s,
                of.candidate.gpu_s,
                of.cached,
                list(map(_first, figures)),
            )
            for of, figures in zip(self._candidates, self._figures, strict=True)
        )

    def _best_course(self) -> Course:
        """The best schedule in hindsight; in a period that does not count, what serves goes on."""
        numbers = range(len(self._candidates))
        values = [[self._sign * self._value(number, period) for period in self._counted] for number in numbers]
        available = [sum(period < first for period in self._counted) for first in self._available]
        schedule = best_schedule(values, self._blocks.rows, available, self._price)
        serves = dict(zip(self._counted, (self._candidates[number] for number in schedule), strict=True))
        serving, requested = [self._candidates[0]], []
        for period in range(1, len(self._ticks)):
            before, after = serving[-1], serves.get(period, serving[-1])
            if after is not before:
                requested.append(Requested(period - 1, "it knows the labels of the future", after, before, True, ()))
            serving.append(after)
        return Course(tuple(serving), (), tuple(requested))

    def _retrainings(self, course: Course) -> tuple[Retraining, ...]:
        ends = [of.tick for of in course.requested[1:]] + [len(self._ticks) - 1]
        made = []
        for of, until in zip(course.requested, ends, strict=False):  # without one, none ends
            number, champion = self._number(of.candidate), self._number(of.champion)
            periods = [each for each in self._counted if of.tick < each <= until]
            new, old = ([self._figures[each][period] for period in periods] for each in (number, champion))
            rows = [self.rows[period] for period in periods]
            gain = gain_of(new, old, rows, lower_is_better=self._sign < 0)
            alarm = gain is not None and gain[0] <= 0
            at = self._ticks[of.tick].isoformat()
            made.append(Retraining(at, of.reason, number, of.promoted, of.gate, gain, alarm))
        return tuple(made)

    def _value(self, number: int, period: int) -> float:
        return _first(self._figures[number][period]) or 0.0

    def _number(self, candidate: AssessedCandidate) -> int:
        return next(number for number, each in enumerate(self._candidates) if each.window == candidate.window)


def _first(figure: Interval | None) -> float | None:
    return None if figure is None else figure[0]

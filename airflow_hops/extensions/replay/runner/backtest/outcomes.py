"""Outcomes of policies, compared on the same candidates and periods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import accumulate
from math import ceil, hypot
from random import Random
from statistics import fmean

from airflow_hops.core.errors import BadInput
from airflow_hops.core.metrics import Interval
from airflow_hops.core.retraining.policy import RetrainingPolicy
from airflow_hops.core.times import as_utc
from airflow_hops.extensions.replay.core.backtest import (
    CandidateOutcome,
    DecisionAtTick,
    PolicyOutcome,
    Retraining,
)
from airflow_hops.extensions.replay.runner.backtest.replay import AssessedCandidate, Course, Requested


@dataclass(frozen=True)
class BlockBootstrap:
    """Moving block bootstrap (Kuensch, 1989) of an average over the rows of periods.

    Neighbouring periods are similar, so resampling single periods would give intervals that are too narrow. Blocks of
    neighbours are drawn instead, with their rows and values. The block length is the cube root of the number of
    periods, the order with the least error of the variance (Hall, Horowitz and Jing, 1995). Periods at either end are
    in fewer blocks, so the resampled averages are shifted to the mean. All values use the same blocks, so the interval
    of a difference is a paired one. With fewer than about twenty periods the intervals are too narrow.

    Attributes:
        rows: Rows of each period.
        samples: Resampled histories: the first period of each of their blocks.
        block: Periods per block.
    """

    rows: Sequence[int]
    samples: Sequence[Sequence[int]]
    block: int

    @classmethod
    def of(cls, rows: Sequence[int], samples: int = 2000, seed: int = 0) -> BlockBootstrap:
        """Draws the blocks."""
        count = len(rows)
        block = max(round(count ** (1 / 3)), 1)
        draw = Random(seed).randrange
        blocks = ceil(count / block)
        return cls(rows, [[draw(count - block + 1) for _ in range(blocks)] for _ in range(samples)], block)

    def average(self, values: Sequence[float]) -> Interval:
        """Returns the average of the periods' values over the rows, and its 95% percentile interval."""
        weighted = [value * count for value, count in zip(values, self.rows, strict=True)]
        sums, counts = ([0.0, *accumulate(each)] for each in (weighted, self.rows))
        if not counts[-1]:
            return 0.0, 0.0, 0.0
        mean = sums[-1] / counts[-1]
        results = []
        for sample in self.samples:
            total = rows = 0.0
            for first in sample:
                total += sums[first + self.block] - sums[first]
                rows += counts[first + self.block] - counts[first]
            results.append(total / rows if rows else mean)
        results.sort()
        moved = mean - fmean(results)
        low, high = results[round(0.025 * (len(results) - 1))], results[round(0.975 * (len(results) - 1))]
        return mean, min(low + moved, mean), max(high + moved, mean)


def gain_of(
    candidate: Sequence[Interval | None],
    champion: Sequence[Interval | None],
    rows: Sequence[int],
    *,
    lower_is_better: bool,
) -> Interval | None:
    """Returns the mean gain of a candidate over a champion on the rows of some periods, with its interval.

    Both are scored on the same rows, so their errors are correlated. The interval treats them as independent, and is
    rather too wide.

    Args:
        candidate: The candidate's metric in each period, with its 95% interval; None if undefined.
        champion: The champion's metric, likewise.
        rows: Rows of each period.
        lower_is_better: Whether less of the metric is better.

    Returns:
        The difference, above 0 for better; None if no period has both.
    """
    known = [
        (mine, other, count)
        for mine, other, count in zip(candidate, champion, rows, strict=True)
        if mine is not None and other is not None and count
    ]
    total = sum(count for _, _, count in known)
    if not total:
        return None
    sign = -1 if lower_is_better else 1
    mean = sign * sum((mine[0] - other[0]) * count for mine, other, count in known) / total
    halves = [(each[2] - each[1]) / 2 * count for mine, other, count in known for each in (mine, other)]
    half = hypot(*halves) / total
    return mean, mean - half, mean + half


def best_schedule(
    values: Sequence[Sequence[float]], rows: Sequence[int], available: Sequence[int], price: float
) -> list[int]:
    """Finds the candidate that should have served in each period.

    Dynamic programming (Bellman, 1957) over periods and candidates: the best schedule that ends with a candidate in a
    period extends the one that ended with it in the period before, or, for the price of a training, with any other.

    Args:
        values: Metric of each candidate in each period; higher is better.
        rows: Rows of each period.
        available: First period in which each candidate can serve.
        price: Cost of a change, in the metric's unit on average over all rows.

    Returns:
        Number of the candidate for each period. Candidate 0 serves first, without a cost.
    """
    total = sum(rows) or 1
    best = [0.0 if number == 0 else float("-inf") for number in range(len(values))]
    came_from: list[list[int]] = []
    for period, count in enumerate(rows):
        top = max(range(len(best)), key=lambda number: best[number])
        previous, best, origins = best, [], []
        for number, figures in enumerate(values):
            changes = available[number] <= period and previous[top] - price > previous[number]
            origins.append(top if changes else number)
            best.append((previous[top] - price if changes else previous[number]) + figures[period] * count / total)
        came_from.append(origins)
    last = max(range(len(best)), key=lambda number: best[number])
    schedule = []
    for origins in reversed(came_from):
        schedule.append(last)
        last = origins[last]
    return schedule[::-1]


HINDSIGHT = "best in hindsight"


class Scoreboard:
    """Metrics of all candidates in all periods, by which policies are compared.

    A period counts if it has rows, and the metric is defined for all candidates that could serve in it.

    Args:
        candidates: All trained candidates; the first one serves first.
        ticks: Start of the first period, and the ends of all.
        price: Cost of a training, in the metric's unit on average over the whole history.

    Raises:
        BadInput: no period counts.

    Attributes:
        rows: Rows of each period.
        uncounted: Numbers of the periods that do not count.
        best: The best schedule of these candidates in hindsight.
    """

    def __init__(
        self,
        candidates: Sequence[AssessedCandidate],
        ticks: Sequence[datetime],
        price: float,
    ) -> None:
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
        """Returns the outcome of a policy's course; ``label_delay_s`` is None for policies that do not use labels."""
        serving = [self._number(each) for each in course.serving]
        retrainings = self._retrainings(course)
        values = [self._value(serving[each], each) for each in self._counted]
        never = [self._value(0, each) for each in self._counted]
        trained = [request.candidate.candidate for request in course.requested]
        outcome = PolicyOutcome(
            name,
            policy.to_dict() if policy else None,
            label_delay_s,
            decisions=tuple(
                DecisionAtTick(tick.isoformat(), request.requested, request.why, request.reason)
                for tick, request in zip(
                    self._ticks, course.decisions, strict=False
                )  # the policy that never retrains decides nothing
            ),
            retrainings=retrainings,
            serving=serving,
            values=[_first(self._figures[number][period]) for period, number in enumerate(serving)],
            average=self._blocks.average(values),
            better=self._blocks.average(
                [self._sign * (value - other) for value, other in zip(values, never, strict=True)]
            ),
            core_hours=sum(each.cost.get("core_s", 0.0) for each in trained) / 3600,
            gpu_hours=sum(each.cost.get("gpu_s", 0.0) for each in trained) / 3600,
            false_alarms=sum(each.false_alarm for each in retrainings),
        )
        return replace(outcome, regret=max(self._best_earned - self.earned(outcome), 0.0))

    def earned(self, outcome: PolicyOutcome) -> float:
        """Returns the average metric, higher being better, minus the price of the trainings."""
        return self._sign * outcome.average[0] - self._price * len(outcome.retrainings)

    def chosen(self, outcomes: Sequence[PolicyOutcome]) -> PolicyOutcome:
        """Returns the policy that earned most; ties go to the one with fewer trainings, then to the first."""
        return max(outcomes, key=lambda each: (round(self.earned(each), 12), -len(each.retrainings)))

    def candidates(self) -> tuple[CandidateOutcome, ...]:
        """Returns the candidates for the report."""
        return tuple(
            CandidateOutcome(
                *retraining.window,
                str(retraining.candidate.model["uri"]),
                retraining.candidate.cost.get("core_s", 0.0),
                retraining.candidate.cost.get("gpu_s", 0.0),
                retraining.cached,
                list(map(_first, figures)),
            )
            for retraining, figures in zip(self._candidates, self._figures, strict=True)
        )

    def _best_course(self) -> Course:
        """Returns the best schedule in hindsight; the model does not change in periods that do not count."""
        numbers = range(len(self._candidates))
        values = [[self._sign * self._value(number, period) for period in self._counted] for number in numbers]
        available = [sum(period < first for period in self._counted) for first in self._available]
        schedule = best_schedule(values, self._blocks.rows, available, self._price)
        serves = dict(zip(self._counted, (self._candidates[number] for number in schedule), strict=True))
        serving, requested = [self._candidates[0]], []
        for period in range(1, len(self._ticks)):
            old, new = serving[-1], serves.get(period, serving[-1])
            if new is not old:
                requested.append(Requested(period - 1, "it knows the labels of the future", new, old, True, ()))
            serving.append(new)
        return Course(tuple(serving), (), tuple(requested))

    def _retrainings(self, course: Course) -> tuple[Retraining, ...]:
        ends = [retraining.tick for retraining in course.requested[1:]] + [len(self._ticks) - 1]
        made = []
        for retraining, until in zip(course.requested, ends, strict=False):  # one end is left over without requests
            number, champion = self._number(retraining.candidate), self._number(retraining.champion)
            periods = [each for each in self._counted if retraining.tick < each <= until]
            new, old = ([self._figures[each][period] for period in periods] for each in (number, champion))
            rows = [self.rows[period] for period in periods]
            gain = gain_of(new, old, rows, lower_is_better=self._sign < 0)
            alarm = gain is not None and gain[0] <= 0
            time = self._ticks[retraining.tick].isoformat()
            made.append(Retraining(time, retraining.reason, number, retraining.promoted, retraining.gate, gain, alarm))
        return tuple(made)

    def _value(self, number: int, period: int) -> float:
        return _first(self._figures[number][period]) or 0.0

    def _number(self, candidate: AssessedCandidate) -> int:
        return next(number for number, each in enumerate(self._candidates) if each.window == candidate.window)


def _first(figure: Interval | None) -> float | None:
    return None if figure is None else figure[0]

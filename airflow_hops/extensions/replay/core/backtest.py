"""Report of a back-test of retraining policies: performance of candidates in each period, and outcomes of policies.

History is cut into *periods* of equal length. At the end of each, a *tick*, a policy decides with the information that
it would have had then. A *candidate* is a model that was trained on a window that ends with a tick, or before it by the
delay of labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_hops.core.json_fields import JsonFields
from airflow_hops.core.metrics import Interval
from airflow_hops.core.performance import VersionPerformance

REPORT_FILE = "backtest.json"
POLICY_FILE = "policy.json"
ASSESSMENT_FILE = "assessment.json"

BACKTEST = "@backtest"
"""Replaces the DAG's id in artifacts of back-tests."""


@dataclass(frozen=True)
class BacktestCandidate(JsonFields):
    """A model that was trained in a back-test.

    Attributes:
        start: Start of its training data, ISO 8601 UTC.
        end: End of its training data. The candidate serves from the tick on at which it was requested, when its labels
            were known.
        model: The model artifact, as from :meth:`~airflow_hops.core.artifacts.artifact.Artifact.to_dict`.
        statistics: The artifact of the training data's statistics; ``schema`` and ``examples`` are also artifacts.
        cost: Cost of all its steps, including those for data, as in manifests: ``core_s`` are CPU seconds, ``gpu_s``
            seconds times GPUs.
        wall_s: Seconds from the start of its first step to the end of its last.
    """

    start: str
    end: str
    model: Mapping[str, Any]
    statistics: Mapping[str, Any]
    schema: Mapping[str, Any]
    examples: Mapping[str, Any]
    cost: Mapping[str, float] = field(default_factory=dict)
    wall_s: float = 0.0


def delay_key(delay_s: float) -> str:
    """Returns a delay of labels in seconds as the key of a JSON object, such as "86400"."""
    return str(int(delay_s)) if delay_s == int(delay_s) else str(delay_s)


@dataclass(frozen=True)
class PeriodAssessment(JsonFields):
    """Performance of a candidate in one period, as if it had served.

    Attributes:
        start: Start of the period, ISO 8601 UTC.
        end: End of the period, a tick.
        rows: Rows of the period.
        figures: The problem's metrics on all rows, with 95% intervals; empty if they cannot be computed.
        skew: The monitor's result at the end: the properties of its ``skew`` artifact.
        compared: Rows that the monitor compared, including those of earlier periods that had too few.
        measured: The candidate's performance by delay of the labels (:func:`delay_key`), as measured at the end over
            the window of ``PerformanceOperator``; no entry if no row is in that window, since the operator would fail.
    """

    start: str
    end: str
    rows: int = 0
    figures: Mapping[str, Interval] = field(default_factory=dict)
    skew: Mapping[str, Any] = field(default_factory=dict)
    compared: int = 0
    measured: Mapping[str, VersionPerformance] = field(default_factory=dict)


@dataclass(frozen=True)
class Assessment(JsonFields):
    """The content of ``assessment.json``: a candidate in all periods after its training.

    Attributes:
        problem: Kind of problem.
        metric: The metric by which policies are compared.
        periods: Oldest first, from the end of its training data on.
        notes: Problems and missing data, in sentences.
    """

    problem: str
    metric: str
    lower_is_better: bool
    periods: tuple[PeriodAssessment, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class CandidateOutcome(JsonFields):
    """A candidate in a report.

    Attributes:
        start: Start of its training data, ISO 8601 UTC.
        end: End of its training data.
        model: URI of the model artifact.
        core_s: Cost in CPU seconds, also if an earlier back-test trained it.
        gpu_s: Cost in seconds times GPUs.
        cached: Whether an earlier back-test trained it.
        values: The metric in each period of the report; None in periods before its end, and if undefined.
    """

    start: str
    end: str
    model: str
    core_s: float = 0.0
    gpu_s: float = 0.0
    cached: bool = False
    values: Sequence[float | None] = ()


@dataclass(frozen=True)
class Retraining(JsonFields):
    """A retraining that a policy requested.

    Attributes:
        at: The tick, ISO 8601 UTC.
        reason: Reason in a sentence.
        candidate: Number of the candidate in the report.
        promoted: Whether the gate let it serve.
        gate: The gate's reasons.
        gain: Mean gain of the candidate, served or not, over the model that it was to replace, on the rows until the
            next retraining or the end; above 0 is better for every metric. None without rows.
        false_alarm: Whether ``gain`` is 0 or below.
    """

    at: str
    reason: str
    candidate: int
    promoted: bool
    gate: Sequence[str] = ()
    gain: Interval | None = None
    false_alarm: bool = False


@dataclass(frozen=True)
class DecisionAtTick(JsonFields):
    """A decision in a report.

    Attributes:
        at: The tick, ISO 8601 UTC.
        why: Reason of a refusal in a word, as in :class:`~airflow_hops.retraining.RetrainingDecision`.
        reason: Reason in a sentence.
    """

    at: str
    requested: bool
    why: str
    reason: str


@dataclass(frozen=True)
class PolicyOutcome(JsonFields):
    """The decisions of a policy over the history, and their results.

    Attributes:
        name: Name of the policy, with the labels' delay if it depends on them.
        policy: The policy as JSON; None for the one that never retrains, and for the best schedule in hindsight.
        label_delay_s: Seconds from a row to its label; None if the policy does not depend on labels.
        decisions: One for each tick.
        retrainings: Requested retrainings.
        serving: Number of the candidate that served in each period.
        values: The metric in each period.
        average: The metric on average over the rows, with the 95% interval of resampled blocks of periods.
        better: Gain over never retraining, on the same blocks; above 0 is better.
        regret: Loss compared with the best schedule in hindsight, in the metric's unit, including the price of
            trainings; 0 is the best.
        core_hours: CPU hours of its trainings, without the first model, which every policy has.
        gpu_hours: Hours times GPUs, likewise.
        false_alarms: Number of retrainings without gain.
    """

    name: str
    policy: Mapping[str, Any] | None = None
    label_delay_s: float | None = None
    decisions: tuple[DecisionAtTick, ...] = ()
    retrainings: tuple[Retraining, ...] = ()
    serving: Sequence[int] = ()
    values: Sequence[float | None] = ()
    average: Interval = (0.0, 0.0, 0.0)
    better: Interval = (0.0, 0.0, 0.0)
    regret: float = 0.0
    core_hours: float = 0.0
    gpu_hours: float = 0.0
    false_alarms: int = 0


@dataclass(frozen=True)
class BacktestReport(JsonFields):
    """The content of ``backtest.json``.

    Attributes:
        dag_id: The DAG whose steps were replayed.
        made: End of the back-test, ISO 8601 UTC.
        by: ``dag_id``, ``run_id`` and ``task_id`` of the task.
        problem: Kind of problem.
        start: Start of the history, ISO 8601 UTC.
        end: End of the history.
        ticks: Ends of the periods; the first period begins when the first model's labels were known.
        rows: Rows of each period.
        price: Price of a training: the gain that it must bring, in the metric's unit on average over the whole history.
        candidates: All trained candidates; every policy begins with the first.
        policies: The policies, in the order of the arguments.
        best: The best schedule in hindsight, an upper bound for policies, since it knows future labels. It chooses
            among the candidates that some policy trained.
        chosen: Name of the best policy at this price; of equal policies, the one with fewer trainings.
        wall_s: Duration in seconds.
        trained: Number of candidates that this back-test trained; the others came from earlier ones.
        notes: Problems and missing data, in sentences.
    """

    model_name: str
    dag_id: str
    made: str
    problem: str
    metric: str
    lower_is_better: bool
    start: str
    end: str
    ticks: Sequence[str] = ()
    rows: Sequence[int] = ()
    price: float = 0.0
    candidates: tuple[CandidateOutcome, ...] = ()
    policies: tuple[PolicyOutcome, ...] = ()
    best: PolicyOutcome | None = None
    chosen: str = ""
    wall_s: float = 0.0
    trained: int = 0
    notes: Sequence[str] = ()
    by: Mapping[str, Any] = field(default_factory=dict)

"""The back-test of retraining policies: what a candidate was worth in each period, and what policies made of it.

History is cut into *periods* of equal length. At the end of each, a *tick*, a policy decides with what it would have
known then. A *candidate* is a model that was trained on a window that ends with a tick, or before it by the delay of
labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_hops.core.contract.json_fields import JsonFields
from airflow_hops.core.contract.performance import Interval, VersionPerformance

REPORT_FILE = "backtest.json"
POLICY_FILE = "policy.json"
ASSESSMENT_FILE = "assessment.json"


@dataclass(frozen=True)
class Candidate(JsonFields):
    """A model that was trained in a back-test.

    Attributes:
        start: First moment of its training data, ISO 8601 UTC.
        end: Its end. The candidate serves from the tick on at which it was requested, when its labels were known.
        model: The model artifact, as :meth:`~airflow_hops.core.contract.artifacts.Artifact.to_dict` has it.
        statistics: The statistics that it was trained on, likewise.
        schema: The schema, likewise.
        examples: The examples, likewise.
        core_s: CPU seconds of all its steps, data included.
        gpu_s: Seconds times GPUs.
        wall_s: Seconds from its first step's start to its last one's end.
    """

    start: str
    end: str
    model: Mapping[str, Any]
    statistics: Mapping[str, Any]
    schema: Mapping[str, Any]
    examples: Mapping[str, Any]
    core_s: float = 0.0
    gpu_s: float = 0.0
    wall_s: float = 0.0


def delay_key(delay_s: float) -> str:
    """A delay of labels in seconds as the key of a JSON object, such as "86400"."""
    return str(int(delay_s)) if delay_s == int(delay_s) else str(delay_s)


@dataclass(frozen=True)
class PeriodAssessment(JsonFields):
    """A candidate in one period, as if it had served.

    Attributes:
        start: Start of the period, ISO 8601 UTC.
        end: Its end, a tick.
        rows: Rows of the period.
        figures: The problem's metrics on all of them, with 95% intervals; empty where they cannot be computed.
        skew: What the monitor would have said at the end: the properties of its ``skew`` artifact.
        compared: Rows that the monitor compared; those of earlier periods are among them where these had too few.
        measured: By delay of the labels (:func:`delay_key`): the candidate's performance as it would have been
            measured at the end, over the window of ``PerformanceOperator``; none where no row is in that window, since
            the operator fails then.
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
    """The content of ``assessment.json``: a candidate in all the periods after its training.

    Attributes:
        problem: What it predicts.
        metric: The metric by which policies are compared.
        lower_is_better: Whether less of it is better.
        periods: Oldest first, from the end of its training data on.
        notes: What is wrong or missing, in sentences.
    """

    problem: str
    metric: str
    lower_is_better: bool
    periods: tuple[PeriodAssessment, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class CandidateOutcome(JsonFields):
    """A candidate, as a report has it.

    Attributes:
        start: First moment of its training data, ISO 8601 UTC.
        end: Its end.
        model: URI of the model artifact.
        core_s: CPU seconds that it cost, also where an earlier back-test trained it.
        gpu_s: Seconds times GPUs that it cost.
        cached: Whether an earlier back-test trained it.
        values: The metric in each period of the report; None in those before its end, and where it is not defined.
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
        reason: Why, in a sentence.
        candidate: Number of the candidate in the report.
        promoted: Whether the gate let it serve.
        gate: The gate's reasons.
        gain: By how much the candidate was better than the model that it was to replace, on average over the rows until
            the next retraining or the end, whether it served or not; above 0 is better, whatever the metric. None if
            no row came.
        false_alarm: Whether it was not better: ``gain`` is 0 or below.
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
    """A decision, as a report has it.

    Attributes:
        at: The tick, ISO 8601 UTC.
        requested: Whether a retraining was requested.
        why: Of a refusal, in a word, as :class:`~airflow_hops.retraining.Decision` has it.
        reason: In a sentence.
    """

    at: str
    requested: bool
    why: str
    reason: str


@dataclass(frozen=True)
class PolicyOutcome(JsonFields):
    """The course of a policy over the history, and its worth.

    Attributes:
        name: Its name, with the labels' delay where it depends on them.
        policy: The policy as JSON; None for the one that never retrains, and for the best schedule in hindsight.
        label_delay_s: Seconds from a row to its label; None where the policy does not depend on labels.
        decisions: One for each tick.
        retrainings: Those that were requested.
        serving: Number of the candidate that served in each period.
        values: The metric in each period.
        average: The metric on average over the rows, with the 95% interval of resampled blocks of periods.
        better: By how much it is better than never to retrain, on the same blocks; above 0 is better.
        regret: By how much less it earned than the best schedule in hindsight, in the metric's unit, the price of
            trainings included; 0 is the best.
        core_hours: CPU hours of its trainings; the first model's are not counted, since every policy has it.
        gpu_hours: Likewise.
        false_alarms: Retrainings that were not better.
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
        model_name: The model.
        dag_id: The DAG whose steps were replayed.
        made: When the back-test ended, ISO 8601 UTC.
        by: Who made it: ``dag_id``, ``run_id`` and ``task_id``, or of the command line the user's name under ``user``.
        problem: What the model predicts.
        metric: The metric.
        lower_is_better: Whether less of it is better.
        start: Start of the history, ISO 8601 UTC.
        end: Its end.
        ticks: Ends of the periods; the first period begins when the first model's labels had come.
        rows: Rows of each period.
        price: What one training costs, in the metric's unit on average over the whole history: so much must it bring.
        candidates: All that were trained; the first is the model with which every policy begins.
        policies: The policies, in the order in which they were given.
        best: The best schedule in hindsight: what no policy can beat, as it knows the labels of the future. It chooses
            among the candidates that some policy trained.
        chosen: Name of the policy that earned most at this price; of equal ones that with fewer trainings.
        wall_s: Seconds that it took.
        trained: Candidates that were trained for it; the others were there from earlier ones.
        notes: What is wrong or missing, in sentences.
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

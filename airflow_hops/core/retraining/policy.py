"""Retraining policies: when to retrain, on what data, and how often at most."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import ClassVar

from airflow_hops.core.errors import BadInput
from airflow_hops.core.retraining.conditions import AnyOf, Condition, Drift, PipelineFault, Rejected, RolloutRunning
from airflow_hops.core.retraining.parts import PolicyPart, check_part


@dataclass(frozen=True)
class TrainingWindow(PolicyPart):
    """Determines the start of the training data, which ends with the compared data.

    Example:
        >>> from datetime import UTC, datetime
        >>> from airflow_hops import SinceChange, TrainingWindow
        >>> window: TrainingWindow = SinceChange()
        >>> window.start(datetime(2026, 11, 29, tzinfo=UTC), changed=datetime(2026, 11, 1, tzinfo=UTC)).day
        1
    """

    def start(self, at: datetime, changed: datetime | None) -> datetime | None:
        """Returns the start of the window; None for the pipeline's own start.

        Args:
            at: Time of the decision: the end of the compared data.
            changed: Start of the first comparison of the current series with drift; None if nothing drifts.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Expanding(TrainingWindow):
    """All data from the pipeline's own start: the most rows, with a shrinking share of new ones.

    Example:
        >>> from airflow_hops import Expanding, RetrainingPolicy
        >>> RetrainingPolicy(window=Expanding()).window.kind
        'expanding'
    """

    kind: ClassVar[str] = "expanding"

    def start(self, at: datetime, changed: datetime | None) -> datetime | None:
        """Returns None, the pipeline's own start."""
        return None


@dataclass(frozen=True)
class Sliding(TrainingWindow):
    """The newest data: follows slow drift, at the price of fewer rows.

    Attributes:
        length: Length of the window.

    Raises:
        BadInput: ``length`` is not above 0.
    """

    length: timedelta
    kind: ClassVar[str] = "sliding"

    def __post_init__(self) -> None:
        self._duration(length=self.length)

    def start(self, at: datetime, changed: datetime | None) -> datetime | None:
        """Returns the time ``length`` before the end."""
        return at - self.length


@dataclass(frozen=True)
class SinceChange(TrainingWindow):
    """The data since the change: from the start of the first comparison of the current series with drift.

    The time of an abrupt change is known only to within one comparison. If nothing drifts (a retraining because of
    age), the pipeline's own window is used.

    Example:
        >>> from airflow_hops import RetrainingPolicy, SinceChange
        >>> RetrainingPolicy(window=SinceChange()).window.kind
        'since_change'
    """

    kind: ClassVar[str] = "since_change"

    def start(self, at: datetime, changed: datetime | None) -> datetime | None:
        """Returns ``changed``."""
        return changed


@dataclass(frozen=True)
class Budget(PolicyPart):
    """Maximum number and cost of requested retrainings in any span of this length, in the data's own time.

    Once a limit is reached, nothing is requested, so the last training may exceed a limit of hours. The cost of a
    request is that of the artifacts of the runs that claimed it, by their manifests; while such a run is under way, of
    those made so far. Failed steps, tasks that are not steps of this package, and cached artifacts of other runs are
    not counted.

    Attributes:
        trainings: Maximum number; None for any.
        per: Length of the span.
        gpu_hours: Maximum hours times GPUs; None for any.
        core_hours: Maximum CPU hours; None for any.

    Raises:
        BadInput: there is no limit, one is not above 0, ``trainings`` is not an integer, or ``per`` is not above 0.
    """

    trainings: int | None = None
    per: timedelta = timedelta(0)
    gpu_hours: float | None = None
    core_hours: float | None = None
    kind: ClassVar[str] = "budget"

    def __post_init__(self) -> None:
        if self.trainings is not None:
            self._whole(trainings=self.trainings)
        self._number(above=0, gpu_hours=self.gpu_hours, core_hours=self.core_hours)
        self._duration(per=self.per)
        if self.trainings is None and not self.counts_hours:
            raise BadInput("Budget: trainings, gpu_hours and core_hours are None, expected at least one of them")

    @property
    def counts_hours(self) -> bool:
        """Returns whether a limit is on the cost of trainings."""
        return (self.gpu_hours, self.core_hours) != (None, None)

    def spent(self, trainings: int, core_s: float, gpu_s: float) -> tuple[bool, str]:
        """Returns whether trainings of this cost (CPU and GPU seconds) spend the budget, and its state in words."""
        limits = (
            (trainings, self.trainings, " trainings"),
            (gpu_s / 3600, self.gpu_hours, " GPU hours"),
            (core_s / 3600, self.core_hours, " core hours"),
        )
        set_limits = [(spent, limit, unit) for spent, limit, unit in limits if limit is not None]
        report = ", ".join(f"{spent:.4g} of {limit:g}{unit}" for spent, limit, unit in set_limits)
        full = any(spent >= limit for spent, limit, _ in set_limits)
        return full, f"budget {report} spent in {self.per / timedelta(days=1):g} days"


@dataclass(frozen=True)
class RetrainingPolicy(PolicyPart):
    """Determines when to request a retraining, and on what data.

    A retraining is requested if ``when`` holds and ``unless`` does not, outside the cooldown, within the budget, and
    while no requested retraining is under way. Times are those of the data
    (:class:`~airflow_hops.retraining.Situation`).

    Example::

        RetrainingPolicy(
            when=AnyOf(Drift(consecutive=2), Age(timedelta(days=60))),
            cooldown=timedelta(days=7),
            budget=Budget(trainings=6, per=timedelta(days=90)),
            window=Sliding(timedelta(days=180)),
        )

    Attributes:
        when: The condition of a retraining.
        unless: The condition that forbids it.
        cooldown: Shortest time between two requests. A person's refusal counts as a request.
        budget: Maximum number and cost of requests in a span of time; None for no limit.
        window: The training data.
        ask: Whether a person must approve each request.
        champion_ends_cooldown: Whether the cooldown ends as soon as a model with other training data serves.

    Raises:
        BadInput: a part has the wrong type, or ``cooldown`` is negative.
    """

    when: Condition = field(default_factory=Drift)
    unless: Condition = field(default_factory=lambda: AnyOf(PipelineFault(), RolloutRunning(), Rejected()))
    cooldown: timedelta = timedelta(days=1)
    budget: Budget | None = None
    window: TrainingWindow = field(default_factory=Expanding)
    ask: bool = False
    champion_ends_cooldown: bool = False
    kind: ClassVar[str] = "policy"

    def __post_init__(self) -> None:
        check_part(self, "when", self.when, Condition)
        check_part(self, "unless", self.unless, Condition)
        check_part(self, "window", self.window, TrainingWindow)
        if self.budget is not None:
            check_part(self, "budget", self.budget, Budget)
        self._duration(zero=True, cooldown=self.cooldown)
        self._flag(ask=self.ask, champion_ends_cooldown=self.champion_ends_cooldown)

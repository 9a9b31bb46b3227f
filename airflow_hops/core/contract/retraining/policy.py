"""When to retrain, on what, and how often at most."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import ClassVar

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.core.contract.retraining.conditions import (
    AnyOf,
    Condition,
    Drift,
    PipelineFault,
    Rejected,
    RolloutRunning,
)
from airflow_hops.core.contract.retraining.parts import Part, check_part


@dataclass(frozen=True)
class TrainingWindow(Part):
    """The start of the training data; it ends with the compared data."""

    def start(self, at: datetime, changed: datetime | None) -> datetime | None:
        """The first moment of the window, None for where the pipeline's own begins.

        Args:
            at: Time of the decision: the end of the compared data.
            changed: Start of the first comparison of the present run of drifted ones, None if nothing drifts.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Expanding(TrainingWindow):
    """All data from the start that the pipeline sets itself: the most rows, the new among them a shrinking share."""

    kind: ClassVar[str] = "expanding"

    def start(self, at: datetime, changed: datetime | None) -> datetime | None:
        """None: the pipeline's own start."""
        return None


@dataclass(frozen=True)
class Sliding(TrainingWindow):
    """The newest data: forgets what is older, and so follows slow drift at the price of fewer rows.

    Attributes:
        length: How far back it goes.

    Raises:
        BadInput: ``length`` is not above 0.
    """

    length: timedelta
    kind: ClassVar[str] = "sliding"

    def __post_init__(self) -> None:
        self._duration(length=self.length)

    def start(self, at: datetime, changed: datetime | None) -> datetime | None:
        """``length`` before the end."""
        return at - self.length


@dataclass(frozen=True)
class SinceChange(TrainingWindow):
    """The data since the change: from the start of the first comparison of the present run of drifted ones.

    The moment of an abrupt change is known only to within one comparison. Where nothing drifts (a retraining for its
    age), it is the pipeline's own window.
    """

    kind: ClassVar[str] = "since_change"

    def start(self, at: datetime, changed: datetime | None) -> datetime | None:
        """``changed``."""
        return changed


@dataclass(frozen=True)
class Budget(Part):
    """At most so many requested retrainings, and what they may cost, in any span of this length of the data's own time.

    There is no request once one of the limits is reached, so that the last training may go beyond a limit of hours.
    What a request cost is what the artifacts of the runs that took it up cost, by their manifests; while such a run is
    under way, those that it has made so far. Steps that failed, tasks that are no step of this package, and artifacts
    of other runs that were taken from the cache, are not counted.

    Attributes:
        trainings: How many; None for any number.
        per: Length of the span.
        gpu_hours: Hours times GPUs; None for any.
        core_hours: CPU hours; None for any.

    Raises:
        BadInput: there is no limit, one is not above 0, ``trainings`` is no integer, or ``per`` is not above 0.
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
        if (self.trainings, self.gpu_hours, self.core_hours) == (None, None, None):
            raise BadInput("Budget: trainings, gpu_hours and core_hours are None, expected at least one of them")

    @property
    def counts_hours(self) -> bool:
        """Whether a limit is of what trainings cost."""
        return (self.gpu_hours, self.core_hours) != (None, None)

    def spent(self, trainings: int, core_s: float, gpu_s: float) -> tuple[bool, str]:
        """Whether it is spent, and how it stands in words.

        Args:
            trainings: Trainings in the span.
            core_s: CPU seconds that they cost.
            gpu_s: Seconds times GPUs that they cost.
        """
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
class RetrainingPolicy(Part):
    """When to request a retraining, and on what data.

    It is requested if ``when`` holds and ``unless`` does not, outside the cooldown and within the budget, and while no
    requested retraining is under way. Time is that of the data
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
        cooldown: Shortest time between two requests. A person's "no" counts as one.
        budget: The most requests in a span of time; None for any number.
        window: The training data.
        ask: Whether a person is asked before each request.
        champion_ends_cooldown: Whether the cooldown is over as soon as a model of other training data serves.

    Raises:
        BadInput: a part is of another type, or ``cooldown`` is negative.
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

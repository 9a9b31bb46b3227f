"""When to retrain, on what, and how often at most."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import ClassVar

from airflow_hops.contract.retraining.conditions import (
    AnyOf,
    Condition,
    Drift,
    PipelineFault,
    Rejected,
    RolloutRunning,
)
from airflow_hops.contract.retraining.parts import Part, check_part
from airflow_hops.contract.retraining.windows import Expanding, TrainingWindow


@dataclass(frozen=True)
class Budget(Part):
    """At most so many requested retrainings in any span of this length, in the data's own time.

    Attributes:
        trainings: How many.
        per: Length of the span.

    Raises:
        BadInput: ``trainings`` is not an integer above 0, or ``per`` is not above 0.
    """

    trainings: int
    per: timedelta
    kind: ClassVar[str] = "budget"

    def __post_init__(self) -> None:
        self._whole(trainings=self.trainings)
        self._duration(per=self.per)


@dataclass(frozen=True)
class RetrainingPolicy(Part):
    """When to request a retraining, and on what data.

    It is requested if ``when`` holds and ``unless`` does not, outside the cooldown and within the budget, and while no
    requested retraining is under way. Time is that of the data (:class:`~airflow_hops.contract.retraining.Situation`).

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

"""Plan of a rollout: steps of traffic, their durations, limits, and significance of tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_hops.core.errors import BadInput
from airflow_hops.core.rollout.decision import NOT_JUDGED, UNKNOWN, FindingVerdict

EARLY_REQUESTS = 20
"""Number of the canary's requests in a step from which on early tests are made."""


@dataclass(frozen=True)
class RolloutPlan:
    """Steps of traffic, as the arguments of ``RolloutOperator``; durations in seconds, one bake time for each step."""

    steps: tuple[int, ...]
    bake_time_s: tuple[float, ...]
    min_requests: int
    timeout_s: float
    on_timeout: str
    approval: bool
    keep_versions: int
    longest_wait_s: float

    @classmethod
    def of(cls, steps: Sequence[int], bake_time_s: float | Sequence[float], **values: object) -> RolloutPlan:
        """Returns a plan with one bake time for all steps or one for each.

        Raises:
            BadInput: a value is not allowed.
        """
        bake = (bake_time_s,) * len(steps) if isinstance(bake_time_s, int | float) else tuple(bake_time_s)
        plan = cls(tuple(steps), bake, **values)  # type: ignore[arg-type]
        plan._check()
        return plan

    def _check(self) -> None:
        ascending = list(self.steps) == sorted(set(self.steps)) and all(isinstance(step, int) for step in self.steps)
        if not self.steps or not ascending or self.steps[0] < 1 or self.steps[-1] != 100:
            raise BadInput(
                f"steps is {list(self.steps)!r}; expected ascending whole percents from 1 on that end at 100"
            )
        if len(self.bake_time_s) != len(self.steps) or min(self.bake_time_s) < 0:
            raise BadInput(
                f"bake_time is {list(self.bake_time_s)!r} s; expected one duration for all of the {len(self.steps)} "
                "steps, or one for each, none negative"
            )
        if self.timeout_s < max(self.bake_time_s):
            raise BadInput(
                f"timeout is {self.timeout_s:g} s, bake_time {max(self.bake_time_s):g} s; expected a longer one"
            )

    def after(self, percent: int) -> int | None:
        """Returns the step after a share; None after 100."""
        return next((step for step in self.steps if step > percent), None)

    def bake_s(self, percent: int) -> float:
        """Returns the bake time of a share; a share between two steps has that of the lower one, or of the first."""
        index = sum(step <= percent for step in self.steps)
        return self.bake_time_s[max(index - 1, 0)]

    def steps_from(self, percent: int) -> int:
        """Returns the number of steps from a share on in which both versions get requests, at least 1."""
        return 1 + sum(percent < step < 100 for step in self.steps)


@dataclass(frozen=True)
class Limits:
    """Limits for a canary, as the arguments of ``RolloutOperator``."""

    max_error_increase: float = 0.01
    significance: float = 0.01
    max_latency_ratio: float = 2.0
    latency_tolerance_ms: float = 10.0
    max_prediction_distance: float | None = None
    max_loss_increase: float = 0.1
    min_labels: int = 50
    wait_for_labels: bool = False

    @property
    def unjudged_predictions(self) -> FindingVerdict:
        """Verdict if too few predictions were captured: a limit that cannot be checked is not passed."""
        return NOT_JUDGED if self.max_prediction_distance is None else UNKNOWN

    @property
    def unjudged_labels(self) -> FindingVerdict:
        """Verdict if too few labels have come."""
        return UNKNOWN if self.wait_for_labels else NOT_JUDGED

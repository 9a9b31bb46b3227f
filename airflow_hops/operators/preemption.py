"""Policy for tasks whose machine was taken away: they run again without using up a retry."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from airflow.sdk import RetryDecision, RetryPolicy

from airflow_hops.airflow_internals.tasks import AirflowException

if TYPE_CHECKING:
    from airflow.sdk import Context


class TaskPreempted(AirflowException):
    """The task's machine was taken away; the next run goes on from what was kept."""


class PreemptionPolicy(RetryPolicy):
    """Runs a preempted task again without using up a retry; other failures use the task's ``retries``.

    A task counts as preempted only if it got further than its run before, so one that never does uses up its retries.
    Airflow 3.3 has no action ``RESCHEDULE``: there, a preemption uses up a retry, too.

    Args:
        max_reschedules: Preemptions of one try after which the next one uses up a retry.
        delay: Time until the task runs again; None for the task's ``retry_delay``.
    """

    def __init__(self, max_reschedules: int = 100, delay: timedelta | None = None) -> None:
        self.max_reschedules, self.delay = max_reschedules, delay

    def evaluate(
        self, exception: BaseException, try_number: int, max_tries: int, context: Context | None = None
    ) -> RetryDecision:
        """Returns the decision on a failure."""
        reschedule = getattr(RetryDecision, "reschedule", None)
        if reschedule is None or not isinstance(exception, TaskPreempted):
            return RetryDecision.default()
        decision: RetryDecision = reschedule(
            self.delay, max_reschedules=self.max_reschedules, reason=str(exception).partition("\n")[0]
        )
        return decision

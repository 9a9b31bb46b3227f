"""Retries by the cause of a failure."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from airflow.sdk import RetryDecision, RetryPolicy

from airflow_hops.core.processes.causes import cause_of

if TYPE_CHECKING:
    from airflow.sdk import Context

_REASONS = {
    "full": "a disk is full",
    "lost": "its machine is lost",
    "preempted": "its machine was taken away",
    "unreachable": "a service or a host does not answer",
}
_OUTAGES = ("full", "unreachable")


class HopsRetryPolicy(RetryPolicy):
    """Runs a task again, without using up a retry, if neither its input nor its code is the cause of the failure.

    These causes are a machine that was taken away or lost, a store, registry or other service that does not answer, an
    interrupted network between ranks, and a full disk. Input that cannot be used fails the task at once, and other
    failures use the task's ``retries``.
    A training counts as preempted only if it got further than before, so one that never does uses up its retries.
    Airflow 3.3 has no action ``RESCHEDULE``: there, each of these failures uses up a retry, too.

    Args:
        delay: Time until a task whose machine was taken away or lost runs again; None for the task's ``retry_delay``.
        outage_delay: The same after a full disk, an interrupted network, or a service that does not answer.
        max_reschedules: Runs of one try after which losing the machine once more uses up a retry.
        max_outages: Runs of one try after which an outage uses up a retry.

    Example:
        >>> from datetime import timedelta
        >>> from airflow_hops import HopsRetryPolicy, TrainOperator
        >>> policy = HopsRetryPolicy(delay=timedelta(minutes=1))
        >>> TrainOperator(task_id="train", train="flights:train", retries=3, retry_policy=policy).retries
        3
    """

    def __init__(
        self,
        *,
        delay: timedelta | None = None,
        outage_delay: timedelta = timedelta(minutes=5),
        max_reschedules: int = 100,
        max_outages: int = 12,
    ) -> None:
        self.delay, self.outage_delay = delay, outage_delay
        self.max_reschedules, self.max_outages = max_reschedules, max_outages

    def evaluate(
        self, exception: BaseException, try_number: int, max_tries: int, context: Context | None = None
    ) -> RetryDecision:
        """Returns the decision on a failure."""
        cause = cause_of(exception)
        if cause is None:
            return RetryDecision.default()
        is_outage = cause in _OUTAGES
        delay = self.outage_delay if is_outage else self.delay
        reason = f"{_REASONS[cause]}: {str(exception).partition(chr(10))[0][:300]}"
        reschedule = getattr(RetryDecision, "reschedule", None)
        if reschedule is None:
            return RetryDecision.retry(delay, reason)
        limit = self.max_outages if is_outage else self.max_reschedules
        decision: RetryDecision = reschedule(delay, max_reschedules=limit, reason=reason)
        return decision

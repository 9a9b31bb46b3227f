"""Operators whose step outlives the worker, so that a retry continues it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import ResumableJobMixin

from airflow_hops.core.contract.protocol import StepResult
from airflow_hops.core.store.jobs import Job
from airflow_hops.hooks.resuming import Jobs
from airflow_hops.hooks.runtime import RuntimeHook
from airflow_hops.operators.base import HopsOperator

if TYPE_CHECKING:
    from airflow.sdk import Context


class DurableOperator(ResumableJobMixin, HopsOperator):
    """Base of operators whose step is a job: the job survives its worker, and a retry follows it to its end.

    Airflow's mixin decides whether to submit the job, follow it or take its result. The external id of the mixin is a
    :class:`airflow_hops.core.store.jobs.Job` as JSON, persisted before the job starts.

    Args:
        durable: Whether the step is a job. If not, or if Airflow has no task state store, the step ends with its
            worker.
        kwargs: Arguments of :class:`airflow_hops.operators.base.HopsOperator`.
    """

    external_id_key = "hops_job"
    _jobs: Jobs

    def __init__(self, *, durable: bool = True, **kwargs: Any) -> None:
        super().__init__(durable=durable, **kwargs)

    def run_step(self, hook: RuntimeHook, context: Context) -> StepResult:
        """Follows the job of an earlier try, or submits a new one."""
        store = context.get("task_state_store")
        if not self.durable or store is None:
            return super().run_step(hook, context)
        cache = self._cache_enabled() and self.cacheable
        spec = hook.complete(self.build_spec(hook, context))
        self._jobs = Jobs(hook, spec, self.chosen_launcher(hook))
        if cache and (cached := hook.find_cached(spec)) is not None:
            if (earlier := Job.from_dict(store.get(self.external_id_key))) is not None:
                self._jobs.drop(earlier)
            return cached
        job = Job.from_dict(self.execute_resumable(context))
        assert job is not None
        return self._jobs.collect(job, cache=cache)

    def submit_job(self, context: Context) -> Any:
        """Prepares a job; :meth:`poll_until_complete` starts it."""
        return self._jobs.submit().to_dict()

    def get_job_status(self, external_id: Any, context: Context) -> str:
        """Returns the job's status, and ends a job that this try cannot follow."""
        job = Job.from_dict(external_id)
        return "ended" if job is None else self._jobs.settle(job)

    def is_job_active(self, status: str) -> bool:
        """Returns whether the job can be followed."""
        return status in ("prepared", "running")

    def is_job_succeeded(self, status: str) -> bool:
        """Returns whether the job's result can be taken."""
        return status == "succeeded"

    def poll_until_complete(self, external_id: Any, context: Context) -> Any:
        """Follows the job to its end; :meth:`run_step` then takes its result."""
        job = Job.from_dict(external_id)
        assert job is not None
        self._jobs.follow(job)
        return external_id

    def get_job_result(self, external_id: Any, context: Context) -> Any:
        """Returns the job; :meth:`run_step` takes its result."""
        return external_id

"""Runs steps as jobs that outlive the worker: submits, finds, follows and collects them."""

from __future__ import annotations

from typing import cast

from airflow.configuration import conf

from airflow_hops.core.contract.artifacts import HopsError, cache_key
from airflow_hops.core.contract.protocol import StepResult, StepSpec
from airflow_hops.core.processes.temporary_folders import variables_of_step
from airflow_hops.core.store.jobs import Job
from airflow_hops.hooks.runtime import RuntimeHook, StepFailed
from airflow_hops.launchers.base import Launcher
from airflow_hops.launchers.following import (
    JobProcess,
    State,
    Superseded,
    discard_job,
    end_job,
    prepare_job,
    result_of,
    state_of,
)

_ORPHAN_TIMEOUT_S = 1800.0


class Jobs:
    """The jobs of one step, from this try and earlier ones.

    Args:
        hook: Hook of the step's environment.
        spec: The complete spec.
        launcher: Launcher of the step; this machine by default.
    """

    def __init__(self, hook: RuntimeHook, spec: StepSpec, launcher: Launcher | None = None) -> None:
        self._hook, self._spec, self._launcher = hook, spec, launcher
        self._fingerprint = cache_key(spec.cache_key_parts)

    def submit(self) -> Job:
        """Prepares a job; :meth:`follow` starts it, so that a retry knows the job before it starts."""
        self._hook.record_run(self._spec)
        timeout_s = conf.getfloat("hops", "orphan_timeout", fallback=_ORPHAN_TIMEOUT_S)
        job = prepare_job(self._spec, self._hook.store, self._fingerprint, orphan_timeout_s=timeout_s)
        return job

    def settle(self, job: Job) -> State:
        """Returns the state of an earlier try's job; a job that this try cannot follow is ended and discarded.

        This applies to jobs with other code, parameters or inputs, and to jobs on another machine.
        """
        store, log = self._hook.store, self._hook.log
        state = state_of(job, store)
        is_current = job.fingerprint == self._fingerprint
        if state in ("prepared", "running"):
            if is_current and job.is_here:
                log.info("Try %d left a job that continues in %s: this try follows it", job.try_number, job.path)
                return state
            why = f"works on {job.host}" if is_current else "is of other code, parameters or inputs"
            log.info("Try %d left a job that %s: it is ended first", job.try_number, why)
            self._end(job)
            state = state_of(job, store)
        if state == "succeeded" and is_current:
            return state
        discard_job(job, store)
        return "ended"

    def drop(self, job: Job) -> None:
        """Ends the job of an earlier try, if it still runs, and discards it."""
        if state_of(job, self._hook.store) in ("prepared", "running"):
            self._end(job)
        discard_job(job, self._hook.store)

    def _end(self, job: Job) -> None:
        end_job(job, self._hook.store, lambda: self._hook.killed)
        if self._hook.killed:
            raise HopsError(f"step {job.step!r} was killed while it waited for the end of the job on {job.host}")

    def follow(self, job: Job) -> None:
        """Starts a job that has not been started, and logs its output until it ends.

        Raises:
            StepFailed: the step failed, was killed, or has no result; the job is discarded.
            Superseded: a later try follows the job now.
        """
        try:
            with JobProcess(job, self._hook.store) as process:
                if self._hook.killed:
                    raise StepFailed(f"step {job.step!r} was killed before it began", retryable=True)
                if state_of(job, self._hook.store) == "prepared":
                    launcher = self._launcher or self._hook.local_launcher()
                    spec = self._spec
                    variables = {**spec.variables(), **variables_of_step(job.path)}
                    process.started_by(
                        lambda detached: launcher.start(
                            job.path / "spec.json", spec.code_paths, variables=variables, detached=detached
                        )
                    )
                elif process.has_backlog:
                    self._hook.log.warning(
                        "Only the end of the step's output in the meantime follows; all of it is in %s until the "
                        "job ends",
                        job.path / "output.log",
                    )
                self._hook.watch(job.step, process, job.path)
        except Superseded:
            raise
        except BaseException:
            discard_job(job, self._hook.store)
            raise

    def collect(self, job: Job, *, cache: bool) -> StepResult:
        """Returns the result of a job that has succeeded, and discards the job.

        With ``cache``, the artifact is recorded for :meth:`airflow_hops.hooks.runtime.RuntimeHook.find_cached`.
        """
        result = cast("StepResult", result_of(job, self._hook.store))
        if cache:
            self._hook.record_cached(self._spec, result)
        discard_job(job, self._hook.store)
        return result

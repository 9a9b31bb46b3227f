"""Runs steps as jobs (:mod:`airflow_hops.core.steps.jobs`) that outlive the worker: submits, follows, ends them."""

# States of a job (:func:`state_of`), by its folder on its own machine, by its lease elsewhere:
#   prepared   ``running`` is unlocked and empty: the worker may have been killed before the start
#   running    ``running`` is locked
#   succeeded  ``running`` is unlocked, ``result.json`` has no error
#   ended      ``running`` is unlocked; ``result.json`` has an error, or is missing since the job was killed
# A try settles the job of the try before: it follows a prepared or running one on this machine if the fingerprint is
# the same, collects a succeeded one, and ends and discards any other. One process follows a job at a time:
# 1. The new follower writes its token to ``owner``, and waits for the lock on ``attached``.
# 2. The old one, if it lives, reads another token, raises Superseded without ending the job, and releases the lock.
# 3. The new one starts a prepared job, or reads ``output.log`` from the offset in ``shown``, which only the holder of
#    the lock writes.

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Literal, cast

from airflow_hops.core.artifacts.artifact import cache_key
from airflow_hops.core.errors import BadInput, HopsError, StepFailed
from airflow_hops.core.processes.ending import GRACE_S
from airflow_hops.core.processes.files import write_atomically
from airflow_hops.core.processes.locks import lock_for_process, lock_holder
from airflow_hops.core.processes.temporary_folders import variables_of_step
from airflow_hops.core.steps.jobs import JOB_FILE, Job, this_host
from airflow_hops.core.steps.protocol import StepResult, StepSpec
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.store.leases import LeaseRecord
from airflow_hops.runner.connections import orphan_timeout_s
from airflow_hops.runner.launchers.base import Launcher
from airflow_hops.runner.launchers.process import Detached, StepProcess, kill_step, new_step_id
from airflow_hops.runner.runtime import RuntimeHook

State = Literal["prepared", "running", "succeeded", "ended"]
_PREFIX = "hops-job-"
_POLL_S = 0.1
_ATTACH_TIMEOUT_S = 30.0
_SWEEP_S = 86400.0
_UNNAMED_SWEEP_S = 60.0
"""Age at which a folder without a job is removed: its worker was killed before it wrote the job."""
_BACKLOG_BYTES = 1 << 20


class Superseded(HopsError):
    """Raised when another try of the task follows the job now."""


class Jobs:
    """The jobs of one step, from this try and earlier ones.

    Args:
        hook: Hook of the step's environment.
        spec: The complete spec.
        launcher: Launcher of the step; this machine by default.
    """

    def __init__(self, hook: RuntimeHook, spec: StepSpec, launcher: Launcher | None = None) -> None:
        self._hook, self._spec, self._launcher = hook, spec, launcher
        self._store, self._fingerprint = hook.store, cache_key(spec.cache_key_parts)

    def submit(self) -> Job:
        """Creates the folder of a job; :meth:`follow` starts it, so that a retry knows the job before it starts.

        Raises:
            BadInput: an extension does not allow the step to start.
        """
        self._hook.admit(self._spec)
        self._hook.record_run(self._spec)
        remove_abandoned(self._store)
        producer = self._spec.producer
        job_id = new_step_id()
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        job = Job(
            id=job_id,
            step=self._spec.step,
            try_number=producer.try_number,
            host=this_host(),
            folder=str(folder),
            fingerprint=self._fingerprint,
            record=self._store.internal("_state", "jobs", producer.dag_id, producer.run_id, producer.task, job_id),
            orphan_timeout_s=orphan_timeout_s(),
        )
        (folder / "spec.json").write_text(self._spec.to_json())
        (folder / JOB_FILE).write_text(json.dumps(job.to_dict()))
        return job

    def settle(self, job: Job) -> State:
        """Returns the state of an earlier try's job; a job that this try cannot follow is ended and discarded.

        This applies to jobs with other code, parameters or inputs, and to jobs on another machine.
        """
        log = self._hook.log
        state = state_of(job, self._store)
        is_current = job.fingerprint == self._fingerprint
        if state in ("prepared", "running"):
            if is_current and job.is_here:
                log.info("Try %d left a job that continues in %s: this try follows it", job.try_number, job.path)
                return state
            why = f"works on {job.host}" if is_current else "is of other code, parameters or inputs"
            log.info("Try %d left a job that %s: it is ended first", job.try_number, why)
            self._end(job)
            state = state_of(job, self._store)
        if state == "succeeded" and is_current:
            return state
        self._discard(job)
        return "ended"

    def drop(self, job: Job) -> None:
        """Ends the job of an earlier try, if it still runs, and discards it."""
        if state_of(job, self._store) in ("prepared", "running"):
            self._end(job)
        self._discard(job)

    def follow(self, job: Job) -> None:
        """Starts a job that has not been started, and logs its output until it ends.

        Raises:
            StepFailed: the step failed, was killed, or has no result; the job is discarded.
            Superseded: a later try follows the job now.
        """
        try:
            with JobProcess(job, self._store) as process:
                if self._hook.killed:
                    raise StepFailed(f"step {job.step!r} was killed before it began", step=job.step, retryable=True)
                if state_of(job, self._store) == "prepared":
                    launcher = self._launcher or self._hook.local_launcher()
                    variables = {**self._spec.variables(), **variables_of_step(job.path)}
                    process.started_by(
                        lambda detached: launcher.start(
                            job.path / "spec.json", self._spec.code_paths, variables=variables, detached=detached
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
            self._discard(job)
            raise

    def collect(self, job: Job, *, cache: bool) -> StepResult:
        """Returns the result of a job that has succeeded, and discards the job.

        With ``cache``, the artifact is recorded for :meth:`airflow_hops.runner.runtime.RuntimeHook.find_cached`.
        """
        result = cast("StepResult", result_of(job, self._store))
        self._hook.record_end(self._spec, result, cache=cache)
        self._discard(job)
        return result

    def _end(self, job: Job) -> None:
        """Ends a job on any machine, and returns when it has ended.

        The lease of a job of another machine is taken over.
        """
        if job.is_here:
            kill_step(job.id, _session(job))
            return
        job.lease(self._store).take_over(is_cancelled=lambda: self._hook.killed)
        if self._hook.killed:
            raise HopsError(f"step {job.step!r} was killed while it waited for the end of the job on {job.host}")
        time.sleep(min(1.0, job.beat_s))  # the job writes its last record just before it ends

    def _discard(self, job: Job) -> None:
        """Removes the files of a job that has ended."""
        with contextlib.suppress(Exception):  # cleanup must not hide the job's outcome
            if job.is_here:
                shutil.rmtree(job.path, ignore_errors=True)
                self._store.remove_folder(job.record)
            else:  # the request to end stays, in case the machine comes back
                job.lease(self._store).remove_first()


def state_of(job: Job, store: ArtifactStore) -> State:
    """Returns the state of a job, from its folder on its own machine, from its lease elsewhere."""
    if not job.is_here:
        record = _record(job, store)
        if record is not None and not record.is_released:
            return "running"
    elif lock_holder(job.path / "running") is not None:
        return "running"
    result = result_of(job, store)
    if result is not None:
        return "succeeded" if result.error is None else "ended"
    return "prepared" if job.is_here and not _size(job.path / "running") else "ended"


def result_of(job: Job, store: ArtifactStore) -> StepResult | None:
    """Returns the result of a job's step, or None if it wrote none."""
    if job.is_here:
        return StepResult.read(job.path / "result.json")
    record = _record(job, store)
    return StepResult.from_dict(record.note) if record is not None and record.note is not None else None


class JobProcess(StepProcess):
    """A job of this machine that this process follows, as if it had just started it.

    Within its context, no other process follows the job.
    """

    def __init__(self, job: Job, store: ArtifactStore) -> None:
        super().__init__(job.id, _session(job), None, self._exit_code)  # the first process's pid is the session's id
        self.job, self._store = job, store
        self._token = uuid.uuid4().hex
        self._lock: int | None = None
        self._started: StepProcess | None = None

    def __enter__(self) -> JobProcess:
        """Attaches to the job, after waiting for the process that follows it to detach.

        Raises:
            HopsError: that process did not detach in time.
        """
        write_atomically(self.job.path / "owner", self._token)
        path = self.job.path / "attached"
        deadline = time.monotonic() + _ATTACH_TIMEOUT_S
        while (lock := lock_for_process(path)) is None:
            if time.monotonic() > deadline:
                raise HopsError(
                    f"step {self.job.step!r}: process {lock_holder(path)} on {this_host()}, of an earlier try of this "
                    f"task, still follows its job; end that process, and retry"
                )
            time.sleep(_POLL_S)
        self._lock = lock
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def started_by(self, start: Callable[[Detached], StepProcess]) -> None:
        """Starts the step with a launcher's ``start``."""
        self._started = start(Detached(self.job.id, self.job.path / "output.log"))
        self.pid = self._started.pid

    @property
    def has_backlog(self) -> bool:
        """Whether unread output exceeds 1 MiB, too much for the start of a retry's log."""
        return _size(self.job.path / "output.log") - self._shown() > _BACKLOG_BYTES

    def lines(self) -> Iterator[str]:
        """Yields the output from where the last reader stopped, line by line until the job has ended.

        If more than 1 MiB is unread, only the last 1 MiB is yielded.

        Raises:
            Superseded: another process follows the job.
        """
        log, shown = self.job.path / "output.log", self.job.path / "shown"
        log.touch(mode=0o600)
        shown.touch(mode=0o600)
        with log.open("rb") as stream, shown.open("r+b", buffering=0) as note:
            stream.seek(self._shown())
            if self.has_backlog:
                stream.seek(-_BACKLOG_BYTES, os.SEEK_END)
                stream.readline()
            pending = b""
            while True:
                ended = self.poll() is not None  # polled before reading, so that no output is missed
                if chunk := stream.read(1 << 16):
                    *complete, pending = (pending + chunk).split(b"\n")
                    yield from (line.decode(errors="replace") for line in complete)
                    os.pwrite(note.fileno(), f"{stream.tell() - len(pending):20d}".encode(), 0)
                elif ended:
                    break
                else:
                    if not self._is_owner():
                        raise Superseded(f"step {self.job.step!r}: a later try of this task follows its job now")
                    time.sleep(_POLL_S)
            if pending:
                yield pending.decode(errors="replace")

    def kill(self, grace_s: float = GRACE_S) -> None:
        """Ends the job with all its descendants, unless another process follows it."""
        if self._is_owner():
            super().kill(grace_s)

    def _exit_code(self) -> int | None:
        code = None if self._started is None else self._started.poll()
        if self._started is not None and code is None:
            return None
        state = state_of(self.job, self._store)
        if state == "running":  # if an abandoned start came first, the second one ends at once
            return None
        if code is None:
            # The exit status is unknown: without a result, the job or its machine was killed.
            code = 0 if state == "succeeded" else 1 if result_of(self.job, self._store) else -signal.SIGKILL
        return code

    def _is_owner(self) -> bool:
        with contextlib.suppress(OSError):
            return (self.job.path / "owner").read_text() == self._token
        return True

    def _shown(self) -> int:
        with contextlib.suppress(OSError, ValueError):
            return int((self.job.path / "shown").read_text())
        return 0


def _session(job: Job) -> int | None:
    """Returns the session of a job's processes, or None before it has begun."""
    with contextlib.suppress(OSError, ValueError):
        return int(json.loads((job.path / "running").read_text())["session"])
    return None


def _record(job: Job, store: ArtifactStore) -> LeaseRecord | None:
    with contextlib.suppress(BadInput):  # written for another store
        return job.lease(store).read(first=True)
    return None


def _size(path: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_size
    return 0


def remove_abandoned(store: ArtifactStore) -> None:
    """Removes jobs of this user and machine that nobody follows, as workers that were killed leave them.

    A job of this store that was killed or failed is removed at once, with its record; one whose result no task has
    taken a day after its end; a folder whose job was not written after a minute.
    """
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError, HopsError):
            status = folder.lstat()
            if status.st_uid != os.getuid() or any(lock_holder(folder / name) for name in ("running", "attached")):
                continue
            age_s, job = time.time() - status.st_mtime, Job.read(folder)
            if age_s < (_UNNAMED_SWEEP_S if job is None else _SWEEP_S):
                if job is None or not job.is_here or state_of(job, store) != "ended":
                    continue
                store.remove_folder(job.record)  # an error for a job of another store, whose retry will settle it
            shutil.rmtree(folder, ignore_errors=True)

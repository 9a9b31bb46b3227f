"""Has steps outlive their worker as jobs (:mod:`airflow_hops.core.steps.jobs`), which retries follow."""

# States of a job (:func:`state_of`), by its folder on its own machine, by its lease elsewhere:
#   prepared   ``running`` is unlocked and empty: the worker may have been killed before the start
#   running    ``running`` is locked
#   succeeded  ``running`` is unlocked, ``result.json`` has no error
#   ended      ``running`` is unlocked; ``result.json`` has an error, or is missing since the job was killed
# A try asks Airflow's task state store for the job of the try before. It follows a prepared, running or succeeded one
# on this machine if the fingerprint is the same, takes the result of a succeeded one elsewhere, and ends and discards
# any other. One process follows a job at a time:
# 1. The new follower writes its token to ``owner``, and waits for the lock on ``attached``.
# 2. The old one, if it lives, reads another token, raises Superseded without ending the job, and releases the lock.
# 3. The new one starts a prepared job, or reads ``output.log`` from the offset in ``attached``, which only the holder
#    of the lock writes.
# A job is discarded when its outcome is recorded (:meth:`.StepProcess.discard`): a kill before leaves it for the retry.

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import signal
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from airflow_hops.core.artifacts.artifact import cache_key
from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.processes.ending import GRACE_S
from airflow_hops.core.processes.files import lock_for_process, lock_holder, write_atomically
from airflow_hops.core.processes.polling import poll
from airflow_hops.core.processes.temporary_folders import full_place, variables_of_step
from airflow_hops.core.steps.jobs import JOB_FILE, REMOVED, Job, this_host
from airflow_hops.core.steps.protocol import STEP_ID_VARIABLE, StepResult, StepSpec
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.store.leases import LeaseRecord
from airflow_hops.runner.connections import orphan_timeout_s
from airflow_hops.runner.launchers.base import Launcher
from airflow_hops.runner.launchers.process import LOG, StepProcess, kill_step, new_step_id

State = Literal["prepared", "running", "succeeded", "ended"]
_KEY = "hops_job"
"""Key of a task's job in Airflow's task state store."""
_PREFIX = "hops-job-"
_POLL_S = 0.1
_ATTACH_TIMEOUT_S = 300.0
_SWEEP_S = 86400.0
_UNNAMED_SWEEP_S = 60.0
"""Age at which a folder without a job is removed: its worker was killed before it wrote the job."""
_BACKLOG_BYTES = 1 << 20

log = logging.getLogger(__name__)


class Superseded(HopsError):
    """Raised when another try of the task follows the job now."""


class TaskState(Protocol):
    """Values that Airflow keeps for the tries of a task (``context["task_state_store"]``)."""

    def get(self, key: str) -> Any:
        """Returns a value; None if there is none."""

    def set(self, key: str, value: Any) -> None:
        """Keeps a value."""


class DurableLauncher(Launcher):
    """Has the steps of a launcher outlive their worker: a retry follows the job that the try before has left.

    Args:
        launcher: Starts the steps, from this machine.
        tries: Names the job to later tries, before it starts.
        is_cancelled: Whether the task is being killed; ends a wait for a job on another machine.
    """

    reattaches = True

    def __init__(self, launcher: Launcher, tries: TaskState, is_cancelled: Callable[[], bool] = lambda: False) -> None:
        super().__init__(launcher.runtime, launcher.warm)
        self._launcher, self._tries, self._is_cancelled = launcher, tries, is_cancelled
        self._job: Job | None = None

    def follows(self, spec: StepSpec) -> bool:
        """Returns whether an earlier try left a job that this try can follow; ends and removes any other."""
        job = self._earlier()
        is_followed = job is not None and self._settle(job, _store_of(spec), cache_key(spec.cache_key_parts))
        self._job = job if is_followed else None
        return is_followed

    def drop(self, spec: StepSpec) -> None:
        """Ends and removes the job of an earlier try."""
        store = _store_of(spec)
        if (job := self._earlier()) is not None:
            if state_of(job, store) in ("prepared", "running"):
                self._end(job, store)
            remove(job, store)

    def start(self, spec_path: Path, code_paths: Sequence[str], *, variables: Mapping[str, str] = {}) -> StepProcess:
        """Follows the job of :meth:`follows`, or starts a new one; see :meth:`.Launcher.start`."""
        spec = StepSpec.from_json(spec_path.read_text(), dict(variables))
        store = _store_of(spec)
        job, self._job = self._job, None
        if job is None:
            job = prepare(spec, store)
            self._tries.set(_KEY, job.to_dict())
        process = JobProcess(job, store, spec_path.parent)
        try:
            process.attach()
            if state_of(job, store) == "prepared":
                variables = {**variables, **variables_of_step(job.path), STEP_ID_VARIABLE: job.id}
                try:
                    process.started_as(self._launcher.start(job.path / "spec.json", code_paths, variables=variables))
                except BaseException:
                    process.kill()  # it may have begun
                    raise
        except BaseException:
            process.discard()
            raise
        return process

    def _earlier(self) -> Job | None:
        return Job.from_dict(self._tries.get(_KEY))

    def _settle(self, job: Job, store: ArtifactStore, fingerprint: str) -> bool:
        """Returns whether this try can follow an earlier try's job; else the job is ended and removed.

        This applies to jobs with other code, parameters or inputs, and to jobs that run on another machine.
        """
        state, is_current = state_of(job, store), job.fingerprint == fingerprint
        if state in ("prepared", "running"):
            if is_current and job.is_here:
                log.info("Try %d left a job that continues in %s: this try follows it", job.try_number, job.path)
                return True
            why = f"works on {job.host}" if is_current else "is of other code, parameters or inputs"
            log.info("Try %d left a job that %s: it is ended first", job.try_number, why)
            self._end(job, store)
            state = state_of(job, store)
        if state == "succeeded" and is_current:
            return True
        remove(job, store)
        return False

    def _end(self, job: Job, store: ArtifactStore) -> None:
        """Ends a job on any machine, and returns when it has ended.

        The lease of a job of another machine is taken over.
        """
        if job.is_here:
            kill_step(job.id, _session(job))
            return
        job.lease(store).take_over(self._is_cancelled)
        if self._is_cancelled():
            raise HopsError(f"step {job.step!r} was killed while it waited for the end of the job on {job.host}")
        time.sleep(min(1.0, job.beat_s))  # the job writes its last record just before it ends


def _store_of(spec: StepSpec) -> ArtifactStore:
    return ArtifactStore(spec.store, storage_options=spec.storage_options)


def prepare(spec: StepSpec, store: ArtifactStore) -> Job:
    """Makes the folder of a job, which a retry knows before it starts."""
    remove_abandoned(store)
    producer, job_id, folder = spec.producer, new_step_id(), Path(tempfile.mkdtemp(prefix=_PREFIX))
    job = Job(
        id=job_id,
        step=spec.step,
        try_number=producer.try_number,
        host=this_host(),
        folder=str(folder),
        fingerprint=cache_key(spec.cache_key_parts),
        record=store.internal("_state", "jobs", producer.dag_id, producer.run_id, producer.task, job_id),
        orphan_timeout_s=orphan_timeout_s(),
    )
    (folder / "spec.json").write_text(spec.to_json())
    (folder / JOB_FILE).write_text(json.dumps(job.to_dict()))
    return job


def remove(job: Job, store: ArtifactStore) -> None:
    """Removes the files of a job that has ended."""
    with contextlib.suppress(Exception):  # cleanup must not hide the job's outcome
        if job.is_here:
            job.remove_folder()
            store.remove_folder(job.record)
        else:  # the request to end stays, in case the machine comes back
            job.lease(store).remove_first()


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
    """A job that this process follows, as if it had just started it; it may have succeeded, also elsewhere.

    Args:
        job: The job.
        store: The artifact store.
        folder: Folder for the step's result.
    """

    def __init__(self, job: Job, store: ArtifactStore, folder: Path) -> None:
        # The first process's pid is the session's id.
        super().__init__(job.id, _session(job), job.path / LOG, self._exit_code)
        self.job, self._store, self._folder = job, store, folder
        self._token = uuid.uuid4().hex
        self._lock: int | None = None
        self._started: StepProcess | None = None
        self._is_kept = not job.is_here  # for a retry, until its result is taken

    def attach(self) -> None:
        """Waits for the process that follows the job to detach; from then on, no other process follows it.

        Raises:
            HopsError: that process did not detach in time, or has removed the job.
        """
        removed = f"step {self.job.step!r}: its job was removed when this try was about to follow it; retry"
        if not self.job.is_here:
            if state_of(self.job, self._store) == "ended":
                raise HopsError(removed)
            return
        write_atomically(self.job.path / "owner", self._token)
        path = self.job.path / "attached"
        self._lock = poll(
            lambda: lock_for_process(path),
            _POLL_S,
            _ATTACH_TIMEOUT_S,
            lambda: HopsError(
                f"step {self.job.step!r}: process {lock_holder(path)} on {this_host()}, of an earlier try of this "
                f"task, still follows its job; end that process, and retry"
            ),
        )
        if not (self.job.path / JOB_FILE).exists():
            raise HopsError(removed)
        self._offset, size = int(os.pread(self._lock, 20, 0) or 0), _size(self._log)
        if size - self._offset > _BACKLOG_BYTES:
            log.warning(
                "Only the end of the step's output in the meantime follows; all of it is in %s until the job ends",
                self._log,
            )
            with self._log.open("rb") as stream:
                stream.seek(size - _BACKLOG_BYTES)
                stream.readline()
                self._offset = stream.tell()

    def started_as(self, process: StepProcess) -> None:
        """Takes the process of the step that this process has started."""
        self._started, self.pid = process, process.pid

    def remember(self, offset: int) -> None:
        """Writes the offset into the file of the lock, for the next follower."""
        super().remember(offset)
        if self._lock is not None:
            with contextlib.suppress(OSError):  # on a full disk, the next follower repeats lines
                os.pwrite(self._lock, f"{offset:20d}".encode(), 0)

    def check_follower(self) -> None:
        """Raises Superseded if another process follows the job."""
        if not self._is_owner():
            raise Superseded(f"step {self.job.step!r}: a later try of this task follows its job now")

    def wait(self, timeout_s: float | None = None) -> int:
        """Waits for the end, takes the job's result, and returns the exit code."""
        code = super().wait(timeout_s)
        self._is_kept = True
        try:
            if (result := result_of(self.job, self._store)) is not None:
                result.write(self._folder / "result.json")
        except OSError as error:
            raise HopsError(full_place(error) or f"the job's result cannot be taken: {error}") from error
        self._is_kept = False
        return code

    def kill(self, grace_s: float = GRACE_S) -> None:
        """Ends the job with all its descendants, unless another process follows it."""
        if self._is_owner():
            super().kill(grace_s)

    def discard(self) -> None:
        """Removes the job, unless another process follows it, and detaches from it."""
        if not self._is_kept and self._is_owner() and (self._lock is not None or not self.job.is_here):
            remove(self.job, self._store)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

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
            if folder.suffix != REMOVED and age_s < (_UNNAMED_SWEEP_S if job is None else _SWEEP_S):
                if job is None or not job.is_here or state_of(job, store) != "ended":
                    continue
                store.remove_folder(job.record)  # an error for a job of another store, whose retry will settle it
            shutil.rmtree(folder, ignore_errors=True)

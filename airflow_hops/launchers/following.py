"""The worker's side of a job (:mod:`airflow_hops.core.store.jobs`): prepares, starts, follows and ends it."""

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
from typing import Literal

from airflow_hops.core.contract.artifacts import BadInput, HopsError
from airflow_hops.core.contract.protocol import StepResult, StepSpec
from airflow_hops.core.processes.ending import GRACE_S
from airflow_hops.core.processes.files import write_atomically
from airflow_hops.core.processes.locks import lock_for_process, lock_holder
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.store.jobs import JOB_FILE, Job, JobRecord, this_host
from airflow_hops.launchers.process import Detached, StepProcess, kill_step, new_step_id

State = Literal["prepared", "running", "succeeded", "ended"]

_PREFIX = "hops-job-"
_POLL_S = 0.1
_ATTACH_TIMEOUT_S = 30.0
_SWEEP_S = 86400.0
_BACKLOG_BYTES = 1 << 20


class Superseded(HopsError):
    """Raised when another try of the task has taken over the job."""


def prepare_job(spec: StepSpec, store: ArtifactStore, fingerprint: str, *, orphan_timeout_s: float) -> Job:
    """Creates the folder of a job, without starting it.

    Args:
        spec: The step.
        store: The artifact store.
        fingerprint: Fingerprint of everything that the step depends on.
        orphan_timeout_s: Seconds without a worker after which the job ends by itself.
    """
    _sweep()
    producer = spec.producer
    job_id = new_step_id()
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    job = Job(
        id=job_id,
        step=spec.step,
        try_number=producer.try_number,
        host=this_host(),
        folder=str(folder),
        fingerprint=fingerprint,
        record=store.uri("_state", "jobs", producer.dag_id, producer.run_id, producer.task, f"{job_id}.json"),
        orphan_timeout_s=orphan_timeout_s,
    )
    (folder / "spec.json").write_text(spec.to_json())
    (folder / JOB_FILE).write_text(json.dumps(job.to_dict()))
    return job


def state_of(job: Job, store: ArtifactStore) -> State:
    """Returns the state of a job, from its folder on its own machine, from its record elsewhere."""
    if not job.is_here:
        record = _record(job, store)
        return "ended" if record is None else record.state  # type: ignore[return-value]
    if lock_holder(job.path / "running") is not None:
        return "running"
    result = StepResult.read(job.path / "result.json")
    if result is not None:
        return "succeeded" if result.error is None else "ended"
    return "ended" if _size(job.path / "running") else "prepared"


def result_of(job: Job, store: ArtifactStore) -> StepResult | None:
    """Returns the result of a job's step, or None if it wrote none."""
    if job.is_here:
        return StepResult.read(job.path / "result.json")
    record = _record(job, store)
    return record.step_result() if record else None


def end_job(job: Job, store: ArtifactStore, given_up: Callable[[], bool] = lambda: False) -> None:
    """Ends a job on any machine, and returns when it has ended, or when ``given_up`` returns True.

    A job of another machine is asked to end through the store. It counts as dead when its record has not changed for
    :attr:`airflow_hops.core.store.jobs.Job.silence_s`: a job that cannot reach the store ends by itself before that.
    """
    if job.is_here:
        kill_step(job.id, _session(job))
        return
    store.write_text(job.takeover, json.dumps({"host": this_host()}))
    last, changed_at = _record(job, store), time.monotonic()
    while last is not None and last.state == "running" and not given_up():
        if time.monotonic() - changed_at > job.silence_s:
            return
        time.sleep(min(1.0, job.beat_s))
        now = _record(job, store)
        if now != last:
            last, changed_at = now, time.monotonic()
    time.sleep(min(1.0, job.beat_s))  # the job writes its last record just before it ends


def discard_job(job: Job, store: ArtifactStore) -> None:
    """Removes the files of a job that has ended."""
    is_here = job.is_here
    if is_here:
        shutil.rmtree(job.path, ignore_errors=True)
    with contextlib.suppress(Exception):  # cleanup must not hide the job's outcome
        store.remove_text(job.record)
        if is_here:  # elsewhere the request to end stays, in case the machine comes back
            store.remove_text(job.takeover)


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


def _record(job: Job, store: ArtifactStore) -> JobRecord | None:
    with contextlib.suppress(BadInput):  # written for another store
        return JobRecord.read(job, store)
    return None


def _size(path: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_size
    return 0


def _sweep() -> None:
    """Removes folders of this user's jobs that ended over a day ago, and whose results no task has read."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            status = folder.lstat()
            old = status.st_uid == os.getuid() and time.time() - status.st_mtime > _SWEEP_S
            if old and lock_holder(folder / "running") is None:
                shutil.rmtree(folder, ignore_errors=True)

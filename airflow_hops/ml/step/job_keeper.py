"""Job's side of :mod:`airflow_hops.core.steps.jobs`: reports that the job lives, ends it if no worker follows it."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import threading
import time
from typing import NoReturn

from airflow_hops.core.errors import HopsError
from airflow_hops.core.processes.ending import end_everything
from airflow_hops.core.processes.files import lock_for_process, lock_holder
from airflow_hops.core.steps.jobs import Job
from airflow_hops.core.steps.protocol import StepResult, format_record
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.store.leases import FENCE_BEATS, LeaseLost

# Protocol of a job, whose other side is a worker (airflow_hops.core.steps.jobs). Files in the job's folder:
# - `running`: locked by this process until it ends; its text (pid, session) is written once. A free lock with text
#   means that the job's process has ended, so no second process may run the step.
# - `attached`: locked by the worker that follows the job. Without it for orphan_timeout_s, the job removes its record
#   and ends; a retry on this machine attaches again before.
# In the store: this process holds the job's lease until its result (airflow_hops.core.store.leases). A retry on another
# machine takes it over, and waits. This process finds out before a beat, and ends everything; if it is overdue, it ends
# by itself, before the retry considers it dead. So two machines never run the step at once.
# _storing serializes the beats, the result, and forks: a rank must not inherit a lock of the store's client.

_LOOK_S = 0.5
_LOCK_ATTEMPTS = 20


class JobKeeper:
    """Holds a job's lock and lease while its step works.

    One thread checks that a worker is attached. Another, which may have to wait for the store, beats.
    """

    def __init__(self, job: Job, store: ArtifactStore) -> None:
        self._job, self._store = job, store
        self._done = threading.Event()
        self._storing = threading.Lock()
        self._lease = job.lease(store)
        self._store_error: BaseException | None = None

    def begin(self) -> bool:
        """Makes this process the job's process; returns whether it should run the step.

        It is not if another process is or was the job's process, or if the job has already been asked to end.
        """
        if not self._lock() or not self._lease.try_take():
            return False
        # Delays forks of ranks while a thread may hold a lock of the store's libraries.
        os.register_at_fork(
            before=self._storing.acquire, after_in_parent=self._storing.release, after_in_child=self._storing.release
        )
        for target in (self._look, self._beat):
            threading.Thread(target=target, name=f"job{target.__name__}", daemon=True).start()
        return True

    def finish(self, result: StepResult) -> None:
        """Releases the lease with the result, for workers on other machines."""
        self._done.set()
        with self._storing:
            try:
                self._lease.note = result.to_dict()
                self._lease.release()
            except (OSError, HopsError) as error:
                _say(f"the job's record {self._job.record} cannot be written: {error}", logging.WARNING)

    def _lock(self) -> bool:
        for _ in range(_LOCK_ATTEMPTS):
            descriptor = lock_for_process(self._job.path / "running")
            if descriptor is not None:
                # Held until this process ends. A second process then sees the text that the first has written.
                if os.fstat(descriptor).st_size:
                    return False
                os.write(descriptor, json.dumps({"pid": os.getpid(), "session": os.getsid(0)}).encode())
                return True
            if lock_holder(self._job.path / "running") is not None:
                return False
            time.sleep(0.05)
        return False

    def _look(self) -> None:
        attached_at = time.monotonic()
        was_attached = True
        while not self._done.wait(_LOOK_S):
            now = time.monotonic()
            attached = lock_holder(self._job.path / "attached") is not None
            if attached:
                attached_at = now
            elif was_attached:
                _say(
                    "no worker follows this step any longer: it continues, and ends unless a retry finds it "
                    f"within {self._job.orphan_timeout_s:g} s",
                    logging.WARNING,
                )
            was_attached = attached
            if now - attached_at > self._job.orphan_timeout_s:
                with contextlib.suppress(Exception):
                    self._store.remove_folder(self._job.record)
                self._end(f"no worker has come back within {self._job.orphan_timeout_s:g} s")
            if self._lease.is_overdue:
                self._end(
                    f"the store has not taken this job's record {self._job.record} for {FENCE_BEATS} beats "
                    f"({self._store_error!r}), and a retry on another machine is about to consider it dead"
                )

    def _beat(self) -> None:
        while not self._done.wait(self._job.beat_s):
            try:
                with self._storing:
                    if self._done.is_set():
                        return
                    self._lease.beat()
            except LeaseLost:
                with contextlib.suppress(Exception):
                    self._lease.release()
                self._end("a retry on another machine takes this job's place")
            except Exception as error:  # _look() checks how long this lasts
                self._store_error = error

    def _end(self, why: str) -> NoReturn:
        _say(f"{why}: the step ends", logging.ERROR)
        if lock_holder(self._job.path / "attached") is None:  # otherwise the worker removes it
            with contextlib.suppress(OSError):
                self._job.remove_folder()
        end_everything()


def _say(text: str, level: int) -> None:
    with contextlib.suppress(OSError):
        sys.stdout.write(format_record(text, level=level) + "\n")
        sys.stdout.flush()

"""Ownership of a study, since two searches that write one record would lose each other's trials."""

# The lease is claimed at the start of a search, and checked when the study's record is written. A job of the same run
# takes it at once, as a retry replaces its predecessor. A job of another run watches the holder, until a heartbeat
# proves that it lives (StudyTaken), or its silence that it has died. A suspended holder that wakes finds a greater
# number in the lease, and fails before it writes.

from __future__ import annotations

import contextlib
import logging
import time

from airflow_hops.core.contract.artifacts import HopsError
from airflow_hops.core.store.leases import Lease
from airflow_hops.extensions.experiments.core.studies import StudyFolder

_POLL_S = 1.0

log = logging.getLogger(__name__)


class StudyTaken(HopsError):
    """Another search owns the study."""


class StudyOwner:
    """Owns a study for one job of a run, by a lease (:mod:`airflow_hops.core.store.leases`)."""

    def __init__(self, folder: StudyFolder, run_id: str) -> None:
        self._uri, self._run_id = f"{folder.uri}/owner", run_id
        self._lease = Lease(folder.store, self._uri, run_id)
        self._beating = contextlib.ExitStack()

    def claim(self) -> None:
        """Claims the study from an earlier job of the same run, or from a dead job of another run.

        Raises:
            StudyTaken: a live job of another run owns it; a retry may succeed after that has ended.
        """
        while not self._lease.try_take(from_holder=self._run_id):
            if self._lease.other_lives:
                raise self._taken(f"run {self._lease.other!r}")
            time.sleep(_POLL_S)
        log.debug("%s: claimed by run %s", self._uri, self._run_id)
        # Also during uploads and the winner's training.
        self._beating.enter_context(self._lease.beating())

    def check(self) -> None:
        """Raises StudyTaken if another job has claimed the study."""
        if self._lease.is_lost:
            raise self._taken("another job")

    def release(self) -> None:
        """Releases the study."""
        self._beating.close()
        self._lease.release()

    def _taken(self, who: str) -> StudyTaken:
        return StudyTaken(
            f"{self._uri}: {who} works on this study; runs that share a study work on it one after the other: set "
            "max_active_runs=1 or max_active_tis_per_dag=1, or give the task retries"
        )

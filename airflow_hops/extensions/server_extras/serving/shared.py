"""The files of a server's workers: the config in effect, and what each worker reports of itself."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import pickle
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc

from airflow_hops.core.processes.files import lock_for_process, lock_holder, write_atomically
from airflow_hops.extensions.server_extras.serving.counts import PastCounts, WorkerCounts
from airflow_hops.serving.endpoint import Endpoint
from airflow_hops.serving.errors import ServingError
from airflow_hops.serving.file_stamp import Stamp
from airflow_hops.serving.flags import Flags
from airflow_hops.serving.models.catalog import Catalog, State, VersionStatus
from airflow_hops.serving.models.loader import Loader
from airflow_hops.serving.monitoring.batches import REGISTRY
from airflow_hops.serving.peers import Peers

# Protocol. The supervisor makes the folder, writes the first config, and starts one worker for each slot.
# - models.config and the traffic file are what is to be served, replaced by rename. Every worker looks at them five
#   times a second. A worker that is asked for a change writes the file, applies it, and answers once the reports of all
#   open workers show the file's stamp or a later one.
# - SLOT.report is written by the slot's worker alone, by rename: at each change and each second. It stays when the
#   worker ends, and the next worker of the slot counts on from it, so sums never decrease; a kill loses a second.
# - SLOT.lock is held from when the worker listens until it ends: only then do others wait for it. Its mtime is the sign
#   of life, set by the thread that writes reports; it needs no room on the disk. A worker never opens its own lock
#   again, which would release it.
# - flush holds the number of the last request to write captured rows, and reports the number that was done.
# - supervisor.json has the supervisor's counts.

log = logging.getLogger(__name__)

LOOK_S = 0.1
REPORT_S = 1.0
CHANGE_S = 30.0
"""Time limit for a new split to take effect in all workers, in seconds."""


@dataclass
class WorkerReport:
    """A worker's state and counts, as it reports them.

    Attributes:
        pid: Process id.
        started_s: Start of the process, in seconds since 1970.
        config: Stamp of the newest config file whose versions have been tried; None before.
        traffic: Stamp of the newest traffic file that was read; None without a file.
        slots: Owners of the slots of sticky keys, by model.
        flush: Number of the last flush of captured rows that has ended, and whether all were written.
        statuses: States of versions, by model.
        requests: Requests that this process answered.
        counts: Counts of the slot, with those of earlier workers.
    """

    pid: int
    started_s: float
    config: Stamp | None
    traffic: Stamp | None
    slots: Mapping[str, tuple[int, ...]]
    flush: tuple[int, bool]
    statuses: Mapping[str, Mapping[int, VersionStatus]]
    requests: int
    counts: WorkerCounts


class SharedFolder:
    """The folder of the files.

    Args:
        folder: Existing folder of the supervisor's user alone.
        slots: Number of workers.
    """

    def __init__(self, folder: Path, slots: int) -> None:
        self.folder, self.slots = folder, slots
        self.config_file = folder / "models.config"
        self.traffic_file = folder / "traffic.json"
        self._supervisor_file, self._flush_file = folder / "supervisor.json", folder / "flush"

    def lock_file(self, slot: int) -> Path:
        """Returns the file that the worker of a slot locks, and touches as its sign of life."""
        return self.folder / f"{slot}.lock"

    def report_file(self, slot: int) -> Path:
        """Returns the file of a slot's report."""
        return self.folder / f"{slot}.report"

    def report(self, slot: int) -> WorkerReport | None:
        """Returns the newest report of a slot, whose worker may have ended; None before the first."""
        try:
            report: WorkerReport = pickle.loads(self.report_file(slot).read_bytes())
        except FileNotFoundError:
            return None
        return report

    def open_reports(self, without: int = -1) -> list[WorkerReport]:
        """Returns the reports of the workers that listen at the ports, except the one of a slot."""
        reports = {slot: self.report(slot) for slot in range(self.slots) if slot != without}
        return [
            report
            for slot, report in reports.items()
            if report is not None and lock_holder(self.lock_file(slot)) == report.pid
        ]

    def total(self) -> WorkerCounts:
        """Returns the counts of all workers, at most a second old; they never decrease."""
        reports = [self.report(slot) for slot in range(self.slots)]
        return WorkerCounts.total(report.counts for report in reports if report is not None)

    def ends(self) -> dict[str, Any]:
        """Returns how many workers ended unexpectedly (``restarts``), how many of them hung, and how the last ended."""
        result: dict[str, Any] = json.loads(self._supervisor_file.read_text())
        return result

    def write_ends(self, restarts: int, hangs: int, last_end: str | None) -> None:
        """Writes what :meth:`ends` returns."""
        write_atomically(
            self._supervisor_file, json.dumps({"restarts": restarts, "hangs": hangs, "last_end": last_end})
        )

    def ask_for_flush(self) -> int:
        """Asks all workers to write their captured rows; returns the number of the request."""
        number = time.time_ns()
        write_atomically(self._flush_file, str(number))
        return number

    def asked_flush(self) -> int:
        """Returns the number of the last request to write captured rows; 0 before the first."""
        with contextlib.suppress(FileNotFoundError):
            return int(self._flush_file.read_text())
        return 0


class Shared(SharedFolder, Peers):
    """The files as one worker sees them.

    Args:
        folder: The folder.
        slots: Number of workers.
        slot: Slot of this worker.
        started_at: Start of the server, in seconds since 1970.
    """

    def __init__(self, folder: Path, slots: int, slot: int, started_at: float) -> None:
        super().__init__(folder, slots)
        self.slot, self.started_at, self.is_first = slot, started_at, slot == 0
        self._process_started_s = time.time()
        self._past = PastCounts()
        earlier = self.report(slot)
        if earlier is not None:
            self._past.add(earlier.counts)
        self._lock: int | None = None
        self._flushed = (self.asked_flush(), True)
        self._flushing: Future[bool] | None = None
        self._flushing_number = 0
        self._pool = ThreadPoolExecutor(1, "flush")
        self._changes: object = None
        self._due_s = 0.0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="report", daemon=True)

    def flags(self, flags: Flags) -> Flags:
        """Returns the flags with the files that the workers share."""
        return replace(
            flags,
            model_config_file=str(self.config_file),
            model_config_file_poll_wait_seconds=2 * LOOK_S,
            write_back_model_config=True,
            traffic_config_file=flags.traffic_config_file or str(self.traffic_file),
            traffic_config_file_poll_wait_seconds=2 * LOOK_S,
        )

    def slots_of_keys(self) -> Mapping[str, tuple[int, ...]]:
        """Returns the owners of the slots of sticky keys in the other workers, by model."""
        return next((report.slots for report in self.open_reports(self.slot)), {})

    def start(self, endpoint: Endpoint, catalog: Catalog, loader: Loader) -> None:
        """Starts to report."""
        self._endpoint, self._catalog, self._loader = endpoint, catalog, loader
        catalog.of_all_processes = lambda model, own: common_statuses(
            [own, *(report.statuses.get(model, {}) for report in self.open_reports(self.slot))]
        )
        catalog.after_change = lambda: self._wait_for_traffic(catalog.traffic.stamp)
        loader.after_reload = self._wait_for_config
        self._write_report()
        self._thread.start()

    def open(self) -> None:
        """Announces that this worker listens at the ports; others wait for it from now on."""
        self._lock = lock_for_process(self.lock_file(self.slot))
        self._due_s = 0.0

    def close(self) -> None:
        """Writes the last report, and stops."""
        self._closing.set()
        self._thread.join()
        self._write_report()

    def wait_for(self, is_done: Callable[[WorkerReport], bool], timeout_s: float, without: int = -1) -> bool:
        """Waits until all open workers are done; returns False if they are not in time."""
        until_s = time.monotonic() + timeout_s
        while not all(map(is_done, self.open_reports_and_own(without))):
            if time.monotonic() > until_s or self._closing.is_set():
                return False
            time.sleep(LOOK_S / 2)
        return True

    def open_reports_and_own(self, without: int = -1) -> list[WorkerReport]:
        """Returns the reports of the open workers; the own lock is not looked at, as that would release it."""
        own = self.report(self.slot) if without != self.slot and self._lock is not None else None
        return [*self.open_reports(self.slot), *([own] if own is not None else [])]

    def _wait_for_traffic(self, stamp: Stamp | None) -> None:
        if stamp is not None:
            self._wait_for_change(lambda report: report.traffic is not None and report.traffic >= stamp)

    def _wait_for_config(self, stamp: Stamp) -> None:
        # Loads may take long; a worker that is stuck is replaced.
        self._wait_for_change(lambda report: report.config is not None and report.config >= stamp, math.inf)

    def _wait_for_change(self, has_it: Callable[[WorkerReport], bool], timeout_s: float = CHANGE_S) -> None:
        if not self.wait_for(has_it, timeout_s, without=self.slot):
            raise ServingError(
                grpc.StatusCode.UNAVAILABLE,
                f"The change is in effect in worker {os.getpid()}, but not yet in all others",
            )

    def _run(self) -> None:
        while not self._closing.wait(LOOK_S):
            try:
                os.utime(self.lock_file(self.slot))
                self._look()
            except Exception:
                log.exception("worker %d could not report; trying again", os.getpid())
                self._closing.wait(REPORT_S)

    def _look(self) -> None:
        if self._flushing is not None and self._flushing.done():
            is_written = self._flushing.exception() is None and self._flushing.result()
            self._flushed, self._flushing = (self._flushing_number, is_written), None
        asked = self.asked_flush()
        if self._flushing is None and asked > self._flushed[0]:
            self._flushing, self._flushing_number = self._pool.submit(self._endpoint.capture.flush), asked
        changes = (self._loader.settled, self._catalog.traffic.stamp, self._flushed, self._catalog.all_statuses())
        if changes != self._changes or time.monotonic() >= self._due_s:
            self._changes = changes
            self._write_report()

    def _write_report(self) -> None:
        self._due_s = time.monotonic() + REPORT_S
        endpoint = self._endpoint
        own = WorkerCounts(endpoint.stats.counts(), endpoint.batches(), endpoint.capture.status())
        counts = WorkerCounts.total([own, self._past.total()])
        counts.metrics = {str(os.getpid()): list(REGISTRY.collect())}
        report = WorkerReport(
            pid=os.getpid(),
            started_s=self._process_started_s,
            config=self._loader.settled,
            traffic=self._catalog.traffic.stamp,
            slots=self._catalog.traffic.slots,
            flush=self._flushed,
            statuses=self._catalog.all_statuses(),
            requests=sum(each.requests for each in own.requests.values()),
            counts=counts,
        )
        write_atomically(self.report_file(self.slot), pickle.dumps(report))


def common_statuses(processes: Sequence[Mapping[int, VersionStatus]]) -> dict[int, VersionStatus]:
    """Returns the state of each version of a model from its states in several processes."""
    numbers = set[int]().union(*processes)
    return {number: _common([statuses.get(number) for statuses in processes]) for number in numbers}


def _common(statuses: Sequence[VersionStatus | None]) -> VersionStatus:
    """Returns the state of a version that has these states in several processes; None where it is not known yet.

    It is available if it is everywhere, and has ended if it has everywhere that knows it.
    """
    by_state = {status.state: status for status in statuses if status is not None}
    available = by_state.get(State.AVAILABLE)
    if available is not None and None in statuses:
        return replace(available, state=State.LOADING)
    failed = next((status for status in statuses if status is not None and status.error is not None), None)
    for state in (State.LOADING, State.START, State.UNLOADING):
        if state in by_state:
            return by_state[state]
    if available is not None and State.END in by_state and failed is None:
        return replace(available, state=State.UNLOADING)
    return failed or available or by_state[State.END]

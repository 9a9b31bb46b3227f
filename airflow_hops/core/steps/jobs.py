"""Jobs: steps that outlive the worker that started them, so that a retry continues them.

Only the standard library is imported, since both sides use this module. A job is a private folder on its machine and a
record in the store. The folder contains ``job.json``, ``spec.json``, ``output.log``, ``result.json``, and two
files that are locked while a process lives, since locks, unlike process ids, are unambiguous: ``running`` by the step,
``attached`` by the worker that follows it, which writes into it how far it has read the log. The record is a lease
(:mod:`airflow_hops.core.store.leases`), by which workers on other machines see whether the job lives, take its result,
or ask it to end.
"""

# Who writes what, in the order of a job's life:
# 1. The worker writes ``spec.json`` and ``job.json``, and Airflow stores the job for retries; then the job starts.
# 2. The step locks ``running`` until it ends, writes its session into it, and appends to ``output.log``.
# 3. The job takes its lease in the store, beats, and releases it with its result as the note.
# 4. The step writes ``result.json`` before it ends; a file ``running`` with content, unlocked, and without a result,
#    means that the step was killed.
# 5. A worker locks ``attached`` while it follows the job. A kill of the worker only releases this lock, and the job
#    continues; without a new worker within ``orphan_timeout_s`` it ends.
# 6. A worker elsewhere takes the lease over: the job ends itself at its next beat, or when it cannot beat for too long,
#    before it counts as dead. So no two jobs run. The lease's second number stays, in case a dead machine comes back.

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.store.leases import BEAT_S, Lease

JOB_FILE = "job.json"
REMOVED = ".removed"
"""Suffix of a job's folder that is being removed: half of it would look like a job that has not begun."""
_HOST_VARIABLE = "HOPS_HOST"


@dataclass(frozen=True)
class Job:
    """A step that outlives its worker.

    Attributes:
        id: Unique id, also the step's id.
        try_number: The try of the task that started it.
        host: The machine that it runs on.
        folder: Its folder on that machine.
        fingerprint: Fingerprint of the step's code, parameters and inputs; a retry with others starts another job.
        record: Address of its lease in the store.
        orphan_timeout_s: Seconds without a worker after which it ends by itself.
        beat_s: Seconds between two beats of its lease.
    """

    id: str
    step: str
    try_number: int
    host: str
    folder: str
    fingerprint: str
    record: str
    orphan_timeout_s: float
    beat_s: float = BEAT_S

    @property
    def path(self) -> Path:
        """Returns the folder as a path."""
        return Path(self.folder)

    @property
    def is_here(self) -> bool:
        """Returns whether the job's folder is on this machine."""
        if self.host != this_host():
            return False
        try:
            status = self.path.lstat()
        except OSError:
            return False
        return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()

    def remove_folder(self) -> None:
        """Removes its folder, which disappears at once."""
        shutil.rmtree(self.path.rename(f"{self.path}{REMOVED}"), ignore_errors=True)

    def lease(self, store: ArtifactStore) -> Lease:
        """Returns its lease."""
        return Lease(store, self.record, beat_s=self.beat_s)

    def to_dict(self) -> dict[str, Any]:
        """Returns the JSON value that Airflow stores for the next try."""
        return asdict(self)

    @classmethod
    def from_dict(cls, value: Any) -> Job | None:
        """Reads the JSON value; None if it is not a job."""
        try:
            return cls(**value)
        except TypeError:
            return None

    @classmethod
    def read(cls, folder: Path) -> Job | None:
        """Reads the job in a folder; None if the folder's step is not a job."""
        try:
            return cls.from_dict(json.loads((folder / JOB_FILE).read_text()))
        except (OSError, ValueError):
            return None


def this_host() -> str:
    """Returns this machine's name, by which jobs are located; the variable ``HOPS_HOST`` overrides it."""
    return os.environ.get(_HOST_VARIABLE) or socket.gethostname()

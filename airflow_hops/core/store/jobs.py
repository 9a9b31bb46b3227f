"""Jobs: steps that outlive the worker that started them, so that a retry continues them.

Only the standard library is imported, since both sides use this module. A job is a private folder on its machine and a
small record in the store. The folder contains ``job.json``, ``spec.json``, ``output.log``, ``result.json``, and two
files that are locked while a process lives, since locks, unlike process ids, are unambiguous: ``running`` by the step,
``attached`` by the worker that follows it. The record shows the job's state and beats
(:mod:`airflow_hops.core.store.leases`) to workers on other machines, which can ask it to end by a file beside the
record.
"""

# Who writes what, in the order of a job's life:
# 1. The worker writes ``spec.json`` and ``job.json``, and Airflow stores the job for retries; then the job starts.
# 2. The step locks ``running`` until it ends, writes its session into it, and appends to ``output.log``.
# 3. The job writes its record in the store every ``beat_s`` seconds, and the last time with its result.
# 4. The step writes ``result.json`` before it ends; a file ``running`` with content, unlocked, and without a result,
#    means that the step was killed.
# 5. A worker locks ``attached`` while it follows the job. A kill of the worker only releases this lock, and the job
#    continues; without a new worker within ``orphan_timeout_s`` it ends.
# 6. A worker elsewhere writes ``.takeover`` and waits until the record shows the end, or has not changed for
#    ``silence_s``. A job that could not write its record for ``fence_s``, which is shorter, ends: so no two jobs run.

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from airflow_hops.core.contract.protocol import StepResult
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.store.leases import BEAT_S, DEAD_BEATS, FENCE_BEATS

JOB_FILE = "job.json"
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
        record: Address of its record in the store.
        orphan_timeout_s: Seconds without a worker after which it ends by itself.
        beat_s: Seconds between two heartbeats in its record.
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
    def takeover(self) -> str:
        """Returns the address of the file by which a worker on another machine asks the job to end."""
        return f"{self.record.removesuffix('.json')}.takeover"

    @property
    def silence_s(self) -> float:
        """Returns the seconds without a heartbeat after which a job counts as dead."""
        return DEAD_BEATS * self.beat_s

    @property
    def fence_s(self) -> float:
        """Returns the seconds after which a job that cannot write its record ends, before others consider it dead."""
        return FENCE_BEATS * self.beat_s

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


@dataclass(frozen=True)
class JobRecord:
    """The state of a job in the store.

    Attributes:
        state: ``running``; ``succeeded``; or ``ended``, without success.
        beat: Increases with each heartbeat.
        result: The step's result, once there is one.
    """

    state: str
    beat: int = 0
    result: Mapping[str, Any] | None = None

    def write(self, job: Job, store: ArtifactStore) -> None:
        """Writes the job's record."""
        store.write_text(job.record, json.dumps({**asdict(self), "job": job.to_dict()}))

    @classmethod
    def read(cls, job: Job, store: ArtifactStore) -> JobRecord | None:
        """Reads the job's record; None if there is none."""
        with contextlib.suppress(FileNotFoundError, ValueError):
            value = store.read_json(job.record)
            return cls(value["state"], value["beat"], value["result"])
        return None

    def step_result(self) -> StepResult | None:
        """Returns the step's result, once there is one."""
        return StepResult.from_dict(self.result) if self.result is not None else None


def this_host() -> str:
    """Returns this machine's name, by which jobs are located; the variable ``HOPS_HOST`` overrides it."""
    return os.environ.get(_HOST_VARIABLE) or socket.gethostname()

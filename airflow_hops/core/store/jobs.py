"""Jobs: steps that outlive the worker that started them, so that a retry goes on with them.

Standard library only; both sides import it. A job is a private folder on its machine and a small record in the store.

In the folder: ``job.json`` (what the job is), ``spec.json``, ``output.log`` (what the step says), ``result.json``, and
two files that are locked for as long as a process lives, since a lock, unlike a process id, cannot be mistaken:
``running`` by the step, ``attached`` by the worker that follows it. The record says to workers of other machines how
the job is doing; one of them may ask it to end by a file beside it.
"""

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

JOB_FILE = "job.json"
_HOST_VARIABLE = "HOPS_HOST"


@dataclass(frozen=True)
class Job:
    """A step that outlives its worker.

    Attributes:
        id: No other job has it; the step's id, too.
        step: The step's name, for people.
        try_number: Which try of the task it belongs to.
        host: The machine that it runs on.
        folder: Its folder there.
        fingerprint: Of the step's code, parameters and inputs: a retry of another step is another job.
        record: Where its record lies in the store.
        orphan_timeout_s: Seconds without a worker after which it ends by itself.
        beat_s: Seconds between two signs of life in its record.
    """

    id: str
    step: str
    try_number: int
    host: str
    folder: str
    fingerprint: str
    record: str
    orphan_timeout_s: float
    beat_s: float = 5.0

    @property
    def path(self) -> Path:
        """The folder."""
        return Path(self.folder)

    @property
    def takeover(self) -> str:
        """Returns the file by which a worker of another machine asks the job to end."""
        return f"{self.record.removesuffix('.json')}.takeover"

    @property
    def silence_s(self) -> float:
        """Seconds after which a record that does not change is that of a dead job."""
        return 12 * self.beat_s

    @property
    def fence_s(self) -> float:
        """Seconds after which a job that cannot write its record ends: others are about to take it for dead."""
        return 8 * self.beat_s

    @property
    def is_here(self) -> bool:
        """Whether the job's folder is on this machine."""
        if self.host != this_host():
            return False
        try:
            status = self.path.lstat()
        except OSError:
            return False
        return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()

    def to_dict(self) -> dict[str, Any]:
        """The JSON value that Airflow keeps for the next try."""
        return asdict(self)

    @classmethod
    def from_dict(cls, value: Any) -> Job | None:
        """The inverse of :meth:`to_dict`; None for what is no job."""
        try:
            return cls(**value)
        except TypeError:
            return None

    @classmethod
    def read(cls, folder: Path) -> Job | None:
        """The job in a folder, or None where a step is none."""
        try:
            return cls.from_dict(json.loads((folder / JOB_FILE).read_text()))
        except (OSError, ValueError):
            return None


@dataclass(frozen=True)
class JobRecord:
    """The state of a job, as the store records it.

    Attributes:
        state: ``running``; ``succeeded``; or ``ended``, without success.
        beat: Rises with each sign of life.
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
        """The job's record, or None where there is none."""
        with contextlib.suppress(FileNotFoundError, ValueError):
            value = store.read_json(job.record)
            return cls(value["state"], value["beat"], value["result"])
        return None

    def step_result(self) -> StepResult | None:
        """The step's result, once there is one."""
        return StepResult.from_dict(self.result) if self.result is not None else None


def this_host() -> str:
    """This machine's name, by which a job knows where it is; the variable ``HOPS_HOST`` overrides it."""
    return os.environ.get(_HOST_VARIABLE) or socket.gethostname()

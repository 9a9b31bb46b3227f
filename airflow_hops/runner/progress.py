"""Progress of a running task and its error, written to the store for other processes.

A running task writes the reports of its step to ``<store>/_state/progress/<dag>/<run>/<task>.json``. The file is
removed when the task succeeds, and has the error if it fails. Only the worker writes it, and failures to write it do
not affect the task.
"""

# Only the worker of the running try writes the file, and a try after it replaces the file, so no lock is needed. A task
# that was deferred continues with the reports of the same try. A killed worker leaves the file: pages show its reports
# until the next try begins.

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_hops.core.artifacts.artifact import Producer
from airflow_hops.core.errors import UnreadableFile
from airflow_hops.core.json_fields import JsonFields
from airflow_hops.core.steps.protocol import Line
from airflow_hops.core.store import ArtifactStore

_POINTS = 400
_LOCAL_PAUSE_S, _REMOTE_PAUSE_S = 0.5, 5.0

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ProgressPoint(JsonFields):
    """A report of a step at one moment.

    Attributes:
        at: Seconds since the epoch.
        progress: Completed share, 0 to 1; None if the report has only metrics.
        text: Description of the completed work.
        metrics: Current metrics (loss, rows per second).
    """

    at: float
    progress: float | None
    text: str
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class TaskProgress(JsonFields):
    """The reports of one try of a task.

    Attributes:
        try_number: The try.
        began_at: Start of the try, seconds since the epoch.
        points: The reports in order, thinned out evenly if there are very many.
        error: Error of a failed task, else None.
    """

    try_number: int
    began_at: float
    points: tuple[ProgressPoint, ...] = ()
    error: str | None = None

    @classmethod
    def read(cls, store: ArtifactStore, producer: Producer) -> TaskProgress | None:
        """Reads the progress of a task instance; None if there is none.

        Raises:
            HopsError: the store, or the file, cannot be read.
        """
        uri = _address(store, producer)
        try:
            return cls.from_dict(store.read_json(uri))
        except FileNotFoundError:
            return None
        except (TypeError, KeyError) as error:
            raise UnreadableFile(uri, f": not the progress of a task ({error}); restore it, or remove it") from error


class ProgressWriter:
    """Writes a task's progress, at most every half second (every five in a remote store)."""

    def __init__(self, store: ArtifactStore, producer: Producer) -> None:
        self._store, self._producer = store, producer
        self._began_at = time.time()
        self._points: list[ProgressPoint] = []
        self._pause_s = _LOCAL_PAUSE_S if store.is_local else _REMOTE_PAUSE_S
        self._written_at = float("-inf")

    def hear(self, line: Line) -> None:
        """Records the progress in a line of the step's output."""
        if line.progress is None and not line.metrics:
            return
        if not self._points:
            self._points = self._earlier_points()
        self._points.append(ProgressPoint(time.time(), line.progress, line.text, dict(line.metrics)))
        if len(self._points) > _POINTS:
            self._points = [*self._points[:-1:2], self._points[-1]]
        if time.monotonic() - self._written_at >= self._pause_s or line.progress == 1.0:
            self._write(None)

    def failed(self, why: str) -> None:
        """Writes the error of the task."""
        if not self._points:  # it may have reported before it was deferred
            self._points = self._earlier_points()
        self._write(why)

    def succeeded(self) -> None:
        """Deletes the progress file; the artifact replaces it."""
        try:
            self._store.remove_text(_address(self._store, self._producer))
        except Exception as problem:  # whatever the file system's own client raises
            log.debug("the task's progress cannot be removed: %s", problem)

    def _earlier_points(self) -> list[ProgressPoint]:
        """Reads the progress that this try wrote before it was deferred."""
        try:
            earlier = TaskProgress.read(self._store, self._producer)
        except Exception as problem:  # whatever the file system's own client raises
            log.debug("the task's progress cannot be read: %s", problem)
            return []
        if earlier is None or earlier.try_number != self._producer.try_number:
            return []
        self._began_at = earlier.began_at
        return list(earlier.points)

    def _write(self, error: str | None) -> None:
        progress = TaskProgress(self._producer.try_number, self._began_at, tuple(self._points), error)
        self._written_at = time.monotonic()
        try:
            self._store.write_text(_address(self._store, self._producer), json.dumps(progress.to_dict()))
        except Exception as problem:  # whatever the file system's own client raises
            log.debug("the task's progress cannot be written: %s", problem)


def _address(store: ArtifactStore, producer: Producer) -> str:
    return f"{store.internal('_state', 'progress', producer.dag_id, producer.run_id, producer.task)}.json"

"""Keeps what was asked and answered, row by row, in Parquet files.

The request path puts references into a bounded buffer and goes on; one thread turns them into columns and files. A file
holds rows of one model, one version and one signature, and is complete when it appears: it is written under a name that
starts with a dot, synced and renamed. Names are the time of that rename, and each is later than every name in the
folder before it, so that a reader who remembers the last name it has seen misses nothing.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

from airflow_hops.serving.capture.columns import CapturedCall, CapturedRequest, CaptureMode, decode, to_table

log = logging.getLogger(__name__)

_NAME_FORMAT = "%Y%m%dT%H%M%S.%fZ"
_STALE_TEMPORARY_S = 3600


@dataclass(frozen=True)
class CaptureOptions:
    """What is captured, and when a file is closed.

    Attributes:
        base_path: Folder that holds one folder a model; None captures nothing.
        mode: Which of the columns ``input.*`` and ``output.*`` are written.
        sampling_percent: Share of the requests that is captured, 0 to 100.
        roll_rows: Rows after which a file is closed.
        roll_seconds: Seconds after which a file with any row is closed.
        buffer_rows: Rows that wait in memory at most; what comes beyond is dropped and counted.
    """

    base_path: Path | None = None
    mode: CaptureMode = "all"
    sampling_percent: float = 100.0
    roll_rows: int = 100_000
    roll_seconds: float = 60.0
    buffer_rows: int = 500_000

    @property
    def enabled(self) -> bool:
        """Whether anything is captured."""
        return self.base_path is not None and self.mode != "none" and self.sampling_percent > 0


@dataclass
class CaptureCounts:
    """Rows of one model since the server started."""

    captured_rows: int = 0
    dropped_rows: int = 0
    written_rows: int = 0
    failed_rows: int = 0
    files: int = 0


class Capture:
    """Captures requests; one for the whole server.

    Args:
        options: What and when.

    Raises:
        OSError: The base path cannot be made or written.
    """

    def __init__(self, options: CaptureOptions) -> None:
        self.options = options
        self._changed = threading.Condition()
        self._waiting: deque[CapturedCall] = deque()
        self._waiting_rows = 0
        self._requests = 0
        self._counts: dict[str, CaptureCounts] = {}
        self._flushes_asked = 0
        self._flushes_done = 0
        self._closing = False
        self._open: dict[tuple[Any, ...], list[CapturedRequest]] = {}
        self._open_rows: dict[tuple[Any, ...], int] = {}
        self._open_since_s: dict[tuple[Any, ...], float] = {}
        self._last_name_at: dict[str, datetime] = {}
        self._thread = threading.Thread(target=self._run, name="capture", daemon=True)
        if options.enabled:
            assert options.base_path is not None
            options.base_path.mkdir(parents=True, exist_ok=True)
            if not os.access(options.base_path, os.W_OK):
                raise PermissionError(f"{options.base_path} is not writable")
            self._thread.start()

    def offer(self, call: CapturedCall) -> None:
        """Takes one answered request, or drops it where the buffer is full; never waits for the disk."""
        options = self.options
        if not options.enabled:
            return
        with self._changed:
            # Exact shares, evenly spread: the n-th request is in when n% of the way crosses a whole number.
            before = int(self._requests * options.sampling_percent / 100)
            self._requests += 1
            if int(self._requests * options.sampling_percent / 100) == before:
                return
            counts = self._counts_of(call.model)
            if self._closing or self._waiting_rows + call.rows > options.buffer_rows:
                counts.dropped_rows += call.rows
                return
            counts.captured_rows += call.rows
            self._waiting.append(call)
            self._waiting_rows += call.rows
            if self._waiting_rows >= options.roll_rows and self._waiting_rows - call.rows < options.roll_rows:
                self._changed.notify_all()

    def flush(self, timeout_s: float = 60.0) -> bool:
        """Writes what was captured so far to files and waits for them.

        Returns:
            Whether it was done within the time.
        """
        if not self.options.enabled:
            return True
        with self._changed:
            self._flushes_asked += 1
            ticket = self._flushes_asked
            self._changed.notify_all()
            return self._changed.wait_for(lambda: self._flushes_done >= ticket, timeout_s)

    def close(self, timeout_s: float = 60.0) -> bool:
        """Flushes and takes nothing more."""
        if not self.options.enabled:
            return True
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def status(self) -> dict[str, Any]:
        """Returns the options in effect and the counts by model."""
        with self._changed:
            return {
                "enabled": self.options.enabled,
                "base_path": str(self.options.base_path) if self.options.base_path else None,
                "mode": self.options.mode,
                "sampling_percent": self.options.sampling_percent,
                "buffered_rows": self._waiting_rows + sum(self._open_rows.values()),
                "models": {model: asdict(counts) for model, counts in sorted(self._counts.items())},
            }

    def _counts_of(self, model: str) -> CaptureCounts:
        counts = self._counts.get(model)
        if counts is None:
            counts = self._counts[model] = CaptureCounts()
        return counts

    def _run(self) -> None:
        # A tick short enough that files close on time, long enough to cost nothing.
        tick_s = min(1.0, max(0.05, self.options.roll_seconds / 4))
        while True:
            with self._changed:
                if not (self._closing or self._flushes_asked > self._flushes_done):
                    self._changed.wait(tick_s)
                closing, flushes = self._closing, self._flushes_asked
                taken, self._waiting = self._waiting, deque()
            for call in taken:
                request = decode(call, self.options.mode)
                key = request.key
                self._open.setdefault(key, []).append(request)
                self._open_rows[key] = self._open_rows.get(key, 0) + request.rows
                self._open_since_s.setdefault(key, time.monotonic())
            self._write_due(everything=closing or flushes > self._flushes_done)
            with self._changed:
                self._waiting_rows = sum(request.rows for request in self._waiting) + sum(self._open_rows.values())
                self._flushes_done = flushes
                self._changed.notify_all()
            if closing:
                return

    def _write_due(self, everything: bool) -> None:
        for key in list(self._open):
            aged = time.monotonic() - self._open_since_s[key] >= self.options.roll_seconds
            while key in self._open and (everything or aged or self._open_rows[key] >= self.options.roll_rows):
                batch = self._take(key)
                rows = sum(request.rows for request in batch)
                counts = self._counts_of(batch[0].model)
                try:
                    path = self._write(batch)
                except Exception as error:
                    counts.failed_rows += rows
                    log.error("capture: %d rows of model %s are lost: %s", rows, batch[0].model, error)
                else:
                    counts.written_rows += rows
                    counts.files += 1
                    log.debug("capture: %d rows in %s", rows, path)

    def _take(self, key: tuple[Any, ...]) -> list[CapturedRequest]:
        """Takes one file's worth of requests of a key, whole requests only."""
        requests = self._open[key]
        rows = count = 0
        while count < len(requests) and rows < self.options.roll_rows:
            rows += requests[count].rows
            count += 1
        batch, rest = requests[:count], requests[count:]
        if rest:
            self._open[key] = rest
            self._open_rows[key] -= rows
        else:
            del self._open[key], self._open_rows[key], self._open_since_s[key]
        return batch

    def _write(self, batch: list[CapturedRequest]) -> Path:
        import pyarrow.parquet as pq

        table = to_table(batch)
        assert self.options.base_path is not None
        folder = self.options.base_path / folder_name(batch[0].model)
        if batch[0].model not in self._last_name_at:
            folder.mkdir(parents=True, exist_ok=True)
            self._last_name_at[batch[0].model] = _newest_name(folder)
            _remove_stale_temporaries(folder)
        at = max(datetime.now(UTC), self._last_name_at[batch[0].model] + timedelta(microseconds=1))
        self._last_name_at[batch[0].model] = at
        path = folder / f"{at.strftime(_NAME_FORMAT)}-v{batch[0].version}-{os.getpid()}.parquet"
        temporary = path.with_name(f".{path.name}.tmp")
        try:
            with temporary.open("wb") as file:
                pq.write_table(table, file)
                file.flush()
                os.fsync(file.fileno())
            temporary.rename(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return path


def folder_name(model: str) -> str:
    """Returns the name of a model's folder: its own, with what would leave or hide the folder escaped."""
    escaped = quote(model, safe="")
    return f"%2E{escaped[1:]}" if escaped.startswith(".") else escaped


def _newest_name(folder: Path) -> datetime:
    """Time in the newest name, so that a clock that was set back cannot put a new file before an old one."""
    newest = datetime.min.replace(tzinfo=UTC)
    for path in folder.glob("*.parquet"):
        try:
            at = datetime.strptime(path.name.partition("-")[0], _NAME_FORMAT).replace(tzinfo=UTC)
        except ValueError:
            continue
        newest = max(newest, at)
    return newest


def _remove_stale_temporaries(folder: Path) -> None:
    for path in folder.glob(".*.parquet.tmp"):
        if time.time() - path.stat().st_mtime > _STALE_TEMPORARY_S:
            path.unlink(missing_ok=True)

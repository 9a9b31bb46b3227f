"""Sums the counts of all workers, and reports them under the names of a server with one process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prometheus_client.core import Metric

from airflow_hops.serving.capture.spool import NO_COUNTS, WriterState
from airflow_hops.serving.monitoring.batches import BatchTotals
from airflow_hops.serving.monitoring.stats import RequestCounts, RequestStats, add_counts, add_to
from airflow_hops.serving.request_kind import RequestKind

_SUMMED = ("spool_bytes", "spool_bytes_limit", "writer_restarts")


@dataclass
class WorkerCounts:
    """Counts of one worker since it started, or of several workers.

    Attributes:
        requests: Counts by kind of request.
        batches: Totals of batches.
        capture: Response to ``GET /v1/capture``.
        metrics: Other metrics by process id; not summed.
    """

    requests: dict[RequestKind, RequestCounts] = field(default_factory=dict)
    batches: BatchTotals = field(default_factory=dict)
    capture: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, list[Metric]] = field(default_factory=dict)

    @classmethod
    def total(cls, parts: Iterable[WorkerCounts]) -> WorkerCounts:
        """Returns the sums."""
        total = cls()
        for part in parts:
            for kind, counts in part.requests.items():
                add_to(total.requests, kind, counts)
            add_counts(total.batches, part.batches)
            total.capture = _capture(total.capture, part.capture)
            total.metrics |= part.metrics
        return total

    def past(self) -> WorkerCounts:
        """Returns the counts to keep after the worker has ended."""
        models = {model: dict(counts) for model, counts in self.capture.get("models", {}).items()}
        return WorkerCounts(self.requests, self.batches, {"models": models} if models else {})


class PastCounts:
    """Counts of workers that have ended, whose captured requests are still being written from their spools to files."""

    def __init__(self) -> None:
        self._total = WorkerCounts()
        self._left: list[tuple[Path, WorkerCounts]] = []

    def add(self, counts: WorkerCounts) -> None:
        """Adds the counts of a worker that has ended."""
        self._left.append((Path(counts.capture.get("spool_path", os.devnull)), counts.past()))

    def total(self) -> WorkerCounts:
        """Returns the sums, with the current numbers of captured requests that are in files."""
        left, self._left = self._left, []
        for spool, counts in left:
            if _note_written(spool, counts.capture):
                self._left.append((spool, counts))
            else:
                self._total = WorkerCounts.total([self._total, counts])
        return WorkerCounts.total([self._total, *(counts for _, counts in self._left)])


class WorkerStats(RequestStats):
    """Counts of the requests of all workers."""

    def __init__(self, read: Callable[[], WorkerCounts], started_at: float) -> None:
        super().__init__()
        self._read = read
        self.started_at = started_at

    def counts(self) -> dict[RequestKind, RequestCounts]:
        """Returns the current counts."""
        return dict(sorted(self._read().requests.items()))


def _note_written(spool: Path, capture: dict[str, Any]) -> bool:
    """Updates the counts of a worker's captured requests from its spool; returns whether the spool still exists."""
    is_left = spool.is_dir()
    models = capture.setdefault("models", {})
    for model, written in WriterState.load(spool).models.items() if is_left else ():
        counts = models.setdefault(model, dict(NO_COUNTS))
        counts.update({name: max(counts[name], count) for name, count in written.items()})
        counts["captured_rows"] = max(counts["captured_rows"], counts["written_rows"] + counts["failed_rows"])
        counts["captured_labels"] = max(counts["captured_labels"], counts["written_labels"])
    if not is_left:  # the writer removes the spool when everything is in files
        for counts in models.values():
            counts["written_rows"] = max(counts["written_rows"], counts["captured_rows"] - counts["failed_rows"])
            counts["written_labels"] = max(counts["written_labels"], counts["captured_labels"])
    return is_left


def _capture(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    total = {**second, **first, "models": {model: dict(counts) for model, counts in first.get("models", {}).items()}}
    for model, counts in second.get("models", {}).items():
        add_counts(total["models"].setdefault(model, {}), counts)
    for name in _SUMMED:
        if name in total:
            total[name] = first.get(name, 0) + second.get(name, 0)
    if "lag_seconds" in total:
        total["lag_seconds"] = max(first.get("lag_seconds", 0.0), second.get("lag_seconds", 0.0))
        total["error"] = first.get("error") or second.get("error")
    return total

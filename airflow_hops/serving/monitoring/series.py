"""Requests, errors and latencies of the last hour by model and version, and batches, in steps of ten seconds.

The request path knows nothing of it: a thread takes the differences of what :class:`RequestStats` counts anyway. A step
holds the versions that were asked in it, so that an hour costs at most 360 small entries for each version.
"""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_hops.serving.errors import invalid_argument
from airflow_hops.serving.monitoring.stats import EMPTY, RequestCounts, RequestStats, add_to, summary
from airflow_hops.serving.routes import HttpRequest, HttpResponse, Routes, json_response

STEP_S = 10.0
STEPS = 360

_Key = tuple[str, int]


@dataclass(frozen=True)
class BatchTotals:
    """Totals of a server's batches since it started.

    Attributes:
        batches: Batches.
        rows: Their rows, padding included.
        requests: Requests in them.
        wait_s: Seconds that these waited, together.
        sizes: ``(upper, batches)`` of the sizes that there were, at most ``upper`` rows and more than half of it; None
            for what is larger than all bounds.
    """

    batches: int
    rows: int
    requests: int
    wait_s: float
    sizes: tuple[tuple[float | None, int], ...]


@dataclass(frozen=True)
class Step:
    """The counts of one step.

    Attributes:
        at_s: Its end, seconds since 1970.
        seconds: How long it was.
        asked: By model and version, counts and latencies; those alone that were asked.
        batches: As :class:`BatchTotals`, of the step; None if nothing is batched.
    """

    at_s: float
    seconds: float
    asked: Mapping[_Key, Mapping[str, Any]]
    batches: Mapping[str, float] | None


class RequestSeries:
    """The last hour in steps; safe to read while its thread adds to it.

    Args:
        stats: What counts requests.
        batches: Gives what was batched; None if nothing was.
    """

    def __init__(self, stats: RequestStats, batches: Callable[[], BatchTotals | None]) -> None:
        self._stats = stats
        self._batches = batches
        self._steps: deque[Step] = deque(maxlen=STEPS)
        self._before = _counted(stats)
        self._batched = batches()
        self._at_s = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="request-series", daemon=True)

    def start(self) -> None:
        """Adds a step every ten seconds from now on."""
        self._thread.start()

    def close(self) -> None:
        """Ends that."""
        self._stop.set()

    def add_step(self) -> None:
        """Ends the step under way, and begins the next."""
        at_s, now, batched = time.monotonic(), _counted(self._stats), self._batches()
        nothing = RequestCounts()
        changes = {key: (total, self._before.get(key, nothing)) for key, total in now.items()}
        asked = {
            key: summary(total - before)
            for key, (total, before) in changes.items()
            if total.requests != before.requests
        }
        batches = _batches_between(self._batched, batched)
        self._steps.append(Step(round(time.time(), 3), at_s - self._at_s, asked, batches))
        self._before, self._batched, self._at_s = now, batched, at_s

    def report(self, model: str = "", since_s: float = 0.0) -> dict[str, Any]:
        """Returns what ``GET /v1/stats/series`` answers: columns of one length, an element a step, the oldest first.

        Args:
            model: Of this model alone, unless empty.
            since_s: Steps that ended later, seconds since 1970.
        """
        steps = [step for step in list(self._steps) if step.at_s > since_s]
        keys = sorted({key for step in steps for key in step.asked if model in ("", key[0])})
        models: dict[str, dict[str, Any]] = {}
        for key in keys:
            columns = [step.asked.get(key, EMPTY) for step in steps]
            models.setdefault(key[0], {"versions": {}})["versions"][str(key[1])] = {
                name: [each[name] for each in columns] for name in _COLUMNS
            }
        batched = self._batches()
        return {
            "at": [step.at_s for step in steps],
            "seconds": [round(step.seconds, 3) for step in steps],
            "models": models,
            "batching": batched
            and {
                "sizes": [list(size) for size in batched.sizes],
                **{name: [(step.batches or {}).get(name, 0) for step in steps] for name in _BATCH_COLUMNS},
            },
        }

    def _run(self) -> None:
        due_s = self._at_s
        while True:
            # From one grid point to the next, so that the steps do not drift; those that were slept through are one.
            due_s += STEP_S * (1 + max(0.0, time.monotonic() - due_s) // STEP_S)
            if self._stop.wait(due_s - time.monotonic()):
                return
            self.add_step()


def add_routes(routes: Routes, series: RequestSeries) -> None:
    """Adds ``GET /v1/stats/series?model=&since=``."""

    def show(request: HttpRequest, match: re.Match[str]) -> HttpResponse:
        since = request.query.get("since") or "0"
        try:
            since_s = float(since)
        except ValueError:
            raise invalid_argument(f"since is {since!r}; expected seconds since 1970") from None
        return json_response(series.report(request.query.get("model", ""), since_s))

    routes.add("GET /v1/stats/series", show)


_COLUMNS = ("requests", "errors", "client_errors", "rows", "latency_ms_p50", "latency_ms_p99")
_BATCH_COLUMNS = ("batches", "rows", "requests", "wait_s")


def _counted(stats: RequestStats) -> dict[_Key, RequestCounts]:
    totals: dict[_Key, RequestCounts] = {}
    for kind, counts in stats.counts().items():
        if kind.version:
            add_to(totals, (kind.model, kind.version), counts)
    return totals


def _batches_between(before: BatchTotals | None, now: BatchTotals | None) -> dict[str, float] | None:
    if now is None:
        return None
    return {name: getattr(now, name) - (getattr(before, name) if before is not None else 0) for name in _BATCH_COLUMNS}

"""Time series of requests, errors, latencies and batches in the last hour, in steps of ten seconds.

A thread derives the steps from the counts in :class:`RequestStats`, so requests cost nothing extra. A step holds only
versions with requests: at most 360 small entries per version and hour.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_hops.serving.access import Right
from airflow_hops.serving.errors import invalid_argument
from airflow_hops.serving.monitoring.batches import BatchTotals
from airflow_hops.serving.monitoring.stats import EMPTY, RequestCounts, RequestStats, add_to, summary
from airflow_hops.serving.routes import HttpRequest, HttpResponse, Routes, json_response

# One thread appends steps to a deque of fixed length; readers copy it. A step holds differences of counts, so nothing
# is counted twice, and a step that was missed (a busy or suspended machine) is merged into the next one, with its true
# length.

STEP_S = 10.0
STEPS = 360

_Key = tuple[str, int]


@dataclass(frozen=True)
class Step:
    """The counts of one step.

    Attributes:
        at_s: End of the step, in seconds since 1970.
        seconds: Length of the step.
        asked: Model and version to counts and latencies; only versions with requests.
        batches: Differences of :data:`BatchTotals`.
    """

    at_s: float
    seconds: float
    asked: Mapping[_Key, Mapping[str, Any]]
    batches: Mapping[str, float]


class RequestSeries:
    """The steps of the last hour; can be read while its thread adds steps."""

    def __init__(self, stats: RequestStats, batches: Callable[[], BatchTotals]) -> None:
        self._stats = stats
        self._batches = batches
        self._steps: deque[Step] = deque(maxlen=STEPS)
        self._before = _counted(stats)
        self._batched = batches()
        self._at_s = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="request-series", daemon=True)

    def start(self) -> None:
        """Starts the thread that adds a step every ten seconds."""
        self._thread.start()

    def add_step(self, ended_s: float | None = None) -> None:
        """Ends the current step, by default now (seconds since 1970), and begins the next."""
        at_s, now, batched = time.monotonic(), _counted(self._stats), self._batches()
        nothing = RequestCounts()
        changes = {key: (total, self._before.get(key, nothing)) for key, total in now.items()}
        asked = {
            key: summary(total - earlier)
            for key, (total, earlier) in changes.items()
            if total.requests != earlier.requests
        }
        batches = {name: batched.get(name, 0) - self._batched.get(name, 0) for name in _BATCH_COLUMNS}
        ended_s = time.time() if ended_s is None else ended_s
        self._steps.append(Step(round(ended_s, 3), at_s - self._at_s, asked, batches))
        self._before, self._batched, self._at_s = now, batched, at_s

    def report(self, model: str = "", since_s: float = 0.0) -> dict[str, Any]:
        """Returns the response to ``GET /v1/stats/series``: columns with one element per step, oldest first.

        Args:
            model: Return only this model, unless empty.
            since_s: Return only steps that ended later, in seconds since 1970.
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
        sizes = sorted(bound for bound in batched if not isinstance(bound, str))
        return {
            "at": [step.at_s for step in steps],
            "seconds": [round(step.seconds, 3) for step in steps],
            "models": models,
            "batching": {
                "sizes": [[None if size == math.inf else size, batched[size]] for size in sizes],
                **{name: [step.batches[name] for step in steps] for name in _BATCH_COLUMNS},
            }
            if batched
            else None,
        }

    def _run(self) -> None:
        while True:
            # Steps end at multiples of STEP_S, so that workers agree on them; missed steps become one step.
            due_s = STEP_S * (time.time() // STEP_S + 1)
            time.sleep(max(0.0, due_s - time.time()))
            self.add_step(due_s)


def add_routes(routes: Routes, series: RequestSeries) -> None:
    """Adds ``GET /v1/stats/series?model=&since=``."""

    def show(request: HttpRequest, match: re.Match[str]) -> HttpResponse:
        since = request.query.get("since") or "0"
        try:
            since_s = float(since)
        except ValueError:
            raise invalid_argument(f"since is {since!r}; expected seconds since 1970") from None
        return json_response(series.report(request.query.get("model", ""), since_s))

    routes.add("GET /v1/stats/series", show, right=Right.CONTROL)


_COLUMNS = ("requests", "errors", "client_errors", "rows", "latency_ms_p50", "latency_ms_p99")
_BATCH_COLUMNS = ("batches", "rows", "requests", "wait_s")


def _counted(stats: RequestStats) -> dict[_Key, RequestCounts]:
    totals: dict[_Key, RequestCounts] = {}
    for kind, counts in stats.counts().items():
        if kind.version:
            add_to(totals, (kind.model, kind.version), counts)
    return totals

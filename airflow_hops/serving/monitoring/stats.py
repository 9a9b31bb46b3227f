"""Counts and latencies by model and version, since the server started."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass, field
from typing import Any

# Buckets grow by 5%: a percentile is at most 2.5% off, and a version costs 2.5 kB however many requests it answers.
_GROWTH = math.log(1.05)
_LOWEST_S = 1e-6
_BUCKETS = 400


@dataclass
class _VersionStats:
    requests: int = 0
    rows: int = 0
    errors: int = 0
    latencies: list[int] = field(default_factory=lambda: [0] * _BUCKETS)

    def percentile_ms(self, percent: float) -> float | None:
        total = sum(self.latencies)
        if not total:
            return None
        rank = max(1, math.ceil(total * percent / 100))
        for bucket, count in enumerate(self.latencies):
            rank -= count
            if rank <= 0:
                return round(1000 * _LOWEST_S * math.exp((bucket + 0.5) * _GROWTH), 4)
        raise AssertionError("the rank is at most the total")


class RequestStats:
    """What was asked and answered; safe to call from every request thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._versions: dict[tuple[str, int], _VersionStats] = {}
        self.started_at = time.time()

    def record(self, model: str, version: int, rows: int, latency_s: float, ok: bool) -> None:
        """Counts one request.

        Args:
            model: Model name, one that is loaded: names that clients make up must not grow the table.
            version: The version that answered or refused.
            rows: Rows asked for.
            latency_s: Seconds in the server; of answered requests only.
            ok: Whether it was answered.
        """
        bucket = int(math.log(max(latency_s, _LOWEST_S) / _LOWEST_S) / _GROWTH)
        with self._lock:
            stats = self._versions.get((model, version))
            if stats is None:
                stats = self._versions.setdefault((model, version), _VersionStats())
            stats.requests += 1
            if ok:
                stats.rows += rows
                stats.latencies[min(bucket, _BUCKETS - 1)] += 1
            else:
                stats.errors += 1

    def snapshot(self) -> dict[str, dict[int, dict[str, Any]]]:
        """Returns model to version to counts and latency percentiles."""
        with self._lock:
            models: dict[str, dict[int, dict[str, Any]]] = {}
            for (model, version), stats in sorted(self._versions.items()):
                models.setdefault(model, {})[version] = {
                    "requests": stats.requests,
                    "rows": stats.rows,
                    "errors": stats.errors,
                    "latency_ms_p50": stats.percentile_ms(50),
                    "latency_ms_p99": stats.percentile_ms(99),
                }
            return models


EMPTY: dict[str, Any] = {"requests": 0, "rows": 0, "errors": 0, "latency_ms_p50": None, "latency_ms_p99": None}

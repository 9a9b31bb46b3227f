"""Counts, latencies and usual run times by model and version, since the server started."""

from __future__ import annotations

import math
import operator
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_hops.core.serving_api.protocol import Method
from airflow_hops.serving.errors import CLIENT_ERRORS
from airflow_hops.serving.request_kind import RequestKind

# One lock guards all counts; a request takes it once, for additions only. Readers copy under the lock and compute
# percentiles outside. Counts only grow while the process lives: rates, series and rollouts use differences, and
# recognize a restart by started_at.

# Percentiles are at most 2.5% off, and a version takes 4 kB per method. Every twelfth bound is one of TensorFlow
# Serving's, which grow by a factor of 1.8 from 10 microseconds.
BUCKETS_PER_BOUND = 12
_GROWTH = math.log(1.8) / BUCKETS_PER_BOUND
_LOWEST_S = 10e-6 / 1.8**4
_BUCKETS = (4 + 32) * BUCKETS_PER_BOUND + 1
LATENCY_BOUNDS_US = tuple(10 * 1.8**power for power in range(33))


@dataclass
class LatencyHistogram:
    """Latencies in buckets of equal width on a logarithmic scale."""

    buckets: list[int] = field(default_factory=lambda: [0] * _BUCKETS)
    sum_s: float = 0.0

    def add(self, latency_s: float) -> None:
        """Counts one latency."""
        bucket = int(math.log(latency_s / _LOWEST_S) / _GROWTH) + 1 if latency_s > _LOWEST_S else 0
        self.buckets[bucket if bucket < _BUCKETS else _BUCKETS - 1] += 1
        self.sum_s += latency_s

    def __add__(self, other: LatencyHistogram) -> LatencyHistogram:
        return LatencyHistogram([*map(operator.add, self.buckets, other.buckets)], self.sum_s + other.sum_s)

    def __sub__(self, earlier: LatencyHistogram) -> LatencyHistogram:
        return LatencyHistogram([*map(operator.sub, self.buckets, earlier.buckets)], self.sum_s - earlier.sum_s)

    def rows_ms(self) -> list[tuple[float, float, int]]:
        """Returns ``(lower, upper, count)`` of the non-empty buckets, with bounds in milliseconds."""
        bounds = [0.0, *(round(1000 * _LOWEST_S * math.exp(bucket * _GROWTH), 7) for bucket in range(_BUCKETS))]
        return [(bounds[i], bounds[i + 1], count) for i, count in enumerate(self.buckets) if count]

    def percentile_ms(self, percent: float) -> float | None:
        """Returns a percentile in milliseconds; None if nothing was counted."""
        total = sum(self.buckets)
        if not total:
            return None
        rank = max(1, math.ceil(total * percent / 100))
        for bucket, count in enumerate(self.buckets):
            rank -= count
            if rank <= 0:
                return round(1000 * _LOWEST_S * math.exp((bucket - 0.5) * _GROWTH), 4)
        raise AssertionError("the rank is at most the total")


def add_to(total: dict[Any, Any], key: object, more: Any) -> None:
    """Adds a value to that of the key, or sets it if the key is new."""
    total[key] = total[key] + more if key in total else more


def add_counts(total: dict[Any, Any], more: Mapping[Any, float]) -> None:
    """Adds counts to those of the same keys."""
    for key, count in more.items():
        add_to(total, key, count)


@dataclass
class RequestCounts:
    """Counts of one kind of request.

    Attributes:
        by_code: Name of the gRPC status code to requests.
        rows: Rows of answered requests.
        latency: Time in the server, of answered requests.
        run: Time in the model and its queues, of answered requests.
    """

    by_code: dict[str, int] = field(default_factory=dict)
    rows: int = 0
    latency: LatencyHistogram = field(default_factory=LatencyHistogram)
    run: LatencyHistogram = field(default_factory=LatencyHistogram)

    def __add__(self, other: RequestCounts) -> RequestCounts:
        by_code = dict(self.by_code)
        add_counts(by_code, other.by_code)
        return RequestCounts(by_code, self.rows + other.rows, self.latency + other.latency, self.run + other.run)

    def __sub__(self, earlier: RequestCounts) -> RequestCounts:
        by_code = {code: count - earlier.by_code.get(code, 0) for code, count in self.by_code.items()}
        return RequestCounts(by_code, self.rows - earlier.rows, self.latency - earlier.latency, self.run - earlier.run)

    @property
    def requests(self) -> int:
        """Number of all requests."""
        return sum(self.by_code.values())

    @property
    def errors(self) -> int:
        """Number of requests that failed through no fault of the client."""
        return self.requests - self.by_code.get("OK", 0) - self.client_errors

    @property
    def client_errors(self) -> int:
        """Number of requests that were refused because of a mistake of the client."""
        return sum(count for code, count in self.by_code.items() if code in CLIENT_ERRORS)


class RequestStats:
    """Counts of requests and answers; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kinds: defaultdict[RequestKind, RequestCounts] = defaultdict(RequestCounts)
        self.started_at = time.time()

    def record(self, kind: RequestKind, rows: int, latency_s: float, run_s: float) -> None:
        """Counts one answered request.

        Args:
            kind: Kind of the request.
            rows: Rows of the request.
            latency_s: Seconds in the server.
            run_s: Seconds of these in the model.
        """
        with self._lock:
            counts = self._kinds[kind]
            counts.by_code["OK"] = counts.by_code.get("OK", 0) + 1
            counts.rows += rows
            counts.latency.add(latency_s)
            counts.run.add(run_s)

    def record_error(self, kind: RequestKind, code: str) -> None:
        """Counts one request that was refused or failed.

        Args:
            kind: Kind of the request; its model must exist or be empty, so that names invented by clients do not grow
                the table.
            code: Name of the gRPC status code.
        """
        with self._lock:
            by_code = self._kinds[kind].by_code
            by_code[code] = by_code.get(code, 0) + 1

    def counts(self) -> dict[RequestKind, RequestCounts]:
        """Returns a copy of the counts."""
        with self._lock:
            return {kind: counts + RequestCounts() for kind, counts in sorted(self._kinds.items())}

    def snapshot(self, histograms: bool = False) -> dict[str, dict[int, dict[str, Any]]]:
        """Returns model to version to counts and latency percentiles, over all methods.

        Args:
            histograms: Whether to add the latency histograms, whose differences give the latencies of a period.
        """
        merged: dict[tuple[str, int], RequestCounts] = {}
        for kind, counts in self.counts().items():
            if not kind.version:
                continue
            add_to(merged, (kind.model, kind.version), counts)
        models: dict[str, dict[int, dict[str, Any]]] = {}
        for (model, version), total in merged.items():
            models.setdefault(model, {})[version] = summary(total) | (
                {"latency_ms_histogram": total.latency.rows_ms()} if histograms else {}
            )
        return models


def summary(counts: RequestCounts) -> dict[str, Any]:
    """Returns counts and latency percentiles as the REST API shows them."""
    return {
        "requests": counts.requests,
        "rows": counts.rows,
        "errors": counts.errors,
        "client_errors": counts.client_errors,
        "codes": dict(sorted(counts.by_code.items())),
        "latency_ms_p50": counts.latency.percentile_ms(50),
        "latency_ms_p99": counts.latency.percentile_ms(99),
    }


EMPTY: Mapping[str, Any] = summary(RequestCounts())


_LONG_S = 0.02


class RunTimes:
    """Moving averages by model, method, and the power of two above the size of the message.

    Averages rise fast and fall slowly, so that rare long runs, for which other requests wait, still count. Runs on
    busy cores include waiting, so only the CPU time counts, unless the run took long in wall-clock time. Threads may
    overwrite each other's newest value, which is harmless.
    """

    def __init__(self) -> None:
        self._usual_s: dict[tuple[str, Method, int], float] = {}

    def usual_s(self, model: str, method: Method, message_bytes: int) -> float:
        """Returns the average in seconds; infinity if there is none."""
        return self._usual_s.get((model, method, message_bytes.bit_length()), math.inf)

    def add(self, model: str, method: Method, message_bytes: int, clock_s: float, cpu_s: float) -> None:
        """Adds one run; the model must exist, so that names invented by clients do not grow the table."""
        key = (model, method, message_bytes.bit_length())
        run_s = clock_s if clock_s > _LONG_S else cpu_s
        usual_s = self._usual_s.get(key, run_s)
        self._usual_s[key] = usual_s + (run_s - usual_s) / (2 if run_s > usual_s else 16)

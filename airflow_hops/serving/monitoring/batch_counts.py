"""Metrics of batching, under TensorFlow Serving's names: sizes, and how long requests waited."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from airflow_hops.serving.monitoring.metrics import REGISTRY
from airflow_hops.serving.monitoring.series import BatchTotals

# TensorFlow Serving's own bounds.
_WAIT_BOUNDS_US = tuple(100 * 1.2**power for power in range(52))
_SIZE_BOUNDS = tuple(2.0**power for power in range(14))


class Histogram:
    """Counts of values by bound; not safe to add to from two threads at once."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        """Counts one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        """How many values."""
        return sum(self._counts)

    def rows(self) -> list[tuple[float | None, int]]:
        """Returns ``(upper, count)`` of the bounds that have any, None for what exceeds all."""
        bounds = (*self._bounds, None)
        return [(bound, count) for bound, count in zip(bounds, self._counts, strict=True) if count]

    def add_to(self, family: HistogramMetricFamily, labels: Sequence[str]) -> None:
        """Adds what was counted to a metric."""
        bounds = [*(floatToGoString(bound) for bound in self._bounds), "+Inf"]
        family.add_metric(labels, list(zip(bounds, accumulate(self._counts), strict=True)), self.sum)


class BatchCounts(Collector):
    """Counts of all batches of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waits_us: dict[str, Histogram] = {}
        self._sizes = Histogram(_SIZE_BOUNDS)

    def observe(self, thread_pool_name: str, rows: int, waits_s: Sequence[float]) -> None:
        """Counts one batch.

        Args:
            thread_pool_name: As in its ``BatchingParameters``.
            rows: Its rows, padding included.
            waits_s: How long each of its requests waited, seconds.
        """
        with self._lock:
            waits_us = self._waits_us.get(thread_pool_name)
            if waits_us is None:
                waits_us = self._waits_us.setdefault(thread_pool_name, Histogram(_WAIT_BOUNDS_US))
            for wait_s in waits_s:
                waits_us.add(wait_s * 1e6)
            self._sizes.add(rows)

    def totals(self) -> BatchTotals | None:
        """Returns what was batched so far; None before the first batch."""
        with self._lock:
            if not self._waits_us:
                return None
            waits = self._waits_us.values()
            return BatchTotals(
                batches=self._sizes.count,
                rows=int(self._sizes.sum),
                requests=sum(wait.count for wait in waits),
                wait_s=sum(wait.sum for wait in waits) / 1e6,
                sizes=tuple(self._sizes.rows()),
            )

    def collect(self) -> Iterable[Metric]:
        """Returns the metrics as they are now; none before the first batch."""
        waits = HistogramMetricFamily(
            ":tensorflow:serving:batching_session:queuing_latency",
            "Distribution of wall time spent (in microseconds) in queuing",
            labels=["thread_pool_name"],
        )
        sizes = HistogramMetricFamily(
            ":tensorflow:serving:batching_session:processed_batch_size",
            "Tracks the batch size distribution on processing.",
            labels=[],
        )
        with self._lock:
            if not self._waits_us:
                return
            for name, histogram in self._waits_us.items():
                histogram.add_to(waits, [name])
            self._sizes.add_to(sizes, [])
        yield from (waits, sizes)


BATCHES = BatchCounts()
"""The batches of this process; a worker's are its own."""
REGISTRY.register(BATCHES)

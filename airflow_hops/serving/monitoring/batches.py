"""Counts of batches as totals, and the registry of the metrics of this process, which has them as well.

Other metrics are registered there with the classes of ``prometheus_client``, or with collectors::

    QUEUE = Gauge("hops_serving_queue_length", "Requests that wait for a batch.", ["model_name"], registry=REGISTRY)
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry, Histogram, disable_created_metrics
from prometheus_client.core import Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from airflow_hops.serving.monitoring.stats import add_counts

REGISTRY = CollectorRegistry()
disable_created_metrics()
ProcessCollector(registry=REGISTRY)

BatchTotals = dict[str | float, float]
"""Totals of a server's batches since it started; empty before the first one.

``batches``; their ``rows``, including padding; their ``requests``, and ``wait_s``, the seconds that these were queued
together; for each upper bound, a float, the batches with at most that many rows and more than half of it.
"""

_ROW_BOUNDS = [2.0**power for power in range(14)]


class BatchCounts(Collector):
    """Histograms of this process's batches, with TensorFlow Serving's bounds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals: BatchTotals = {}
        self._waits = Histogram(
            ":tensorflow:serving:batching_session:queuing_latency",
            "Distribution of wall time spent (in microseconds) in queuing",
            ["thread_pool_name"],
            registry=None,
            buckets=[100 * 1.2**power for power in range(52)],
        )
        self._sizes = Histogram(
            ":tensorflow:serving:batching_session:processed_batch_size",
            "Tracks the batch size distribution on processing.",
            registry=None,
            buckets=_ROW_BOUNDS,
        )

    def observe(self, thread_pool_name: str, rows: int, waits_s: Sequence[float]) -> None:
        """Counts one batch.

        Args:
            thread_pool_name: ``thread_pool_name`` of its ``BatchingParameters``.
            rows: Number of rows, including padding.
            waits_s: Seconds that each request was queued.
        """
        with self._lock:
            waits = self._waits.labels(thread_pool_name)
            for wait_s in waits_s:
                waits.observe(wait_s * 1e6)
            self._sizes.observe(rows)
            bound = next((bound for bound in _ROW_BOUNDS if rows <= bound), math.inf)
            counted: BatchTotals = {
                "batches": 1,
                "rows": rows,
                "requests": len(waits_s),
                "wait_s": sum(waits_s),
                bound: 1,
            }
            add_counts(self._totals, counted)

    def totals(self) -> BatchTotals:
        """Returns the totals since the start."""
        with self._lock:
            return self._totals.copy()

    def collect(self) -> Iterable[Metric]:
        """Returns the current metrics; empty before the first batch."""
        with self._lock:
            metrics = [*self._waits.collect(), *self._sizes.collect()]
        return metrics if metrics[0].samples else []


BATCHES = BatchCounts()
"""Batches of this process."""
REGISTRY.register(BATCHES)

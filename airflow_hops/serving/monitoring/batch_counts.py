"""Metrics of batching with TensorFlow Serving's names: batch sizes, and times in the queue."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Sequence

from prometheus_client import Histogram
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from airflow_hops.serving.monitoring.metrics import REGISTRY
from airflow_hops.serving.monitoring.series import BatchTotals


class BatchCounts(Collector):
    """Histograms of this process's batches, with TensorFlow Serving's bounds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
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
            buckets=[2.0**power for power in range(14)],
        )

    def observe(self, thread_pool_name: str, rows: int, waits_s: Sequence[float]) -> None:
        """Counts one batch.

        Args:
            thread_pool_name: ``thread_pool_name`` of its ``BatchingParameters``.
            rows: Number of rows, including padding.
            waits_s: Seconds that each request was queued.
        """
        with self._lock:  # totals() must not see a batch without its waits
            waits = self._waits.labels(thread_pool_name)
            for wait_s in waits_s:
                waits.observe(wait_s * 1e6)
            self._sizes.observe(rows)

    def totals(self) -> BatchTotals | None:
        """Returns the totals since the start; None before the first batch."""
        sums: Counter[str] = Counter()
        sizes: list[tuple[float | None, int]] = []
        below = 0
        for metric in self.collect():
            for sample in metric.samples:
                sums[sample.name.removeprefix(":tensorflow:serving:batching_session:")] += sample.value
                if sample.name.endswith("processed_batch_size_bucket"):
                    if sample.value > below:
                        bound = sample.labels["le"]
                        sizes.append((None if bound == "+Inf" else float(bound), int(sample.value) - below))
                    below = int(sample.value)
        if not sizes:
            return None
        return BatchTotals(
            batches=int(sums["processed_batch_size_count"]),
            rows=int(sums["processed_batch_size_sum"]),
            requests=int(sums["queuing_latency_count"]),
            wait_s=sums["queuing_latency_sum"] / 1e6,
            sizes=tuple(sizes),
        )

    def collect(self) -> Iterable[Metric]:
        """Returns the current metrics; empty before the first batch."""
        with self._lock:
            metrics = [*self._waits.collect(), *self._sizes.collect()]
        return metrics if metrics[0].samples else []


BATCHES = BatchCounts()
"""Batches of this process."""
REGISTRY.register(BATCHES)

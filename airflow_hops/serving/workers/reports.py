"""Reports of a server with workers, with the same names as those of a server with one process."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from airflow_hops.serving.workers.supervisor import Workers


class WorkersCapture:
    """Captured requests of all workers."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._before: dict[str, Any] = {"base_path": None, "models": {}}

    def status(self) -> dict[str, Any]:
        """Returns the response to ``GET /v1/capture``."""
        result = self._workers.total().capture
        if "spool_path" in result:
            result["spool_path"] = str(Path(result["spool_path"]).parent)
        self._before = {**self._before, **result}
        return self._before

    def flush(self, timeout_s: float = 60.0) -> bool:
        """Makes all workers write their captured requests; returns whether they finished in time."""
        done = self._workers.ask_all("flush", timeout_s, timeout_s=timeout_s + 1.0)
        return bool(done) and all(done)


class WorkersCollector(Collector):
    """Metrics of the workers."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    def collect(self) -> Iterable[Metric]:
        """Returns the current metrics."""
        report = self._workers.report()
        restarts, hangs = report["restarts"], report["hangs"]
        yield GaugeMetricFamily("hops_serving_workers", "Processes that answer requests.", len(report["workers"]))
        yield CounterMetricFamily("hops_serving_worker_restarts", "Workers that ended unexpectedly.", restarts)
        yield CounterMetricFamily("hops_serving_worker_hangs", "Workers killed because they did not respond.", hangs)
        families: dict[str, Metric] = {}
        for worker, metric in self._workers.metrics():
            family = families.setdefault(metric.name, Metric(metric.name, metric.documentation, metric.type))
            for sample in metric.samples:
                family.add_sample(sample.name, {**sample.labels, "worker": worker}, sample.value)
        yield from families.values()

"""Answers for all workers: counts, captured requests, metrics, and ``GET /v1/workers``."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from airflow_hops.extensions.server_extras.serving.counts import WorkerStats
from airflow_hops.extensions.server_extras.serving.shared import Shared
from airflow_hops.serving.access import Right
from airflow_hops.serving.monitoring.batches import BatchTotals
from airflow_hops.serving.routes import HttpRequest, HttpResponse, Routes, json_response


class SharedCapture:
    """Captured requests of all workers."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    def status(self) -> dict[str, Any]:
        """Returns the response to ``GET /v1/capture``."""
        result = self._shared.total().capture
        if "spool_path" in result:
            result["spool_path"] = str(Path(result["spool_path"]).parent)
        return result

    def flush(self, timeout_s: float = 60.0) -> bool:
        """Makes all workers write their captured requests; returns whether they finished in time."""
        number = self._shared.ask_for_flush()
        in_time = self._shared.wait_for(lambda report: report.flush[0] >= number, timeout_s)
        return in_time and all(report.flush[1] for report in self._shared.open_reports_and_own())


class SharedReports(Collector):
    """Counts of all workers; has the attributes of :class:`~airflow_hops.serving.endpoint.Endpoint` that reports need.

    As a collector, it returns the metrics of the workers, and those of each by its process id.
    """

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self.stats = WorkerStats(shared.total, shared.started_at)
        self.capture = SharedCapture(shared)

    def batches(self) -> BatchTotals:
        """Returns the totals of batches."""
        return self._shared.total().batches

    def add_route(self, routes: Routes) -> None:
        """Adds ``GET /v1/workers``."""

        def show(request: HttpRequest, match: re.Match[str]) -> HttpResponse:
            workers = [
                {"pid": report.pid, "requests": report.requests, "age_s": round(time.time() - report.started_s, 3)}
                for report in self._shared.open_reports_and_own()
            ]
            return json_response({"workers": sorted(workers, key=lambda each: each["pid"]), **self._shared.ends()})

        routes.add("GET /v1/workers", show, right=Right.CONTROL)

    def collect(self) -> Iterable[Metric]:
        """Returns the current metrics."""
        ends, running = self._shared.ends(), self._shared.open_reports_and_own()
        yield GaugeMetricFamily("hops_serving_workers", "Processes that answer requests.", len(running))
        yield CounterMetricFamily("hops_serving_worker_restarts", "Workers that ended unexpectedly.", ends["restarts"])
        yield CounterMetricFamily(
            "hops_serving_worker_hangs", "Workers killed because they did not respond.", ends["hangs"]
        )
        families: dict[str, Metric] = {}
        for report in running:
            for worker, metrics in report.counts.metrics.items():
                for metric in metrics:
                    family = families.setdefault(metric.name, Metric(metric.name, metric.documentation, metric.type))
                    for sample in metric.samples:
                        family.add_sample(sample.name, {**sample.labels, "worker": worker}, sample.value)
        yield from families.values()


class WorkerPeers(Shared):
    """The other workers, as one of them sees them; the arguments are those of :class:`Shared`."""

    def __init__(self, folder: Path, slots: int, slot: int, started_at: float) -> None:
        super().__init__(folder, slots, slot, started_at)
        self._reports = SharedReports(self)

    def reported(self) -> SharedReports:
        """Returns the counts of all workers."""
        return self._reports

    def add_reports(self, routes: Routes, registry: CollectorRegistry) -> None:
        """Adds ``GET /v1/workers``, and the metrics of all workers."""
        self._reports.add_route(routes)
        registry.register(self._reports)

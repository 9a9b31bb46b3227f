"""The workers as metrics, and over REST."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from airflow_hops.serving.models.workers.supervisor import WorkerSupervisor
from airflow_hops.serving.routes import HttpRequest, HttpResponse, Routes, json_response


def add_route(routes: Routes, supervisor: WorkerSupervisor) -> None:
    """Adds ``GET /v1/workers``."""

    def show(request: HttpRequest, match: re.Match[str]) -> HttpResponse:
        return json_response(supervisor.report())

    routes.add("GET /v1/workers", show)


class WorkerCollector(Collector):
    """Metrics of the workers, by model and version.

    Args:
        supervisor: Of the workers.
    """

    def __init__(self, supervisor: WorkerSupervisor) -> None:
        self._supervisor = supervisor

    def collect(self) -> Iterable[Metric]:
        """Returns the metrics as they are now."""
        labels = ["model_name", "version"]
        workers = GaugeMetricFamily("hops_serving_workers", "Worker processes that serve.", labels=labels)
        in_flight = GaugeMetricFamily(
            "hops_serving_worker_in_flight", "Requests with the workers, or waiting for one.", labels=labels
        )
        restarts = CounterMetricFamily(
            "hops_serving_worker_restarts", "Workers that ended by themselves.", labels=labels
        )
        for model, versions in self._supervisor.report()["models"].items():
            for version, pool in versions.items():
                workers.add_metric([model, version], len(pool["workers"]))
                in_flight.add_metric([model, version], pool["in_flight"])
                restarts.add_metric([model, version], pool["restarts"])
        yield from (workers, in_flight, restarts)
        yield from by_process(self._supervisor.metrics())


def by_process(counted: Iterable[tuple[Mapping[str, str], Metric]]) -> Iterable[Metric]:
    """Returns the metrics of several processes, with each one's labels on its samples."""
    families: dict[str, Metric] = {}
    for labels, metric in counted:
        family = families.setdefault(metric.name, Metric(metric.name, metric.documentation, metric.type))
        for sample in metric.samples:
            family.add_sample(sample.name, {**sample.labels, **labels}, sample.value)
    return families.values()

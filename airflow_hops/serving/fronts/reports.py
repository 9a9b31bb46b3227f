"""Reports of a server with fronts, under the names that a server of one process has."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from airflow_hops.serving.fronts.supervisor import Fronts


class FrontsCapture:
    """Captured requests of all fronts."""

    def __init__(self, fronts: Fronts) -> None:
        self._fronts = fronts
        self._before: dict[str, Any] = {"base_path": None, "models": {}}

    def status(self) -> dict[str, Any]:
        """Returns what ``GET /v1/capture`` answers."""
        result = self._fronts.total().capture
        if "spool_path" in result:
            result["spool_path"] = str(Path(result["spool_path"]).parent)
        self._before = {**self._before, **result}
        return self._before

    def flush(self, timeout_s: float = 60.0) -> bool:
        """Has all fronts write; returns whether it was within the time."""
        done = self._fronts.ask_all("flush", timeout_s, timeout_s=timeout_s + 1.0)
        return bool(done) and all(done)


class FrontsCollector(Collector):
    """Metrics of the fronts."""

    def __init__(self, fronts: Fronts) -> None:
        self._fronts = fronts

    def collect(self) -> Iterable[Metric]:
        """Returns the metrics as they are now."""
        report = self._fronts.report()
        yield GaugeMetricFamily("hops_serving_fronts", "Processes that answer requests.", len(report["fronts"]))
        yield CounterMetricFamily("hops_serving_front_restarts", "Fronts that ended unexpectedly.", report["restarts"])
        yield CounterMetricFamily("hops_serving_front_hangs", "Fronts that gave no sign of life.", report["hangs"])
        families: dict[str, Metric] = {}
        for front, metric in self._fronts.metrics():
            family = families.setdefault(metric.name, Metric(metric.name, metric.documentation, metric.type))
            for sample in metric.samples:
                family.add_sample(sample.name, {**sample.labels, "front": front}, sample.value)
        yield from families.values()

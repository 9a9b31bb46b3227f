"""Metrics of request capture."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from airflow_hops.serving.capture.capture import CaptureSource

_ROWS = ("captured", "dropped", "written", "failed")
_LABELS = ("captured", "dropped", "written")


class CaptureCollector(Collector):
    """Collects the metrics of request capture."""

    def __init__(self, capture: CaptureSource) -> None:
        self._capture = capture

    def collect(self) -> Iterable[Metric]:
        """Yields the current values."""
        status = self._capture.status()
        by_outcome = ["model_name", "outcome"]
        rows = CounterMetricFamily("hops_serving_capture_rows", "Rows of requests by outcome.", None, by_outcome)
        labels = CounterMetricFamily("hops_serving_capture_labels", "Labels by outcome.", None, by_outcome)
        files = CounterMetricFamily("hops_serving_capture_files", "Files written.", None, ["model_name"])
        removed = CounterMetricFamily("hops_serving_capture_removed_files", "Old files removed.", None, ["model_name"])
        for model, counts in status["models"].items():
            for outcome in _ROWS:
                rows.add_metric([model, outcome], counts[f"{outcome}_rows"])
            for outcome in _LABELS:
                labels.add_metric([model, outcome], counts[f"{outcome}_labels"])
            files.add_metric([model], counts["files"])
            removed.add_metric([model], counts["removed_files"])
        yield from (rows, labels, files, removed)
        if status["base_path"] is not None:
            yield GaugeMetricFamily(
                "hops_serving_capture_spool_bytes", "Bytes of the spool on the disk.", status["spool_bytes"]
            )
            yield GaugeMetricFamily(
                "hops_serving_capture_lag_seconds",
                "Age of the oldest captured row that is in no file yet.",
                status["lag_seconds"],
            )

"""Grafana's dashboard of pipelines: each of its queries has an answer in a Prometheus that watched the demo."""

from __future__ import annotations

import pytest
from prometheus_process import Prometheus, missing_panels
from shown_demo import ShownDemo


def test_each_pipelines_panel_has_data(shown_demo: ShownDemo, demo_prometheus: Prometheus | None) -> None:
    if demo_prometheus is None:
        pytest.skip("there is no prometheus in PATH (Debian: apt-get install prometheus)")
    assert missing_panels(demo_prometheus, "pipelines", "10m") == {}
    drifted = demo_prometheus.query('airflow_hops_artifact_metric{dag_id="flights_monitoring", metric="drifted"}')
    assert len(drifted) == 1
    for name in ("airflow_hops_artifact_time", "airflow_hops_retraining_refused", "airflow_hops_store_free_percent"):
        assert demo_prometheus.query(f'{name}{{dag_id="flights_monitoring"}}'), name

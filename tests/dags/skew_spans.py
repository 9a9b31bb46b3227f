"""Drift between two spans of data, for the tests of the skew stage."""

from __future__ import annotations

from airflow.sdk import DAG, Asset

from airflow_hops.operators import RequestRetrainingOperator, SkewOperator

with DAG("drift_between_spans", schedule=None, render_template_as_native_obj=True):
    drift = SkewOperator(
        task_id="drift", reference="{{ dag_run.conf['reference'] }}", current="{{ dag_run.conf['current'] }}"
    )
    RequestRetrainingOperator(
        task_id="request", skew=drift.output, asset=Asset("tests.drift", uri="hops://tests/drift")
    )

"""Predicts for examples with a deployed model, as the run's configuration says."""

from __future__ import annotations

from airflow.sdk import DAG

from airflow_hops.extensions.scoring import ScoreOperator

with DAG("predict_rows", schedule=None, render_template_as_native_obj=True):
    ScoreOperator(
        task_id="predict",
        model_name="{{ dag_run.conf['model_name'] }}",
        examples="{{ dag_run.conf['examples'] }}",
        splits=["train"],
    )

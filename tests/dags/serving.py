"""Deploys a model and rolls it out; the model comes from the run's configuration."""

from __future__ import annotations

from airflow.sdk import DAG

from airflow_hops.operators import DeployModelOperator, RolloutOperator

with DAG("serving", schedule=None, render_template_as_native_obj=True):
    deployment = DeployModelOperator(
        task_id="deploy",
        model="{{ dag_run.conf['model'] }}",
        model_name="{{ dag_run.conf['model_name'] }}",
        evaluation="{{ dag_run.conf['evaluation'] }}",
    )
    RolloutOperator(task_id="rollout", deployment=deployment.output, min_requests=10, timeout=60)

"""Small DAGs for the tests of single stages; what they work on comes from the run's configuration."""

from __future__ import annotations

from datetime import timedelta

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Asset

from airflow_hops.operators.retraining import RequestRetrainingOperator
from airflow_hops.operators.schema import SchemaOperator
from airflow_hops.operators.skew import SkewOperator
from airflow_hops.operators.statistics import StatisticsOperator
from airflow_hops.operators.validation import ValidateExamplesOperator

RETRAINING = Asset("tests.retraining", uri="hops://tests/retraining")

for policy in ("fail", "branch"):
    with DAG(f"validation_{policy}", render_template_as_native_obj=True):
        statistics = StatisticsOperator(task_id="statistics", examples="{{ dag_run.conf['examples'] }}")
        schema = SchemaOperator(task_id="schema", statistics=statistics.output, name="flights")
        branches = {"follow": "good", "otherwise": ["bad"]} if policy == "branch" else {}
        validation = ValidateExamplesOperator(
            task_id="validation",
            statistics=statistics.output,
            schema=schema.output,
            on_anomaly=policy,
            retries=2,
            **branches,
        )
        validation >> [EmptyOperator(task_id="good"), EmptyOperator(task_id="bad")]

with DAG("monitoring", render_template_as_native_obj=True):
    skew = SkewOperator(
        task_id="skew", model_name="{{ dag_run.conf['model_name'] }}", min_rows=500, time_feature="scheduled_at"
    )
    RequestRetrainingOperator(task_id="request", skew=skew.output, asset=RETRAINING)

with DAG("retraining", render_template_as_native_obj=True):
    RequestRetrainingOperator(
        task_id="request", skew="{{ dag_run.conf['skew'] }}", asset=RETRAINING, cooldown=timedelta(hours=1)
    )

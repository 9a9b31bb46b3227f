"""Small DAGs for the tests of single stages; what they work on comes from the run's configuration."""

from __future__ import annotations

from datetime import timedelta

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Asset

from airflow_hops.operators.deploy import DeployModelOperator
from airflow_hops.operators.retraining import RequestRetrainingOperator
from airflow_hops.operators.schema import SchemaOperator
from airflow_hops.operators.skew import SkewOperator
from airflow_hops.operators.statistics import StatisticsOperator
from airflow_hops.operators.validation import ValidateExamplesOperator

RETRAINING = Asset("tests.retraining", uri="hops://tests/retraining")

with DAG("schema", schedule=None, render_template_as_native_obj=True):
    statistics = StatisticsOperator(task_id="statistics", examples="{{ dag_run.conf['examples'] }}")
    SchemaOperator(task_id="schema", statistics=statistics.output, name="flights")

for policy in ("fail", "branch"):
    with DAG(f"validation_{policy}", schedule=None, render_template_as_native_obj=True):
        branches = {"follow": "good", "otherwise": ["bad"]} if policy == "branch" else {}
        validation = ValidateExamplesOperator(
            task_id="validation",
            statistics="{{ dag_run.conf['statistics'] }}",
            schema="{{ dag_run.conf['schema'] }}",
            on_anomaly=policy,
            retries=2,
            **branches,
        )
        validation >> [EmptyOperator(task_id="good"), EmptyOperator(task_id="bad")]

with DAG("monitoring", schedule=None, render_template_as_native_obj=True):
    skew = SkewOperator(
        task_id="skew", model_name="{{ dag_run.conf['model_name'] }}", min_rows=500, time_feature="scheduled_at"
    )
    RequestRetrainingOperator(task_id="request", skew=skew.output, asset=RETRAINING)

with DAG("deploys_trains", schedule=None):
    DeployModelOperator(task_id="deploy", model={}, model_name="trains")

with DAG("retraining", schedule=None, render_template_as_native_obj=True):
    RequestRetrainingOperator(
        task_id="request", skew="{{ dag_run.conf['skew'] }}", asset=RETRAINING, cooldown=timedelta(hours=1)
    )

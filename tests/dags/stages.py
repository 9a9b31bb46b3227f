"""Small DAGs for the tests of single stages; what they work on comes from the run's configuration."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Asset, TriggerRule, task
from airflow.sdk.exceptions import AirflowFailException

from airflow_hops.operators import (
    DeployModelOperator,
    RequestRetrainingOperator,
    SchemaOperator,
    SkewOperator,
    StatisticsOperator,
    ValidateExamplesOperator,
)

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

with DAG("validation_champion", schedule=None, render_template_as_native_obj=True):
    ValidateExamplesOperator(
        task_id="validation",
        statistics="{{ dag_run.conf['statistics'] }}",
        schema="{{ dag_run.conf['schema'] }}",
        model_name="validated",
        on_anomaly={"warning": "fail"},
    )

with DAG("monitoring", schedule=None, render_template_as_native_obj=True):
    skew = SkewOperator(
        task_id="skew", model_name="{{ dag_run.conf['model_name'] }}", min_rows=500, time_feature="scheduled_at"
    )
    RequestRetrainingOperator(task_id="request", skew=skew.output, asset=RETRAINING)

with DAG("deploys_trains", schedule=None):
    DeployModelOperator(task_id="deploy", model={}, model_name="trains", ungated="no task of it runs")


def told(kind: str, context: Any) -> None:
    """Notes what a person is told, in a file of the run's configuration; or ends the process, where that says so."""
    conf = context["dag_run"].conf
    if conf.get("dies_when") == kind:
        os.kill(os.getpid(), signal.SIGKILL)
    if "told" in conf:
        with Path(conf["told"]).open("a") as file:
            file.write(f"{kind}: {context['decision'].why or 'requested'}\n")


with DAG("retraining", schedule=None, render_template_as_native_obj=True):
    RequestRetrainingOperator(
        task_id="request", skew="{{ dag_run.conf['skew'] }}", asset=RETRAINING, cooldown=timedelta(hours=1),
        on_drift=[partial(told, "drift"), int], on_request=partial(told, "request"), on_stop=[partial(told, "stop")],
    )  # fmt: skip


@task
def compared() -> dict[str, Any]:
    raise AirflowFailException("the server captures nothing")


@task
def measured() -> dict[str, Any]:
    return {}


with DAG("retraining_blind", schedule=None):
    RequestRetrainingOperator(
        task_id="request", skew=compared(), performance=measured(), asset=RETRAINING,
        trigger_rule=TriggerRule.ALL_DONE_MIN_ONE_SUCCESS,
    )  # fmt: skip

"""Decides on a served model, as the run's configuration says."""

from __future__ import annotations

from airflow.sdk import DAG

from airflow_hops.operators import (
    PromoteModelOperator,
    RollbackModelOperator,
    SetTrafficOperator,
    UndeployModelOperator,
)
from airflow_hops.sensors.model_version import ModelVersionSensor

MODEL = "{{ dag_run.conf['model_name'] }}"

with DAG("serving_decisions", schedule=None, render_template_as_native_obj=True):
    (
        ModelVersionSensor(
            task_id="ready",
            model_name=MODEL,
            version="{{ dag_run.conf['canary'] }}",
            deferrable=True,
            poke_interval=0.2,
        )
        >> SetTrafficOperator(
            task_id="half", model_name=MODEL, percents="{{ dag_run.conf['percents'] }}", reason="it looks well"
        )
        >> PromoteModelOperator(task_id="promote", model_name=MODEL)
        >> RollbackModelOperator(task_id="roll_back", model_name=MODEL, reason="it was worse")
        >> UndeployModelOperator(task_id="undeploy", model_name=MODEL, force=True)
    )

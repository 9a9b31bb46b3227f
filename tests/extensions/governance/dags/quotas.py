"""Trainings that a quota refuses; each would leave a file if it began."""

from __future__ import annotations

from airflow.sdk import DAG

from airflow_hops.operators import HorovodTrainOperator, TrainOperator

OPTIONS = {"env": {"BEGAN": "{{ dag_run.conf['began'] }}"}, "retries": 2}

with DAG("quotas", schedule=None):
    TrainOperator(task_id="train", train="quotas_code:train", **OPTIONS)

with DAG("quotas_ranks", schedule=None):
    HorovodTrainOperator(task_id="train", train="quotas_code:train", np=(2, 4), durable=False, **OPTIONS)

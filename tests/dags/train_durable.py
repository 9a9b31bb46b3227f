"""A training whose worker dies; it waits after each epoch until the test lets it go on."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG

from airflow_hops.operators import HorovodTrainOperator

with DAG("train_durable", schedule=None, render_template_as_native_obj=True):
    HorovodTrainOperator(
        task_id="train",
        train="train_durable_model:train",
        examples="{{ dag_run.conf['examples'] }}",
        params={"folder": "", "epochs": 5},
        cache=False,
        retries=3,
        retry_delay=timedelta(0),
    )

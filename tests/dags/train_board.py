"""A training whose TensorBoard is looked at."""

from __future__ import annotations

from airflow.sdk import DAG

from airflow_hops.operators import HorovodTrainOperator

with DAG("train_board", schedule=None, render_template_as_native_obj=True):
    HorovodTrainOperator(
        task_id="train",
        train="train_board_model:train",
        examples="{{ dag_run.conf['examples'] }}",
        params={"epochs": 2},
    )

"""Training on the ranks of a connection; where, and on what, comes from the run's configuration."""

from __future__ import annotations

from airflow.sdk import DAG

from airflow_hops.operators import HorovodTrainOperator

with DAG("train_ranks", schedule=None, render_template_as_native_obj=True):
    HorovodTrainOperator(
        task_id="train",
        train="train_ranks_model:train",
        examples="{{ dag_run.conf['examples'] }}",
        np=2,
        hosts="{{ dag_run.conf.get('hosts', '') }}",
        ranks_conn_id="{{ dag_run.conf['ranks_conn_id'] }}",
    )

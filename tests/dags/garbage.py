"""Removes what nothing needs from a store."""

from __future__ import annotations

from airflow.sdk import DAG

from airflow_hops.operators import CollectGarbageOperator

with DAG("garbage", schedule=None) as dag:
    CollectGarbageOperator(
        task_id="collect",
        delete=True,
        keep_runs=1,
        unknown_runs=True,
        hops_conn_id="{{ dag_run.conf['hops_conn_id'] }}",
    )

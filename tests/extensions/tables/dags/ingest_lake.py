"""Ingests a Delta table in a named environment."""

from airflow.sdk import DAG

from airflow_hops.operators import IngestOperator

with DAG("ingest_lake", schedule=None):
    IngestOperator(
        task_id="ingest", sources={"rows": "delta://{{ dag_run.conf['table'] }}"}, runtime="test-lake", cache=False
    )

"""Ingests captured requests and writes them to a table."""

from airflow.sdk import DAG

from airflow_hops.extensions.tables import Table, WriteTableOperator
from airflow_hops.operators import IngestOperator

with DAG("write_table", schedule=None):
    captured = IngestOperator(task_id="captured", sources={"requests": "{{ dag_run.conf['captured'] }}"})
    WriteTableOperator(task_id="write", rows=captured.output, table=Table(conn_id="warehouse", name="requests"))

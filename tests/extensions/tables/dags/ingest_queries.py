"""Ingests a query whose state is known, and one whose state is not."""

from airflow.sdk import DAG

from airflow_hops.extensions.tables import QuerySource
from airflow_hops.operators import IngestOperator

QUERY = QuerySource(conn_id="warehouse", sql="SELECT * FROM many")

with DAG("ingest_queries", schedule=None):
    IngestOperator(task_id="unknown", sources={"rows": QUERY}, cache=True)
    IngestOperator(
        task_id="versioned",
        sources={"rows": {**QUERY.to_dict(), "version": "SELECT max(changed) FROM {{ dag_run.conf['table'] }}"}},
        cache=True,
    )

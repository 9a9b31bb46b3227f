"""Ingests a Kafka topic of the connection ``kafka_default``."""

from __future__ import annotations

from airflow.sdk import DAG

from airflow_hops.extensions.streams import TopicSource
from airflow_hops.operators import IngestOperator

with DAG("streams", schedule=None) as dag:
    IngestOperator(
        task_id="ingest",
        sources={"events": TopicSource("kafka://events", columns=("id", "kafka_offset"))},
        hops_conn_id="{{ dag_run.conf['hops_conn_id'] }}",
    )

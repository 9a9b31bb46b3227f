"""Ingest and prepare of the flights, for the tests; store and sources come from the run's configuration."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG

from airflow_hops.operators import IngestOperator, PrepareOperator, Source

with DAG("ingest_prepare", schedule=None):
    raw = IngestOperator(
        task_id="ingest",
        sources={
            "flights": Source("{{ dag_run.conf['raw'] }}/flights.csv.zip", time_column="time_hour"),
            "weather": Source("{{ dag_run.conf['raw'] }}/weather.csv", time_column="time_hour"),
            "planes": "{{ dag_run.conf['raw'] }}/planes.csv",
            "airports": "{{ dag_run.conf['raw'] }}/airports.csv",
        },
        window_start="{{ dag_run.conf['start'] }}",
        window_end="{{ dag_run.conf['end'] }}",
    )
    PrepareOperator(
        task_id="prepare",
        prepare="prepare_flights:prepare",
        engine="spark",
        tables=raw.output,
        label="late",
        key="flight_id",
        time="scheduled_at",
        newest=timedelta(days=7),
    )

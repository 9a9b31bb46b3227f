"""Tasks whose OpenLineage events tests collect: from files, mapped, from the cache, failing, skipped; and a sensor."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, task

from airflow_hops.operators import IngestOperator
from airflow_hops.sensors.model_version import ModelVersionSensor

with DAG("openlineage", schedule=None):
    raw = IngestOperator(
        task_id="ingest",
        sources={"rows": {"uri": "{{ dag_run.conf['table'] }}", "time_column": "at"}},
        window_start="2013-01-01",
        window_end="2013-02-01",
        cache=True,
    )

    @task.hops(output_kind="numbers")
    def count(context: Any, number: int, tables: dict) -> Any:
        with context.output() as writer:
            (writer.path / "number.txt").write_text(str(number))
            return writer.commit(metrics={"number": number})

    @task.hops
    def fail(tables: dict) -> None:
        raise ValueError("the connection string is postgres://me:secret-of-mine@db/x")

    count.partial(tables=raw.output).expand(number=[1, 2])
    fail(raw.output)
    ModelVersionSensor(
        task_id="sense",
        model_name="none",
        hops_conn_id="no_server",
        timeout=timedelta(seconds=0.1),
        poke_interval=0.05,
        soft_fail=True,
    )

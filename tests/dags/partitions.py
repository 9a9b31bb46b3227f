"""A snapshot whose asset event has its window as partition key, and DAGs that are started by it."""

from __future__ import annotations

from airflow.sdk import (
    DAG,
    Asset,
    PartitionedAssetTimetable,
    ProductMapper,
    StartOfDayMapper,
    StartOfMonthMapper,
    task,
)

from airflow_hops.operators import IngestOperator

SNAPSHOT = Asset(name="partitions.ingest", uri="hops://partitions/ingest", group="hops")

with DAG("partitions", schedule=None):
    IngestOperator(
        task_id="ingest",
        sources={"rows": {"uri": "{{ dag_run.conf['table'] }}", "time_column": "at"}},
        window_start="2013-01-01",
        window_end="2013-02-01T12:30",
        partition_by_window=True,
        cache=False,
    )
    IngestOperator(
        task_id="whole", sources={"rows": "{{ dag_run.conf['table'] }}"}, partition_by_window=True, cache=False
    )


@task
def see(triggering_asset_events: dict | None = None, dag_run: object = None) -> list:
    (event,) = triggering_asset_events[SNAPSHOT]  # type: ignore[index]
    return [dag_run.partition_key, event.extra["window"]]  # type: ignore[attr-defined]


with DAG("partitions_window", schedule=PartitionedAssetTimetable(assets=SNAPSHOT), catchup=False):
    see()

MONTH_AND_DAY = ProductMapper(StartOfMonthMapper(), StartOfDayMapper())
with DAG(
    "partitions_month",
    schedule=PartitionedAssetTimetable(assets=SNAPSHOT, default_partition_mapper=MONTH_AND_DAY),
    catchup=False,
):
    see()

"""Assets whose events have a partition key, of a snapshot's window and of another DAG, and DAGs that they start."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from airflow.sdk import (
    DAG,
    Asset,
    AssetAlias,
    CronPartitionTimetable,
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

# As Cosmos does for the models of dbt: a task adds the asset to its alias, in a DAG with a partition for each day.
ORDERS = Asset("duckdb://warehouse/main/orders")
MODEL = AssetAlias("orders_models__orders")


@task(outlets=[MODEL])
def orders(outlet_events: dict | None = None) -> None:
    outlet_events[MODEL].add(ORDERS)  # type: ignore[index]


DAILY = CronPartitionTimetable("0 0 * * *", timezone="UTC")
with DAG(
    "orders_models", schedule=DAILY, start_date=datetime(2013, 1, 1), end_date=datetime(2013, 1, 9), catchup=False
):
    orders()

with DAG("orders_training", schedule=PartitionedAssetTimetable(assets=ORDERS), catchup=False):
    IngestOperator(
        task_id="ingest",
        sources={"orders": {"uri": str(Path(__file__).with_name("orders.csv")), "time_column": "at"}},
        window_start="{{ dag_run.partition_key }}",
        window_end="{{ macros.ds_add(dag_run.partition_key[:10], 1) }}",
    )

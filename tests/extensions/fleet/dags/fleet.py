"""A fleet of shops, and its monitor."""

from __future__ import annotations

from airflow.sdk import DAG

from airflow_hops.extensions.fleet import FleetSkewOperator, SelectSegmentsOperator, TrainFleetOperator
from airflow_hops.operators import IngestOperator, PrepareOperator, Source


def examples_of_sales() -> PrepareOperator:
    raw = IngestOperator(task_id="ingest", sources={"sales": Source("{{ params.raw }}")})
    return PrepareOperator(
        task_id="prepare",
        prepare="fleet_code:all_rows",
        tables=raw.output,
        label="label",
        key="row",
        problem="regression",
    )


with DAG("fleet", schedule=None, params={"raw": ""}):
    examples = examples_of_sales()
    TrainFleetOperator(task_id="train", examples=examples.output, segment="shop", model_name="fleet_shops")

with DAG("fleet_watch", schedule=None, params={"raw": ""}):
    examples = examples_of_sales()
    watch = FleetSkewOperator(task_id="watch", model_name="fleet_shops")
    again = TrainFleetOperator(
        task_id="again", examples=examples.output, segment="shop", model_name="fleet_shops", skew=watch.output
    )
    SelectSegmentsOperator(task_id="select", model_name="fleet_shops", model=again.output, segments=["shop 1"])

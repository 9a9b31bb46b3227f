"""A model for each destination, in one task: will this flight arrive 15 minutes late or more?

``flights_fleet`` trains and deploys them, and ``flights_fleet_watch`` has those trained again whose requests have
changed, and takes only these into what serves. The model is that of the DAG which deployed it first, so make the other
an owner, too, once it serves::

    airflow hops models owners flights_by_destination flights_fleet flights_fleet_watch --reason "two pipelines"
"""

from __future__ import annotations

from airflow.sdk import DAG

from airflow_hops import (
    DeployModelOperator,
    EvaluateOperator,
    IngestOperator,
    PrepareOperator,
    SchemaOperator,
    Source,
    StatisticsOperator,
)
from airflow_hops.extensions.fleet import FleetSkewOperator, SelectSegmentsOperator, TrainFleetOperator
from flights.raw import raw_table

TABLES = {
    "flights": Source(raw_table("flights.csv.zip"), time_column="time_hour"),
    "weather": Source(raw_table("weather.csv"), time_column="time_hour"),
    "planes": Source(raw_table("planes.csv")),
    "airports": Source(raw_table("airports.csv")),
}


def examples_of(start: str, end: str) -> PrepareOperator:
    """Adds the tasks that make examples of the flights of a window."""
    raw = IngestOperator(task_id="ingest", sources=TABLES, window_start=start, window_end=end)
    return PrepareOperator(
        task_id="prepare",
        prepare="flights.prepare:prepare",
        engine="spark",
        tables=raw.output,
        label="late",
        key="flight_id",
        time="scheduled_at",
    )


OPTIONS = {"segment": "dest", "groups": ["origin"], "model_name": "flights_by_destination", "max_failed": 0.1}

with DAG("flights_fleet", schedule=None, max_active_runs=1, doc_md=__doc__, tags=["hops", "flights"]):
    examples = examples_of("2013-01-01", "2013-04-01")
    statistics = StatisticsOperator(task_id="statistics", examples=examples.output)
    schema = SchemaOperator(task_id="schema", statistics=statistics.output)
    fleet = TrainFleetOperator(task_id="train", examples=examples.output, schema=schema.output, **OPTIONS)
    evaluation = EvaluateOperator(
        task_id="evaluate",
        model=fleet.output,
        examples=examples.output,
        model_name="flights_by_destination",
        slices=("dest",),
    )
    DeployModelOperator(
        task_id="deploy", model=fleet.output, model_name="flights_by_destination", evaluation=evaluation.output
    )

with DAG("flights_fleet_watch", schedule=None, max_active_runs=1, tags=["hops", "flights"]):
    watch = FleetSkewOperator(task_id="watch", model_name="flights_by_destination")
    examples = examples_of("2013-02-01", "2013-05-01")
    again = TrainFleetOperator(task_id="train", examples=examples.output, skew=watch.output, **OPTIONS)
    chosen = SelectSegmentsOperator(task_id="select", model_name="flights_by_destination", model=again.output)
    DeployModelOperator(
        task_id="deploy", model=chosen.output, model_name="flights_by_destination", ungated="segments that drifted"
    )

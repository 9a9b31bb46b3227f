"""Will this flight arrive 15 minutes late or more, asked when it is scheduled?

The whole pipeline, from raw tables to a canary that is promoted or rolled back. It runs when somebody triggers it, and
when ``flights_monitoring`` finds that live requests have drifted from what the serving model was trained on.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Asset, Param

from airflow_hops.operators import (
    DeployModelOperator,
    EvaluateOperator,
    HorovodTrainOperator,
    InfraValidateOperator,
    IngestOperator,
    PrepareOperator,
    RolloutOperator,
    SchemaOperator,
    Source,
    StatisticsOperator,
    TransformOperator,
    ValidateExamplesOperator,
)
from flights.raw import raw_table

with DAG(
    "flights_training",
    schedule=[Asset("flights_drifted")],
    params={
        "window_start": Param("2013-01-01", type="string", description="First day of the flights to learn from"),
        "window_end": Param("2013-04-01", type="string", description="The day after the last; a drift moves it"),
    },
    max_active_runs=1,
    default_args={"retries": 1, "retry_delay": timedelta(seconds=10)},
    doc_md=__doc__,
    tags=["hops", "flights"],
) as dag:
    raw = IngestOperator(
        task_id="ingest",
        sources={
            "flights": Source(raw_table("flights.csv.zip"), time_column="time_hour"),
            "weather": Source(raw_table("weather.csv"), time_column="time_hour"),
            "planes": Source(raw_table("planes.csv")),
            "airports": Source(raw_table("airports.csv")),
            "airlines": Source(raw_table("airlines.csv")),
        },
        window_start="{{ params.window_start }}",
        window_end="{{ params.window_end }}",
    )
    examples = PrepareOperator(
        task_id="prepare",
        prepare="flights.prepare:prepare",
        tables=raw.output,
        label="late",
        key="flight_id",
        time="scheduled_at",
        newest=timedelta(days=14),
    )
    statistics = StatisticsOperator(task_id="statistics", examples=examples.output)
    schema = SchemaOperator(task_id="schema", statistics=statistics.output)
    validation = ValidateExamplesOperator(task_id="validate", statistics=statistics.output, schema=schema.output)
    transformed = TransformOperator(
        task_id="transform",
        preprocess="flights.features:preprocess",
        examples=examples.output,
        statistics=statistics.output,
        schema=schema.output,
        extra_inputs=["scheduled_at"],  # flights_monitoring wants to know of which days the requests are
    )
    model = HorovodTrainOperator(task_id="train", train="flights.model:train", examples=transformed.output, np=2)
    evaluation = EvaluateOperator(
        task_id="evaluate",
        model=model.output,
        examples=examples.output,
        model_name="flights",
        slices=("carrier", "origin"),
    )
    infra = InfraValidateOperator(task_id="infra_validate", model=model.output, examples=examples.output)
    deployment = DeployModelOperator(
        task_id="deploy",
        model=model.output,
        model_name="flights",
        evaluation=evaluation.output,
        infra_blessing=infra.output,
        canary_percent=20,
    )
    rollout = RolloutOperator(
        task_id="rollout",
        deployment=deployment.output,
        steps=(50, 100),
        min_requests=100,
        timeout=timedelta(minutes=10),
    )

    validation >> transformed

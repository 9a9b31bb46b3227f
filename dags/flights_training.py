"""Will this flight arrive 15 minutes late or more, asked when it is scheduled?

The whole pipeline, from raw tables to a canary that is promoted or rolled back. It runs when somebody triggers it, and
when ``flights_monitoring`` finds that live requests have drifted from what the serving model was trained on. Data that
its schema does not know, such as a new destination, is asked about before a model learns from it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Asset, Param, task

from airflow_hops import (
    DeployModelOperator,
    EvaluateOperator,
    HorovodTrainOperator,
    InfraValidateOperator,
    IngestOperator,
    PrepareOperator,
    RolloutOperator,
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
        engine="spark",
        tables=raw.output,
        label="late",
        key="flight_id",
        time="scheduled_at",
        newest=timedelta(days=14),
    )
    statistics = StatisticsOperator(task_id="statistics", examples=examples.output)

    # Stations leave out the pressure now more, now less, in 6 to 15% of a month's hours.
    @task.hops_schema(statistics=statistics.output, comparators={"pressure": {}})
    def schema(schema: Any) -> None:
        """The inferred schema, less what is no news: a rare carrier, and the many makers of small planes."""
        import tensorflow_data_validation as tfdv

        for name in ("carrier", "plane_manufacturer"):
            tfdv.get_feature(schema, name).distribution_constraints.min_domain_mass = 0.99

    frozen = schema()
    validation = ValidateExamplesOperator(
        task_id="validate",
        statistics=statistics.output,
        schema=frozen,
        model_name="flights",
        on_anomaly={"warning": "ask"},
    )
    transformed = TransformOperator(
        task_id="transform",
        preprocess="flights.features:preprocess",
        examples=examples.output,
        statistics=statistics.output,
        schema=validation.output["schema"],
        extra_inputs=["scheduled_at"],  # flights_monitoring wants to know of which days the requests are
    )
    model = HorovodTrainOperator(
        task_id="train", train="flights.model:train", examples=transformed.output, np=2, params={"epochs": 4}
    )
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

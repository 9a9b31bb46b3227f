"""Which learning rate, dropout and noise suit the flights model?

A search of a dozen trials, two at a time; those that fall behind are pruned after an epoch. The best model is evaluated
like any other, against the model that serves.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param

from airflow_hops import (
    EvaluateOperator,
    IngestOperator,
    PrepareOperator,
    SchemaOperator,
    Source,
    StatisticsOperator,
    TransformOperator,
)
from airflow_hops.extensions.experiments import LogUniform, SearchOperator, Uniform
from flights.raw import raw_table

with DAG(
    "flights_search",
    schedule=None,
    params={
        "window_start": Param("2013-01-01", type="string", description="First day of the flights to learn from"),
        "window_end": Param("2013-04-01", type="string", description="The day after the last"),
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
    schema = SchemaOperator(task_id="schema", statistics=statistics.output)
    transformed = TransformOperator(
        task_id="transform",
        preprocess="flights.features:preprocess",
        examples=examples.output,
        statistics=statistics.output,
        schema=schema.output,
    )
    best = SearchOperator(
        task_id="search",
        train="flights.model:train",
        examples=transformed.output,
        space={"lr": LogUniform(3e-4, 1e-2), "dropout": [0.0, 0.1, 0.3], "noise": Uniform(0, 0.5), "epochs": 4},
        metric="eval_auc",
        direction="maximize",
        trials=12,
        parallel=2,
        pruner="median",
        strategy="horovod",  # whose optimizer the model has, also in trials of one rank
    )
    EvaluateOperator(
        task_id="evaluate",
        model=best.output,
        examples=examples.output,
        model_name="flights",
        slices=("carrier", "origin"),
    )

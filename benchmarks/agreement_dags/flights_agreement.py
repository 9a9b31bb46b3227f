"""The flights pipeline and its monitor, for the comparison of the live loop with the back-test.

It is the example pipeline but for what people and canaries decide: no validation, and a blessed model serves at once.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from agreement_policy import ALLOWED, POLICY
from airflow.sdk import DAG, Asset, Param, task

from airflow_hops.operators import (
    DeployModelOperator,
    EvaluateOperator,
    HorovodTrainOperator,
    IngestOperator,
    PrepareOperator,
    PromoteModelOperator,
    Source,
    StatisticsOperator,
    TransformOperator,
    retraining_loop,
)
from flights.raw import raw_table

RETRAIN = Asset("flights_agreement_retrain")

with DAG(
    "flights_agreement",
    schedule=[RETRAIN],
    params={"window_start": Param("2013-01-01", type="string"), "window_end": Param("2013-04-01", type="string")},
    max_active_runs=1,
) as training:
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

    @task.hops_schema(statistics=statistics.output, comparators={"pressure": {}})
    def schema(schema: Any) -> None:
        """The inferred schema, less what is no news."""
        import tensorflow_data_validation as tfdv

        for name in ("carrier", "plane_manufacturer"):
            tfdv.get_feature(schema, name).distribution_constraints.min_domain_mass = 0.99

    transformed = TransformOperator(
        task_id="transform",
        preprocess="flights.features:preprocess",
        examples=examples.output,
        statistics=statistics.output,
        schema=schema(),
        extra_inputs=["scheduled_at"],
    )
    model = HorovodTrainOperator(
        task_id="train", train="flights.model:train", examples=transformed.output, np=2, params={"epochs": 2}
    )
    evaluation = EvaluateOperator(
        task_id="evaluate", model=model.output, examples=examples.output, model_name="flights"
    )
    deployment = DeployModelOperator(
        task_id="deploy", model=model.output, model_name="flights", evaluation=evaluation.output, canary_percent=100
    )
    promoted = PromoteModelOperator(
        task_id="promote", model_name="flights", version="{{ ti.xcom_pull('deploy')['properties']['version'] }}"
    )
    deployment >> promoted

monitor = retraining_loop(
    "flights",
    policy=POLICY,
    asset=RETRAIN,
    schedule=None,
    skew={
        "time_feature": "scheduled_at",
        "thresholds": ALLOWED,
        "attribute": False,
    },
)

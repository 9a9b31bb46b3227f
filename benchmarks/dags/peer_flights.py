"""The peer's work as a pipeline of this project, raw flights to a served model; with Spark, and with LightGBM, too."""

from __future__ import annotations

import os
from typing import Any

from airflow.sdk import DAG, Param

from airflow_hops.operators import (
    DeployModelOperator,
    EvaluateOperator,
    HorovodTrainOperator,
    IngestOperator,
    PrepareOperator,
    SchemaOperator,
    Source,
    StatisticsOperator,
    TrainOperator,
    TransformOperator,
    ValidateExamplesOperator,
)


def _pipeline(
    dag_id: str,
    operator: type[TrainOperator] | type[HorovodTrainOperator],
    *,
    prepare: str = "peer.prepare_duckdb:prepare",
    engine: str = "duckdb",
    **how_to_train: Any,
) -> None:
    with DAG(
        dag_id,
        schedule=None,
        # A model's name of its own makes each cold run the first of its kind: no champion, no canary.
        params={"model_name": Param("peer", type="string")},
        max_active_runs=1,
        doc_md=__doc__,
    ):
        # The hours of January to June in New York, as UTC.
        raw = IngestOperator(
            task_id="ingest",
            sources={"flights": Source(os.environ["HOPS_BENCHMARK_FLIGHTS"], time_column="time_hour")},
            window_start="2013-01-01T05:00:00Z",
            window_end="2013-07-01T04:00:00Z",
        )
        examples = PrepareOperator(
            task_id="prepare",
            prepare=prepare,
            engine=engine,
            tables=raw.output,
            label="late",
            key="flight_id",
            time="scheduled_at",
        )
        statistics = StatisticsOperator(task_id="statistics", examples=examples.output)
        schema = SchemaOperator(task_id="schema", statistics=statistics.output)
        validation = ValidateExamplesOperator(task_id="validate", statistics=statistics.output, schema=schema.output)
        transformed = TransformOperator(
            task_id="transform",
            preprocess="peer.features:preprocess",
            examples=examples.output,
            statistics=statistics.output,
            schema=schema.output,
        )
        model = operator(task_id="train", examples=transformed.output, params={"seed": 0}, **how_to_train)
        evaluation = EvaluateOperator(
            task_id="evaluate",
            model=model.output,
            examples=examples.output,
            model_name="{{ params.model_name }}",
            splits=("eval",),
            slices=("carrier",),
            min_improvement=None,
        )
        DeployModelOperator(
            task_id="deploy",
            model=model.output,
            model_name="{{ params.model_name }}",
            evaluation=evaluation.output,
        )

        validation >> transformed


# One rank, as the peer has: for so small a model a second one costs more in exchanged gradients than it saves.
_NETWORK = {"operator": HorovodTrainOperator, "train": "peer.model:train", "np": 1}
_pipeline("peer_flights", **_NETWORK)
_pipeline("peer_flights_spark", **_NETWORK, prepare="peer.prepare_spark:prepare", engine="spark")
_pipeline("peer_flights_lightgbm", TrainOperator, train="peer.trees:train", runtime="benchmark-trees")

"""A model for each shop, from raw files to a served fleet."""

from __future__ import annotations

import os

from airflow.sdk import DAG, Param
from fleet_rows import prepare

from airflow_hops.extensions.fleet import TrainFleetOperator
from airflow_hops.operators import DeployModelOperator, IngestOperator, PrepareOperator, Source

with DAG("fleet_shops", schedule=None, params={"model": Param("linear", type="string")}, max_active_runs=1):
    raw = IngestOperator(sources={"sales": Source(os.environ["HOPS_BENCHMARK_SHOPS"])})
    examples = PrepareOperator(prepare=prepare, tables=raw.output, label="label", key="row", problem="regression")
    fleet = TrainFleetOperator(task_id="train", examples=examples.output, segment="shop", model_name="shops")
    DeployModelOperator(model=fleet.output, model_name="shops", ungated="a benchmark", canary_percent=100)

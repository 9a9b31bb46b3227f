"""A model for each shop, from raw files to a served fleet."""

from __future__ import annotations

import os

from airflow.sdk import DAG, Param, task
from fleet_rows import prepare

from airflow_hops.extensions.fleet import SegmentSource, TrainFleetOperator
from airflow_hops.operators import DeployModelOperator, IngestOperator, PrepareOperator, Source

SHOPS = os.environ["HOPS_BENCHMARK_SHOPS"]
FLEET = {"segment": "shop", "model_name": "shops", "model": os.environ["HOPS_BENCHMARK_MODEL"]}

with DAG("fleet_source", schedule=None, max_active_runs=1):
    source = SegmentSource(SHOPS, label="label", key="row", problem="regression")
    fleet = TrainFleetOperator(task_id="train", source=source, **FLEET)
    DeployModelOperator(model=fleet.output, model_name="shops", ungated="a benchmark", canary_percent=100)

with DAG("fleet_examples", schedule=None, max_active_runs=1):
    raw = IngestOperator(sources={"sales": Source(SHOPS)})
    examples = PrepareOperator(prepare=prepare, tables=raw.output, label="label", key="row", problem="regression")
    fleet = TrainFleetOperator(task_id="train", examples=examples.output, **FLEET)
    DeployModelOperator(model=fleet.output, model_name="shops", ungated="a benchmark", canary_percent=100)

with DAG("mapped_shops", schedule=None, params={"shops": Param(100, type="integer")}, max_active_runs=1):

    @task
    def numbers(params: dict | None = None) -> list:
        return list(range((params or {})["shops"]))

    @task.hops
    def train_one(shop: int) -> list:
        """Trains the model of one shop, without a choice, an evaluation or a deployment."""
        import os
        from pathlib import Path

        import numpy as np
        import pyarrow.parquet as pq
        from sklearn.linear_model import Ridge

        in_file = int(os.environ["HOPS_BENCHMARK_SHOPS_IN_FILE"])
        file = Path(os.environ["HOPS_BENCHMARK_SHOPS"]) / f"shops-{shop // in_file * in_file:05}.parquet"
        rows = pq.read_table(file, filters=[("shop", "=", f"shop {shop:05}")])
        matrix = np.stack([rows[name].to_numpy() for name in rows.column_names if name.startswith("number")], axis=1)
        return Ridge().fit(matrix, rows["label"].to_numpy()).coef_.tolist()

    train_one.expand(shop=numbers())

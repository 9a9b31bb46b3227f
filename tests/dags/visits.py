"""A short pipeline of two monitors, a training and a rollout: does a visitor buy?"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Asset, Param, task

from airflow_hops.operators import (
    DeployModelOperator,
    EvaluateOperator,
    IngestOperator,
    PrepareOperator,
    RolloutOperator,
    SchemaOperator,
    Source,
    StatisticsOperator,
    TransformOperator,
    ValidateExamplesOperator,
)
from airflow_hops.retraining import Drift, RetrainingPolicy, retraining_loop

DRIFTED = Asset("visits_drifted")

with DAG(
    "visits_training",
    schedule=[DRIFTED],
    params={"window_start": Param("2025-01-01"), "window_end": Param("2025-03-01"), "pause_s": Param(0.0)},
    is_paused_upon_creation=False,
    max_active_runs=2,
):
    raw = IngestOperator(
        task_id="ingest",
        sources={"visits": Source(str(Path(__file__).with_name("visits.csv")), time_column="at")},
        window_start="{{ params.window_start }}",
        window_end="{{ params.window_end }}",
    )
    examples = PrepareOperator(
        task_id="prepare", prepare="visits_code:prepare", engine="spark", tables=raw.output, label="bought", time="at"
    )
    statistics = StatisticsOperator(task_id="statistics", examples=examples.output)
    schema = SchemaOperator(task_id="schema", statistics=statistics.output)
    valid = ValidateExamplesOperator(task_id="validate", statistics=statistics.output, schema=schema.output)
    transformed = TransformOperator(
        task_id="transform",
        preprocess="visits_code:preprocess",
        examples=examples.output,
        statistics=statistics.output,
        schema=schema.output,
        extra_inputs=["at"],
    )

    @task.train(retries=1, retry_delay=0)
    def train(context: Any, examples: Any, pause_s: str) -> Any:
        import os
        import time

        from sklearn.linear_model import LogisticRegression

        rows = context.table("train")
        done = int(context.resumed_files().get("done", b"0"))
        for step in range(0 if done else 600 if float(pause_s) else 0):  # until it is resumed elsewhere
            time.sleep(float(pause_s))
            context.checkpoint_files(step + 1, {"done": b"%d" % (step + 1)})
        print(f"visits: {rows.labels.size} rows learnt on {os.environ['HOPS_HOST']} after step {done}")
        return LogisticRegression().fit(rows.matrix(), rows.labels)

    model = train(transformed.output, pause_s="{{ params.pause_s }}")
    evaluation = EvaluateOperator(task_id="evaluate", model=model, examples=examples.output, model_name="visits")
    deployment = DeployModelOperator(
        task_id="deploy", model=model, model_name="visits", evaluation=evaluation.output, canary_percent=50
    )
    RolloutOperator(
        task_id="rollout",
        deployment=deployment.output,
        steps=(100,),
        min_requests=20,
        timeout=timedelta(minutes=5),
        deferrable=True,
    )
    valid >> transformed

first, second = (
    retraining_loop(
        "visits",
        dag_id=f"visits_monitoring_{number}",
        policy=RetrainingPolicy(when=Drift()),
        asset=DRIFTED,
        schedule=None,
        skew={"min_rows": 100, "time_feature": "at"},
        is_paused_upon_creation=False,
    )
    for number in (1, 2)
)

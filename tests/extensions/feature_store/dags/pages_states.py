"""Pipelines of all stages that the pages show, in the states in which their operators leave them."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG

from airflow_hops.extensions.feature_store import ApplyFeaturesOperator, MaterializeOperator, TrainingDatasetOperator
from airflow_hops.operators import (
    DeployModelOperator,
    EvaluateOperator,
    InfraValidateOperator,
    RolloutOperator,
    TrainOperator,
)

STEPS = "pages_states_steps"


def pipeline(dag_id: str, **steps: str) -> None:
    """A pipeline that does no work; ``steps`` are functions of ``pages_states_steps`` by task, other than ``leave``."""
    with DAG(dag_id, schedule=None) as dag:
        store: Any = {"repository": "features"}
        applied = ApplyFeaturesOperator(task_id="apply", **store)
        MaterializeOperator(task_id="materialize", **store).set_upstream(applied)
        examples = TrainingDatasetOperator(
            task_id="examples", examples=None, definitions=applied.output, features="scoring", **store
        )
        model = TrainOperator(task_id="train", train="model:train", examples=examples.output)
        inputs = {"model": model.output, "examples": examples.output}
        evaluation = EvaluateOperator(task_id="evaluate", model_name="pages_served", **inputs)
        infra = InfraValidateOperator(task_id="infra_validate", **inputs)
        deployment = DeployModelOperator(
            task_id="deploy",
            model=model.output,
            model_name="pages_served",
            evaluation=evaluation.output,
            infra_blessing=infra.output,
            lookup=examples.output,
        )
        RolloutOperator(task_id="rollout", deployment=deployment.output)
    for task in dag.tasks:
        task.runtime = None  # that of the connection: no step needs Feast
        if task.task_id != "rollout":  # which leaves an artifact by itself for a champion
            task.entry = f"{STEPS}:{steps.get(task.task_id, 'leave')}"


pipeline("pages_state_never_run")
pipeline("pages_state_deployed")
pipeline("pages_state_refused", evaluate="refuse")
pipeline("pages_state_failed", train="fail")

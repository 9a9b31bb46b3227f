"""Of which species is this penguin?

Several classes, named by strings, and a Pipeline of scikit-learn that takes the raw features itself: from a CSV file
to a served model.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, task

from airflow_hops import (
    DeployModelOperator,
    EvaluateOperator,
    InfraValidateOperator,
    IngestOperator,
    PrepareOperator,
    SchemaOperator,
    StatisticsOperator,
    TrainOperator,
    ValidateExamplesOperator,
)
from airflow_hops.extensions.explain import ExplainOperator
from penguins.raw import SPECIES, penguins_file

with DAG(
    "penguins_training",
    schedule=None,
    max_active_runs=1,
    default_args={"retries": 1, "retry_delay": timedelta(seconds=10)},
    doc_md=__doc__,
    tags=["hops", "penguins"],
):
    raw = IngestOperator(task_id="ingest", sources={"penguins": task(penguins_file)()})
    examples = PrepareOperator(
        task_id="prepare",
        prepare="penguins.prepare:prepare",
        engine="spark",
        tables=raw.output,
        label="species",
        problem="multiclass",
        classes=SPECIES,
    )
    statistics = StatisticsOperator(task_id="statistics", examples=examples.output)
    schema = SchemaOperator(task_id="schema", statistics=statistics.output)
    validation = ValidateExamplesOperator(
        task_id="validate", statistics=statistics.output, schema=schema.output, model_name="penguins"
    )
    model = TrainOperator(
        task_id="train",
        train="penguins.model:train",
        examples=examples.output,
        statistics=statistics.output,
        schema=schema.output,
    )
    evaluation = EvaluateOperator(
        task_id="evaluate",
        model=model.output,
        examples=examples.output,
        model_name="penguins",
        slices=("island",),
        minimum={"accuracy": 0.9},
    )
    infra = InfraValidateOperator(task_id="infra_validate", model=model.output, examples=examples.output)
    ExplainOperator(task_id="explain", model=model.output, examples=examples.output, model_name="penguins")
    DeployModelOperator(
        task_id="deploy",
        model=model.output,
        model_name="penguins",
        evaluation=evaluation.output,
        infra_blessing=infra.output,
    )

    validation >> model

"""A table with neither key nor time, from its file to a deployed model, and the watch over it."""

from __future__ import annotations

from airflow.sdk import DAG

from airflow_hops.operators import (
    DeployModelOperator,
    EvaluateOperator,
    HorovodTrainOperator,
    InfraValidateOperator,
    IngestOperator,
    PrepareOperator,
    SchemaOperator,
    SkewOperator,
    StatisticsOperator,
    TransformOperator,
    ValidateExamplesOperator,
)

with DAG("tables", schedule=None):
    raw = IngestOperator(task_id="ingest", sources={"rows": "{{ dag_run.conf['table'] }}"})
    examples = PrepareOperator(
        task_id="prepare",
        prepare="tables_code:prepare",
        engine="spark",
        tables=raw.output,
        label="target",
    )
    statistics = StatisticsOperator(task_id="statistics", examples=examples.output)
    schema = SchemaOperator(task_id="schema", statistics=statistics.output)
    validation = ValidateExamplesOperator(task_id="validate", statistics=statistics.output, schema=schema.output)
    transformed = TransformOperator(
        task_id="transform",
        preprocess="tables_code:preprocess",
        examples=examples.output,
        statistics=statistics.output,
        schema=schema.output,
    )
    model = HorovodTrainOperator(task_id="train", train="tables_code:train", examples=transformed.output, np=1)
    model_name = "{{ dag_run.conf['model_name'] }}"
    evaluation = EvaluateOperator(
        task_id="evaluate", model=model.output, examples=examples.output, model_name=model_name
    )
    infra = InfraValidateOperator(task_id="infra_validate", model=model.output, examples=examples.output)
    DeployModelOperator(
        task_id="deploy",
        model=model.output,
        model_name=model_name,
        evaluation=evaluation.output,
        infra_blessing=infra.output,
    )
    validation >> transformed

with DAG("tables_monitoring", schedule=None):
    SkewOperator(task_id="skew", model_name="{{ dag_run.conf['model_name'] }}", min_rows=50)

"""DAGs that ask a person about data that does not fit, and that put rows into quarantine."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG

from airflow_hops.operators import SchemaOperator, StatisticsOperator, ValidateExamplesOperator

for name, arguments in {
    "validation_ask": {},
    "validation_ask_briefly": {"ask_timeout": timedelta(seconds=1), "on_timeout": "continue"},
    "validation_ask_alice": {"assigned_users": [{"id": "alice", "name": "Alice"}]},
}.items():
    with DAG(name, schedule=None, render_template_as_native_obj=True):
        schema = SchemaOperator(task_id="schema", statistics="{{ dag_run.conf['reference'] }}", name="flights")
        validation = ValidateExamplesOperator(
            task_id="validation",
            statistics="{{ dag_run.conf['statistics'] }}",
            schema=schema.output,
            on_anomaly="ask",
            retries=2,
            **arguments,
        )
        ValidateExamplesOperator(
            task_id="after",
            statistics="{{ dag_run.conf['statistics'] }}",
            schema=validation.output["schema"],
            on_anomaly="warn",
        )

with DAG("validation_ask_of_another", schedule=None, render_template_as_native_obj=True):
    ValidateExamplesOperator(
        task_id="validation",
        statistics="{{ dag_run.conf['statistics'] }}",
        schema="{{ dag_run.conf['schema'] }}",
        on_anomaly="ask",
    )

with DAG("validation_split", schedule=None, render_template_as_native_obj=True):
    examples = "{{ dag_run.conf['examples'] }}"
    statistics = StatisticsOperator(task_id="statistics", examples=examples)
    validation = ValidateExamplesOperator(
        task_id="validation",
        statistics=statistics.output,
        schema="{{ dag_run.conf['schema'] }}",
        examples=examples,
        split_anomalous=True,
    )
    good_statistics = StatisticsOperator(task_id="good_statistics", examples=validation.output["examples"])
    ValidateExamplesOperator(
        task_id="after",
        statistics=good_statistics.output,
        schema=validation.output["schema"],
        on_anomaly={"warning": "fail"},
    )

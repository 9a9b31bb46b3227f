"""DAGs for the tests of the schema stage."""

from __future__ import annotations

from airflow.sdk import DAG, task

from airflow_hops.operators import SchemaOperator, ValidateExamplesOperator

STATISTICS = "{{ dag_run.conf['statistics'] }}"

with DAG("schema_function", schedule=None, render_template_as_native_obj=True):

    @task.hops_schema(
        statistics=STATISTICS,
        comparators={"temp": {"jensen_shannon": 0.3}, "dewp": {}},
        environments={"TRAINING": [], "SERVING": ["late"], "BATCH": ["late"]},
    )
    def schema(schema, airport: str):
        import tensorflow_data_validation as tfdv

        tfdv.get_feature(schema, "temp").presence.min_fraction = 0.25
        tfdv.get_domain(schema, "origin").value.append(airport)

    schema("HPN")

with DAG("schema_function_returns_text", schedule=None, render_template_as_native_obj=True):

    @task.hops_schema(task_id="schema", statistics=STATISTICS)
    def schema(inferred):
        return str(inferred)

    schema()

with DAG("schema_until_deployed", schedule=None, render_template_as_native_obj=True):
    frozen = SchemaOperator(task_id="schema", statistics=STATISTICS, freeze_at="deployment")
    ValidateExamplesOperator(task_id="validate", statistics=STATISTICS, schema=frozen.output)

with DAG("schema_file", schedule=None, render_template_as_native_obj=True):
    SchemaOperator(task_id="schema", statistics=STATISTICS, schema="{{ dag_run.conf['path'] }}")

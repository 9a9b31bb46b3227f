"""A pipeline whose model is explained, as far as its page shows it: the artifact is that of the run's configuration."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, task

from airflow_hops.extensions.explain import ExplainOperator


def write(context, content: dict[str, Any], properties: dict[str, Any]) -> Any:
    """Publishes an explanation."""
    import json

    with context.output() as writer:
        (writer.path / "explanation.json").write_text(json.dumps(content))
        return writer.commit(properties=properties)


@task.short_circuit
def stop() -> bool:
    return False


with DAG("pages_explanations", schedule=None, render_template_as_native_obj=True):
    task.hops(write, task_id="explanation", output_kind="explanation")(
        "{{ dag_run.conf['content'] }}", "{{ dag_run.conf['properties'] }}"
    )
    # It never runs: it tells which model the pipeline is about.
    stop() >> ExplainOperator(task_id="explain", model={}, examples={}, model_name="explained")

"""A pipeline with a fleet, as far as its page shows it: the comparison is that of the run's configuration."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, task

from airflow_hops.extensions.fleet import FleetSkewOperator


def write(context, content: dict[str, Any], properties: dict[str, Any]) -> Any:
    """Publishes a comparison."""
    import json

    with context.output() as writer:
        (writer.path / "findings.json").write_text(json.dumps(content))
        return writer.commit(properties=properties)


@task.short_circuit
def stop() -> bool:
    return False


with DAG("pages_fleet", schedule=None, render_template_as_native_obj=True):
    task.hops(write, task_id="compare", output_kind="fleet_skew")(
        "{{ dag_run.conf['content'] }}", "{{ dag_run.conf['properties'] }}"
    )
    # It never runs: it tells which model the pipeline is about.
    stop() >> FleetSkewOperator(task_id="watch", model_name="shops")

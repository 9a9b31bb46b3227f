"""A pipeline with a feature store, as far as its page shows it: its artifacts are those of the run's configuration."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, task


def write(context, files: dict[str, Any], properties: dict[str, Any]) -> Any:
    """Publishes an artifact of JSON files."""
    import json

    with context.output() as writer:
        for name, content in files.items():
            (writer.path / name).write_text(json.dumps(content))
        return writer.commit(properties=properties)


with DAG("pages_features", schedule=None, render_template_as_native_obj=True):
    for kind in ("feature_definitions", "materialization"):
        task.hops(write, task_id=kind, output_kind=kind)(
            f"{{{{ dag_run.conf['{kind}']['files'] }}}}", f"{{{{ dag_run.conf['{kind}']['properties'] }}}}"
        )

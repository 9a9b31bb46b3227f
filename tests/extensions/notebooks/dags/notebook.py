"""Notebooks as tasks, for the tests of ``NotebookOperator``."""

from __future__ import annotations

from airflow.sdk import DAG

from airflow_hops.extensions.notebooks import NotebookOperator

with DAG("notebook", schedule=None, params={"unrelated": 1}) as dag:
    report = NotebookOperator(task_id="report", notebook="report.ipynb", params={"day": "{{ run_id }}", "rows": 3})
    failing = NotebookOperator(
        task_id="failing",
        notebook="report.ipynb",
        params={"day": "{{ 'x' * 3 }}", "fail": True},
        inputs={"report": report.output},
    )
    report >> failing

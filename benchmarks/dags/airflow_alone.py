"""Airflow's own share of a run in which everything is cached: as many tasks in a row, which do nothing."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, BaseOperator, chain


class NothingOperator(BaseOperator):
    """Does nothing, in a task's process: Airflow's own EmptyOperator has none."""

    def execute(self, context: Any) -> None:
        """Returns at once."""


with DAG("airflow_alone", schedule=None, max_active_runs=1, doc_md=__doc__):
    names = ("ingest", "prepare", "statistics", "schema", "validate", "transform", "train", "evaluate", "deploy")
    chain(*(NothingOperator(task_id=name) for name in names))

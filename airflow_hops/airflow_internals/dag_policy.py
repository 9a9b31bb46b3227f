"""Airflow's policy of DAGs: a DAG whose deployment passes by a validation is refused when it is parsed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.policies import hookimpl

if TYPE_CHECKING:
    from airflow.sdk import DAG


@hookimpl
def dag_policy(dag: DAG) -> None:
    """Refuses a DAG with a deployment and a validation that nothing depends on.

    Raises:
        AirflowClusterPolicyViolation: which the web UI shows as the DAG's import error.
    """
    kinds = {
        task.task_id: getattr(getattr(task, "operator_class", type(task)), "output_kind", None) for task in dag.tasks
    }
    if "deployment" not in kinds.values():
        return
    for task in dag.tasks:
        if kinds[task.task_id] == "anomalies" and not task.downstream_task_ids:
            from airflow.exceptions import AirflowClusterPolicyViolation

            raise AirflowClusterPolicyViolation(
                f"DAG {dag.dag_id!r}: nothing depends on the validation {task.task_id!r}, so that a model of data "
                f"which it refuses is deployed; put it before the training, as in `{task.task_id} >> model`"
            )

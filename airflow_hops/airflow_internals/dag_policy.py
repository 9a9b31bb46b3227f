"""Airflow's policy of DAGs: a DAG whose deployment passes by a validation is refused when it is parsed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.policies import hookimpl

if TYPE_CHECKING:
    from airflow.sdk import DAG


@hookimpl
def dag_policy(dag: DAG) -> None:
    """Refuses a DAG with a deployment and a validation that no deployment depends on.

    A validation after a deployment, or one that stops nothing, is no gate.

    Raises:
        AirflowClusterPolicyViolation: which the web UI shows as the DAG's import error.
    """
    kinds: dict[str, set[str]] = {"deployment": set(), "anomalies": set()}
    for task in dag.tasks:
        kind = getattr(getattr(task, "operator_class", type(task)), "output_kind", None)
        kinds.get(str(kind), set()).add(task.task_id)
    deployments = kinds["deployment"]
    for name in sorted(kinds["anomalies"]) if deployments else ():
        task = dag.get_task(name)
        actions = getattr(task, "on_anomaly", {"error": "fail"})
        is_gate = set(actions.values()) != {"warn"} and deployments.isdisjoint(
            task.get_flat_relative_ids(upstream=True)
        )
        if is_gate and deployments.isdisjoint(task.get_flat_relative_ids(upstream=False)):
            from airflow.exceptions import AirflowClusterPolicyViolation

            raise AirflowClusterPolicyViolation(
                f"{getattr(task, 'place', None) or dag.fileloc}: DAG {dag.dag_id!r}: no deployment depends on the "
                f"validation {name!r}, so that a model of data which it refuses is deployed; put it before the "
                f"training, as in `{name} >> model`"
            )

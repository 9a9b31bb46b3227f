"""Looks up a run or a registered version in MLflow."""

from __future__ import annotations

from typing import Any

from airflow_hops.core.contract.artifacts import BadInput, Producer
from airflow_hops.core.contract.run_record import RECORD_TAG, app_id
from airflow_hops.ml.step.context import StepContext
from airflow_hops.ml.tracking.client import mlflow_errors, open_tracking
from airflow_hops.ml.tracking.registry import ModelRegistry


def run(context: StepContext, *, run_id: str | None = None, model: str = "", version: int = 0) -> dict[str, Any]:
    """Looks up a run by its ID, or a version of a model by its number.

    Returns:
        ``model`` and ``fingerprint`` (of its artifact, or None). For a run also ``dag_id``, ``dag_run_id``, ``task``
        (as ``Producer.task``), ``metrics``, ``record`` (key of its record, or None), ``tags`` (those that begin with
        ``hops.``), and ``experiment`` (folder of an experiment of the package ``hops``, or None).

    Raises:
        BadInput: MLflow has no such run or version.
    """
    from mlflow.exceptions import MlflowException

    uri = context.spec.services.get("tracking_uri", "")
    if run_id is None:
        return dict(zip(("model", "fingerprint"), ModelRegistry(uri, model).model_of(version), strict=True))
    if not uri:
        raise BadInput("MLflow's tracking URI is empty; set it in the connection's field 'tracking_uri'")
    client = open_tracking(uri)
    with mlflow_errors(client):
        try:
            result = client.get_run(run_id)
        except MlflowException as error:
            if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                raise
            raise BadInput(f"MLflow at {uri} has no run {run_id}") from error
    tags = dict(result.data.tags)
    if "hops.dag_id" not in tags:
        raise BadInput(f"MLflow's run {run_id} was not logged by a task of this package: it has no tag hops.dag_id")
    dag_id, dag_run_id, task_id = (tags[f"hops.{name}"] for name in ("dag_id", "run_id", "task_id"))
    index, iteration = (int(tags.get(f"hops.{name}", "-1")) for name in ("map_index", "iteration"))
    producer = Producer(dag_id, dag_run_id, task_id, index, iteration=iteration)
    report: dict[str, Any] = {"dag_id": producer.dag_id, "dag_run_id": producer.run_id, "task": producer.task}
    report |= {"metrics": dict(result.data.metrics), "record": tags.get(RECORD_TAG)}
    report |= {"model": tags.get("hops.model"), "fingerprint": tags.get("hops.fingerprint")}
    report["tags"] = {name: text for name, text in tags.items() if name.startswith("hops.")}
    number = result.data.params.get("run", "")
    known = number.startswith("run.") and report["model"] is None
    return {**report, "experiment": context.store.uri("Experiments", app_id(producer), number) if known else None}

"""Notes and tags that people give runs and versions of models, kept in MLflow's own fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.ml.queries.place import Place
from airflow_hops.ml.queries.runs import find_run, tracking
from airflow_hops.ml.tracking.client import mlflow_errors

__all__ = ["annotate_run", "annotate_version"]
_NOTE = "mlflow.note.content"
"""The tag that MLflow shows as a run's description."""


def annotate_run(place: Place, params: Mapping[str, Any]) -> dict[str, Any]:
    """Sets a run's note and tags.

    Args:
        place: Names the tracking server.
        params: ``experiment``, ``run_id``; ``note``, or null to leave it; ``tags``, values by name, null to remove one.

    Raises:
        FileNotFoundError: the DAG has no such run, or no more.
        HopsError: MLflow does not answer.
    """
    client, run = find_run(place, params)
    run_id, values = run.info.run_id, dict(params["tags"])
    if params["note"] is not None:
        values[_NOTE] = params["note"]
    with mlflow_errors(client):
        for name, value in values.items():
            if value is not None:
                client.set_tag(run_id, name, value)
            elif name in run.data.tags:
                client.delete_tag(run_id, name)
    return {}


def annotate_version(place: Place, params: Mapping[str, Any]) -> dict[str, Any]:
    """Sets the note (MLflow's description) and tags of a registered version.

    Args:
        place: Names the tracking server.
        params: ``model_name``, ``version``; ``note`` and ``tags`` as in :func:`annotate_run`.

    Raises:
        BadInput: MLflow has no such version.
        HopsError: MLflow does not answer.
    """
    from mlflow.exceptions import MlflowException

    client, name, version = tracking(place), params["model_name"], str(params["version"])
    missing = f"MLflow has no version {version} of model {name!r}"
    if client is None:
        raise BadInput(missing)
    with mlflow_errors(client):
        try:
            known = client.get_model_version(name, version)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            raise BadInput(missing) from error
        if params["note"] is not None:
            client.update_model_version(name, version, description=params["note"])
        for tag, value in params["tags"].items():
            if value is not None:
                client.set_model_version_tag(name, version, tag, value)
            elif tag in known.tags:
                client.delete_model_version_tag(name, version, tag)
    return {}

"""MLflow's model registry: the versions of a model with their metrics; notes and tags of runs and versions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_hops.core.contract.artifacts import BadInput, HopsError
from airflow_hops.ml.queries.place import Place
from airflow_hops.ml.queries.runs import find_run, tracking
from airflow_hops.ml.tracking.client import mlflow_errors

__all__ = ["annotate_run", "annotate_version", "versions"]
_NOTE = "mlflow.note.content"
"""Tag that MLflow shows as a run's description."""
_RUNS_AT_ONCE = 50
"""Runs in one search: MLflow puts each into its query."""


def versions(place: Place, params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns ``max_results`` (1 to 1000) versions of the registered model ``model_name``, newest first.

    Returns:
        ``versions``, each with ``version``, ``created_ms`` (since the epoch), ``aliases``, ``tags``, ``note`` (its
        description), ``run_id`` and ``metrics`` (of the run, the last value of each). Empty if the model is not
        registered.

    Raises:
        HopsError: MLflow does not answer.
    """
    client = tracking(place)
    if client is None:
        return {"versions": []}
    name = str(params["model_name"])
    if "'" in name:
        raise HopsError(f"model_name is {name!r}; MLflow cannot search for a quote")
    with mlflow_errors(client):
        result = client.search_model_versions(
            f"name = '{name}'", max_results=int(params["max_results"]), order_by=["version_number DESC"]
        )
        models = client.search_registered_models(f"name = '{name}'")
        run_ids = [version.run_id for version in result if version.run_id]
        metrics: dict[str, dict[str, float]] = {}  # the last values by run; deleted runs have none
        experiments = [each.experiment_id for each in client.search_experiments()] if run_ids else []
        for first in range(0, len(run_ids), _RUNS_AT_ONCE):
            named = ", ".join(f"'{run_id}'" for run_id in run_ids[first : first + _RUNS_AT_ONCE])
            for run in client.search_runs(experiments, f"attributes.run_id IN ({named})", max_results=_RUNS_AT_ONCE):
                metrics[run.info.run_id] = dict(run.data.metrics)
    aliases: dict[int, list[str]] = {}
    for alias, version in (pair for model in models for pair in sorted(model.aliases.items())):
        aliases.setdefault(int(version), []).append(alias)
    return {
        "versions": [
            {
                "version": int(version.version),
                "created_ms": version.creation_timestamp,
                "aliases": aliases.get(int(version.version), []),
                "tags": dict(version.tags),
                "note": version.description or "",
                "run_id": version.run_id,
                "metrics": metrics.get(version.run_id, {}),
            }
            for version in result
        ]
    }


def annotate_run(place: Place, params: Mapping[str, Any]) -> dict[str, Any]:
    """Sets a run's note and tags.

    Args:
        place: Tracking server.
        params: ``experiment``, ``run_id``; ``note``, or null to leave it; ``tags``, values by name, null to remove one.

    Raises:
        FileNotFoundError: the DAG has no run with this ID, or it was deleted.
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
    """Sets the note (MLflow's description) and tags of version ``version`` of ``model_name``.

    ``note`` and ``tags`` are as in :func:`annotate_run`.

    Raises:
        BadInput: MLflow does not have the version.
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

"""MLflow's model registry: the versions of a model, where each came from, and what was measured of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_hops.core.contract.artifacts import HopsError
from airflow_hops.ml.queries.place import Place
from airflow_hops.ml.queries.runs import tracking
from airflow_hops.ml.tracking.client import mlflow_errors

__all__ = ["versions"]
_RUNS_AT_ONCE = 50
"""Runs that one search names: MLflow puts each into its query."""


def versions(place: Place, params: Mapping[str, Any]) -> dict[str, Any]:
    """The versions of a registered model, the newest first.

    Args:
        place: Names the tracking server.
        params: ``model_name``, and ``max_results``, 1 to 1000.

    Returns:
        ``versions``, each with ``version``, ``created_ms`` (since the epoch), ``aliases``, ``tags``, ``note`` (its
        description), ``run_id`` and ``metrics`` (of the run, the last value of each). Empty where the model is not
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
        metrics: dict[str, dict[str, float]] = {}  # the last ones by run; a run that was deleted has none
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

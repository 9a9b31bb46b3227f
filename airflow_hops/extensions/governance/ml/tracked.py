"""Step of the store's garbage collection that reads and deletes MLflow's runs and registered versions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from airflow_hops.core.errors import HopsError
from airflow_hops.ml.step.context import StepContext
from airflow_hops.ml.tracking.client import mlflow_errors, open_tracking


def run(context: StepContext, *, delete: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Returns the runs and registered versions of model artifacts, and deletes some of them.

    MLflow keeps deleted runs until ``mlflow gc``, but not deleted versions. A trial of a search has the search's model.

    Args:
        context: A step with the service ``tracking_uri``.
        delete: MLflow's URIs of runs (``runs:/<id>``) and versions (``models:/<name>/<version>``).

    Returns:
        ``uri``, ``model`` (URI of the artifact), ``created_at`` (ISO 8601) and ``aliases`` of each.

    Raises:
        HopsError: MLflow does not answer, or a version to delete has an alias; no version or run is then deleted.
    """
    client = open_tracking(context.spec.services["tracking_uri"])
    with mlflow_errors(client):
        entries = [*_versions(client), *_runs(client)]
        chosen = [entry for entry in entries if entry["uri"] in set(delete)]
        for entry in chosen:
            if entry["aliases"]:
                raise HopsError(f"{entry['uri']} got the alias {entry['aliases'][0]!r} in MLflow just now; try again")
        for entry in chosen:
            kind, _, name = entry["uri"].partition(":/")
            if kind == "runs":
                client.delete_run(name)
            else:
                client.delete_model_version(*name.rsplit("/", 1))
    return entries


def _versions(client: Any) -> Iterator[dict[str, Any]]:
    models = _pages(client.search_registered_models)
    aliases = {(model.name, str(number)): alias for model in models for alias, number in model.aliases.items()}
    for version in _pages(client.search_model_versions):
        alias = aliases.get((version.name, str(version.version)))
        uri = f"models:/{version.name}/{version.version}"
        yield _entry(uri, version.tags.get("hops.model"), version.creation_timestamp, [alias] if alias else [])


def _runs(client: Any) -> Iterator[dict[str, Any]]:
    experiments = [each.experiment_id for each in _pages(client.search_experiments)]

    def tagged(tag: str) -> Iterator[Any]:
        return _pages(lambda **page: client.search_runs(experiments, f"tags.`{tag}` LIKE '%'", **page))

    models = {}
    for run in tagged("hops.model"):
        models[run.info.run_id] = run.data.tags["hops.model"]
        yield _entry(f"runs:/{run.info.run_id}", models[run.info.run_id], run.info.start_time)
    for run in tagged("hops.trial"):
        yield _entry(f"runs:/{run.info.run_id}", models.get(run.data.tags["mlflow.parentRunId"]), run.info.start_time)


def _entry(uri: str, model: str | None, created_ms: int | None, aliases: Sequence[str] = ()) -> dict[str, Any]:
    created_at = datetime.fromtimestamp((created_ms or 0) / 1000, UTC).isoformat()
    return {"uri": uri, "model": model or "", "created_at": created_at, "aliases": list(aliases)}


def _pages(search: Callable[..., Any]) -> Iterator[Any]:
    """Yields the results of one of MLflow's searches, page by page."""
    page = search(max_results=1000)
    yield from page
    while page.token:
        page = search(max_results=1000, page_token=page.token)
        yield from page

"""Asks MLflow what it holds; runs in the runtime environment."""

from __future__ import annotations

from contextlib import suppress
from typing import Any


def aliases(context: Any, tracking_uri: str, model_name: str) -> dict[str, int]:
    from mlflow.tracking import MlflowClient

    found = MlflowClient(tracking_uri).get_registered_model(model_name).aliases
    return {alias: int(version) for alias, version in found.items()}


def versions(context: Any, tracking_uri: str, model_name: str) -> list[dict[str, Any]]:
    """Each version with its tags, its run's parameters, and its metrics as lists of (step, value)."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri)
    answer = []
    for version in client.search_model_versions(f"name = '{model_name}'"):
        run = client.get_run(version.run_id)
        metrics = {
            name: [(m.step, m.value) for m in client.get_metric_history(version.run_id, name)]
            for name in run.data.metrics
        }
        answer.append(
            {
                "version": int(version.version),
                "source": version.source,
                "tags": dict(version.tags),
                "run_tags": dict(run.data.tags),
                "run_status": run.info.status,
                "params": dict(run.data.params),
                "metrics": metrics,
                "experiment": client.get_experiment(run.info.experiment_id).name,
            }
        )
    return sorted(answer, key=lambda entry: entry["version"])


def register_twice(context: Any, tracking_uri: str, model_name: str) -> dict[str, Any]:
    """Registers a model after a try that got no further than the run, and then once more."""
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    from airflow_hops.artifacts import HopsError
    from airflow_hops.runtime.registry import ModelRegistry

    class Interrupted(MlflowClient):
        def create_model_version(self, *args: Any, **kwargs: Any) -> Any:
            raise MlflowException("the try ends here")

    model = context.input("model")
    interrupted = ModelRegistry(tracking_uri, model_name)
    interrupted.__dict__["client"] = Interrupted(tracking_uri)
    with suppress(HopsError):
        interrupted.register(model, context.spec.producer)
    registered = [ModelRegistry(tracking_uri, model_name).register(model, context.spec.producer) for _ in range(2)]
    client = MlflowClient(tracking_uri)
    experiment = client.get_experiment_by_name(context.spec.producer.dag_id)
    runs = client.search_runs(
        [experiment.experiment_id],
        f"tags.`hops.fingerprint` = '{model.fingerprint}' and tags.`hops.model` = '{model.uri}'",
    )
    return {
        "runs": len(runs),
        "versions": [int(v.version) for v in client.search_model_versions(f"name = '{model_name}'")],
        "created": [version.created for version in registered],
    }

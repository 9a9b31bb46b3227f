"""Asks MLflow what it holds; runs in the runtime environment."""

from __future__ import annotations

from contextlib import suppress
from typing import Any


def aliases(context: Any, tracking_uri: str, model_name: str) -> dict[str, int]:
    from mlflow.tracking import MlflowClient

    result = MlflowClient(tracking_uri).get_registered_model(model_name).aliases
    return {alias: int(version) for alias, version in result.items()}


def set_aliases(context: Any, tracking_uri: str, model_name: str, aliases: dict[str, int]) -> None:
    from mlflow.tracking import MlflowClient

    for alias, version in aliases.items():
        MlflowClient(tracking_uri).set_registered_model_alias(model_name, alias, str(version))


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


def champion(context: Any, tracking_uri: str, model_name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Loads the champion with MLflow; returns its answers to rows, its signature and its files."""
    from pathlib import Path

    import mlflow
    import pandas as pd

    mlflow.set_tracking_uri(tracking_uri)
    address = f"models:/{model_name}@champion"
    model = mlflow.pyfunc.load_model(address)
    files = [each for each in Path(mlflow.artifacts.download_artifacts(address)).rglob("*") if each.is_file()]
    return {
        "predictions": model.predict(pd.DataFrame(rows)).to_dict("records"),
        "of_example": len(model.predict(model.input_example)),
        "inputs": {each.name: each.type.name for each in model.metadata.get_input_schema()},
        "outputs": {each.name: each.type.name for each in model.metadata.get_output_schema()},
        "files": [each.name for each in files],
        "bytes": sum(each.stat().st_size for each in files),
    }


def register_twice(context: Any, tracking_uri: str, model_name: str) -> dict[str, Any]:
    """Registers a model after a try that got no further than the run, and then once more."""
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    from airflow_hops.core.errors import HopsError
    from airflow_hops.ml.tracking import ModelRegistry

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
        "registered": registered,
    }


def runs(context: Any, tracking_uri: str, experiment: str) -> list[dict[str, Any]]:
    """Each run of an experiment, with its inputs, its artifacts and the text of some."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri)
    result = client.get_experiment_by_name(experiment)
    answer = []
    for run in client.search_runs([result.experiment_id]) if result else []:
        answer.append(
            {
                "id": run.info.run_id,
                "name": run.info.run_name,
                "status": run.info.status,
                "tags": dict(run.data.tags),
                "params": dict(run.data.params),
                "metrics": {
                    name: [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, name)]
                    for name in run.data.metrics
                },
            }
        )
    return answer


def track_models(context: Any, models: dict[str, str], alias: str) -> None:
    """Logs a run with a trial, and registers a version, of each model artifact; the model ``alias`` gets an alias."""
    from airflow_hops.ml.tracking.client import experiment_id, open_tracking

    client = open_tracking(context.spec.services["tracking_uri"])
    experiment = experiment_id(client, "flights")
    for name, uri in models.items():
        run = client.create_run(experiment, tags={"hops.model": uri}).info.run_id
        client.create_run(experiment, tags={"hops.trial": "0", "mlflow.parentRunId": run, "name": name})
        client.create_registered_model(name)
        client.create_model_version(name, source=uri, run_id=run, tags={"hops.model": uri}, await_creation_for=0)
    client.set_registered_model_alias(alias, "production", "1")
    client.create_run(experiment, tags={"name": "of another program"})


def tracked(context: Any) -> dict[str, Any]:
    """The models of all runs, the names of trials and other runs, and the registered versions."""
    from airflow_hops.ml.tracking.client import open_tracking

    client = open_tracking(context.spec.services["tracking_uri"])
    runs = [run.data.tags for run in client.search_runs([each.experiment_id for each in client.search_experiments()])]
    return {
        "runs": sorted(tags["hops.model"] for tags in runs if "hops.model" in tags),
        "others": sorted(tags["name"] for tags in runs if "name" in tags),
        "versions": sorted(version.name for version in client.search_model_versions()),
    }

"""MLflow's model registry: versions, their runs, and aliases of the deployed versions."""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from airflow_hops.core.artifacts.artifact import Artifact, Manifest, Producer
from airflow_hops.core.errors import ConnectionFieldError, HopsError
from airflow_hops.core.store import ArtifactStore
from airflow_hops.ml.tracking.client import experiment_id, mlflow_errors, open_tracking
from airflow_hops.ml.tracking.entries import (
    evaluation_metrics,
    lineage_tags,
    log_metrics,
    log_params,
    metrics_of,
    params_of,
)
from airflow_hops.ml.tracking.mlflow_run import TRAINING_TAG
from airflow_hops.ml.tracking.training_run import record_evaluation

# MLflow 3.17: has no transaction over run, model, version and alias. Each is therefore found by a tag before it is
# created, so that a retry continues where a killed task stopped: the run by the training or the model's fingerprint,
# the version by the fingerprint. Aliases are not trusted; point_aliases() sets them from the store's record after each
# decision. Callers hold ModelServer.exclusive(), so two tasks do not create the same version.

log = logging.getLogger(__name__)

CHAMPION = "champion"
CHALLENGER = "challenger"
_DESCRIPTION = "model"


class ModelRegistry:
    """Registered model of one name; a missing SQLite database and its folder are created."""

    def __init__(self, tracking_uri: str, model_name: str) -> None:
        if not tracking_uri:
            raise ConnectionFieldError("tracking_uri").with_text(
                "MLflow's tracking URI is empty; set it in the connection's field 'tracking_uri'"
            )
        self.tracking_uri, self.model_name = tracking_uri, model_name

    @cached_property
    def client(self) -> Any:
        """Client of MLflow; raises ``HopsError`` if MLflow cannot be reached, or its database cannot be opened."""
        return open_tracking(self.tracking_uri)

    def find(self, fingerprint: str) -> int | None:
        """Returns the version that was registered for a model artifact, by its fingerprint."""
        with mlflow_errors(self.client):
            result = self.client.search_model_versions(
                f"name = '{self.model_name}' and tags.`hops.fingerprint` = '{fingerprint}'"
            )
            return max((int(each.version) for each in result), default=None)

    def register(
        self,
        model: Artifact,
        producer: Producer,
        *,
        training: Mapping[str, object] | None = None,
        evaluation: Artifact | None = None,
        describe: Callable[[Path], None] | None = None,
    ) -> int:
        """Registers a model artifact as a version, with a run of its parameters and metrics.

        A model that was registered before, by this try or another, keeps its version.

        Args:
            model: The model artifact.
            producer: The task instance that registers it; its DAG names the experiment.
            training: The training record (``training.json``).
            evaluation: The evaluation artifact, whose metrics are logged.
            describe: Writes the model as MLflow describes one to a new folder, which becomes the version's source; it
                is the artifact itself without, or if that fails.
        """
        result = self.find(model.fingerprint)
        if result is not None:
            return result
        tags = {f"hops.{name}": getattr(producer, name) for name in ("dag_id", "run_id", "task_id")}
        tags |= lineage_tags(model)
        with mlflow_errors(self.client):
            run_id = self._run(model, producer, tags, training or {}, evaluation)
            from mlflow.exceptions import MlflowException

            try:
                self.client.create_registered_model(self.model_name)
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
            source = self._log_description(run_id, describe) or model.uri
            if self.tracking_uri.startswith("http") and source.startswith("file:") and source == model.uri:
                # MLflow 3.17: a server refuses sources that look like paths on its own disk.
                source = f"hops-{source}"
            created = self.client.create_model_version(
                self.model_name, source=source, run_id=run_id, tags=tags, await_creation_for=0
            )
            return int(created.version)

    def set_alias(self, alias: str, version: int) -> None:
        """Points an alias at a version."""
        with mlflow_errors(self.client):
            self.client.set_registered_model_alias(self.model_name, alias, str(version))

    def delete_alias(self, alias: str) -> None:
        """Removes an alias, if it exists."""
        from mlflow.exceptions import MlflowException

        try:
            self.client.delete_registered_model_alias(self.model_name, alias)
        except MlflowException as error:
            if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                raise HopsError(f"MLflow at {self.tracking_uri}: {error}") from error

    def point_aliases(self, champion: int | None, challenger: int | None) -> None:
        """Corrects the aliases after a task may have been killed; correct ones are not written."""
        with mlflow_errors(self.client):
            result = self.client.search_registered_models(f"name = '{self.model_name}'")
        aliases = {alias: int(version) for model in result for alias, version in model.aliases.items()}
        for alias, version in ((CHAMPION, champion), (CHALLENGER, challenger)):
            if version is None and alias in aliases:
                self.delete_alias(alias)
            elif version is not None and aliases.get(alias) != version:
                self.set_alias(alias, version)

    def tag(self, version: int, name: str, value: str) -> None:
        """Tags a version."""
        with mlflow_errors(self.client):
            self.client.set_model_version_tag(self.model_name, str(version), name, value)

    def _log_description(self, run_id: str, describe: Callable[[Path], None] | None) -> str | None:
        """Returns the address of a model's description among its run's artifacts; None without one."""
        if describe is None:
            return None
        try:
            with tempfile.TemporaryDirectory() as folder:
                describe(Path(folder) / _DESCRIPTION)
                self.client.log_artifacts(run_id, str(Path(folder) / _DESCRIPTION), _DESCRIPTION)
        except Exception as error:  # of the model's files, or of any store that MLflow keeps artifacts in
            log.warning(
                "mlflow.pyfunc.load_model will not load this version: its description was not stored (%s: %s)",
                type(error).__name__,
                error,
            )
            return None
        return f"{self.client.get_run(run_id).info.artifact_uri}/{_DESCRIPTION}"

    def _run(
        self,
        model: Artifact,
        producer: Producer,
        tags: Mapping[str, str],
        training: Mapping[str, object],
        evaluation: Artifact | None,
    ) -> str:
        """Returns the run of a model: that of its training, or a separate one, resumed if an earlier try began it."""
        experiment = experiment_id(self.client, producer.dag_id)
        begun = _runs_of(self.client, experiment, model)
        if begun and TRAINING_TAG in begun[0].data.tags:
            run_id: str = begun[0].info.run_id
            _log_new(self.client, begun[0], metrics_of(model, {}, evaluation))
            return run_id
        name = f"{producer.dag_id} {producer.run_id}"
        run_id = (begun[0] if begun else self.client.create_run(experiment, run_name=name, tags=dict(tags))).info.run_id
        log_params(self.client, run_id, params_of(model, training))
        log_metrics(self.client, run_id, metrics_of(model, training, evaluation), int(time.time() * 1000))
        self.client.set_terminated(run_id)
        return run_id


def log_evaluation(
    store: ArtifactStore, tracking_uri: str, model: Artifact, manifest: Manifest, evaluation: Artifact
) -> None:
    """Logs an evaluation's metrics with the training of its model, so that refused models have them as well.

    They are added to the training's record and its run in MLflow. A failure is logged, as an evaluation needs neither.

    Args:
        store: The artifact store.
        tracking_uri: MLflow's URI; empty for no MLflow.
        model: The model.
        manifest: Its manifest.
        evaluation: Its evaluation.
    """
    try:
        record_evaluation(store, manifest, evaluation)
    except (HopsError, OSError) as error:
        log.warning("These metrics were not added to the training's record: %s", error)
    if not tracking_uri:
        return
    try:
        client = open_tracking(tracking_uri)
        with mlflow_errors(client):
            for run in _runs_of(client, experiment_id(client, manifest.producer.dag_id), model):
                _log_new(client, run, evaluation_metrics(evaluation))
    except (HopsError, OSError) as error:
        log.warning("These metrics were not logged to the training's run in MLflow: %s", error)


def _runs_of(client: Any, experiment: str, model: Artifact) -> list[Any]:
    same = f"tags.`hops.model` = '{model.uri}' and tags.`hops.fingerprint` = '{model.fingerprint}'"
    return list(client.search_runs([experiment], same, max_results=1))


def _log_new(client: Any, run: Any, metrics: Sequence[tuple[str, float, int]]) -> None:
    """Logs metrics that the run does not have with these values."""
    new = [each for each in metrics if run.data.metrics.get(each[0]) != each[1]]
    log_metrics(client, run.info.run_id, new, int(time.time() * 1000))

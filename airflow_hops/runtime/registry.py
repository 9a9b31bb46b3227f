"""MLflow: runs, registered versions, and the aliases that name what serves.

Importing MLflow costs more than a second and making its database several, so this module does neither until it must.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from airflow_hops.artifacts import Artifact, BadInput, HopsError, Producer

CHAMPION = "champion"
CHALLENGER = "challenger"
_PARAM_CHARS = 6000
"""MLflow's limit on a parameter's value."""


@dataclass(frozen=True)
class RegisteredVersion:
    """A version in the registry.

    Attributes:
        version: Its number.
        mlflow_run_id: The MLflow run that has its parameters and metrics.
        created: False when the same model had been registered before.
    """

    version: int
    mlflow_run_id: str
    created: bool


class ModelRegistry:
    """The registered model of one name.

    Args:
        tracking_uri: MLflow's tracking URI; for SQLite, the database and its folder are made.
        model_name: Name of the registered model.
    """

    def __init__(self, tracking_uri: str, model_name: str) -> None:
        if not tracking_uri:
            raise BadInput("MLflow's tracking URI is empty; set it in the connection's field 'tracking_uri'")
        self.tracking_uri, self.model_name = tracking_uri, model_name

    @cached_property
    def client(self) -> Any:
        """MLflow's client.

        Raises:
            HopsError: MLflow cannot be reached, or its database cannot be opened.
        """
        return open_tracking(self.tracking_uri)

    def find(self, fingerprint: str) -> RegisteredVersion | None:
        """The version that was registered for a model artifact, by fingerprint."""
        with self._errors():
            found = self.client.search_model_versions(
                f"name = '{self.model_name}' and tags.`hops.fingerprint` = '{fingerprint}'"
            )
            newest = max(found, key=lambda version: int(version.version), default=None)
            return RegisteredVersion(int(newest.version), newest.run_id, False) if newest else None

    def register(
        self,
        model: Artifact,
        producer: Producer,
        *,
        training: Mapping[str, Any] | None = None,
        evaluation: Artifact | None = None,
    ) -> RegisteredVersion:
        """Registers a model artifact as a version, with a run of its parameters and metrics.

        A model that was registered before, by this try or another, keeps its version.

        Args:
            model: The model artifact.
            producer: The task instance that registers it; its DAG names the experiment.
            training: What the training wrote of itself (``training.json``).
            evaluation: The evaluation artifact, whose metrics are logged.
        """
        found = self.find(model.fingerprint)
        if found is not None:
            return found
        tags = {
            "hops.model": model.uri,
            "hops.fingerprint": model.fingerprint,
            "hops.statistics": str(model.properties.get("statistics") or ""),
            "hops.schema": str(model.properties.get("schema") or ""),
            "hops.dag_id": producer.dag_id,
            "hops.run_id": producer.run_id,
        }
        with self._errors():
            run_id = self._run(model, producer, tags, training or {}, evaluation)
            self._create_registered_model()
            source = model.uri
            if self.tracking_uri.startswith("http") and source.startswith("file:"):
                # An MLflow server refuses sources on a disk that it takes for its own.
                source = f"hops-{source}"
            created = self.client.create_model_version(
                self.model_name, source=source, run_id=run_id, tags=tags, await_creation_for=0
            )
            return RegisteredVersion(int(created.version), run_id, True)

    def set_alias(self, alias: str, version: int) -> None:
        """Points an alias at a version."""
        with self._errors():
            self.client.set_registered_model_alias(self.model_name, alias, str(version))

    def delete_alias(self, alias: str) -> None:
        """Removes an alias; one that is not there is no error."""
        from mlflow.exceptions import MlflowException

        try:
            self.client.delete_registered_model_alias(self.model_name, alias)
        except MlflowException as error:
            if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                raise HopsError(f"MLflow at {self.tracking_uri}: {error}") from error

    def tag(self, version: int, name: str, value: str) -> None:
        """Tags a version."""
        with self._errors():
            self.client.set_model_version_tag(self.model_name, str(version), name, value)

    def _run(
        self,
        model: Artifact,
        producer: Producer,
        tags: Mapping[str, str],
        training: Mapping[str, Any],
        evaluation: Artifact | None,
    ) -> str:
        """The run of a model; one that an interrupted try began is taken up again."""
        from mlflow.entities import Param

        experiment_id = self._experiment(producer.dag_id)
        same = f"tags.`hops.model` = '{model.uri}' and tags.`hops.fingerprint` = '{model.fingerprint}'"
        begun = self.client.search_runs([experiment_id], same, max_results=1)
        run_id: str = (
            begun[0].info.run_id
            if begun
            else self.client.create_run(
                experiment_id, run_name=f"{producer.dag_id} {producer.run_id}", tags=dict(tags)
            ).info.run_id
        )
        params = [Param(name, value) for name, value in _params(model, training).items()]
        for first in range(0, len(params), 100):  # MLflow's limit for one call
            self.client.log_batch(run_id, params=params[first : first + 100])
        metrics = _metrics(model, training, evaluation)
        for first in range(0, len(metrics), 1000):
            self.client.log_batch(run_id, metrics=metrics[first : first + 1000])
        self.client.set_terminated(run_id)
        return run_id

    def _experiment(self, name: str) -> str:
        from mlflow.exceptions import MlflowException

        experiment = self.client.get_experiment_by_name(name)
        if experiment is not None:
            return str(experiment.experiment_id)
        location = None
        if self.tracking_uri.startswith("sqlite:"):
            # MLflow's own default is a folder of the step's working directory, which is gone with the step.
            location = f"{_sqlite_path(self.tracking_uri).with_suffix('').as_uri()}-artifacts/{name}"
        try:
            return str(self.client.create_experiment(name, artifact_location=location))
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":  # another run has made it since
                raise
            return str(self.client.get_experiment_by_name(name).experiment_id)

    def _create_registered_model(self) -> None:
        from mlflow.exceptions import MlflowException

        try:
            self.client.create_registered_model(self.model_name)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise

    @contextmanager
    def _errors(self) -> Iterator[None]:
        client = self.client
        from mlflow.exceptions import MlflowException

        try:
            yield
        except MlflowException as error:
            raise HopsError(f"MLflow at {client.tracking_uri}: {error}") from error


def open_tracking(tracking_uri: str) -> Any:
    """Opens MLflow, making a SQLite database (and its folder) that is not there yet.

    Whoever wants the first deployment to be quick calls this beforehand: making the database takes seconds.

    Args:
        tracking_uri: ``sqlite:///…``, ``http://…`` or whatever else MLflow takes.

    Raises:
        HopsError: MLflow cannot be reached, or its database cannot be opened.
    """
    # MLflow waits for minutes on a server that is away; the task's own retries do that better.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")
    try:
        from mlflow.tracking import MlflowClient

        if not tracking_uri.startswith("sqlite:"):
            client = MlflowClient(tracking_uri)
            client.search_experiments(max_results=1)
            return client
        path = _sqlite_path(tracking_uri)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.with_name(f".{path.name}.lock").open("w") as lock:
            # Two processes that make the tables at once fail on each other's.
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                _make_database(path)
            client = MlflowClient(tracking_uri)
            client.search_experiments(max_results=1)
            client.search_registered_models(max_results=1)
        return client
    except HopsError:
        raise
    except Exception as error:
        raise HopsError(
            f"MLflow at {tracking_uri} does not open ({type(error).__name__}: {error}); see the connection's field "
            "'tracking_uri'"
        ) from error


def _make_database(path: Path) -> None:
    """Makes MLflow's tables in memory and moves the finished file into place.

    MLflow migrates an empty database through all of its history, and a disk's syncs would make that take seconds.
    """
    from mlflow.tracking import MlflowClient

    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(
        prefix="hops-mlflow-", dir=memory if os.access(memory, os.W_OK) else None
    ) as folder:
        made = Path(folder) / "mlflow.db"
        MlflowClient(f"sqlite:///{made}").search_experiments(max_results=1)
        staging = path.with_name(f".{path.name}.staging")
        shutil.copyfile(made, staging)
        staging.replace(path)


def read_training(folder: Path) -> dict[str, Any]:
    """What a training wrote of itself into its model artifact; empty where it wrote nothing."""
    try:
        value = json.loads((folder / "training.json").read_text())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise BadInput(f"{folder / 'training.json'}: not JSON ({error})") from error
    return value if isinstance(value, dict) else {}


def _sqlite_path(tracking_uri: str) -> Path:
    path = tracking_uri.removeprefix("sqlite:///").partition("?")[0]
    if not path or tracking_uri == path or not Path(path).is_absolute():
        raise BadInput(f"tracking_uri is {tracking_uri!r}; expected sqlite:////absolute/path/of/mlflow.db")
    return Path(path)


def _params(model: Artifact, training: Mapping[str, Any]) -> dict[str, str]:
    """Everything of the training's record that is not a series, and the window and features of the model."""
    given = {
        **{name: value for name, value in training.items() if not _is_series(value)},
        **{name: model.properties[name] for name in ("window", "label", "features") if name in model.properties},
    }
    flat: dict[str, str] = {}
    for name, value in given.items():
        if isinstance(value, Mapping):
            flat.update({f"{name}.{key}": _text(item) for key, item in value.items()})
        else:
            flat[name] = _text(value)
    return {_key(name): value for name, value in flat.items()}


def _metrics(model: Artifact, training: Mapping[str, Any], evaluation: Artifact | None) -> list[Any]:
    """Metrics of each epoch, then the model's own, then the evaluation's."""
    from mlflow.entities import Metric

    at_ms = int(time.time() * 1000)
    metrics = [
        Metric(_key(name), float(value), at_ms, int(figures.get("epoch", position)))
        for position, figures in enumerate(_epochs(training), start=1)
        for name, value in figures.items()
        if _is_number(value) and name != "epoch"
    ]
    metrics += [Metric(_key(f"model.{name}"), float(value), at_ms, 0) for name, value in model.metrics.items()]
    if evaluation is not None:
        metrics += [
            Metric(_key(f"evaluation.{name}"), float(value), at_ms, 0) for name, value in evaluation.metrics.items()
        ]
    return metrics


def _epochs(training: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The figures of each epoch: a list of mappings, or a mapping of lists as in Keras's ``History.history``."""
    for name in ("epochs", "history"):
        value = training.get(name)
        if isinstance(value, list) and all(isinstance(entry, Mapping) for entry in value):
            return value
        if isinstance(value, Mapping) and value and all(isinstance(series, list) for series in value.values()):
            length = max(len(series) for series in value.values())
            return [
                {key: series[index] for key, series in value.items() if index < len(series)} for index in range(length)
            ]
    return []


def _is_series(value: Any) -> bool:
    if isinstance(value, Mapping):
        return bool(value) and all(isinstance(item, list | Mapping) for item in value.values())
    return isinstance(value, list) and bool(value) and isinstance(value[0], Mapping)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _key(name: str) -> str:
    return "".join(char if char.isalnum() or char in "_-./ " else "_" for char in name)


def _text(value: Any) -> str:
    return (value if isinstance(value, str) else json.dumps(value))[:_PARAM_CHARS]

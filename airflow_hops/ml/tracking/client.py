"""MLflow's client, and its SQLite database, created if necessary.

Importing MLflow takes more than a second and creating its database several, so both are done only when needed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from airflow_hops.core.errors import HopsError, InvalidArgument, ServerUnreachable
from airflow_hops.core.processes.files import locked


def open_tracking(tracking_uri: str) -> Any:
    """Opens MLflow at any of its URIs, creating a missing SQLite database and its folder, which takes seconds.

    Raises:
        HopsError: MLflow cannot be reached, or its database cannot be opened.
    """
    # MLflow 3.17: waits minutes for an unreachable server by default; the task's own retries are better.
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
        # Processes that create the tables at the same time would fail.
        with locked(path.with_name(f".{path.name}.lock")):
            client = MlflowClient(tracking_uri)
            client.search_experiments(max_results=1)
            client.search_registered_models(max_results=1)
        return client
    except HopsError:
        raise
    except Exception as error:
        raise ServerUnreachable(
            tracking_uri,
            f"MLflow at {tracking_uri} does not open ({type(error).__name__}: {error}); see the connection's field "
            "'tracking_uri'",
        ) from error


def experiment_id(client: Any, name: str) -> str:
    """Returns the id of an experiment, which is created if it does not exist."""
    from mlflow.exceptions import MlflowException

    experiment = client.get_experiment_by_name(name)
    if experiment is not None:
        return str(experiment.experiment_id)
    location = None
    if client.tracking_uri.startswith("sqlite:"):
        # MLflow 3.17: its default is in the step's working directory, which is removed with the step.
        location = f"{_sqlite_path(client.tracking_uri).with_suffix('').as_uri()}-artifacts/{name}"
    try:
        return str(client.create_experiment(name, artifact_location=location))
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":  # another run has just created it
            raise
        return str(client.get_experiment_by_name(name).experiment_id)


@contextmanager
def mlflow_errors(client: Any) -> Iterator[None]:
    """Turns errors of MLflow into a ``HopsError`` with MLflow's address."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        raise HopsError(f"MLflow at {client.tracking_uri}: {error}") from error


def _sqlite_path(tracking_uri: str) -> Path:
    path = tracking_uri.removeprefix("sqlite:///").partition("?")[0]
    if not path or tracking_uri == path or not Path(path).is_absolute():
        raise InvalidArgument("tracking_uri", tracking_uri, "; expected sqlite:////absolute/path/of/mlflow.db")
    return Path(path)

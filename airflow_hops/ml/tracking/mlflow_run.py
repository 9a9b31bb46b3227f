"""MLflow's run of a training."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from airflow_hops.core.artifacts.artifact import Producer
from airflow_hops.core.errors import HopsError
from airflow_hops.core.training.record import Status, TrainingRecord
from airflow_hops.ml.tracking.client import experiment_id, mlflow_errors, open_tracking
from airflow_hops.ml.tracking.entries import log_metrics, log_params

# The run is found by its tag, which all tries of a training share; a retry sets it back to RUNNING. After the first
# error of MLflow nothing more is sent, so that a slow server costs the training one time-out, not one per metric.

TRAINING_TAG = "hops.training"
"""Tag with the id of the training's record, by which a retry finds the run."""

log = logging.getLogger(__name__)


class MlflowRun:
    """MLflow's run of a training; an error is logged, and nothing more is sent.

    Args:
        tracking_uri: Empty for no MLflow.
        training: Id of the training's record.
    """

    def __init__(self, tracking_uri: str, training: str) -> None:
        self._tracking_uri, self._training = tracking_uri, training
        self._client: Any = None
        self._id = self._experiment = ""
        self._failed = not tracking_uri

    def begin(self, record: TrainingRecord, producer: Producer, code_paths: Sequence[str]) -> dict[str, str]:
        """Creates the run in the experiment of its DAG, or resumes that of an earlier try.

        Returns:
            ``experiment`` and ``run`` id; empty if MLflow failed.
        """

        def begin() -> None:
            client = self._client
            self._experiment = experiment_id(client, producer.dag_id)
            begun = client.search_runs([self._experiment], f"tags.`{TRAINING_TAG}` = '{self._training}'", max_results=1)
            if begun:
                self._id = begun[0].info.run_id
                client.update_run(self._id, status="RUNNING")
            else:
                source = {"mlflow.source.type": "JOB", "mlflow.source.name": f"{producer.dag_id}.{producer.task_id}"}
                tags = {**record.tags, **source, **_commit(code_paths), TRAINING_TAG: self._training}
                name = f"{producer.dag_id} {record.name}"
                self._id = client.create_run(self._experiment, run_name=name, tags=tags).info.run_id
                log_params(client, self._id, record.params)
            client.set_tag(self._id, "hops.try", str(producer.try_number))

        self._attempt(begin)
        return {} if self._failed else {"experiment": self._experiment, "run": self._id}

    def do(self, call: Callable[[Any, str, str], None]) -> None:
        """Makes a call with MLflow's client and the ids of the experiment and this run, if the run has begun."""
        if self._id:
            self._attempt(lambda: call(self._client, self._experiment, self._id))

    def log_metrics(self, metrics: Mapping[str, float], step: int, at_ms: int) -> None:
        """Logs metrics of a step or an epoch."""
        points = [(name, value, step) for name, value in metrics.items()]
        self.do(lambda client, _, run_id: log_metrics(client, run_id, points, at_ms))

    def finish(self, metrics: Sequence[tuple[str, float, int]], tags: Mapping[str, str]) -> None:
        """Logs the model's metrics and tags."""

        def log_outcome(client: Any, _: str, run_id: str) -> None:
            from mlflow.entities import RunTag

            client.log_batch(run_id, tags=[RunTag(name, value) for name, value in tags.items()])
            log_metrics(client, run_id, metrics, int(time.time() * 1000))
            client.set_terminated(run_id)

        self.do(log_outcome)

    def end(self, status: Status) -> None:
        """Marks this try as failed or killed."""
        self.do(lambda client, _, run_id: client.set_terminated(run_id, status))

    def _attempt(self, work: Callable[[], None]) -> None:
        if self._failed:
            return
        try:
            if self._client is None:
                self._client = open_tracking(self._tracking_uri)
            with mlflow_errors(self._client):
                work()
        except (HopsError, OSError) as error:
            self._failed = True
            log.warning("This training is no longer tracked in MLflow: %s", error)


def _commit(code_paths: Sequence[str]) -> dict[str, str]:
    """Returns MLflow's tag for the Git commit of the first folder of user code, if it has one."""
    from mlflow.utils.git_utils import get_git_commit

    commit = get_git_commit(code_paths[0]) if code_paths else None
    return {"mlflow.source.git.commit": commit} if commit else {}

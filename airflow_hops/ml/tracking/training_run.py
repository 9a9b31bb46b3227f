"""MLflow run of a training: its parameters, progress, results, data sets and environment."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from airflow_hops.core.contract.artifacts import Artifact, HopsError, Manifest
from airflow_hops.core.contract.named_environment import environment_name, locked_packages
from airflow_hops.core.contract.protocol import StepSpec
from airflow_hops.core.contract.redaction import masked
from airflow_hops.core.contract.run_record import RECORD_TAG, is_recorded, record_key
from airflow_hops.ml.tracking.client import experiment_id, mlflow_errors, open_tracking
from airflow_hops.ml.tracking.entries import entry_name, lineage_tags, log_params, metrics_of, param_text

# The run is found by its tag, which all tries of a training share; a retry sets it back to RUNNING. After the first
# error of MLflow nothing more is sent, so that a slow server costs the training one time-out, not one per metric.

TRAINING_TAG = "hops.training"
"""Tag that identifies a training across its tries, so that a retry resumes the run."""

log = logging.getLogger(__name__)


class TrainingRun:
    """Run of a training in the experiment of its DAG.

    If MLflow fails, this is logged and the training continues: its results are worth more than the MLflow run.

    Args:
        spec: The step's spec, with MLflow's tracking URI as the service ``tracking_uri`` (empty for no MLflow); the
            producer's DAG names the experiment.
        training: Identifies the training across its tries.

    Attributes:
        record: The key of its record in the store, or None.
    """

    def __init__(self, spec: StepSpec, training: str) -> None:
        self.tracking_uri, self.training, self.producer = spec.services.get("tracking_uri", ""), training, spec.producer
        self.record = record_key(spec.cache_key_parts, spec.inputs) if is_recorded(spec) else None
        self._client: Any = None
        self._id: str | None = None
        self._failed = not self.tracking_uri

    def begin(
        self,
        params: Mapping[str, Any],
        examples: Artifact | None,
        manifest: Manifest | None,
        code_paths: Sequence[str] = (),
    ) -> None:
        """Creates the run, or resumes that of an earlier try.

        Args:
            params: Hyperparameters and other settings of the training.
            examples: The examples that it trains on.
            manifest: Manifest of the examples.
            code_paths: Folders of user code; the run has the Git commit of the first.
        """
        self._attempt(lambda: self._begin(params, examples, manifest, code_paths))

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Logs metrics of a step or an epoch."""
        if self._id is not None:
            from mlflow.entities import Metric

            at_ms = int(time.time() * 1000)
            entries = [Metric(entry_name(name), float(value), at_ms, step) for name, value in metrics.items()]
            self._attempt(lambda: self._client.log_batch(self._id, metrics=entries))

    def finish(self, model: Artifact | None, record: Mapping[str, Any], code: Mapping[str, str]) -> None:
        """Logs the results.

        Args:
            model: The published model; None if the training returned a plain value.
            record: Content of ``training.json``.
            code: Sources of the user's code by path, which are logged below ``code/``.
        """
        if self._id is None:
            return
        from mlflow.entities import RunTag

        def log_outcome() -> None:
            client, run = self._client, self._id
            if model is not None:
                tags = [RunTag(name, value) for name, value in lineage_tags(model).items()]
                client.log_batch(run, metrics=metrics_of(model, {}, None), tags=tags)
            client.log_text(run, environment_lock(), "environment/requirements.txt")
            client.log_dict(run, dict(record), "training.json")
            for name, text in code.items():
                client.log_text(run, text, f"code/{name}")
            client.set_terminated(run)

        self._attempt(log_outcome)

    def fail(self) -> None:
        """Marks this try as failed."""
        if self._id is not None:
            self._attempt(lambda: self._client.set_terminated(self._id, "FAILED"))

    @property
    def id(self) -> str | None:
        """ID of the run, once it has begun."""
        return self._id

    def attempt(self, work: Callable[[Any], None]) -> None:
        """Calls a function with MLflow's client once the run has begun; errors are logged."""
        if self._id is not None:
            self._attempt(lambda: work(self._client))

    def _attempt(self, work: Callable[[], None]) -> None:
        if self._failed:
            return
        try:
            if self._client is None:
                self._client = open_tracking(self.tracking_uri)
            with mlflow_errors(self._client):
                work()
        except (HopsError, OSError) as error:
            self._failed = True
            log.warning("This training is no longer tracked: %s", error)

    def _begin(
        self, params: Mapping[str, Any], examples: Artifact | None, manifest: Manifest | None, code_paths: Sequence[str]
    ) -> None:
        from mlflow.utils.git_utils import get_git_commit

        client, producer = self._client, self.producer
        experiment = experiment_id(client, producer.dag_id)
        begun = client.search_runs([experiment], f"tags.`{TRAINING_TAG}` = '{self.training}'", max_results=1)
        if begun:
            self._id = begun[0].info.run_id
            client.update_run(self._id, status="RUNNING")
        else:
            tags = {
                TRAINING_TAG: self.training,
                "hops.dag_id": producer.dag_id,
                "hops.run_id": producer.run_id,
                "hops.task_id": producer.task_id,
                "mlflow.source.type": "JOB",
                "mlflow.source.name": f"{producer.dag_id}.{producer.task_id}",
            }
            if (runtime := environment_name(Path(sys.prefix))) is not None:
                tags |= {"hops.runtime": runtime, "hops.runtime_packages": " ".join(locked_packages(Path(sys.prefix)))}
            if self.record is not None:
                tags[RECORD_TAG] = self.record
            if producer.map_index >= 0:
                tags["hops.map_index"] = str(producer.map_index)
            if producer.iteration >= 0:
                tags["hops.iteration"] = str(producer.iteration)
            commit = get_git_commit(code_paths[0]) if code_paths else None
            if commit:
                tags["mlflow.source.git.commit"] = commit
            name = f"{producer.dag_id} {producer.run_id} {producer.task_id}"
            self._id = client.create_run(experiment, run_name=name, tags=masked(tags)).info.run_id
            log_params(client, self._id, {entry_name(key): param_text(value) for key, value in masked(params).items()})
            if examples is not None and manifest is not None:
                client.log_inputs(self._id, datasets=_datasets(examples, manifest))
        client.set_tag(self._id, "hops.try", str(producer.try_number))


def _datasets(examples: Artifact, manifest: Manifest) -> list[Any]:
    """Returns the splits that a training reads, with their origin."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    inputs = {role: [artifact.uri for artifact in values] for role, values in manifest.inputs.items()}
    source = {"uri": examples.uri, "kind": examples.kind, "fingerprint": examples.fingerprint, "made_from": inputs}
    return [
        DatasetInput(
            dataset=Dataset(
                name=f"{manifest.producer.task_id or examples.kind}/{split}",
                digest=examples.fingerprint[:16],
                source_type="hops",
                source=json.dumps(source),
                profile=json.dumps({"num_rows": counts.rows_out}),
            ),
            tags=[InputTag("mlflow.data.context", "training" if split == "train" else split)],
        )
        for split, counts in manifest.rows.items()
    ]


@cache
def environment_lock() -> str:
    """Returns the libraries of this environment in the format of ``pip freeze``."""
    # Setuptools puts its vendored packages on the path; they are not installed ones.
    own = [each for each in distributions() if "_vendor" not in Path(str(each.locate_file(""))).parts]
    metadata = [each.metadata for each in own]  # a property that reads a file
    results = {f"{each['Name']}=={each['Version']}" for each in metadata if each["Name"]}
    return "\n".join(sorted(results, key=str.lower)) + "\n"


class OrderedCalls:
    """Thread that makes calls in order; it starts with the first one, when all ranks are already forked."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, name)
        self._begun: deque[Future[None]] = deque()

    def do(self, call: Callable[[], None]) -> None:
        """Queues a call."""
        self._begun.append(self._pool.submit(call))

    def finish(self) -> None:
        """Waits until all calls are done."""
        wait(self._begun)

    def raise_error(self) -> None:
        """Raises the error of a call that has failed since the last call."""
        while self._begun and self._begun[0].done():
            self._begun.popleft().result()

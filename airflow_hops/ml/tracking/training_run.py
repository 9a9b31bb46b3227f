"""Tracks a training: its record in the store, which the web pages show, and its run in MLflow.

Both get the same parameters, metrics and tags. The record is written by this process and a thread that starts with the
first metric: ranks are forked from this process, which must not have threads before. MLflow has its own thread, so that
a slow server delays neither the training nor the record. Errors of both are logged, and the training continues: its
results are worth more.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_hops.core.artifacts.artifact import Artifact, Manifest, Producer
from airflow_hops.core.errors import HopsError
from airflow_hops.core.profiles import environment_name, locked_packages
from airflow_hops.core.redaction import masked, redacted
from airflow_hops.core.steps.protocol import StepSpec
from airflow_hops.core.steps.run_record import RECORD_TAG, is_recorded, record_key
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.training.record import (
    RunDataset,
    SlowestRank,
    Status,
    TrainingCurves,
    TrainingRecord,
    TrainingTry,
    read_curves,
    read_training,
    training_id,
    training_of,
    update_training,
    write_training,
)
from airflow_hops.ml.tracking.curves import Curves
from airflow_hops.ml.tracking.entries import (
    entry_name,
    evaluation_metrics,
    lineage_tags,
    metrics_of,
    param_text,
    params_of,
)
from airflow_hops.ml.tracking.mlflow_run import MlflowRun

_WRITE_EVERY_S = 2.0
_ERROR_CHARACTERS = 4000

log = logging.getLogger(__name__)


class TrackedTraining:
    """A training, from its begin to its end.

    Args:
        spec: The step's spec, with MLflow's tracking URI as the service ``tracking_uri`` (empty for no MLflow).
        params: Hyperparameters and other settings.
        within: Names the training among several of the step.

    Attributes:
        record: Its record so far.
    """

    def __init__(self, spec: StepSpec, params: Mapping[str, object], *within: str) -> None:
        self._spec, self._store = spec, ArtifactStore(spec.store, storage_options=spec.storage_options)
        self._within = within
        producer = spec.producer
        self._dag_id = producer.dag_id
        key = record_key(spec.cache_key_parts, spec.inputs) if is_recorded(spec) else None
        tags = {
            "hops.dag_id": producer.dag_id,
            "hops.run_id": producer.run_id,
            "hops.task_id": producer.task_id,
            **({RECORD_TAG: key} if key else {}),
            **({"hops.map_index": str(producer.map_index)} if producer.map_index >= 0 else {}),
            **({"hops.iteration": str(producer.iteration)} if producer.iteration >= 0 else {}),
        }
        if (runtime := environment_name(Path(sys.prefix))) is not None:
            tags |= {"hops.runtime": runtime, "hops.runtime_packages": " ".join(locked_packages(Path(sys.prefix)))}
        self.record = replace(
            _new_record(self.id_of(), producer, *within), params=_texts(params), tags=masked(tags), record=key
        )
        self._curves = Curves()
        self._mlflow = MlflowRun(spec.services.get("tracking_uri", ""), self.record.run_id)
        self._lock, self._ending = threading.RLock(), threading.Event()
        self._writes, self._mlflow_calls = OrderedCalls("training-record"), OrderedCalls("mlflow")
        self._is_dirty = self._has_begun = False
        self._written_s = 0.0

    def id_of(self, *within: str) -> str:
        """Returns the id of a training within this one."""
        spec = self._spec
        return training_id(spec.producer, spec.cache_key_parts, spec.inputs, *self._within, *within)

    def begin(self) -> None:
        """Writes the record of a new training, or takes over that of an earlier try."""
        self._has_begun = True
        self.record = replace(self.record, datasets=self._datasets())
        attempt = TrainingTry(self._spec.producer.try_number, self.record.start_time)
        try:
            earlier = read_training(self._store, self._dag_id, self.record.run_id)
            if earlier is not None:
                self._curves = Curves(read_curves(self._store, self._dag_id, self.record.run_id))
                self._curves.figures |= earlier.figures
                self.record = replace(
                    self.record,
                    start_time=earlier.start_time,
                    tags={**earlier.tags, **self.record.tags},
                    tries=earlier.tries,
                    versions=earlier.versions,
                    slowest=earlier.slowest,
                    mlflow=earlier.mlflow,
                )
        except (HopsError, OSError) as error:
            log.warning("the record of an earlier try is replaced: %s", error)
        self.record = replace(self.record, tries=(*self.record.tries, attempt))
        self._write()

    def set_params(self, **params: object) -> None:
        """Changes parameters that were not known at the beginning; before :meth:`connect`."""
        self.record = replace(self.record, params={**self.record.params, **_texts(params)})

    def connect(self) -> None:
        """Begins MLflow's run, or resumes that of an earlier try; once the ranks have started."""
        self._mlflow_calls.do(self._connect)

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Logs metrics of a step or an epoch; returns at once."""
        at_ms = _now_ms()
        named = {entry_name(name): float(value) for name, value in metrics.items()}
        with self._lock:
            for name, value in named.items():
                self._curves.add(name, step, value, at_ms)
        self._write_later()
        self._mlflow_calls.do(lambda: self._mlflow.log_metrics(named, step, at_ms))

    def log_slowest(self, slowest: SlowestRank) -> None:
        """Records the slowest rank of an epoch; returns at once."""
        with self._lock:
            self.record = self.record.with_slowest(slowest)
        self._write_later()

    def finish(self, model: Artifact | None, cost: Mapping[str, float] | None = None) -> None:
        """Logs the results.

        Args:
            model: The published model; None if the training returned a plain value.
            cost: The step's cost.
        """
        metrics = [] if model is None else metrics_of(model, {}, None)
        with self._lock:
            self.record = self.record.with_metrics(metrics)
            if model is not None:
                self.record = replace(self.record, tags={**self.record.tags, **lineage_tags(model)})
        self._end("FINISHED", cost)
        tags = self.record.tags
        self._mlflow_calls.do(lambda: self._mlflow.finish(metrics, tags))
        self.wait()

    def fail(self, error: BaseException, cost: Mapping[str, float] | None = None) -> None:
        """Records that this try has failed, or was ended by a signal."""
        if not self._has_begun:
            self.begin()
        status: Status = "FAILED" if isinstance(error, Exception) else "KILLED"
        self._end(status, cost, redacted(f"{error or type(error).__name__}")[:_ERROR_CHARACTERS])
        self._mlflow_calls.do(lambda: self._mlflow.end(status))
        self.wait()

    def log_nested(
        self, record: TrainingRecord, curves: TrainingCurves, to_mlflow: Callable[[Any, str, str], None]
    ) -> None:
        """Writes the record of a training within this one, and calls :meth:`.MlflowRun.do`; returns at once."""
        self._writes.do(lambda: self._attempt(lambda: write_training(self._store, self._dag_id, record, curves)))
        self._mlflow_calls.do(lambda: self._mlflow.do(to_mlflow))

    def wait(self) -> None:
        """Waits until everything is logged."""
        self._ending.set()
        self._mlflow_calls.finish()  # may write the record
        self._writes.finish()

    def _datasets(self) -> tuple[RunDataset, ...]:
        """Returns the splits that the training reads."""
        inputs = self._spec.inputs.get("examples", ())
        try:
            examples = self._store.manifest(inputs[0].uri) if len(inputs) == 1 else None
        except (HopsError, OSError):
            examples = None  # the training fails on it, and says why
        made_by, rows = (examples.producer.task_id, examples.rows.items()) if examples else ("", ())
        return tuple(
            RunDataset(f"{made_by}/{split}", "training" if split == "train" else split, counts.rows_out)
            for split, counts in rows
        )

    def _connect(self) -> None:
        mlflow = self._mlflow.begin(self.record, self._spec.producer, self._spec.code_paths)
        with self._lock:
            self.record = replace(self.record, mlflow=mlflow or self.record.mlflow)
        self._write_later()

    def _end(self, status: Status, cost: Mapping[str, float] | None, error: str | None = None) -> None:
        self._ending.set()
        at_ms = _now_ms()
        *earlier, last = self.record.tries
        with self._lock:
            self.record = replace(
                self.record,
                status=status,
                end_time=at_ms,
                cost=dict(cost or {}),
                tries=(*earlier, replace(last, end_time=at_ms, error=error)),
            )
            self._write()

    def _write_later(self) -> None:
        """Has the thread write the latest figures, at most every two seconds."""
        with self._lock:
            is_waiting, self._is_dirty = self._is_dirty, True
        if not is_waiting:
            self._writes.do(self._write_soon)

    def _write_soon(self) -> None:
        self._ending.wait(max(0.0, self._written_s + _WRITE_EVERY_S - time.monotonic()))
        with self._lock:
            self._is_dirty = False
        self._write()

    def _write(self) -> None:
        with self._lock:
            self.record = record = replace(self.record, figures={**self.record.figures, **self._curves.figures})
            curves = self._curves.content()
        self._written_s = time.monotonic()
        self._attempt(lambda: write_training(self._store, self._dag_id, record, curves))

    def _attempt(self, work: Callable[[], None]) -> None:
        try:
            work()
        except (HopsError, OSError) as error:
            log.warning("The record of this training was not written, and the web pages lack it: %s", error)


def record_evaluation(store: ArtifactStore, model: Manifest, evaluation: Artifact) -> None:
    """Adds an evaluation's metrics to the record of the model's training, so that refused models have them, too."""
    metrics = evaluation_metrics(evaluation)
    update_training(store, model.producer.dag_id, training_of(model), lambda record: record.with_metrics(metrics))


def record_version(
    store: ArtifactStore,
    model: Artifact,
    name: str,
    version: int,
    training: Mapping[str, object],
    evaluation: Artifact | None = None,
) -> None:
    """Adds a version to the record of a model's training; one that is missing, as of an imported model, is made."""
    manifest = store.manifest(model.uri)
    producer, run_id = manifest.producer, training_of(manifest)

    def made() -> TrainingRecord:
        at_ms = _now_ms()
        curves = Curves()
        for metric, value, step in metrics_of(model, training, evaluation):
            curves.add(metric, step, value, at_ms)
        record = replace(
            _new_record(run_id, producer),
            status="FINISHED",
            end_time=at_ms,
            params=masked(params_of(model, training)),
            figures=curves.figures,
            tags=lineage_tags(model),
        )
        write_training(store, producer.dag_id, record, curves.content())
        return record

    update_training(store, producer.dag_id, run_id, lambda record: record.with_version(name, version), made)


def _new_record(run_id: str, producer: Producer, *within: str) -> TrainingRecord:
    return TrainingRecord(
        run_id=run_id,
        name=" ".join((producer.run_id, producer.task, *within)),
        status="RUNNING",
        start_time=_now_ms(),
        dag_run_id=producer.run_id,
        task_id=producer.task_id,
        map_index=producer.map_index,
        iteration=producer.iteration,
    )


def _texts(params: Mapping[str, object]) -> dict[str, str]:
    return {entry_name(name): param_text(value) for name, value in masked(params).items()}


def _now_ms() -> int:
    return int(time.time() * 1000)


class OrderedCalls:
    """Thread that makes calls in order; it starts with the first one, when all ranks are already forked."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, name)
        self._begun: deque[Future[None]] = deque()

    def do(self, call: Callable[[], None]) -> None:
        """Queues a call; raises the error of one that has failed since the last call."""
        self.raise_error()
        self._begun.append(self._pool.submit(call))

    def finish(self) -> None:
        """Waits until all calls are done."""
        wait(list(self._begun))

    def raise_error(self) -> None:
        """Raises the error of a call that has failed since the last call."""
        while self._begun and self._begun[0].done():
            self._begun.popleft().result()

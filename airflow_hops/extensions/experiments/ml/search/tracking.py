"""Logs a search to MLflow: a run for the search, and a nested one for each trial."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from airflow_hops.core.contract.redaction import masked
from airflow_hops.core.contract.run_record import RECORD_TAG
from airflow_hops.extensions.experiments.core.repeats import STUDY_TAG, TRIAL_TAG
from airflow_hops.extensions.experiments.core.search import StudyRecord, TrialRecord
from airflow_hops.ml.tracking import TrainingRun
from airflow_hops.ml.tracking.entries import entry_name, log_params, param_text
from airflow_hops.ml.tracking.training_run import OrderedCalls

_STATUS = {"complete": "FINISHED", "failed": "FAILED"}
_MAX_METRICS = 1000


class StudyRuns:
    """MLflow runs of a search. A thread sends the requests, so that no trial waits for them."""

    def __init__(self, run: TrainingRun, study: StudyRecord, begin: Callable[[], None]) -> None:
        self._run, self._study = run, study
        self._calls = OrderedCalls("tracking")
        self._ids: deque[tuple[int, str]] = deque()
        self.do(begin)

    @property
    def parent(self) -> str | None:
        """ID of the search's run, once it exists."""
        return self._run.id

    def do(self, call: Callable[[], None]) -> None:
        """Makes a call in the thread, in order; the next call raises its error."""
        self._calls.raise_error()
        self._calls.do(call)

    def log(self, trial: TrialRecord, curves: Sequence[tuple[int, Mapping[str, float]]]) -> None:
        """Logs an ended trial, with its reports by step."""
        self.do(lambda: self._run.attempt(lambda client: self._log(client, trial, curves)))

    def take_ids(self) -> list[tuple[int, str]]:
        """Returns the trials that got a run since the last call, with the run's ID."""
        return [self._ids.popleft() for _ in range(len(self._ids))]

    def finish(self, state: str) -> None:
        """Waits until everything is logged; marks the run of a failed search as failed."""
        self._calls.finish()
        if state == "failed":
            self._run.fail()

    def _log(self, client: Any, trial: TrialRecord, curves: Sequence[tuple[int, Mapping[str, float]]]) -> None:
        from mlflow.entities import Metric

        if self.parent is None:
            return
        # DAG runs that share a study share the parent run of its trials, but have separate records.
        is_own = trial.run_id == self._run.producer.run_id
        began, ended = _milliseconds(trial.started), _milliseconds(trial.ended or trial.started)
        tags = {
            "mlflow.parentRunId": self.parent,
            STUDY_TAG: self._study.name,
            TRIAL_TAG: str(trial.number),
            "hops.dag_id": self._study.dag_id,
            "hops.run_id": trial.run_id,
            "hops.task_id": self._study.task_id,
            "hops.trial_state": trial.state,
            **({RECORD_TAG: self._run.record} if self._run.record and is_own else {}),
            **({"hops.taken_from": trial.taken_from} if trial.taken_from else {}),
            **({"mlflow.note.content": trial.reason} if trial.reason else {}),
        }
        experiment = client.get_run(self.parent).info.experiment_id
        run = client.create_run(experiment, start_time=began, run_name=f"trial {trial.number}", tags=tags).info.run_id
        params = {entry_name(name): param_text(value) for name, value in masked(trial.params).items()}
        log_params(client, run, params)
        stride = -(-len(curves) // _MAX_METRICS) or 1
        reports = [*curves[::stride], *curves[-1:]]
        points = [(step, name, value) for step, metrics in reports for name, value in metrics.items()]
        points += [(0, f"model.{name}", value) for name, value in trial.metrics.items()]
        logged = [Metric(entry_name(n), v, ended, s) for s, n, v in dict.fromkeys(points) if math.isfinite(v)]
        for first in range(0, len(logged), _MAX_METRICS):  # MLflow's limit per call
            client.log_batch(run, metrics=logged[first : first + _MAX_METRICS])
        client.set_terminated(run, _STATUS.get(trial.state, "KILLED"), end_time=ended)
        self._ids.append((trial.number, run))


def _milliseconds(at: str) -> int:
    return int(datetime.fromisoformat(at).timestamp() * 1000)

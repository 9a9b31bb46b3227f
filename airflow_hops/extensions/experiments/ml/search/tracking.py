"""Training runs of a search: one for the search, and a nested one for each trial."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

from airflow_hops.core.redaction import masked
from airflow_hops.core.steps.run_record import RECORD_TAG
from airflow_hops.core.training.record import Status, TrainingCurves, TrainingRecord, TrainingTry
from airflow_hops.extensions.experiments.core.search import StudyRecord, TrialRecord
from airflow_hops.ml.tracking import TrackedTraining
from airflow_hops.ml.tracking.curves import Curves
from airflow_hops.ml.tracking.entries import entry_name, log_metrics, log_params, param_text
from airflow_hops.ml.tracking.mlflow_run import TRAINING_TAG

_STATUS: dict[str, Status] = {"complete": "FINISHED", "failed": "FAILED"}


class StudyRuns:
    """Training runs of a search."""

    def __init__(self, run: TrackedTraining, study: StudyRecord) -> None:
        self._run, self._study = run, study
        run.begin()
        run.connect()

    def id_of(self, trial: int) -> str:
        """Returns the id of a trial's run."""
        return self._run.id_of(f"trial {trial}")

    def log(self, trial: TrialRecord, curves: Sequence[tuple[int, Mapping[str, float]]]) -> None:
        """Logs an ended trial, with its reports by step."""
        run_record = self._run.record
        # DAG runs that share a study have separate records of the step.
        is_own = trial.run_id == run_record.dag_run_id
        began, ended = _milliseconds(trial.started), _milliseconds(trial.ended or trial.started)
        tags = {name: value for name, value in run_record.tags.items() if is_own or name != RECORD_TAG}
        tags |= {
            "hops.study": self._study.name,
            "hops.trial": str(trial.number),
            "hops.run_id": trial.run_id,
            "hops.trial_state": trial.state,
            **({"hops.taken_from": trial.taken_from} if trial.taken_from else {}),
        }
        record = replace(
            run_record,
            run_id=self.id_of(trial.number),
            name=f"{run_record.name} trial {trial.number}",
            status=_STATUS.get(trial.state, "KILLED"),
            start_time=began,
            end_time=ended,
            dag_run_id=trial.run_id,
            params={entry_name(name): param_text(value) for name, value in masked(trial.params).items()},
            figures={},
            tags=tags,
            record=run_record.record if is_own else None,
            tries=(TrainingTry(trial.tries, began, ended, trial.reason or None),),
            mlflow={},
        )
        points = Curves()
        for step, metrics in curves:
            for name, value in metrics.items():
                points.add(entry_name(name), step, value, ended)
        final = [(entry_name(f"model.{name}"), float(value), 0) for name, value in trial.metrics.items()]
        record = record.with_metrics(final)
        record = replace(record, parent=run_record.run_id, figures={**points.figures, **record.figures})
        content = points.content()
        self._run.log_nested(record, content, partial(_log_trial, record, content))

    def finish(self) -> None:
        """Waits until everything is logged."""
        self._run.wait()


def _log_trial(record: TrainingRecord, curves: TrainingCurves, client: Any, experiment: str, parent: str) -> None:
    """Logs an ended trial to MLflow, as a run nested in that of the search."""
    ended = record.end_time or record.start_time
    tags = {**record.tags, "mlflow.parentRunId": parent, TRAINING_TAG: record.run_id}
    run = client.create_run(experiment, start_time=record.start_time, run_name=record.name, tags=tags)
    log_params(client, run.info.run_id, record.params)
    points = [
        (name, value, step)
        for name, curve in curves.curves.items()
        for step, value in zip(curve.steps, curve.values, strict=True)
        if value is not None
    ]
    alone = [(name, figures.last) for name, figures in record.figures.items() if name not in curves.curves]
    points += [(name, last.value, last.step) for name, last in alone if last.value is not None]
    log_metrics(client, run.info.run_id, points, ended)
    client.set_terminated(run.info.run_id, record.status, end_time=ended)


def _milliseconds(time: str) -> int:
    return int(datetime.fromisoformat(time).timestamp() * 1000)

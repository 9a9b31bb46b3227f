"""Exports the record of a study to a storage of Optuna, for its dashboard and its plots."""

from __future__ import annotations

from datetime import datetime

import optuna
from optuna.exceptions import DuplicatedStudyError

from airflow_hops.core.errors import BadInput
from airflow_hops.extensions.experiments.core.search import StudyRecord, TrialRecord
from airflow_hops.extensions.experiments.core.search.space import space_of_dict
from airflow_hops.extensions.experiments.core.studies import study_folder
from airflow_hops.extensions.experiments.ml.search.optuna_study import distributions_of, frozen_trial
from airflow_hops.ml.step.context import StepContext


def run(context: StepContext, *, dag_id: str, task_id: str, study: str, storage: str) -> dict[str, str | int]:
    """Exports a study of the store; returns its name in the storage and the number of trials.

    Raises:
        BadInput: the storage cannot be opened, or has a study of that name.
    """
    folder = study_folder(context.store, dag_id, task_id, study)
    record = folder.read()
    if record is None:
        raise BadInput(f"{folder.uri}: there is no such study")
    exported = export_study(record, folder.trials(), storage)
    return {"name": exported.study_name, "trials": len(exported.trials)}


def export_study(record: StudyRecord, trials: list[TrialRecord], storage: str) -> optuna.Study:
    """Writes a study to a storage.

    Args:
        record: The record of the study.
        trials: Its trials; parameters that Optuna did not choose become user attributes.
        storage: URL of a database as SQLAlchemy has it, such as ``sqlite:////tmp/study.db``.

    Raises:
        BadInput: the storage cannot be opened, or has a study of that name.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    name = f"{record.dag_id}/{record.task_id}/{record.name}"
    dimensions = None if isinstance(record.space, str) else space_of_dict(record.space)
    distributions = distributions_of(dimensions)
    frozen_trials = [_frozen(trial, frozen_trial(trial, dimensions, distributions)) for trial in trials]
    try:
        study = optuna.create_study(study_name=name, storage=storage, directions=list(record.directions))
    except DuplicatedStudyError as error:
        raise BadInput(f"{storage} has a study {name!r} already; give another storage") from error
    except Exception as error:  # of SQLAlchemy, or of a database's driver
        raise BadInput(
            f"{storage} does not open ({type(error).__name__}: {error}); expected such as sqlite:////tmp/a.db"
        ) from error
    study.set_metric_names(list(record.metrics))
    study.set_user_attr("program", record.program)
    study.add_trials(frozen_trials)
    return study


def _frozen(trial: TrialRecord, frozen: optuna.trial.FrozenTrial) -> optuna.trial.FrozenTrial:
    """Returns a trial of Optuna with times, metrics, and parameters that Optuna did not choose."""
    frozen.datetime_start = _local(trial.started)
    frozen.datetime_complete = _local(trial.ended) if frozen.state.is_finished() else None
    others = {key: value for key, value in trial.params.items() if key not in frozen.params}
    facts = {"number": trial.number, "state": trial.state, "reason": trial.reason, "run_id": trial.run_id}
    frozen.user_attrs = {**others, **trial.metrics, **{key: value for key, value in facts.items() if value != ""}}
    return frozen


def _local(time: str | None) -> datetime:
    """Returns a time as Optuna has it, local and without a zone; the present for one that was not recorded."""
    try:
        return datetime.fromisoformat(time or "").astimezone().replace(tzinfo=None)
    except ValueError:
        return datetime.now()

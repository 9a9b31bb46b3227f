"""Repetition of searches and their trials."""

from __future__ import annotations

from dataclasses import replace

from airflow_hops.core.contract.artifacts import Artifact, BadInput
from airflow_hops.core.contract.redaction import masked
from airflow_hops.core.contract.run_record import TRAIN_ENTRY, RunRecord
from airflow_hops.core.extensions import STAGES, find_extension
from airflow_hops.core.repeats import LoggedRun, Repeat, Repeats
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.experiments.core.studies import study_folder

STUDY_TAG, TRIAL_TAG = "hops.study", "hops.trial"


class SearchRepeats(Repeats):
    """Repeats a search with a new study, and a trial as a training with the trial's parameters."""

    def repeat_of(
        self, store: ArtifactStore, record: RunRecord, artifact: Artifact | None, logged: LoggedRun | None
    ) -> Repeat | None:
        """Returns how a search or a trial is repeated."""
        is_search = record.entry == find_extension(STAGES, "search").value
        if logged is not None and TRIAL_TAG in logged.tags:
            if not is_search:
                raise BadInput(
                    "the trial is one of an experiment of the package hops; reproduce the run that it is nested in"
                )
            return _trial(store, record, logged)
        if not is_search:
            return None
        if artifact is not None:
            return Repeat(record, params=masked(artifact.properties.get("params")))
        if record.params.get("study") is not None or logged is None:
            return None
        folder = study_folder(store, record.dag_id, logged.task, logged.dag_run_id)
        study = folder.read()
        trial = None if study is None or study.best is None else folder.trial(study.best)
        return Repeat(record, trial.metrics, trial.params) if trial else Repeat(record, {})


def _trial(store: ArtifactStore, record: RunRecord, logged: LoggedRun) -> Repeat:
    study, number = logged.tags[STUDY_TAG], int(logged.tags[TRIAL_TAG])
    trial = study_folder(store, record.dag_id, logged.task, study).trial(number)
    if trial is None or trial.state != "complete":
        state = "no longer in the store" if trial is None else trial.state
        raise BadInput(f"{logged.name}: trial {number} of study {study!r} is {state}, expected a complete one")
    training = record.params["training"]
    tried = {**training["params"], **trial.params}
    params = {**training, "params": tried, "any_value": True, "tensorboard": False}
    secrets = [path.removeprefix("training/") for path in record.secrets if path.startswith("training/")]
    of_trial = replace(record, entry=TRAIN_ENTRY, params=params, secrets=secrets)
    return Repeat(of_trial, trial.metrics, returned_metric=record.params["metrics"][0])

"""Studies of hyperparameter searches in the store: ``<store>/_state/studies/<dag>/<task>/<study>/``.

``journal.log`` is the record, Optuna's study (:mod:`airflow_hops.extensions.experiments.ml.search.journal`). From it
the search writes a summary for readers without Optuna: ``study.json``, and ``trials-000.jsonl`` and so on with a line
for each trial, by number, :data:`TRIALS_A_FILE` in each file. ``logs/<number>.txt`` has the last lines of a failed
trial; ``stop/<number>.json`` or ``stop/all.json`` asks the search to end a trial, or itself; ``best/`` is the model of
the best trial so far; ``owner/`` is the lease (:mod:`airflow_hops.core.store.leases`) of the search that works on the
study, since two that write one record would lose each other's trials. A search checks it before each write; a retry of
its run takes it at once.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache

from airflow_hops.core.artifacts.artifact import Producer, name_in
from airflow_hops.core.errors import BadInput
from airflow_hops.core.json_files import parse_json
from airflow_hops.core.store.artifact_store import ArtifactStore
from airflow_hops.core.store.leases import Lease
from airflow_hops.core.store.task_state import earlier_address, in_use
from airflow_hops.core.times import now
from airflow_hops.extensions.experiments.core.search import StudyRecord, TrialRecord

TRIALS_A_FILE = 500
_READERS = 16
_STUDY, _LOGS, _ALL = "study.json", "logs", "all"
JOURNAL_NAME = "journal.log"
"""Name of the first file of Optuna's journal in a study's folder."""


@dataclass(frozen=True)
class StudyFolder:
    """A study's folder, created by :func:`study_folder`."""

    store: ArtifactStore
    uri: str

    def read(self) -> StudyRecord | None:
        """Returns the study; None if there is none. Raises BadInput if the file is not a study."""
        uri = f"{self.uri}/{_STUDY}"
        try:
            text = self.store.read_text(uri)
        except FileNotFoundError:
            return None
        try:
            return _study_in(text)
        except (ValueError, TypeError) as error:
            raise BadInput(f"{uri}: not the record of a study ({error}); restore it, or remove the study") from error

    def write(self, study: StudyRecord) -> None:
        """Writes the summary of the study; only the search's job does this."""
        self.store.write_text(f"{self.uri}/{_STUDY}", json.dumps(study.to_dict(), indent=1) + "\n")

    def trials(self) -> list[TrialRecord]:
        """Returns all trials, by number. Raises BadInput if a file is damaged."""
        names = [each for each in self.store.names(self.uri) if each.startswith("trials-") and each.endswith(".jsonl")]
        trials = [trial for name in sorted(names) for trial in self._read(name)]
        for expected, trial in enumerate(trials):
            if trial.number != expected:
                raise BadInput(
                    f"{self.uri}/{_file_of(expected)}: line {expected % TRIALS_A_FILE + 1} is trial {trial.number}, "
                    f"expected {expected}: a line for each trial, by number; restore it, or remove the study"
                )
        return trials

    def trial(self, number: int) -> TrialRecord | None:
        """Returns one trial; None if there is none with that number. Raises BadInput if its file is damaged."""
        try:
            return next((trial for trial in self._read(_file_of(number)) if trial.number == number), None)
        except FileNotFoundError:
            return None

    def _read(self, name: str) -> tuple[TrialRecord, ...]:
        uri = f"{self.uri}/{name}"
        try:
            return _trials_in(self.store.read_text(uri))
        except (ValueError, TypeError) as error:
            raise BadInput(f"{uri}: not the record of trials ({error}); restore it, or remove the study") from error

    def write_trials(self, trials: Sequence[TrialRecord], changed: Collection[int]) -> None:
        """Writes the files of the changed trials, whose numbers are given; ``trials`` are all, by number."""
        for file in sorted({number // TRIALS_A_FILE for number in changed}):
            first = file * TRIALS_A_FILE
            lines = [json.dumps(trial.to_dict()) + "\n" for trial in trials[first : first + TRIALS_A_FILE]]
            self.store.write_text(f"{self.uri}/{_file_of(first)}", "".join(lines))

    def write_log(self, number: int, text: str) -> None:
        """Stores the last lines of a trial's log."""
        self.store.write_text(f"{self.uri}/{_LOGS}/{number}.txt", text)

    def log(self, number: int) -> str | None:
        """Returns the last lines of a failed trial's log; None if they were not stored."""
        try:
            return self.store.read_text(f"{self.uri}/{_LOGS}/{number}.txt", errors="replace")
        except FileNotFoundError:
            return None

    def clear(self) -> None:
        """Removes the study and its trials."""
        for name in self.store.names(f"{self.uri}/{_LOGS}"):
            self.store.remove_text(f"{self.uri}/{_LOGS}/{name}")
        for name in self.store.names(self.uri):
            if name == _STUDY or name.startswith(("trials-", JOURNAL_NAME)):
                self.store.remove_text(f"{self.uri}/{name}")

    def lease(self, run_id: str) -> Lease:
        """Returns the lease of the study, for a job of a run."""
        advice = (
            "runs that share a study work on it one after the other: set max_active_runs=1 or "
            "max_active_tis_per_dag=1, or give the task retries"
        )
        return Lease(self.store, f"{self.uri}/owner", f"run {run_id!r}", what=self.uri, advice=advice)

    def request_stop(self, trial: int | None, by: str) -> None:
        """Asks the search to end a running trial, or (None) itself with all of its trials; it polls regularly.

        A stopped search ends with the best trial so far. The request is for the run that currently works on the study.
        """
        name = _ALL if trial is None else str(trial)
        study = self.read()
        request = {"by": by, "at": now(), "run_id": None if study is None else study.run_id}
        self.store.write_text(f"{self.uri}/stop/{name}.json", json.dumps(request))

    def stop_requests(self, run_id: str | None = None) -> dict[int | None, str]:
        """Returns the users who requested stops, by number of the trial; the key None is the search."""
        requests: dict[int | None, str] = {}
        for name in self.store.names(f"{self.uri}/stop"):
            what = name.removesuffix(".json")
            if what == _ALL or what.isdigit():
                with contextlib.suppress(FileNotFoundError, BadInput, AttributeError):
                    request = self.store.read_json(f"{self.uri}/stop/{name}")
                    if run_id is None or request.get("run_id") == run_id:
                        requests[None if what == _ALL else int(what)] = str(request.get("by", "somebody"))
        return requests

    def clear_stops(self) -> None:
        """Removes all requests to stop."""
        for name in self.store.names(f"{self.uri}/stop"):
            self.store.remove_text(f"{self.uri}/stop/{name}")

    def clear_stop(self, trial: int | None) -> None:
        """Removes a request to stop that was handled."""
        self.store.remove_text(f"{self.uri}/stop/{_ALL if trial is None else trial}.json")


def study_folder(store: ArtifactStore, dag_id: str, task_id: str, study: str) -> StudyFolder:
    """Returns the folder of a study, which may not exist; ``task_id`` as in :attr:`Producer.task`."""
    folder = store.internal("_state", "studies", dag_id, task_id, study)
    earlier = earlier_address(store, "_state", "studies", dag_id, task_id, study)
    return StudyFolder(store, in_use(store, folder, earlier, _STUDY))


def journal_files(store: ArtifactStore, folder: str) -> list[str]:
    """Returns the names of a study's journal files, in their order."""
    return [name for name in store.names(folder) if re.fullmatch(rf"{re.escape(JOURNAL_NAME)}(\.\d+)?", name)]


def study_names(store: ArtifactStore, dag_id: str, task_id: str) -> list[str]:
    """Returns the names of a task's studies, sorted."""
    return sorted(map(name_in, store.names(store.internal("_state", "studies", dag_id, task_id))))


def searching_tasks(store: ArtifactStore, dag_id: str) -> list[str]:
    """Returns the tasks of a DAG that have studies, sorted; mapped tasks have ``<task>@<index>``."""
    return sorted(map(name_in, store.names(store.internal("_state", "studies", dag_id))))


def recorded_studies(store: ArtifactStore, dag_id: str) -> tuple[list[tuple[StudyFolder, StudyRecord]], list[BadInput]]:
    """Returns all studies of a DAG, unordered, and errors of damaged records."""
    studies, damaged = [], []

    def read(folder: StudyFolder) -> None:
        try:
            record = folder.read()
        except BadInput as error:
            damaged.append(error)
            return
        if record is not None and record.dag_id == dag_id:  # anybody may have written the file
            studies.append((folder, record))

    # In parallel, since sequential reads of a remote store take seconds.
    with ThreadPoolExecutor(1 if store.is_local else _READERS) as pool:
        tasks = searching_tasks(store, dag_id)
        names = zip(tasks, pool.map(lambda task: study_names(store, dag_id, task), tasks), strict=True)
        list(pool.map(read, [study_folder(store, dag_id, task, name) for task, own in names for name in own]))
    return studies, damaged


# Pages read the same text repeatedly.
@lru_cache(maxsize=1024)
def _study_in(text: str) -> StudyRecord:
    return StudyRecord.from_dict(parse_json(text, "study.json"))


@lru_cache(maxsize=24)
def _trials_in(text: str) -> tuple[TrialRecord, ...]:
    trials = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            trials.append(TrialRecord.from_dict(parse_json(line, "a trial")))
        except (ValueError, TypeError) as error:
            raise TypeError(f"line {number}: {error}") from error
    return tuple(trials)


def _file_of(number: int) -> str:
    """Returns the name of a trial's file."""
    return f"trials-{number // TRIALS_A_FILE:03}.jsonl"


def app_id(producer: Producer) -> str:
    """Returns the name of an experiment's application in Hopsworks' terms, which here is the task of a DAG run.

    No two tasks share one: ids of DAGs and tasks have no ``@``.
    """
    return "@".join((producer.dag_id, producer.run_id.replace("@", "@@"), producer.task))

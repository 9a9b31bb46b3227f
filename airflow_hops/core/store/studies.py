"""Studies of hyperparameter searches in the store: ``<store>/_state/studies/<dag>/<task>/<study>/``.

``study.json`` is the study; ``trials-000.jsonl`` and so on have a line for each trial, :data:`TRIALS_A_FILE` a file, by
number; ``logs/<number>.txt`` has the last lines of a failed trial; ``stop/<number>.json`` or ``stop/all.json`` asks the
search to end a trial, or itself; ``best/`` is the model of the best trial so far; ``owner.json`` says who works on it
(:mod:`airflow_hops.core.store.study_owner`).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache

from airflow_hops.core.contract.artifacts import BadInput, parse_json
from airflow_hops.core.contract.search import StudyRecord, TrialRecord
from airflow_hops.core.contract.times import now
from airflow_hops.core.store.artifact_store import ArtifactStore

TRIALS_A_FILE = 500
_READERS = 16
_STUDY, _LOGS, _ALL = "study.json", "logs", "all"


@dataclass(frozen=True)
class StudyFolder:
    """A study's folder; make one with :func:`study_folder`.

    Attributes:
        store: The artifact store.
        uri: The folder's address.
    """

    store: ArtifactStore
    uri: str

    def read(self) -> StudyRecord | None:
        """The study; None if there is none.

        Raises:
            BadInput: the file is not a study's.
        """
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
        """Writes the study; the search's job alone does."""
        self.store.write_text(f"{self.uri}/{_STUDY}", json.dumps(study.to_dict(), indent=1) + "\n")

    def trials(self) -> list[TrialRecord]:
        """All trials, by number.

        Raises:
            BadInput: a file is damaged.
        """
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
        """One trial; None if there is none of that number.

        Raises:
            BadInput: its file is damaged.
        """
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

    def write_trials(self, lines: Sequence[str], changed: Collection[int]) -> None:
        """Writes the files that hold changed trials.

        Args:
            lines: The JSON of each trial, by number.
            changed: Numbers of those that have changed.
        """
        for file in sorted({number // TRIALS_A_FILE for number in changed}):
            held = lines[file * TRIALS_A_FILE : (file + 1) * TRIALS_A_FILE]
            self.store.write_text(f"{self.uri}/{_file_of(file * TRIALS_A_FILE)}", "".join(f"{line}\n" for line in held))

    def write_log(self, number: int, text: str) -> None:
        """Keeps the last lines of a trial's log."""
        self.store.write_text(f"{self.uri}/{_LOGS}/{number}.txt", text)

    def log(self, number: int) -> str | None:
        """The last lines of a failed trial's log; None where none were kept."""
        try:
            return self.store.read_text(f"{self.uri}/{_LOGS}/{number}.txt", errors="replace")
        except FileNotFoundError:
            return None

    def clear(self) -> None:
        """Removes the study and its trials."""
        for name in self.store.names(f"{self.uri}/{_LOGS}"):
            self.store.remove_text(f"{self.uri}/{_LOGS}/{name}")
        for name in self.store.names(self.uri):
            if name == _STUDY or name.startswith("trials-"):
                self.store.remove_text(f"{self.uri}/{name}")

    def request_stop(self, trial: int | None, by: str) -> None:
        """Asks the search to end a running trial, or itself with all of its trials; it looks every few seconds.

        A search that is stopped ends with the best trial so far. The request is for the run that works on it now.

        Args:
            trial: The trial's number; None for the search.
            by: Who asks.
        """
        name = _ALL if trial is None else str(trial)
        study = self.read()
        request = {"by": by, "at": now(), "run_id": None if study is None else study.run_id}
        self.store.write_text(f"{self.uri}/stop/{name}.json", json.dumps(request))

    def stop_requests(self, run_id: str | None = None) -> dict[int | None, str]:
        """Returns who asked to stop a trial, by its number, or the search, under None.

        Args:
            run_id: The run that was to be stopped; None for any.
        """
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
        """Removes all requests."""
        for name in self.store.names(f"{self.uri}/stop"):
            self.store.remove_text(f"{self.uri}/stop/{name}")

    def clear_stop(self, trial: int | None) -> None:
        """Removes a request that has been answered."""
        self.store.remove_text(f"{self.uri}/stop/{_ALL if trial is None else trial}.json")


def study_folder(store: ArtifactStore, dag_id: str, task_id: str, study: str) -> StudyFolder:
    """The folder of a study, whether or not it is there.

    Args:
        store: The artifact store.
        dag_id: The DAG.
        task_id: The task; ``<task>@<index>`` of a mapped one.
        study: The study's name; by default the DAG run's id.
    """
    return StudyFolder(store, store.uri("_state", "studies", dag_id, task_id, study))


def study_names(store: ArtifactStore, dag_id: str, task_id: str) -> list[str]:
    """Names of a task's studies, as they are in the store, sorted."""
    return store.names(store.uri("_state", "studies", dag_id, task_id))


def searching_tasks(store: ArtifactStore, dag_id: str) -> list[str]:
    """Tasks of a DAG that have studies, sorted; ``<task>@<index>`` of mapped ones."""
    return store.names(store.uri("_state", "studies", dag_id))


def recorded_studies(store: ArtifactStore, dag_id: str) -> tuple[list[tuple[StudyFolder, StudyRecord]], list[BadInput]]:
    """All studies of a DAG, in no order, and what is wrong with those whose records are damaged."""
    studies, damaged = [], []

    def read(folder: StudyFolder) -> None:
        try:
            record = folder.read()
        except BadInput as error:
            damaged.append(error)
            return
        # Names are made safe for file systems: those of two DAGs may be one folder.
        if record is not None and record.dag_id == dag_id:
            studies.append((folder, record))

    # One after the other, a remote store's answers take seconds.
    with ThreadPoolExecutor(1 if store.is_local else _READERS) as pool:
        tasks = searching_tasks(store, dag_id)
        names = zip(tasks, pool.map(lambda task: study_names(store, dag_id, task), tasks), strict=True)
        list(pool.map(read, [study_folder(store, dag_id, task, name) for task, own in names for name in own]))
    return studies, damaged


# What is read again and again while somebody looks at a page is the same text most times.
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
    """The file of a trial."""
    return f"trials-{number // TRIALS_A_FILE:03}.jsonl"

"""Records of trainings in the store as runs of the web API; read again only if their files have changed.

A request lists the folder of a DAG's records, which takes milliseconds at a thousand runs, and reads the files whose
time, size or checksum differs from those read before. Two requests may read the same file; the later result stays.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from itertools import repeat
from typing import Any

from cachetools import LRUCache
from fastapi import HTTPException
from pydantic import TypeAdapter, ValidationError
from sqlalchemy import select

from airflow_hops.airflow_internals.database import DagRun, create_session
from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.errors import HopsError
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.training.record import RunModelVersion, TrainingRecord, id_of_record, training_of, trainings_uri
from airflow_hops.web.artifacts.lookup import open_artifact, reaching
from airflow_hops.web.types import Model, Number
from airflow_hops.web.unusable_files import reading_threads

_RECORD: TypeAdapter[TrainingRecord] = TypeAdapter(TrainingRecord)
_folders: LRUCache[tuple[str, str, str], dict[str, tuple[str, Any]]] = LRUCache(32)
"""Files by store, its options and DAG: stamp and content, a run with its record or why the file cannot be used."""
_lock = threading.Lock()


class TrainingRun(Model):
    """A training of a task, or a trial of a search."""

    run_id: str
    """Id of its record in the store."""
    name: str
    status: str
    """``RUNNING``, ``FINISHED``, ``FAILED`` or ``KILLED``."""
    start_time: int
    """Milliseconds since the epoch."""
    end_time: int | None
    params: dict[str, str]
    metrics: dict[str, Number]
    """Last values."""
    tags: dict[str, str]
    """Facts, ``hops.…``."""
    parent: str | None
    """Id of the search that it is a trial of."""
    dag_run_id: str | None
    dag_run_state: str | None = None
    """Null if Airflow no longer has the DAG run."""
    task_id: str | None
    map_index: int
    iteration: int
    versions: list[RunModelVersion]
    """Versions that its model was deployed as."""

    @property
    def duration_s(self) -> float | None:
        """Seconds from start to end; None before the end."""
        return None if self.end_time is None else (self.end_time - self.start_time) / 1000

    @classmethod
    def of_record(cls, record: TrainingRecord) -> TrainingRun:
        """Returns the run of a record."""
        return cls.of(record, metrics={name: figures.last.value for name, figures in record.figures.items()})


class Trainings:
    """The trainings of a DAG.

    Attributes:
        dag_id: The DAG.
        runs: By id.
        records: Their records, by id.
        problems: Files that cannot be used, with the reason.
    """

    def __init__(self, store: ArtifactStore, dag_id: str) -> None:
        with reaching(store):
            contents = _read_folder(store, dag_id)
        self.dag_id = dag_id
        self.problems = [content for content in contents if isinstance(content, str)]
        usable = [content for content in contents if not isinstance(content, str)]
        self.runs = {run.run_id: run for run, _ in usable}
        self.records = {run.run_id: record for run, record in usable}
        self._settle(dag_id)

    def find(self, run_id: str) -> tuple[TrainingRun, TrainingRecord]:
        """Returns a run and its record; HTTPException (404) if there is none, (502) if it cannot be used."""
        if run_id not in self.runs:
            damaged = next((each for each in self.problems if run_id in each), None)
            raise HTTPException(502 if damaged else 404, damaged or f"this DAG has no training run {run_id}")
        return self.runs[run_id], self.records[run_id]

    def _settle(self, dag_id: str) -> None:
        """Sets the state of those that were killed, whose records still say that they run."""
        running = [run for run in self.runs.values() if run.status == "RUNNING"]
        states = dag_run_states(dag_id, running)
        for run in running:
            if states.get(run.dag_run_id or "") not in ("running", "queued"):
                self.runs[run.run_id] = run.model_copy(update={"status": "KILLED"})


def read_training_of(store: ArtifactStore, model: Artifact) -> TrainingRun | str | None:
    """Returns the training of a model, or why it is unknown (a file cannot be used); None if it was not trained."""
    try:
        _, manifest = open_artifact(store, model)
        uri = f"{trainings_uri(store, manifest.producer.dag_id)}/{training_of(manifest)}.json"
        with reaching(store):
            content = _read(store, uri)
        if content is None and manifest.properties.get("train"):
            content = f"there is no record {uri} of its training"
    except HTTPException as error:
        return str(error.detail)
    return content[0] if isinstance(content, tuple) else content


def dag_run_states(dag_id: str, runs: Iterable[TrainingRun]) -> dict[str, str]:
    """Returns the states of the DAG runs of trainings, by id; those that Airflow no longer has are missing."""
    wanted = {run.dag_run_id for run in runs if run.dag_run_id}
    if not wanted:
        return {}
    with create_session() as session:
        rows = session.execute(
            select(DagRun.run_id, DagRun.state).where(DagRun.dag_id == dag_id, DagRun.run_id.in_(wanted))
        )
        return {row.run_id: str(row.state) for row in rows}


_Content = tuple[TrainingRun, TrainingRecord] | str


def _read_folder(store: ArtifactStore, dag_id: str) -> list[_Content]:
    """Returns the runs of a DAG with their records, reading changed files; an unusable one's content is the reason."""
    uri, key = trainings_uri(store, dag_id), (store.root, repr(store.storage_options), dag_id)
    stamps = {name: stamp for name, stamp in store.stamps(uri).items() if id_of_record(name)}
    with _lock:
        cached = _folders.get(key, {})
    changed = [name for name, stamp in stamps.items() if name not in cached or cached[name][0] != stamp]
    uris = [f"{uri}/{name}" for name in changed]
    with reading_threads() as readers:  # for the round trips of a remote store
        contents = map(_read, repeat(store), uris) if store.is_local else readers.map(_read, repeat(store), uris)
        read = dict(zip(changed, contents, strict=True))
    files = {name: (stamp, read[name]) if name in read else cached[name] for name, stamp in stamps.items()}
    with _lock:
        _folders[key] = files
    return [content for _, content in files.values() if content is not None]


def _read(store: ArtifactStore, uri: str) -> _Content | None:
    """Returns the content of a file, the reason why it cannot be used, or None if it was removed."""
    try:
        record = _RECORD.validate_json(store.read_text(uri))
    except FileNotFoundError:
        return None
    except (HopsError, ValidationError) as error:
        why = "; ".join(each["msg"] for each in error.errors()[:3]) if isinstance(error, ValidationError) else error
        return f"{uri}: not what a training writes ({why}); restore the file, or remove it"
    return TrainingRun.of_record(record), record

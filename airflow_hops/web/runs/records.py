"""Records of trainings in the store as runs of the web API; read again only if their files have changed.

A request lists the folder of a DAG's records, which takes milliseconds at a thousand runs, and reads the files whose
time, size or checksum differs from those read before. Two requests may read the same file; the later result stays.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from itertools import repeat
from typing import Any

from fastapi import HTTPException
from pydantic import TypeAdapter, ValidationError
from sqlalchemy import select

from airflow_hops.airflow_internals.database import DagRun, create_session
from airflow_hops.core.contract.artifacts import HopsError
from airflow_hops.core.contract.redaction import masked, redacted
from airflow_hops.core.contract.training_record import RunModelVersion, TrainingRecord
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.store.training_records import Notes, id_of_record, trainings_uri
from airflow_hops.web.artifacts.lookup import reaching
from airflow_hops.web.types import Model, Number
from airflow_hops.web.unusable_files import reading_threads

_DAGS = 32
_ADAPTERS: Mapping[str, TypeAdapter[Any]] = {"": TypeAdapter(TrainingRecord), "notes": TypeAdapter(Notes)}


class _Folder:
    """Files of a DAG's records by name, each with stamp and content; runs by id, each with the stamps that it is of."""

    def __init__(self) -> None:
        self.files: dict[str, tuple[str, Any]] = {}
        self.runs: dict[str, tuple[tuple[str, str], TrainingRun]] = {}


_folders: OrderedDict[tuple[str, str, str], _Folder] = OrderedDict()
"""Folders by store, its options and DAG; the one used last at the end."""


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
    """Facts, ``hops.…``, and people's tags."""
    note: str
    """People's note."""
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

    @classmethod
    def of_record(cls, record: TrainingRecord, notes: Notes) -> TrainingRun:
        """Returns the run of a record."""
        metrics = {name: figures.last.value for name, figures in record.figures.items()}
        tags = {**record.tags, **masked(notes.tags)}  # steps write no credentials
        return cls.of(record, metrics=metrics, tags=tags, note=redacted(notes.note))


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
            folder = _read_folder(store, dag_id)
        self.dag_id = dag_id
        files = folder.files
        self.problems = [content for _, content in files.values() if isinstance(content, str)]
        self.records: dict[str, TrainingRecord] = {}
        self.runs: dict[str, TrainingRun] = {}
        for name, (stamp, content) in files.items():
            if not isinstance(content, TrainingRecord) or (run_id := id_of_record(name)) is None:
                continue
            noted, notes = files.get(f"{run_id}.notes.json", ("", None))
            made_from, run = folder.runs.get(run_id, (None, None))
            if run is None or made_from != (stamp, noted):
                run = TrainingRun.of_record(content, notes if isinstance(notes, Notes) else Notes())
                folder.runs[run_id] = (stamp, noted), run
            self.records[run_id], self.runs[run_id] = content, run
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


def _read_folder(store: ArtifactStore, dag_id: str) -> _Folder:
    """Reads the files of a DAG's trainings that have changed; an unusable one's content is the reason."""
    uri, key = trainings_uri(store, dag_id), (store.root, repr(store.storage_options), dag_id)
    stamps = {name: stamp for name, stamp in store.files.stamps(uri).items() if _part(name) in _ADAPTERS}
    folder = _folders.setdefault(key, _Folder())
    _folders.move_to_end(key)
    while len(_folders) > _DAGS:
        _folders.popitem(last=False)
    before = folder.files
    changed = [name for name, stamp in stamps.items() if name not in before or before[name][0] != stamp]
    uris = [f"{uri}/{name}" for name in changed]
    with reading_threads() as readers:  # for the round trips of a remote store
        contents = map(_read, repeat(store), uris) if store.is_local else readers.map(_read, repeat(store), uris)
        read = dict(zip(changed, contents, strict=True))
    folder.files = {
        name: (stamp, read[name]) if name in read else before[name]
        for name, stamp in stamps.items()
        if read.get(name, "") is not None
    }
    return folder


def _read(store: ArtifactStore, uri: str) -> Any:
    """Returns the content of a file, the reason why it cannot be used, or None if it was removed."""
    try:
        return _ADAPTERS[_part(uri.rpartition("/")[2]) or ""].validate_json(store.read_text(uri))
    except FileNotFoundError:
        return None
    except (HopsError, ValidationError) as error:
        why = "; ".join(each["msg"] for each in error.errors()[:3]) if isinstance(error, ValidationError) else error
        return f"{uri}: not what a training writes ({why}); restore the file, or remove it"


def _part(name: str) -> str | None:
    """Returns which part of a training a file is: empty for its record; None for other files."""
    run_id, _, rest = name.partition(".")
    return rest.removesuffix("json").rstrip(".") if id_of_record(f"{run_id}.json") and rest.endswith("json") else None

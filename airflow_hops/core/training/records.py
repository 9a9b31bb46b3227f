"""Records of trainings in the store.

``<store>/_trainings/<dag>/`` holds two files for each training, both written atomically: ``<id>.json``, a
:class:`~airflow_hops.core.training.record.TrainingRecord`, and ``<id>.curves.json``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import TypeVar

from airflow_hops.core.errors import BadInput, UnreadableFile
from airflow_hops.core.json_fields import JsonFields
from airflow_hops.core.store.artifact_store import ArtifactStore
from airflow_hops.core.training.record import TrainingCurves, TrainingRecord

_Content = TypeVar("_Content", bound=JsonFields)
_ID = re.compile(r"[0-9a-f]{32}")
_RECORD = re.compile(r"([0-9a-f]{32})\.json")


def trainings_uri(store: ArtifactStore, dag_id: str) -> str:
    """Returns the folder with the records of a DAG's trainings."""
    return store.internal("_trainings", dag_id)


def training_uri(store: ArtifactStore, dag_id: str, run_id: str, part: str = "") -> str:
    """Returns the address of a record, or of its ``part`` ``curves``."""
    if not _ID.fullmatch(run_id):
        raise BadInput(f"{run_id!r} is not the id of a training; expected 32 hexadecimal digits")
    return f"{trainings_uri(store, dag_id)}/{run_id}{part and '.'}{part}.json"


def id_of_record(name: str) -> str | None:
    """Returns the id of the training that a file of the folder is the record of; None for other files."""
    matched = _RECORD.fullmatch(name)
    return matched[1] if matched else None


def read_training(store: ArtifactStore, dag_id: str, run_id: str) -> TrainingRecord | None:
    """Returns the record of a training; None if there is none. Raises BadInput if the file is not a record."""
    return _read(store, training_uri(store, dag_id, run_id), TrainingRecord)


def read_curves(store: ArtifactStore, dag_id: str, run_id: str) -> TrainingCurves:
    """Returns the curves of a training; none if no metric was reported. Raises BadInput if the file is damaged."""
    return _read(store, training_uri(store, dag_id, run_id, "curves"), TrainingCurves) or TrainingCurves()


def write_training(
    store: ArtifactStore, dag_id: str, record: TrainingRecord, curves: TrainingCurves | None = None
) -> None:
    """Writes the record of a training, after its curves."""
    if curves is not None:
        store.write_text(training_uri(store, dag_id, record.run_id, "curves"), _compact(curves))
    store.write_text(training_uri(store, dag_id, record.run_id), _compact(record))


def update_training(
    store: ArtifactStore,
    dag_id: str,
    run_id: str,
    change: Callable[[TrainingRecord], TrainingRecord],
    missing: Callable[[], TrainingRecord] | None = None,
) -> None:
    """Changes the record of a training that has ended; one that is missing is made, or left missing."""
    with store.lock(trainings_uri(store, dag_id)):
        record = read_training(store, dag_id, run_id) or (missing and missing())
        if record is not None:
            write_training(store, dag_id, change(record))


def _read(store: ArtifactStore, uri: str, kind: type[_Content]) -> _Content | None:
    """Returns the content of a file; None if there is no file."""
    try:
        return kind.from_dict(store.read_json(uri))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except TypeError as error:
        raise UnreadableFile(uri, f": not a {kind.__name__} ({error}); restore the file, or remove it") from error


def _compact(content: JsonFields) -> str:
    return json.dumps(content.to_dict(), ensure_ascii=False, separators=(",", ":")) + "\n"

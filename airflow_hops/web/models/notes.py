"""People's notes and tags on training runs and versions of models, in files beside their records.

Tags that begin with ``mlflow.`` or ``hops.`` are reserved and cannot be changed.

The reason of a decision never changes. A later note on it is the tag ``hops.decision_note.<time of the decision>`` of
the version, or ``hops.decision_note`` of the training run of a refused candidate. Its first line has time and author;
the note follows.
"""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Body, HTTPException
from fastapi.params import Path as PathParameter
from pydantic import AwareDatetime, Field, StringConstraints

from airflow_hops.airflow_internals.api_server import GetUserDep
from airflow_hops.core.store.training_records import change_notes, training_uri, version_notes_uri
from airflow_hops.reports.model_sources import DECISION_NOTE
from airflow_hops.web.access import TRIGGERS_RUNS
from airflow_hops.web.artifacts.lookup import reaching
from airflow_hops.web.models.card import keep_cards_of
from airflow_hops.web.models.records import Decided, ServedModelOf, read_model_record
from airflow_hops.web.runs.records import Trainings
from airflow_hops.web.runs.trainings import TrainingId, tracking_hook
from airflow_hops.web.types import Model

router = APIRouter(prefix="/api/dags/{dag_id}", tags=["notes"], dependencies=[TRIGGERS_RUNS])
log = logging.getLogger(__name__)
_RESERVED = ("mlflow.", "hops.")

TagName = Annotated[str, StringConstraints(pattern=r"^\w[\w ./:-]*$", max_length=250)]
"""A name that the search finds; people give the same in MLflow."""
Note = Annotated[str, StringConstraints(strip_whitespace=True, max_length=5000)]
DecisionNote = Annotated[Note, Body(embed=True, description="Replaces the current note; empty removes it")]


class NoteRequest(Model):
    """Note and tags of a run or a version."""

    note: Note | None
    """Null leaves it unchanged."""
    tags: Annotated[dict[TagName, Annotated[str, Field(max_length=5000)] | None], Field(max_length=50)]
    """Values by name; null removes a tag, and other tags stay."""


def is_own_tag(name: str) -> bool:
    """Returns whether a tag belongs to users, not to this package."""
    return not name.startswith(_RESERVED)


@router.post("/training-runs/{training_id}/note", status_code=204)
def annotate_training_run(user: GetUserDep, dag_id: str, training_id: TrainingId, body: NoteRequest) -> None:
    """Sets the note and tags of a training run."""
    _check(body)
    _annotate_run(dag_id, training_id, body.note, body.tags)
    log.info("note and tags %s of training run %s by %r", sorted(body.tags), training_id, user.get_name())


@router.post("/models/{model}/versions/{version}/note", status_code=204)
def annotate_model_version(
    user: GetUserDep, served: Decided, version: Annotated[int, PathParameter(ge=1, lt=2**31)], body: NoteRequest
) -> None:
    """Sets the note and tags of a version.

    Raises:
        HTTPException: 403, the pipeline does not deploy the model; 404, it has no such version; 422, a tag is reserved.
    """
    _check(body)
    if version not in {event.version for event in read_model_record(served.hook.store, served.name).history}:
        raise HTTPException(404, f"model {served.name!r} has no version {version}")
    _annotate_version(served, version, body.note, body.tags)
    log.info("note and tags %s of %s v%d by %r", sorted(body.tags), served.name, version, user.get_name())


@router.post("/models/{model}/versions/{version}/decisions/{decided_at}/note", status_code=204)
def annotate_decision(
    user: GetUserDep,
    served: Decided,
    version: Annotated[int, PathParameter(ge=1, lt=2**31)],
    decided_at: AwareDatetime,
    note: DecisionNote,
) -> None:
    """Sets the note on a decision about a version.

    Raises:
        HTTPException: 403, the pipeline does not deploy the model; 404, the decision does not exist.
    """
    history = read_model_record(served.hook.store, served.name).history
    if (version, decided_at) not in {(event.version, datetime.fromisoformat(event.at)) for event in history}:
        raise HTTPException(404, f"{served.name} v{version}: no decision was made at {decided_at.isoformat()}")
    tags = {f"{DECISION_NOTE}.{_in_utc(decided_at)}": _signed(note, user)}
    _annotate_version(served, version, None, tags)
    log.info("note on the decision of %s about %s v%d by %r", decided_at, served.name, version, user.get_name())


@router.post("/training-runs/{training_id}/decision-note", status_code=204)
def annotate_refusal(user: GetUserDep, dag_id: str, training_id: TrainingId, note: DecisionNote) -> None:
    """Sets the note on the refusal of the candidate that a run trained."""
    _annotate_run(dag_id, training_id, None, {DECISION_NOTE: _signed(note, user)})
    log.info("note on the refusal of training run %s by %r", training_id, user.get_name())


def _annotate_run(dag_id: str, training_id: str, note: str | None, tags: Mapping[str, str | None]) -> None:
    store = tracking_hook(dag_id).store
    Trainings(store, dag_id).find(training_id)
    with reaching(store):
        change_notes(store, training_uri(store, dag_id, training_id, "notes"), note, tags)


def _annotate_version(served: ServedModelOf, version: int, note: str | None, tags: Mapping[str, str | None]) -> None:
    store = served.hook.store
    with reaching(store):
        change_notes(store, version_notes_uri(store, served.name, version), note, tags)
    keep_cards_of(served, version)


def _signed(note: str, user: GetUserDep) -> str | None:
    """Returns the tag value of a note: time, author and text; None, which removes the tag, for an empty note."""
    return f"{_in_utc(datetime.now(UTC))} {' '.join(user.get_name().split())}\n{note}" if note else None


def _in_utc(at: datetime) -> str:
    """Formats a time for a tag name, in which a plus sign is not allowed."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _check(body: NoteRequest) -> None:
    reserved = [name for name in body.tags if not is_own_tag(name)]
    if reserved:
        raise HTTPException(
            422, f"tags: {reserved[0]!r} begins with a prefix that MLflow or this package uses; choose another name"
        )
    unclear = [name for name in body.tags if posixpath.normpath(name) != name]
    if unclear:
        raise HTTPException(422, f"tags: {unclear[0]!r} has an empty part, '.' or '..' between slashes; expected 'a/b'")

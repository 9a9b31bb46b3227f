"""Owners of names that DAGs share: ``<store>/_owners/<kind>/<name>.json``.

The file lists who named which owners, when and why, oldest first; the last entry counts. A model's owners are in its
record (:mod:`airflow_hops.core.models.model_record`); studies and frozen schemas have the DAG in their address.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from airflow_hops.core.artifacts.artifact import name_in
from airflow_hops.core.errors import BadInput, UnreadableFile
from airflow_hops.core.json_fields import CheckedFields
from airflow_hops.core.store.artifact_store import ArtifactStore
from airflow_hops.core.times import now

_ENDING = ".json"


@dataclass(frozen=True)
class OwnersEvent(CheckedFields):
    """The owners of a name from a time on: the first DAG, or those that a person named."""

    at: str
    owners: Sequence[str]
    by: str
    why: str = ""


def claim(store: ArtifactStore, kind: str, name: str, dag_id: str) -> Sequence[str]:
    """Makes a DAG the owner of a name that has none, and returns the owners."""
    with contextlib.suppress(FileExistsError):
        store.create_text(_uri(store, kind, name), _text([OwnersEvent(now(), [dag_id], f"DAG {dag_id}", "came first")]))
    return owners_of(store, kind, name)


def owners_of(store: ArtifactStore, kind: str, name: str) -> Sequence[str]:
    """Returns the owners of a name; none if no DAG has claimed it, or it is empty, as older artifacts have it.

    Raises:
        BadInput: the record is damaged.
    """
    events = _events(store, kind, name) if name else ()
    return events[-1].owners if events else ()


def set_owners(store: ArtifactStore, kind: str, name: str, owners: Sequence[str], by: str, why: str) -> bool:
    """Names the owners of a name, and returns whether they were others.

    Raises:
        BadInput: no DAG has claimed the name, or the record is damaged.
    """
    events = _events(store, kind, name)
    if not events:
        known = ", ".join(owned_names(store, kind)) or "none"
        raise BadInput(f"{name!r} has no owner; the first DAG that uses it will own it. Names with an owner: {known}")
    if list(events[-1].owners) == list(owners):
        return False
    store.write_text(_uri(store, kind, name), _text([*events, OwnersEvent(now(), owners, by, why)]))
    return True


def owned_names(store: ArtifactStore, kind: str) -> list[str]:
    """Returns the names of a kind that have owners, sorted."""
    names = store.names(store.internal("_owners", kind))
    return sorted(name_in(name.removesuffix(_ENDING)) for name in names if name.endswith(_ENDING))


def _events(store: ArtifactStore, kind: str, name: str) -> list[OwnersEvent]:
    uri = _uri(store, kind, name)
    try:
        events = [OwnersEvent.from_dict(event) for event in store.read_json(uri)]
    except FileNotFoundError:
        return []
    except (TypeError, AttributeError) as error:
        raise UnreadableFile(uri, f": not a record of owners ({error}); restore it, or remove it") from error
    if not events or not events[-1].owners:
        raise UnreadableFile(uri, ": not a record of owners (it names none); restore it, or remove it")
    return events


def _uri(store: ArtifactStore, kind: str, name: str) -> str:
    return store.internal("_owners", kind, name) + _ENDING


def _text(events: Sequence[OwnersEvent]) -> str:
    return json.dumps([event.to_dict() for event in events], indent=1) + "\n"

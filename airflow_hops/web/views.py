"""Saved views: named addresses of a pipeline's pages. The address holds their columns, filters and charts.

Each is a small file in ``<store>/<dag>/_views``, private to a user or shared with all who may read the pipeline.
"""

from __future__ import annotations

import hashlib
import json
import logging
from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Body, HTTPException
from fastapi.params import Path as PathParameter
from pydantic import Field, StringConstraints, ValidationError

from airflow_hops.airflow_internals.api_server import GetUserDep
from airflow_hops.airflow_internals.database import create_session
from airflow_hops.core.store import ArtifactStore
from airflow_hops.web.access import READS_DAG, TRIGGERS_RUNS, may_change
from airflow_hops.web.artifacts.lookup import hook_of, pipeline_of, reaching
from airflow_hops.web.types import Model, Time

router = APIRouter(prefix="/api/dags/{dag_id}/views", tags=["views"])
log = logging.getLogger(__name__)
_MOST = 200

ViewId = Annotated[str, PathParameter(pattern=r"^[0-9a-f]{32}$", description="A view's id")]
Name = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=100)]


class ViewRequest(Model):
    """A view to save."""

    name: Name
    page: Annotated[str, Field(pattern=r"^[a-z]+(/[A-Za-z0-9_][A-Za-z0-9_.-]*)?$", max_length=300)]
    """Path of the page below ``/plugin/hops``."""
    query: Annotated[str, Field(max_length=8000)]
    """Query of the page's address, without the question mark."""
    shared: bool
    """Whether all who may read the pipeline see the view, or only its author."""


class SavedView(ViewRequest):
    """A view."""

    id: str
    by: str
    at: Time


class SavedViews(Model):
    """Views of a pipeline that the user may see, by name."""

    views: list[SavedView]
    may_save: bool
    """Whether the user may save, rename and delete them."""


class _File(ViewRequest):
    """The file of a view."""

    owner: str
    by: str
    at: Time


@router.get("", dependencies=[READS_DAG])
def list_views(user: GetUserDep, dag_id: str) -> SavedViews:
    """Lists shared views and the user's own."""
    may_save, store = may_change(user, dag_id), _store(dag_id)
    with reaching(store):
        result = _files(store, dag_id)
    views = [
        _described(view_id, view) for view_id, view in result.items() if view.shared or view.owner == user.get_id()
    ]
    return SavedViews(views=sorted(views, key=lambda view: (view.name.lower(), view.id)), may_save=may_save)


@router.post("", dependencies=[TRIGGERS_RUNS])
def save_view(user: GetUserDep, dag_id: str, body: ViewRequest) -> SavedView:
    """Saves a view.

    Raises:
        HTTPException: 409, the name exists already, or there are too many views.
    """
    store = _store(dag_id)
    now = datetime.now(UTC).replace(microsecond=0)
    view = _File(**body.model_dump(), owner=user.get_id(), by=user.get_name(), at=now)
    with reaching(store):
        if len(store.names(_folder(store, dag_id))) >= _MOST:
            raise HTTPException(409, f"DAG {dag_id!r} has {_MOST} views; delete some first")
        return _described(_create(store, dag_id, view), view)


@router.put("/{view_id}", dependencies=[TRIGGERS_RUNS])
def rename_view(user: GetUserDep, dag_id: str, view_id: ViewId, name: Annotated[Name, Body(embed=True)]) -> SavedView:
    """Renames a view.

    Raises:
        HTTPException: 404, the user has no such view; 409, the name exists already.
    """
    store = _store(dag_id)
    with reaching(store):
        view = _find(user, store, dag_id, view_id)
        if view.name == name:
            return _described(view_id, view)
        renamed = view.model_copy(update={"name": name})
        new = _create(store, dag_id, renamed)
        store.remove_text(_file(store, dag_id, view_id))
        return _described(new, renamed)


@router.delete("/{view_id}", status_code=204, dependencies=[TRIGGERS_RUNS])
def delete_view(user: GetUserDep, dag_id: str, view_id: ViewId) -> None:
    """Deletes a view of the user, or a shared one.

    Raises:
        HTTPException: 404, the user has no such view.
    """
    store = _store(dag_id)
    with reaching(store):
        view = _find(user, store, dag_id, view_id)
        store.remove_text(_file(store, dag_id, view_id))
    log.info("view %r of DAG %r, saved by %r, deleted by %r", view.name, dag_id, view.by, user.get_name())


def _store(dag_id: str) -> ArtifactStore:
    with create_session() as session:
        return hook_of(pipeline_of(session, dag_id).conn_id()).store


def _folder(store: ArtifactStore, dag_id: str) -> str:
    return f"{store.uri(dag_id)}/_views"  # which no run has as its segment


def _file(store: ArtifactStore, dag_id: str, view_id: str) -> str:
    return f"{_folder(store, dag_id)}/{view_id}.json"


def _files(store: ArtifactStore, dag_id: str) -> dict[str, _File]:
    results = {}
    for name in store.names(_folder(store, dag_id)):
        view_id = name.removesuffix(".json")
        try:
            results[view_id] = _File.model_validate(store.read_json(_file(store, dag_id, view_id)))
        except FileNotFoundError:
            continue  # deleted meanwhile
        except ValidationError as error:
            log.warning("%s: not a saved view (%s)", _file(store, dag_id, view_id), error)
    return results


def _find(user: GetUserDep, store: ArtifactStore, dag_id: str, view_id: str) -> _File:
    view = _files(store, dag_id).get(view_id)
    if view is None or not (view.shared or view.owner == user.get_id()):
        raise HTTPException(404, f"DAG {dag_id!r} has no such view")
    return view


def _create(store: ArtifactStore, dag_id: str, view: _File) -> str:
    """Writes a view; names are unique among shared views and among those of a user."""
    about = ["" if view.shared else view.owner, view.name]
    view_id = hashlib.sha256(json.dumps(about).encode()).hexdigest()[:32]
    try:
        store.create_text(_file(store, dag_id, view_id), view.model_dump_json(indent=1))
    except FileExistsError:
        raise HTTPException(409, f"there is a view {view.name!r} already; delete it, or choose another name") from None
    return view_id


def _described(view_id: str, view: _File) -> SavedView:
    return SavedView(**view.model_dump(exclude={"owner"}), id=view_id)

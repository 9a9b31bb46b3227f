"""Owners of names that DAGs share (:mod:`airflow_hops.core.store.owners`) on pages: who they are, and their change."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from fastapi import Body, HTTPException
from pydantic import StringConstraints

from airflow_hops.airflow_internals.api_server import GetUserDep
from airflow_hops.airflow_internals.database import create_session
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.store.owners import owners_of, set_owners
from airflow_hops.web.access import MayRead, may_change
from airflow_hops.web.artifacts.lookup import pipeline_of, reaching
from airflow_hops.web.types import Model

Reason = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=1000), Body()]
"""Reason, for the record."""
NewOwners = Annotated[
    list[str], Body(min_length=1, max_length=20, description="Ids of DAGs, which own the name from now on")
]


class OwnedName(Model):
    """A name with owners."""

    name: str
    owners: list[str]
    """DAGs that may change what has the name, without those that the user may not read."""
    may_change: bool
    """Whether the user may trigger all owners, as who names others must."""


def read_owners(user: GetUserDep, store: ArtifactStore, kind: str, name: str) -> OwnedName | None:
    """Returns a name's owners, or None if no DAG has claimed it."""
    with reaching(store):
        owners = owners_of(store, kind, name)
    if not owners:
        return None
    readable = MayRead(user)
    shown = [dag_id for dag_id in owners if dag_id in readable]
    return OwnedName(name=name, owners=shown, may_change=all(may_change(user, dag_id) for dag_id in owners))


def change_owners(
    user: GetUserDep, store: ArtifactStore, kind: str, name: str, dag_id: str, owners: NewOwners, reason: Reason
) -> OwnedName:
    """Names the owners of a name that a DAG owns, and returns them.

    Raises:
        HTTPException: 403, the user may not trigger one of the owners before or after; 404, there is no such pipeline,
            or the DAG does not own the name.
    """
    with reaching(store):
        owners_now = owners_of(store, kind, name)
        if dag_id not in owners_now:
            raise HTTPException(404, f"DAG {dag_id!r} does not own {name!r}")
        check_new_owners(user, owners_now, owners)
        after = list(dict.fromkeys(owners))
        set_owners(store, kind, name, after, user.get_name(), reason)
    return OwnedName(name=name, owners=after, may_change=True)


def check_new_owners(user: GetUserDep, before: Iterable[str], after: Iterable[str]) -> None:
    """Checks that a user may change the owners of a name.

    Raises:
        HTTPException: 403, the user may not trigger one of the owners before or after; 404, there is no such pipeline.
    """
    for dag_id in dict.fromkeys((*before, *after)):
        if not may_change(user, dag_id):
            raise HTTPException(403, f"you may not trigger DAG {dag_id!r}")
    with create_session() as session:
        for dag_id in after:
            pipeline_of(session, dag_id)

"""Access control of the web API. Every route depends on one of these, or it protects nothing.

Below ``/dags/{dag_id}`` a route names what it needs, ``dependencies=[READS_RUNS]``: the check is Airflow's own, of the
DAG in the path, so that an auth manager's rules for single DAGs hold here too. A route that lists across DAGs takes
:data:`ReadableDags` and shows nothing else. The origin of requests that change state is checked for all routes at once
(:func:`check_origin`), since Airflow's session cookie has no CSRF token.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated
from urllib.parse import urlsplit

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.base_auth_manager import ResourceMethod
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag
from airflow.configuration import conf
from airflow.models.dag import DagModel
from fastapi import Depends, HTTPException, Request

READS_DAG = Depends(requires_access_dag("GET"))
"""May see that there is this DAG, and what it is made of."""
READS_RUNS = Depends(requires_access_dag("GET", DagAccessEntity.RUN))
"""May see the DAG's runs."""
READS_TASKS = Depends(requires_access_dag("GET", DagAccessEntity.TASK_INSTANCE))
"""May see the task instances of the DAG's runs."""
READS_ARTIFACTS = Depends(requires_access_dag("GET", DagAccessEntity.XCOM))
"""May see what the DAG's tasks have returned: artifacts, and what lies in them."""
READS_CODE = Depends(requires_access_dag("GET", DagAccessEntity.CODE))
"""May read the DAG's code."""
READS_LOGS = Depends(requires_access_dag("GET", DagAccessEntity.TASK_LOGS))
"""May read the logs of the DAG's tasks."""
TRIGGERS_RUNS = Depends(requires_access_dag("POST", DagAccessEntity.RUN))
"""May start runs of the DAG. Also what changing what it serves takes."""

_CHANGES_NOTHING = {"GET", "HEAD", "OPTIONS"}
_DEFAULT_PORTS = {"http": 80, "https": 443}


def _readable_dags(user: GetUserDep, _: Annotated[None, READS_DAG]) -> frozenset[str]:
    return frozenset(get_auth_manager().get_authorized_dag_ids(user=user, method="GET"))


ReadableDags = Annotated[frozenset[str], Depends(_readable_dags)]
"""Ids of the DAGs that the user may read; 403 for one who may read none at all. Of routes that list across DAGs."""


def is_allowed(user: GetUserDep, dag_id: str, method: ResourceMethod, entity: DagAccessEntity | None) -> bool:
    """Whether Airflow allows a user something on a DAG."""
    details = DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id))
    return get_auth_manager().is_authorized_dag(method=method, access_entity=entity, details=details, user=user)


def may_read(user: GetUserDep, dag_id: str, entity: DagAccessEntity | None = None) -> bool:
    """Whether a user may read another DAG than the one in the path: what a lineage leads to, for instance."""
    return is_allowed(user, dag_id, "GET", entity)


class MayRead:
    """The DAGs of which a user may read all of some things, asked as they are looked up: ``dag_id in may_read``.

    Args:
        user: The user.
        entities: What of a DAG; nothing for the DAG itself.
    """

    def __init__(self, user: GetUserDep, *entities: DagAccessEntity) -> None:
        wanted = entities or (None,)
        self._ask = cache(lambda dag_id: all(may_read(user, dag_id, entity) for entity in wanted))

    def __contains__(self, dag_id: object) -> bool:
        return isinstance(dag_id, str) and self._ask(dag_id)


def may_read_results(user: GetUserDep) -> MayRead:
    """The DAGs whose runs, task instances and artifacts a user may read: what lists say of more than the DAG itself."""
    return MayRead(user, DagAccessEntity.RUN, DagAccessEntity.TASK_INSTANCE, DagAccessEntity.XCOM)


def may_change(user: GetUserDep, dag_id: str) -> bool:
    """Whether a user may start runs of a DAG; for pages, which show what is possible. A route takes the dependency."""
    return is_allowed(user, dag_id, "POST", DagAccessEntity.RUN)


def check_origin(request: Request) -> None:
    """Refuses a request that changes state and that a page of another site had a browser send.

    A browser says where a request comes from in ``Sec-Fetch-Site`` or ``Origin``, and no page can change what it says.
    What sends neither is no browser, and has no cookie that somebody else's page could use. Own are the host that was
    asked, the one that a proxy was asked (a page cannot add ``X-Forwarded-Host`` without asking first, by CORS), and
    that of ``[api] base_url``.

    Raises:
        HTTPException: 403, the request comes from another site.
    """
    if request.method in _CHANGES_NOTHING:
        return
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site in ("same-origin", "none") or (site is None and origin is None):
        return
    scheme = request.url.scheme
    named = [request.headers.get("host", ""), *request.headers.get("x-forwarded-host", "").split(",")[:1]]
    # A proxy that ends TLS may not say so, and then the port that goes without saying is that of the other scheme.
    own = {_host(f"{each}://{name.strip()}") for name in named for each in {scheme, "http", "https"}}
    own |= {_host(conf.get("api", "base_url", fallback=""))}
    if origin is None or _host(origin) not in own - {None}:
        raise HTTPException(403, f"a page of {origin or 'another site'} may not change anything here")


def _host(url: str) -> tuple[str, int] | None:
    """Host and port of an origin; None where it is none (``null``)."""
    try:
        parts = urlsplit(url)
        port = parts.port or _DEFAULT_PORTS.get(parts.scheme, 0)
    except ValueError:
        return None
    return (parts.hostname, port) if parts.hostname else None

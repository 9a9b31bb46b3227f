"""Access control of the web API. A plugin's routes are public unless they depend on one of these checks.

Routes below ``/dags/{dag_id}`` declare the access they need, for example ``dependencies=[READS_RUNS]``. Airflow's own
check runs for the DAG in the path, so per-DAG rules of an auth manager apply here too. Routes that list across DAGs
take :data:`ReadableDags` and show only those. The origin of state-changing requests is checked for all routes
(:func:`check_origin`), since Airflow's session cookie has no CSRF token.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, HTTPException, Request

from airflow_hops.airflow_internals.api_server import (
    DagAccessEntity,
    DagDetails,
    GetUserDep,
    ResourceMethod,
    get_auth_manager,
    requires_access_dag,
)
from airflow_hops.airflow_internals.database import DagModel
from airflow_hops.airflow_internals.tasks import conf

READS_DAG = Depends(requires_access_dag("GET"))
"""Requires read access to the DAG itself."""
READS_RUNS = Depends(requires_access_dag("GET", DagAccessEntity.RUN))
"""Requires read access to the DAG's runs."""
READS_TASKS = Depends(requires_access_dag("GET", DagAccessEntity.TASK_INSTANCE))
"""Requires read access to the task instances of the DAG."""
READS_ARTIFACTS = Depends(requires_access_dag("GET", DagAccessEntity.XCOM))
"""Requires read access to the XComs of the DAG: artifacts, and their contents."""
READS_CODE = Depends(requires_access_dag("GET", DagAccessEntity.CODE))
"""Requires read access to the DAG's code."""
READS_LOGS = Depends(requires_access_dag("GET", DagAccessEntity.TASK_LOGS))
"""Requires read access to the task logs of the DAG."""
TRIGGERS_RUNS = Depends(requires_access_dag("POST", DagAccessEntity.RUN))
"""Requires permission to start runs of the DAG; also required to change what it serves."""

_CHANGES_NOTHING = {"GET", "HEAD", "OPTIONS"}
_DEFAULT_PORTS = {"http": 80, "https": 443}


def _readable_dags(user: GetUserDep, _: Annotated[None, READS_DAG]) -> frozenset[str]:
    return frozenset(get_auth_manager().get_authorized_dag_ids(user=user, method="GET"))


ReadableDags = Annotated[frozenset[str], Depends(_readable_dags)]
"""Ids of the DAGs that the user may read, for routes that list across DAGs; 403 if the user may read none."""


def is_allowed(user: GetUserDep, dag_id: str, method: ResourceMethod, entity: DagAccessEntity | None) -> bool:
    """Returns whether Airflow allows a user a method on an entity of a DAG."""
    details = DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id))
    return get_auth_manager().is_authorized_dag(method=method, access_entity=entity, details=details, user=user)


def may_read(user: GetUserDep, dag_id: str, entity: DagAccessEntity | None = None) -> bool:
    """Returns whether a user may read a DAG other than the one in the path, such as one in a lineage."""
    return is_allowed(user, dag_id, "GET", entity)


class MayRead:
    """Set of the DAGs of which a user may read all the entities; without entities, the DAGs that the user may read.

    Permissions are checked on lookup: ``dag_id in may_read``.
    """

    def __init__(self, user: GetUserDep, *entities: DagAccessEntity) -> None:
        wanted = entities or (None,)
        self._ask = cache(lambda dag_id: all(may_read(user, dag_id, entity) for entity in wanted))

    def __contains__(self, dag_id: object) -> bool:
        return isinstance(dag_id, str) and self._ask(dag_id)


def may_read_results(user: GetUserDep) -> MayRead:
    """Returns the DAGs whose runs, task instances and XComs a user may read."""
    return MayRead(user, DagAccessEntity.RUN, DagAccessEntity.TASK_INSTANCE, DagAccessEntity.XCOM)


def may_change(user: GetUserDep, dag_id: str) -> bool:
    """Returns whether a user may start runs of a DAG. For display only: routes depend on :data:`TRIGGERS_RUNS`."""
    return is_allowed(user, dag_id, "POST", DagAccessEntity.RUN)


def check_origin(request: Request) -> None:
    """Refuses state-changing requests that a page of another site made a browser send.

    A browser sends ``Sec-Fetch-Site`` or ``Origin``, and no page can forge them. A client that sends neither is not a
    browser, so it has no cookie that another site's page could use. Own origins are the requested host, the host that
    a proxy was asked for (a page cannot add ``X-Forwarded-Host`` without a CORS preflight), and ``[api] base_url``.

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
    # A proxy that terminates TLS may not report it; then the default port is that of the other scheme.
    own = {_host(f"{each}://{name.strip()}") for name in named for each in {scheme, "http", "https"}}
    own |= {_host(conf.get("api", "base_url", fallback=""))}
    if origin is None or _host(origin) not in own - {None}:
        raise HTTPException(403, f"a page of {origin or 'another site'} may not change anything here")


def _host(url: str) -> tuple[str, int] | None:
    """Returns host and port of an origin; None for an invalid one or ``null``."""
    try:
        parts = urlsplit(url)
        port = parts.port or _DEFAULT_PORTS.get(parts.scheme, 0)
    except ValueError:
        return None
    return (parts.hostname, port) if parts.hostname else None

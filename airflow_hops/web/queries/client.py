"""Asks the ML side: what needs pyarrow, TFDV's protos or MLflow is read by a server of the runtime environment.

The queries are the functions of :mod:`airflow_hops.ml.queries`'s modules. The server is started by the first
request that needs it, one for each runtime environment, and ends after five minutes without one.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Mapping
from functools import cache
from typing import Any

import httpx
from fastapi import HTTPException

from airflow_hops.core.contract.artifacts import HopsError
from airflow_hops.hooks.runtime import RuntimeHook
from airflow_hops.web.queries.servers import RuntimeServers, ServerProgram

_TIMEOUT_S = 120.0
_AT_ONCE = 24
"""Requests that wait for the ML side. Airflow's own routes share their threads with these, and must go on."""
_TOKEN = secrets.token_urlsafe(32)
_servers = RuntimeServers()
_waiting = threading.BoundedSemaphore(_AT_ONCE)


def ask(hook: RuntimeHook, query: str, params: Mapping[str, Any]) -> Any:
    """The JSON value of a query.

    Args:
        hook: Whose store, MLflow and runtime environment are meant.
        query: ``<module>/<function>`` below ``airflow_hops.ml.queries``.
        params: What the query gets; JSON values.

    Raises:
        HTTPException: what the query says: 422, the parameters cannot be used; 410, something was deleted; 502, the ML
            side does not answer, or what it asks does not; 503, it is asked too much at once.
    """
    return json.loads(ask_bytes(hook, query, params))


def ask_bytes(hook: RuntimeHook, query: str, params: Mapping[str, Any]) -> bytes:
    """The bytes of a query, those of its JSON where it returns a JSON value; as :func:`ask`."""
    settings = hook.settings
    place = {
        "store_uri": settings.store,
        "storage_options": dict(settings.storage_options),
        "tracking_uri": settings.tracking_uri,
    }
    program = ServerProgram(
        name="what reads artifacts and MLflow for the web pages",
        module="airflow_hops.ml.queries",
        runtime=settings.runtime,
        folder=settings.runtime,
        secrets={"HOPS_QUERIES_TOKEN": _TOKEN},
    )
    if not _waiting.acquire(blocking=False):
        raise HTTPException(
            503, f"{_AT_ONCE} requests are already waiting for the runtime environment; try again in a moment"
        )
    try:
        answer = _client().post(
            f"{_servers.address(program)}/{query}",
            json={"place": place, "params": dict(params)},
            headers={"Authorization": f"Bearer {_TOKEN}"},
        )
    except (HopsError, httpx.HTTPError) as error:
        raise HTTPException(
            502, f"the runtime environment does not respond ({type(error).__name__}: {error})"
        ) from error
    finally:
        _waiting.release()
    if answer.status_code != 200:
        known = answer.status_code in (410, 422)
        try:
            detail = str(answer.json()["detail"])
        except (ValueError, KeyError, TypeError):
            detail = answer.text[-500:]
        raise HTTPException(answer.status_code if known else 502, detail)
    return answer.content


@cache
def _client() -> httpx.Client:
    # Plain HTTP on the loopback interface: reading certificates would take longer than a request.
    return httpx.Client(timeout=_TIMEOUT_S, trust_env=False, verify=False)

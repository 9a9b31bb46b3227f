"""Every route of the web API, those of tomorrow included: who is let in, what leads astray, where it comes from.

A new parameter of a path or a query needs a value in ``NAMES`` that names something of the run of the DAG ``pages``.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from airflow_hops.web import access
from airflow_hops.web.app import make_app
from web.conftest import Api

pytestmark = pytest.mark.runtime

NAMES = {
    "dag_id": "pages",
    "task_id": "examples",
    "instance": "-1",
    "kind": "examples",
    "name": "schema",
    "split": "train",
    "dataset": "train",
    "to": "statistics/pages/statistics/-1/no-run",
    "to_dataset": "train",
    "file": "train/part-00000.parquet",
    "feature": "size",
    "path": "",
    "training_id": "0" * 32,
    "other_run_id": "1" * 32,
    "trial": "0",
    "model": "pages_model",
    "version": "1",
    "run": "0" * 32,
    "study": "a study",
    "organisation": "north",
    "backtest": "20131101T101112Z-1a2b",
    "key": "A1",
}
"""Values of parameters, beside ``run_id``."""
PUBLIC = {"/static/{name}", "/catalogue/catalogue.json", "/catalogue/documents/{digest}"}
"""Paths that anybody may load: without data, as Airflow's own scripts, or with what was published for all."""
CHANGES_NOTHING = {
    "/tensorboard/{dag_id}/{run_id}/{task_id}/{instance}/{path:path}",
    "/api/dags/{dag_id}/runs/{run_id}/artifacts/{task_id}/{instance}/{kind}/proposal/check",
}
"""Paths where POST only asks for much at once."""

UP, ASTRAY = "%2e%2e%2f%2e%2e%2fpages_other", ("%2e%2e", "..%5c..", "%00", "~", "%252e%252e")


@functools.cache
def routes() -> list[APIRoute]:
    """All routes; making them takes a second, which workers without a test of them are spared."""
    return [route for route in make_app().routes if isinstance(route, APIRoute)]


def protected() -> list[tuple[str, APIRoute]]:
    """Methods and routes that not everybody may use."""
    return [(method, route) for route in routes() if route.path not in PUBLIC for method in sorted(route.methods)]


def _dependencies(dependant: Dependant) -> Iterator[Any]:
    for each in dependant.dependencies:
        yield each.call
        yield from _dependencies(each)


def _dag_checks(route: APIRoute) -> list[str]:
    """The methods for which Airflow checks the right to the DAG of a route's path."""
    named = ((getattr(call, "__qualname__", ""), call) for call in _dependencies(route.dependant))
    calls = [call for name, call in named if name.startswith("requires_access_dag.")]
    return [inspect.getclosurevars(call).nonlocals["method"] for call in calls]


def _path(api: Api, route: APIRoute, **other: str) -> str:
    """The route's path and query, for the run of ``pages``; values of ``other`` are put in as they are."""
    names = {name: quote(value, safe="") for name, value in {**NAMES, "run_id": api.pages.run_id}.items()} | other
    filled = re.sub(r"{(\w+)(:\w+)?}", lambda found: names[found[1]], route.path)
    required = [field.alias for field in route.dependant.query_params if field.field_info.is_required()]
    query = "&".join(f"{name}={NAMES[name]}" for name in required)
    return f"{filled}?{query}" if query else filled


def test_every_route_depends_on_airflows_check(subtests: pytest.Subtests) -> None:
    for method, route in protected():
        with subtests.test(f"{method} {route.path}"):
            checks = _dag_checks(route)
            assert checks, f"{route.path} protects nothing; see airflow_hops/web/access.py"
            if "{dag_id}" not in route.path:
                assert access._readable_dags in _dependencies(route.dependant), "a list shows the DAGs that may be read"
            if method not in ("GET", "HEAD") and route.path not in CHANGES_NOTHING:
                assert set(checks) & {"POST", "PUT", "DELETE"}, (
                    "what changes something takes more than the right to read"
                )
            assert access.check_origin in _dependencies(route.dependant)


def test_requests_without_the_right_are_refused(api: Api, subtests: pytest.Subtests) -> None:
    for method, route in protected():
        path, changes = _path(api, route), method != "GET" and route.path not in CHANGES_NOTHING
        with subtests.test(f"{method} {route.path}"):
            answer = api.request(method, path, user=None)
            assert (answer.status_code, answer.json()) == (401, {"detail": "Not authenticated"})
            forged = api.request(method, path, user=None, headers={"Authorization": "Bearer forged"})
            assert forged.status_code == 403
            assert api.request(method, path, "nobody").status_code == 403
            other = api.request(method, path, "only:pages_other")
            if "{dag_id}" in route.path:
                assert (other.status_code, other.json()) == (403, {"detail": "Forbidden"})
            assert "pages_training" not in other.text
            assert not re.search(r'"pages"|pages/', other.text)
            if changes:
                assert api.request(method, path, "viewer").status_code == 403
            if method != "GET":
                elsewhere = api.request(method, path, headers={"Origin": "https://elsewhere.example"})
                assert elsewhere.status_code == 403
                assert "may not change anything here" in elsewhere.json()["detail"]
            if "{run_id}" in route.path:  # a run of another DAG
                other_run = _path(api, route, run_id=quote(api.other.run_id, safe=""))
                assert api.request(method, other_run).status_code == 404


def test_path_traversal_is_refused(api: Api) -> None:
    tried: Counter[str] = Counter()
    failed = {}
    for method, route in protected():
        for name in re.findall(r"{(\w+)}", route.path):  # less the paths of TensorBoard, which it answers itself
            tried[name] += 1
            for astray in (UP, ASTRAY[tried[name] % len(ASTRAY)]):  # the others by turns
                path = _path(api, route, **{name: astray})
                answer = api.request(method, path)
                if answer.status_code not in (404, 405, 422) or "pages_other/" in answer.text:
                    failed[method, path] = answer.text[:300]
    assert failed == {}

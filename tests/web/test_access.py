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
from fastapi import Depends, FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient

from airflow_hops.web import access
from airflow_hops.web.access import check_origin
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
    "rehearsal": f"1-{'0' * 16}",
    "organisation": "north",
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


HUGE = 10**30


MANY = "&".join(f"dag_id=d{number}" for number in range(101))


QUERIES = [
    ("/api/dags/no_such/runs", 404, "DAG 'no_such' does not exist"),
    ("/api/dags/no_such/overview", 404, "'no_such'"),
    ("/api/dags/~/runs", 404, "DAG '~' does not exist"),
    ("/api/dags/pages/runs?with=a%25", 422, "with"),
    (f"/api/dags/pages/runs?offset={HUGE}", 422, "offset"),
    ("/api/dags/pages/runs/no_such/artifacts", 404, "DAG 'pages' has no run 'no_such'"),
    ("/api/dags/pages/models/pages_model", 404, ""),
    ("/api/pipelines?limit=0", 422, "limit"),
    (f"/api/pipelines/activity?{MANY}", 422, "dag_id"),
    ("{run}/tasks/no_such/-1", 404, "no task instance 'no_such'"),
    ("{run}/tasks/examples/0", 404, "no task instance 'examples@0'"),
    ("{run}/artifacts/no_such/-1/examples", 404, "no task instance 'no_such'"),
    ("{run}/artifacts/examples/0/examples", 404, "no task instance 'examples@0'"),
    ("{run}/artifacts/examples/-2/examples", 422, "instance"),
    (f"{{run}}/artifacts/examples/{HUGE}/examples", 422, "instance"),
    ("{run}/artifacts/examples/-1/model", 404, "has not made an artifact of kind 'model'"),
    ("{run}/artifacts/examples/-1/Model", 422, "kind"),
    ("{run}/artifacts/examples/-1/examples/skew", 422, "kind is 'examples', expected 'skew'"),
    ("{run}/artifacts/examples/-1/examples/page", 404, ""),
    ("{run}/artifacts/examples/-1/examples/statistics", 422, "kind is 'examples', expected statistics or skew"),
    ("/api/dags/pages/runs/{other}/artifacts/examples/-1/examples", 404, "has no run"),
    ("{table}/rows?split=../eval", 422, "split is '../eval', expected one of"),
    ("{table}/rows?split=train&column=no", 422, "column 'no' is not in split 'train'; it has "),
    ("{table}/rows?split=train&row=800", 422, "row is 800, expected 0 to 799, as 800 are sampled"),
    ("{table}/statistics/features?dataset=test", 422, "dataset is 'test', expected one of train"),
    ("{table}/statistics/features?dataset=../train", 422, "dataset is '../train', expected one of train"),
    ("{table}/statistics/features?dataset=train&slice=none", 422, "slice is 'none', expected one of the 0"),
    ("{table}/statistics/features?dataset=train&weighted=true", 422, "and these statistics have no weights"),
    ("{table}/statistics/feature?dataset=train&feature=none", 422, "feature is 'none', expected one of the "),
    ("{distances}&to=nowhere", 422, "to is 'nowhere', expected"),
    ("{distances}&to=examples/pages/examples/-1/run", 422, "of kind statistics or skew"),
    ("{distances}&to=skew/pages/../-1/x", 404, "has no run 'x'"),
    (f"{{distances}}&to=statistics/pages/statistics/{HUGE}/run", 422, ""),
    ("{trainings}?sort=size", 422, "sort is 'size'; expected metrics.<name>"),
    ("{trainings}?sort=metrics.a` DESC --", 422, "sort is"),
    ("{trainings}?sort=duration&offset=x", 422, "offset"),
    ("{trainings}?limit=0", 422, "limit"),
    ("{trainings}?" + "&".join(["run_id=f"] * 1001), 422, "run_id"),
    ("/api/dags/pages_skew/skew?source=pages/no_such", 422, "expected a task that compares: pages_skew/drift"),
    ("/api/dags/pages_skew/skew?limit=0", 422, "limit"),
    ("/api/dags/pages_skew/skew/feature", 422, "feature"),
    ("{comparison}/skew/feature?feature=no_such", 404, "feature 'no_such' was not compared"),
]
"""Queries that cannot be answered, with the status and words of the answer."""


@pytest.mark.parametrize(("path", "status", "says"), QUERIES, ids=[path[:60] for path, *_ in QUERIES])
def test_query_that_cannot_be_answered_is_named(
    api: Api, path: str, status: int, says: str, request: pytest.FixtureRequest
) -> None:
    table = api.artifact_path("statistics", "statistics")
    places = {
        "run": api.run_path(),
        "other": quote(api.other.run_id, safe=""),
        "table": table,
        "distances": f"{table}/statistics/distances?dataset=train&to_dataset=train",
        "trainings": "/api/dags/pages_training/training-runs",
    }
    if "pages_skew" in path or "comparison" in path:
        places["comparison"] = api.artifact_path("drift", "skew", request.getfixturevalue("comparisons")[1])
    api.refused(path.format(**places), status, says)


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
            api.refused(path, 403, user=None, method=method, headers={"Authorization": "Bearer forged"})
            api.refused(path, 403, user="nobody", method=method)
            other = api.request(method, path, "only:pages_other")
            if "{dag_id}" in route.path:
                assert (other.status_code, other.json()) == (403, {"detail": "Forbidden"})
            assert "pages_training" not in other.text
            assert not re.search(r'"pages"|pages/', other.text)
            if changes:
                api.refused(path, 403, user="viewer", method=method)
            if method != "GET":
                elsewhere = {"Origin": "https://elsewhere.example"}
                api.refused(path, 403, "may not change anything here", method=method, headers=elsewhere)
            if "{run_id}" in route.path:  # a run of another DAG
                api.refused(_path(api, route, run_id=quote(api.other.run_id, safe="")), 404, method=method)


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


HOST = "http://airflow.example:8080"


@pytest.fixture
def client() -> TestClient:
    """A client of an application with one route that changes something, at ``HOST``."""
    app = FastAPI(dependencies=[Depends(check_origin)])
    app.add_api_route("/change", lambda: "changed", methods=["GET", "POST", "DELETE"])
    return TestClient(app, base_url=HOST)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": HOST},
        {"Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": "https://ml.example", "X-Forwarded-Host": "ml.example", "X-Forwarded-Proto": "https"},
        {"Origin": "https://ml.example", "Host": "ml.example"},
        {"Origin": "https://ml.example:8443", "X-Forwarded-Host": "ml.example:8443, inner.example"},
        {"Origin": "https://public.example", "Sec-Fetch-Site": "cross-site"},
    ],
)
def test_same_origin_and_programs_are_allowed(
    client: TestClient, headers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://public.example/some/path")
    assert client.post("/change", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://elsewhere.example"},
        {"Origin": "null"},
        {"Origin": "http://airflow.example"},
        {"Origin": "http://airflow.example:8080.elsewhere.example"},
        {"Origin": "http://elsewhere.example", "Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Origin": "http://airflow.example:99999999"},
        {"Origin": "http://inner.example", "X-Forwarded-Host": "ml.example, inner.example"},
    ],
)
@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_other_origins_are_refused(client: TestClient, headers: Any, method: str) -> None:
    answer = client.request(method, "/change", headers=headers)
    assert answer.status_code == 403
    assert "may not change anything here" in answer.json()["detail"]
    assert client.get("/change", headers=headers).status_code == 200

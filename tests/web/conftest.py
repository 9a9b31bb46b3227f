"""Airflow's API server with this plugin, over a real database and artifacts that real steps made."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient


class Api:
    """A client of the plugin's API.

    ``pages`` and ``other`` are finished runs of the DAGs ``pages`` and ``pages_other``.
    """

    def __init__(self, client: TestClient, store: Any, pages: Any, other: Any) -> None:
        self.client, self.store, self.pages, self.other = client, store, pages, other

    def get(self, path: str, user: str = "admin", **options: Any) -> Any:
        """GET ``/hops<path>`` as a user: ``admin``, ``viewer``, ``nobody``, ``bare``, or ``only:<dag>,<dag>``."""
        return self.request("GET", path, user, **options)

    def request(self, method: str, path: str, user: str | None = "admin", headers: Any = None, **options: Any) -> Any:
        """Any request; without a user it is not logged in."""
        headers = {**(headers or {}), **({} if user is None else bearer(user))}
        return self.client.request(method, f"/hops{path}", headers=headers, **options)

    def artifact_path(self, task_id: str = "examples", kind: str = "examples", run: Any = None) -> str:
        """The path of an artifact of the run of ``pages``, or of another run."""
        run = run or self.pages
        return f"/api/dags/{run.dag_id}/runs/{quote(run.run_id, safe='')}/artifacts/{task_id}/-1/{kind}"


def bearer(user: str) -> dict[str, str]:
    """A header that logs a user in."""
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    role = {"admin": "admin", "viewer": "viewer", "nobody": None}.get(user, "user")
    token = get_auth_manager().generate_jwt(SimpleAuthManagerUser(username=user, role=role))
    return {"Authorization": f"Bearer {token}"}


def assert_runs_nothing(document: str) -> None:
    """Whether a report opens without a script, without an event's handler, and without a request."""

    class Elements(HTMLParser):
        def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
            assert tag not in ("script", "iframe", "object", "embed", "link", "base", "form", "a"), tag
            for name, value in attributes:
                assert not name.startswith("on"), (tag, name)
                assert name not in ("src", "href") or str(value).startswith("data:image/"), (tag, value)

    Elements().feed(document)
    assert "default-src 'none'" in document.partition("<title>")[0]


@pytest.fixture(scope="package")
def airflow_settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pytest.MonkeyPatch]:
    """Settings of an API server, its store and its auth manager, for the tests of this folder."""
    home = tmp_path_factory.mktemp("api")
    # A base path: without one, the connection would be that of a server at the default ports.
    extra = {"store": str(home / "store"), "tracking_uri": f"sqlite:///{home}/mlflow.db"}
    extra["serving_base_path"] = str(home / "models")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW_CONN_HOPS_DEFAULT", json.dumps({"conn_type": "hops", "extra": extra}))
        patch.setenv("_AIRFLOW_PROCESS_CONTEXT", "server")
        patch.setenv("AIRFLOW__CORE__AUTH_MANAGER", "web.dag_auth_manager.DagAuthManager")
        patch.setenv("AIRFLOW__API_AUTH__JWT_SECRET", "a secret of these tests " * 3)
        yield patch


@pytest.fixture(scope="package")
def api(airflow_settings: pytest.MonkeyPatch, warm_launcher: Any, run_dag: Any) -> Iterator[Api]:
    """The API, with a run of each of the DAGs ``pages`` and ``pages_other``."""
    from airflow.api_fastapi.app import create_app, purge_cached_app

    from airflow_hops.hooks.runtime import RuntimeHook

    airflow_settings.setattr(RuntimeHook, "local_launcher", lambda hook: warm_launcher)
    pages, other = run_dag("pages", {}), run_dag("pages_other", {})
    assert [str(run.state) for run in (pages, other)] == ["success", "success"]
    with TestClient(create_app("core")) as client:
        yield Api(client, RuntimeHook().store, pages, other)
    purge_cached_app()


@pytest.fixture
def folder_of(api: Api) -> Any:
    """Returns the folder of an artifact of the run of ``pages``: ``folder_of(task_id, kind)``."""

    def folder(task_id: str, kind: str) -> Path:
        from airflow_hops.core.contract.artifacts import Producer

        uri = api.store.address(Producer("pages", api.pages.run_id, task_id), kind)
        return Path(uri.removeprefix("file://"))

    return folder

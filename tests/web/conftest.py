"""Airflow's API server with this plugin, over a real database and artifacts that real steps made."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient
from world import path_of, write_artifact

from airflow_hops.core.artifacts.artifact import Artifact, Producer
from airflow_hops.core.steps.protocol import StepSpec
from airflow_hops.runner.launchers.local import LocalLauncher
from airflow_hops.runner.launchers.process import StepProcess


class HereLauncher(LocalLauncher):
    """Runs steps in this process, except those of stages, which need the libraries of the runtime environment."""

    def start(self, spec_path: Path, code_paths: Any, *, variables: Mapping[str, str] = {}) -> StepProcess:
        """Returns a process that prints what the step has printed."""
        from airflow_hops.ml.__main__ import run_step

        spec = StepSpec.from_json(spec_path.read_text(), {**os.environ, **variables})
        if spec.entry.startswith("airflow_hops.ml."):
            return super().start(spec_path, code_paths, variables=variables)
        path_then, printed = [*sys.path], io.StringIO()
        with contextlib.redirect_stdout(printed):
            result = run_step(spec, folder=spec_path.parent)
        sys.path[:] = path_then
        result.write(spec_path.with_name("result.json"))
        (output := spec_path.with_name("output")).write_text(printed.getvalue())
        command = ["sh", "-c", f'cat "$0"; exit {int(result.error is not None)}', str(output)]
        return StepProcess.start(command, env={"PATH": os.defpath}, cwd=spec_path.parent)


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

    def refused(self, path: str, status: int, says: str = "", user: str | None = "admin", **options: Any) -> None:
        """Asserts that a GET, or a request of another ``method``, is refused with a status and words."""
        answer = self.request(options.pop("method", "GET"), path, user, **options)
        assert (answer.status_code, says in answer.text) == (status, True), answer.text

    def run_path(self, run: Any = None) -> str:
        """The path of the run of ``pages``, or of another run."""
        run = run or self.pages
        return f"/api/dags/{run.dag_id}/runs/{quote(run.run_id, safe='')}"

    def artifact_path(self, task_id: str = "examples", kind: str = "examples", run: Any = None) -> str:
        """The path of an artifact of such a run."""
        return f"{self.run_path(run)}/artifacts/{task_id}/-1/{kind}"

    def by(self, task_id: str, run: Any = None) -> Producer:
        """The task of such a run."""
        run = run or self.pages
        return Producer(run.dag_id, run.run_id, task_id)

    def reference(self, task_id: str, kind: str, run: Any = None) -> Artifact:
        """Returns an artifact of such a run."""
        uri = self.store.address(self.by(task_id, run), kind)
        artifact: Artifact = self.store.manifest(uri).reference(uri)
        return artifact

    def folder(self, task_id: str, kind: str, run: Any = None) -> Path:
        """The folder of an artifact of such a run."""
        return path_of(self.store.address(self.by(task_id, run), kind))

    @contextlib.contextmanager
    def without(self, path: Path) -> Iterator[None]:
        """Takes a file or folder away from its place for the block."""
        away = path.rename(path.with_name("away"))
        try:
            yield
        finally:
            away.rename(path)

    def write(
        self, kind: str, files: Mapping[str, str] = {}, task_id: str = "validate", run: Any = None, **more: Any
    ) -> Artifact:
        """Writes an artifact of a task of such a run; ``more`` is committed."""
        return write_artifact(self.store, kind, files, self.by(task_id, run), **more)


def bearer(user: str) -> dict[str, str]:
    """A header that logs a user in."""
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    role = {"admin": "admin", "viewer": "viewer", "nobody": None}.get(user, "user")
    token = get_auth_manager().generate_jwt(SimpleAuthManagerUser(username=user, role=role))
    return {"Authorization": f"Bearer {token}"}


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
def run_dag(run_dag: Any) -> Any:
    """Runs a DAG as elsewhere; of ``tests/dags``, only the file that has it is parsed, which takes a tenth as long."""
    of_pages = {f"pages_{name}" for name in ("other", "refused", "training", "search", "monitoring", "performance")}

    def run(dag_id: str, conf: Mapping[str, Any], folder: str | None = None) -> Any:
        file = "pages" if dag_id in of_pages else dag_id
        return run_dag(dag_id, conf, folder or f"tests/dags/{file}.py")

    return run


@pytest.fixture(scope="package")
def api(airflow_settings: pytest.MonkeyPatch, warm_launcher: Any, run_dag: Any) -> Iterator[Api]:
    """The API, with a run of each of the DAGs ``pages`` and ``pages_other``."""
    from airflow.api_fastapi.app import create_app, purge_cached_app

    from airflow_hops.runner.runtime import RuntimeHook

    launcher = HereLauncher(warm_launcher.runtime, warm_launcher.warm)
    airflow_settings.setattr(RuntimeHook, "local_launcher", lambda hook: launcher)
    pages, other = run_dag("pages", {}), run_dag("pages_other", {})
    assert [str(run.state) for run in (pages, other)] == ["success", "success"]
    with TestClient(create_app("core")) as client:
        yield Api(client, RuntimeHook().store, pages, other)
    purge_cached_app()


@pytest.fixture
def brief_run(run_dag: Any) -> Iterator[Any]:
    """Runs DAGs; the runs are deleted after the test, since other tests count runs."""
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session

    made = []

    def run(*arguments: Any) -> Any:
        made.append(run_dag(*arguments))
        return made[-1]

    yield run
    with create_session() as session:
        for each in made:
            session.delete(session.query(DagRun).filter_by(dag_id=each.dag_id, run_id=each.run_id).one())


@pytest.fixture
def whole_store(api: Api, tmp_path: Path) -> Iterator[None]:
    """Puts the store back after the test as it was."""
    root = path_of(api.store.root)
    shutil.copytree(root, tmp_path / "before", symlinks=True)
    yield
    shutil.rmtree(root)
    shutil.copytree(tmp_path / "before", root, symlinks=True)


WINDOWS: list[dict[str, Any]] = [
    {"seed": 1},
    {"seed": 2, "shift": 3},
    {"seed": 3, "shift": 4},
    {"seed": 4, "words": ["never", "seen", "before", "this"]},
    {"seed": 5, "rows": 100},
]


@pytest.fixture(scope="package")
def comparisons(api: Api, run_dag: Any) -> list[Any]:
    """Five comparisons with the statistics of the DAG ``pages``: alike, drifted, again, broken, too few rows."""
    reference, results = api.reference("statistics", "statistics").to_dict(), []
    for week, window in enumerate(WINDOWS):
        since = datetime(2026, 1, 5, tzinfo=UTC) + timedelta(weeks=week)
        ends = [since.isoformat(), (since + timedelta(weeks=1)).isoformat()]
        results.append(run_dag("pages_skew", {"reference": reference, "window": {**window, "window": ends}}))
    return results


@pytest.fixture(scope="package")
def described(api: Api, run_dag: Any) -> Any:
    """A run of the DAG ``pages_statistics``."""
    run = run_dag("pages_statistics", {})
    assert str(run.state) == "success"
    return run

"""TensorBoard of a training, through Airflow's API server: who may look, what they see, that none is left running."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import pytest
from fastapi.testclient import TestClient
from waiting import wait_for

from airflow_hops.extensions.tensorboard.web.servers import TensorBoards

pytestmark = [pytest.mark.runtime, pytest.mark.server]


@pytest.fixture(scope="module")
def log() -> Iterator[list[str]]:
    """The task's log."""
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    handler = Keep()
    logging.getLogger().addHandler(handler)
    yield lines
    logging.getLogger().removeHandler(handler)


@pytest.fixture(scope="module")
def training(shared_run_step: Any, transformed_examples: Any, run_dag: Any) -> Iterator[Any]:
    """A finished DAG run that has trained."""
    patch = pytest.MonkeyPatch()
    patch.setenv(
        "AIRFLOW_CONN_HOPS_DEFAULT", json.dumps({"conn_type": "hops", "extra": {"store": shared_run_step.store.root}})
    )
    patch.setenv("_AIRFLOW_PROCESS_CONTEXT", "server")
    patch.setenv(
        "AIRFLOW__API_AUTH__JWT_SECRET",
        "a secret of these tests that is as long as the algorithm it signs with wants it",
    )
    run = run_dag("train_board", {"examples": transformed_examples.to_dict()})
    yield run
    patch.undo()


@pytest.fixture(scope="module")
def client(training: Any) -> Iterator[TestClient]:
    """A client of Airflow's API server with this plugin."""
    from airflow.api_fastapi.app import create_app

    with TestClient(create_app(), raise_server_exceptions=True) as client:
        yield client
    from airflow_hops.extensions.tensorboard.web import routes

    routes._boards.end()


def _as(role: str | None) -> dict[str, str]:
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    token = get_auth_manager().generate_jwt(SimpleAuthManagerUser(username="someone", role=role))
    return {"Authorization": f"Bearer {token}"}


def _address(training: Any, **other: str) -> str:
    names = {"dag": "train_board", "run": training.run_id, "task": "train", "map": "-1", **other}
    return "/hops/tensorboard/" + "/".join(quote(names[part], safe="") for part in ("dag", "run", "task", "map")) + "/"


def _boards() -> list[int]:
    results = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # ended meanwhile
            if "airflow_hops.ml.tracking.tensorboard" in child.cmdline():
                results.append(child.pid)
    return results


def test_curves_are_served_to_users_with_the_log_right(training: Any, client: TestClient) -> None:
    assert str(training.state) == "success"
    page = client.get(_address(training), headers=_as("viewer"))
    assert page.status_code == 200, page.text
    assert "<title>TensorBoard</title>" in page.text
    assert "url(font-roboto/" in page.text, "below the address of its link"
    assert "url(/" not in page.text
    first, *others = page.headers.get_list("content-security-policy")
    assert "script-src" in first, "TensorBoard's own"
    assert "frame-ancestors 'self'" in others
    assert (page.headers["x-frame-options"], page.headers["x-content-type-options"]) == ("SAMEORIGIN", "nosniff")
    script = client.get(_address(training) + "index.js", headers=_as("viewer"))
    assert set(script.headers.get_list("content-security-policy")) == {"frame-ancestors 'self'"}
    tags_url = _address(training) + "data/plugin/scalars/tags"
    tags = wait_for(lambda: client.get(tags_url, headers=_as("viewer")).json(), "its curves")
    assert {"loss", "auc"} <= set(tags["train"])
    assert {"loss", "auc"} <= set(tags["validation"])
    series = client.post(
        _address(training) + "data/plugin/scalars/scalars_multirun",
        data={"tag": "loss", "runs": ["train"]},
        headers=_as("viewer"),
    )
    assert len(series.json()["train"]) == 2
    assert len(_boards()) == 1


def test_task_links_to_tensorboard(training: Any, client: TestClient) -> None:
    links = client.get(
        f"/api/v2/dags/train_board/dagRuns/{quote(training.run_id, safe='')}/taskInstances/train/links",
        headers=_as("viewer"),
    )
    assert links.json()["extra_links"]["TensorBoard"] == _address(training)


@pytest.mark.parametrize(
    ("other", "status", "says"),
    [
        ({"dag": "no_such"}, 404, "DAG 'no_such' does not exist"),
        ({"run": "no_such"}, 404, "of DAG 'train_board'"),
        ({"run": ".."}, 404, ""),
        ({"task": "../train"}, 422, "instance"),
        ({"map": "-2"}, 422, "instance"),
        ({"map": "7"}, 404, "has no event files yet"),
    ],
)
def test_missing_tensorboard_is_not_found(
    training: Any, client: TestClient, other: dict[str, str], status: int, says: str
) -> None:
    answer = client.get(_address(training, **other), headers=_as("admin"))
    assert answer.status_code == status
    assert says in answer.text


def test_idle_tensorboard_is_ended(runtime: Path, tmp_path: Path) -> None:
    boards = TensorBoards(idle_timeout_s=1, most=1)
    count = len(_boards())
    address = boards.address(tmp_path, runtime)
    assert boards.address(tmp_path, runtime) == address
    assert len(_boards()) == count + 1
    # It kills its group when its starter is gone: that is not the starter's.
    assert os.getpgid(next(iter(boards._servers.values())).process.pid) != os.getpgrp()
    wait_for(lambda: len(_boards()) == count, "it has ended")
    boards.end()


def test_tensorboard_imports_nothing_beside_the_event_files(
    runtime: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("airflow_hops", "argparse", "tensorboard", "tempfile"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')\nraise SystemExit(77)\n")
    monkeypatch.chdir(tmp_path)
    boards = TensorBoards()
    try:
        assert boards.address(tmp_path, runtime).startswith("http://127.0.0.1:")
    finally:
        boards.end()
    assert not (tmp_path / "imported").exists()

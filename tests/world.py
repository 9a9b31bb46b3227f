"""The world of a test of the Airflow side: a store, connections, artifacts, what serves, tasks, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self
from urllib.parse import unquote

import pytest

from airflow_hops.core.artifacts.artifact import Artifact, Producer
from airflow_hops.core.errors import HopsError, StepFailed
from airflow_hops.core.models.model_record import ModelRecord, ServedVersion, write_record
from airflow_hops.core.store import ArtifactStore

REPOSITORY = Path(__file__).resolve().parent.parent
BY = Producer("dag", "manual__2026-01-01T00:00:00+00:00", "train", -1, 2)
"""The task try that writes artifacts, unless a test names another."""
FIELDS = ("host", "port", "login", "password")
"""Fields of a connection outside of ``extra``."""


@dataclass
class World:
    """A store, and what a test puts into it and around it: ``world.connect().deployed("flights", version=2)``."""

    store: ArtifactStore
    patch: pytest.MonkeyPatch

    def connect(self, conn_id: str = "hops_default", conn_type: str = "hops", **fields: Any) -> Self:
        """Sets a connection; one of type ``hops`` names this store unless the fields name another."""
        own = {"store": self.store.root, "storage_options": self.store.storage_options} if conn_type == "hops" else {}
        outside = {name: fields.pop(name) for name in FIELDS if name in fields}
        connection = {"conn_type": conn_type, **outside, "extra": {**own, **fields}}
        self.patch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(connection))
        return self

    def artifact(self, kind: str = "model", *arguments: Any, **options: Any) -> Artifact:
        """Writes an artifact; see :func:`write_artifact`."""
        return write_artifact(self.store, kind, *arguments, **options)

    def deployed(self, name: str, model: Artifact | None = None, version: int = 1, **properties: Any) -> Self:
        """Records the champion of a model; without an artifact, it is one with these properties."""
        model = model or Artifact("file:///m", "model", "f", properties=properties)
        write_record(self.store, name, ModelRecord(champion=ServedVersion.of(model, version, "", 100)))
        return self


def write_artifact(
    store: ArtifactStore,
    kind: str = "model",
    files: Mapping[str, str] | str = {},
    by: Producer = BY,
    *,
    cache_key_parts: Mapping[str, str] | None = None,
    cost: Mapping[str, float] | None = None,
    inputs: Mapping[str, Artifact] = {},
    **facts: Any,
) -> Artifact:
    """Writes an artifact of files by name, or of one file with a text; ``facts`` are committed."""
    named = {role: (artifact,) for role, artifact in inputs.items()}
    parts = {} if cache_key_parts is None else {"cache_key_parts": cache_key_parts}
    with store.create(store.address(by, kind), kind, by, inputs=named, **parts) as writer:
        for name, text in ({"file": files} if isinstance(files, str) else files).items():
            (writer.path / name).parent.mkdir(parents=True, exist_ok=True)
            (writer.path / name).write_text(text)
        if cost is not None:
            writer.cost = lambda: dict(cost)  # type: ignore[method-assign]
        return writer.commit(**facts)


def context_of(task_id: str = "t", dag_id: str = "d", run_id: str = "r", **fields: Any) -> Any:
    """Returns the context of a task's try as operators read it; ``file`` is that of its DAG."""
    file = fields.pop("file", __file__)
    values = {"map_index": -1, "try_number": 1, "xcom_push": lambda **_: None, "xcom_pull": lambda **_: None, **fields}
    ti = SimpleNamespace(dag_id=dag_id, run_id=run_id, task_id=task_id, **values)
    return {"ti": ti, "dag": SimpleNamespace(fileloc=file), "params": {}}


def states(run: Any) -> dict[str, str]:
    """Returns the states of a DAG run's tasks."""
    return {ti.task_id: str(ti.state) for ti in run.get_task_instances()}


def results(run: Any) -> dict[str, Any]:
    """Returns what a DAG run's tasks returned."""
    return {ti.task_id: ti.xcom_pull(task_ids=ti.task_id) for ti in run.get_task_instances()}


def path_of(uri: str) -> Path:
    """Returns the path of an address of a local store."""
    return Path(unquote(uri.removeprefix("file://")))


@contextmanager
def refused(
    words: str = "", error: type[HopsError] = StepFailed, *, retried: bool = False
) -> Iterator[pytest.ExceptionInfo[HopsError]]:
    """Expects an error with words (a regular expression), after which Airflow tries the task again or not."""
    with pytest.raises(error, match=words) as caught:
        yield caught
    assert caught.value.retryable is retried


def run_python(program: str, *arguments: object, **variables: str) -> str:
    """Runs a program in this environment's Python; returns what it printed."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    environment = {"env": {**variables}} if variables else {}
    ended = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, **environment)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout

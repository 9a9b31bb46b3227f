"""Provenance of training runs, and how their code differs: for comparing them.

Code is shown to those who may see the code of the DAG, too.
"""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter

from airflow_hops.web.access import READS_ARTIFACTS, READS_CODE, READS_RUNS
from airflow_hops.web.queries.client import ask
from airflow_hops.web.runs.trainings import RunId, tracking_hook
from airflow_hops.web.types import Model

router = APIRouter(
    prefix="/api/dags/{dag_id}/training-runs/{mlflow_run_id}",
    tags=["training runs"],
    dependencies=[READS_RUNS, READS_ARTIFACTS],
)


class DataProducer(Model):
    """The task instance that made an artifact, and its kind."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    kind: str


class RunData(Model):
    """An artifact that a run read."""

    role: str
    uri: str
    fingerprint: str
    window: list[str | None] | None
    rows: dict[str, int]
    """Rows by split or table."""
    made_by: DataProducer | None
    """Null if it is gone, or of another pipeline."""


class RunProvenance(Model):
    """The provenance of a run."""

    recorded: bool
    """Whether the store has a record of the run, by which it can be reproduced."""
    python: str | None
    package: str | None
    """Version of airflow-hops."""
    packages: dict[str, str] | None
    """Versions by name; null if they are not known."""
    data: list[RunData]


class FileDifference(Model):
    """A file of code that differs."""

    path: str
    change: Literal["added", "removed", "changed"]
    diff: str | None
    """Unified, without its header; null where it cannot be shown."""
    why: str | None
    """Why it cannot."""


class CodeDifferences(Model):
    """How the code of two runs differs."""

    files: list[FileDifference]
    same: int
    """How many files are the same."""
    lacking: list[str]
    """Runs whose code is not known."""
    whole: bool
    """False where more files differ than are listed."""


@router.get("/provenance")
def get_run_provenance(dag_id: str, mlflow_run_id: RunId) -> RunProvenance:
    """Data and libraries of a training run."""
    params = {"experiment": dag_id, "run_id": mlflow_run_id}
    return RunProvenance(**ask(tracking_hook(dag_id), "provenance/get", params))


@router.get("/code-differences/{other_run_id}", dependencies=[READS_CODE])
def get_code_differences(dag_id: str, mlflow_run_id: RunId, other_run_id: RunId) -> CodeDifferences:
    """How the code of another run differs from that of a run."""
    params = {"experiment": dag_id, "run_id": mlflow_run_id, "other": other_run_id}
    return CodeDifferences(**ask(tracking_hook(dag_id), "provenance/code_diff", params))

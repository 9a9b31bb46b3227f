"""Rows of artifacts: how many there are, and a sample of them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response

from airflow_hops.api.artifacts.lookup import TaskArtifact
from airflow_hops.api.caching import cached_answer
from airflow_hops.api.inspection.client import ask, ask_bytes
from airflow_hops.api.types import Model

router = APIRouter(prefix="/api/dags/{dag_id}/runs/{run_id}/artifacts/{task_id}/{map_index}/{kind}", tags=["rows"])


class ColumnType(Model):
    """A column: its type in Arrow's words, and what its values are; None where rows of it cannot be sent."""

    name: str
    type: str
    role: Literal["number", "category", "boolean", "time"] | None


class SplitRows(Model):
    """The rows of a split."""

    rows: int
    columns: list[ColumnType]


class RowSplits(Model):
    """The rows of an artifact by split; none where it has no Parquet files."""

    splits: dict[str, SplitRows]


@router.get("/splits", response_model=RowSplits)
def list_splits(request: Request, found: TaskArtifact) -> Response:
    """What rows an artifact has."""
    params = {"artifact": found.artifact.to_dict()}
    return cached_answer(
        request, (found.fingerprint,), lambda: RowSplits.model_validate(ask(found.hook, "examples/splits", params))
    )


@router.get(
    "/rows",
    response_class=Response,
    responses={200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}},
)
def sample_rows(
    request: Request,
    found: TaskArtifact,
    split: Annotated[str, Query(max_length=250)],
    rows: Annotated[int, Query(ge=1, le=50_000)] = 50_000,
    column: Annotated[list[str] | None, Query(description="Columns to send; all, where none is named")] = None,
    row: Annotated[int | None, Query(ge=0, lt=50_000, description="One row of the sample, its numbers in full")] = None,
) -> Response:
    """A sample of a split's rows, the same each time, as typed columns (``runtime/inspection/columns.py``).

    Its numbers have the digits that are enough to place them; a single row has them all.
    """
    params: dict[str, Any] = {"split": split, "rows": rows, "columns": column, "row": row}
    return cached_answer(
        request,
        (found.fingerprint, params),
        lambda: ask_bytes(found.hook, "examples/sample", {"artifact": found.artifact.to_dict(), **params}),
        "application/octet-stream",
    )

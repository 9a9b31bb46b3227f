"""Rows of artifacts: how many there are, and a sample of them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response

from airflow_hops.web.artifacts.lookup import TaskArtifact
from airflow_hops.web.caching import cached_answer
from airflow_hops.web.queries.client import ask, ask_bytes
from airflow_hops.web.types import Model

router = APIRouter(prefix="/api/dags/{dag_id}/runs/{run_id}/artifacts/{task_id}/{map_index}/{kind}", tags=["rows"])


class ColumnType(Model):
    """A column: its Arrow type, and the kind of its values; None if its values cannot be sent."""

    name: str
    type: str
    role: Literal["number", "category", "boolean", "time"] | None


class SplitRows(Model):
    """The rows of a split."""

    rows: int
    columns: list[ColumnType]


class RowSplits(Model):
    """The rows of an artifact by split; empty if it has no Parquet files."""

    splits: dict[str, SplitRows]


@router.get("/splits", response_model=RowSplits)
def list_splits(request: Request, found: TaskArtifact) -> Response:
    """The rows of an artifact, by split."""
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
    column: Annotated[list[str] | None, Query(description="Columns to return; all by default")] = None,
    row: Annotated[
        int | None, Query(ge=0, lt=50_000, description="One row of the sample, with unrounded numbers")
    ] = None,
) -> Response:
    """A sample of a split's rows, the same each time, as typed columns (``ml/queries/columns.py``).

    Numbers are rounded to the digits needed for plotting; a single row has all digits.
    """
    params: dict[str, Any] = {"split": split, "rows": rows, "columns": column, "row": row}
    return cached_answer(
        request,
        (found.fingerprint, params),
        lambda: ask_bytes(found.hook, "examples/sample", {"artifact": found.artifact.to_dict(), **params}),
        "application/octet-stream",
    )

"""Rows that a statistics step sampled: ``<split>/page_rows.bin`` (:mod:`airflow_hops.core.artifacts.page_files`)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Annotated, BinaryIO

from fastapi import APIRouter, HTTPException, Query, Response
from pydantic_core import from_json

from airflow_hops.core.artifacts.page_files import ROWS_FILE, RowsColumn, RowsHeader, pack_rows
from airflow_hops.web.artifacts.lookup import FoundArtifact, TaskArtifact, reaching

router = APIRouter(prefix="/api/dags/{dag_id}/runs/{run_id}/artifacts/{task_id}/{instance}/{kind}", tags=["statistics"])
_SIZES = {"int8": 1, "int16": 2, "int32": 4, "float32": 4, "float64": 8}
_MOST_HEADER_BYTES = 16 << 20


@router.get("/splits")
def list_splits(found: TaskArtifact) -> dict[str, RowsHeader]:
    """Returns the sampled rows of an artifact by split; none if it is not of statistics.

    Raises:
        HTTPException: 409, the statistics were made by an older version.
    """
    results = {}
    for split in _splits(found):
        with _opened(found, split) as (header, _, _):
            results[split] = header
    if not results and found.artifact.kind == "statistics":
        raise HTTPException(409, found.without_page())
    return results


@router.get(
    "/rows",
    response_class=Response,
    responses={200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}},
)
def sample_rows(
    found: TaskArtifact,
    split: Annotated[str, Query(max_length=250)],
    column: Annotated[list[str] | None, Query(description="Columns to return; all by default")] = None,
    row: Annotated[int | None, Query(ge=0, lt=2**31, description="Index of the only row to return")] = None,
) -> Response:
    """Returns columns of the sampled rows of a split, in the form of their file."""
    if split not in (splits := _splits(found)):
        listed = ", ".join(splits) or "none: there are no rows"
        raise HTTPException(422, f"split is {split!r}, expected one of {listed}")
    with _opened(found, split) as (header, file, start):
        known = {each.name: each for each in header.columns}
        for name in column or ():
            if name not in known:
                raise HTTPException(422, f"column {name!r} is not in split {split!r}; it has {', '.join(known)}")
        if row is not None and row >= header.rows:
            raise HTTPException(422, f"row is {row}, expected 0 to {header.rows - 1}, as {header.rows:,} are sampled")
        chosen = [known[name] for name in dict.fromkeys(column or known)]
        parts = [(each, *_read(each, header.rows, row, file, start)) for each in chosen]
    content = pack_rows(replace(header, rows=header.rows if row is None else 1), parts)
    return Response(content, media_type="application/octet-stream")


def _read(column: RowsColumn, rows: int, row: int | None, file: BinaryIO, start: int) -> tuple[bytes, bytes]:
    """Returns the bytes of a column's values and words; of a single row only its value, and only its word."""
    if column.type is None:
        return b"", b""
    size = _SIZES[column.type]
    file.seek(start + column.offset + size * (row or 0))
    data, words = file.read(size * (rows if row is None else 1)), b""
    if column.words is not None:
        file.seek(start + column.words[0])
        words = file.read(column.words[1])
    if len(data) < size * (rows if row is None else 1) or len(words) < (column.words or (0, 0))[1]:
        raise ValueError(f"it ends within column {column.name!r}")
    if column.words is not None:
        code = int.from_bytes(data, "little", signed=True) if row is not None else -1
        if row is not None and code >= 0:
            data, words = bytes(size), json.dumps([json.loads(words)[code]]).encode()
    return data, words


def _splits(found: FoundArtifact) -> list[str]:
    ending = f"/{ROWS_FILE}"
    return [entry.path.removesuffix(ending) for entry in found.manifest.files if entry.path.endswith(ending)]


@contextmanager
def _opened(found: FoundArtifact, split: str) -> Iterator[tuple[RowsHeader, BinaryIO, int]]:
    """Opens the rows of a split; yields their header, the file, and the place in it where columns begin.

    Raises:
        HTTPException: 410, the file was deleted; 502, it is damaged, or the store cannot be read.
    """
    store, uri = found.store, found.store.file(found.artifact.uri, f"{split}/{ROWS_FILE}")
    with reaching(store, uri), store.files.open(uri) as file:
        length = int.from_bytes(file.read(4), "little")
        text = file.read(min(length, _MOST_HEADER_BYTES)).decode()
        yield RowsHeader.from_dict(from_json(text)), file, 4 + length

"""Rows of a query of any other database, which the worker has read into an artifact of the store for this step."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

import pyarrow as pa
import pyarrow.dataset

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.errors import BadInput
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.tables.core.sources import QuerySource, name_of_query
from airflow_hops.extensions.tables.ml.read import lake
from airflow_hops.extensions.tables.ml.read.open_table import OpenTable, failing_as
from airflow_hops.ml.ingest.window import Window


def state_of(_source: QuerySource) -> list[list[str]]:
    """Returns a new state, as one row: the rows are those that the worker has just read."""
    return [[uuid.uuid4().hex]]


@contextmanager
def opened(source: QuerySource, window: Window, _state: str) -> Iterator[OpenTable]:
    """Opens the rows of a query for those in a window.

    Raises:
        BadInput: this step has no such rows, a column is missing, or a key occurs twice.
    """
    where, options = name_of_query(source, source.sql), source.storage_options
    if source.sql not in options.get("rows", {}):
        raise BadInput(f"{where}: only a task of Airflow reads such a database; ingest its rows with IngestOperator")
    store = ArtifactStore(options["store"], storage_options=options["store_options"])
    folder = store.local(Artifact.from_dict(options["rows"][source.sql]))
    files = sorted(folder.glob("part-*.parquet"))
    dataset = pyarrow.dataset.dataset([str(path) for path in files], format="parquet")
    table = lake.open_dataset(
        dataset, {str(path): path.stat().st_size for path in files}, source, window, where, _failing
    )
    yield replace(table, in_this_process=not store.is_local)


def _failing(where: str) -> AbstractContextManager[None]:
    return failing_as(where, pa.ArrowException, OSError, is_bad=lambda error: isinstance(error, pa.ArrowInvalid))

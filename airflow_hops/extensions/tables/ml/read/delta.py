"""Rows of a Delta table at one version, read without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaProtocolError, SchemaMismatchError, TableNotFoundError

from airflow_hops.core.errors import BadInput
from airflow_hops.extensions.tables.core.sources import TableSource
from airflow_hops.extensions.tables.ml.read import lake
from airflow_hops.extensions.tables.ml.read.open_table import OpenTable, failing_as
from airflow_hops.ml.ingest.window import Window


def state_of(source: TableSource) -> list[list[Any]]:
    """Returns the current version, or the one that the source names, as one row."""
    return [[_load(source, source.version).version()]]


@contextmanager
def opened(source: TableSource, window: Window, state: str) -> Iterator[OpenTable]:
    """Opens a table at a version, for the rows in a window.

    Raises:
        BadInput: the table or version is missing, a key occurs twice, or only Spark reads the table's deletes.
        HopsError: the storage fails.
    """
    where = f"{source.uri} at version {state}"
    table = _load(source, state)
    with failing(where):
        check_features(table, where)
        dataset = table.to_pyarrow_dataset()
        added = pa.table(table.get_add_actions(flatten=True))
        sizes = dict(zip(added["path"].to_pylist(), added["size_bytes"].to_pylist(), strict=True))
    yield lake.open_dataset(dataset, sizes, source, window, where, failing)


def check_features(table: DeltaTable, where: str) -> None:
    """Raises BadInput if deltalake would overlook deleted rows or values of renamed columns."""
    if "deletionVectors" in (table.protocol().reader_features or ()):
        raise BadInput(
            f"{where}: the table may have deletion vectors, which only Spark reads; turn them off and purge them"
        )
    if table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none":
        raise BadInput(f"{where}: the table has column mapping, which only Spark reads; copy it to one without")


def _load(source: TableSource, version: str | None) -> DeltaTable:
    options = {name: str(value) for name, value in source.storage_options.items()}
    if version is not None and not version.isdigit():
        raise BadInput(f"{source.uri}: 'version' is {version!r}; expected the number of a version")
    with failing(source.uri + (f" at version {version}" if version else ""), is_bad=version is not None):
        path = source.uri.removeprefix("delta://")
        return DeltaTable(path, None if version is None else int(version), storage_options=options)


def failing(where: str, *, is_bad: bool = False) -> AbstractContextManager[None]:
    """Turns errors of deltalake into ours; with ``is_bad``, a retry cannot help."""
    bad = (TableNotFoundError, DeltaProtocolError, SchemaMismatchError, pa.ArrowInvalid)

    def is_lasting(error: Exception) -> bool:
        # deltalake has no error class for an invalid schema, nor for a feature that it lacks.
        return is_bad or isinstance(error, bad) or type(error) is Exception or "Unsupported table feature" in str(error)

    return failing_as(where, Exception, is_bad=is_lasting)

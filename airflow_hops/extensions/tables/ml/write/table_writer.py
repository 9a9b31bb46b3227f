"""Interface of the modules that write to a table, and the columns that they add."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import pyarrow as pa

from airflow_hops.core.errors import BadInput

BATCH, FOLDER = "hops_batch", "hops_folder"
"""Columns with the batch that a row was written in, and the folder of the artifact that it comes from."""


class TableWriter(Protocol):
    """A table of a database or lake, opened for writing in one transaction.

    Attributes:
        version: Snapshot or version with the rows, after they were written; None of a database.
    """

    version: str | None

    def type_of(self, type_: pa.DataType) -> str | None:
        """Returns the table's word for a type; None if it cannot hold the type's values without loss."""

    def columns(self) -> dict[str, str] | None:
        """Returns the types of the table's columns, by name; None if the table does not exist."""

    def create(self, schema: pa.Schema) -> None:
        """Creates the table, unless writing to it does."""

    def replace(self, batch: str, schema: pa.Schema | None, rows: Iterator[pa.RecordBatch]) -> None:
        """Writes rows instead of those of the same batch; without a schema, only deletes the latter.

        Raises:
            BadInput: the table then holds another number of rows of the batch.
        """


def check_count(uri: str, batch: str, rows: int, written: int) -> None:
    """Raises BadInput if a database holds another number of rows of a batch than were written."""
    if rows != written:
        raise BadInput(
            f"table {uri!r} holds {rows} rows of batch {batch!r} after {written} were written; a trigger, rule or "
            "conflict clause of the table keeps, drops or changes rows: remove it, or write to another table"
        )

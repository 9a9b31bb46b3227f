"""Interface of the modules that write to a table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import pyarrow as pa


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

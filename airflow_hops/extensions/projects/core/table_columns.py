"""Description of a file by ``airflow hops init``: columns, their roles, and the kind of problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from airflow_hops.core.json_fields import JsonFields

Role = Literal["label", "key", "time", "weight", "number", "category", "unused"]


@dataclass(frozen=True)
class ColumnDescription(JsonFields):
    """A column.

    Attributes:
        type: Type of the values: ``text``, ``integer``, ``float``, ``boolean``, ``time``, or Arrow's name of another
            type.
        missing: Number of rows without a value.
        example: A value as text; empty if there is none.
        role: Role in the pipeline.
        why: Reason for this role; empty if it follows from the type.
        layout: Layout for strptime of times that are not in ISO 8601.
    """

    name: str
    type: str
    missing: int
    example: str
    role: Role
    why: str = ""
    layout: str = ""


@dataclass(frozen=True)
class TableDescription(JsonFields):
    """A table: one file, or several with the same columns.

    Attributes:
        rows: Number of rows read.
        whole: Whether these are all rows.
        columns: Columns in the file's order.
        problem: Kind of problem.
        classes: The label's values in the order of their numbers; None for 0 and 1, and in a regression.
        positive: Of two classes the one whose probability a model gives; None for other problems.
        minimum: Required values of a model by metric.
        request: The features of one row, in the form of a request.
        format: ``csv`` or ``parquet``.
        delimiter: Delimiter of CSV; ``null_values``, ``decimal``, ``thousands``, ``units``, ``quote`` and
            ``escape`` are as in :class:`~airflow_hops.core.sources.sources.Source`.
        notes: Notes for the reader, one sentence each.
        newest_s: Length of the split of the newest rows, in seconds; None without a time, or if the split is
            unsuitable.
    """

    rows: int
    whole: bool
    columns: Sequence[ColumnDescription]
    problem: str
    classes: Sequence[str] | None
    minimum: Mapping[str, float]
    request: Mapping[str, Any]
    format: str
    delimiter: str = ","
    null_values: Sequence[str] = ("", "NA")
    decimal: str = "."
    thousands: str = ""
    units: Sequence[str] = ()
    quote: str | None = None
    escape: str | None = None
    notes: Sequence[str] = field(default=())
    newest_s: int | None = None
    positive: str | None = None

    def named(self, role: Role) -> list[str]:
        """Returns the columns of a role, in the file's order."""
        return [column.name for column in self.columns if column.role == role]

    def only(self, role: Role) -> ColumnDescription | None:
        """Returns the column of a role that at most one column has."""
        return next((column for column in self.columns if column.role == role), None)

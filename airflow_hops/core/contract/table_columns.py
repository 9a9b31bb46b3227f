"""The result of ``airflow hops init`` reading a file: its columns, their roles, and the kind of problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from airflow_hops.core.contract.json_fields import JsonFields

Role = Literal["label", "key", "time", "weight", "number", "category", "unused"]


@dataclass(frozen=True)
class ColumnDescription(JsonFields):
    """A column.

    Attributes:
        name: Its name.
        type: Type of its values: ``text``, ``integer``, ``float``, ``boolean``, ``time``, or Arrow's name of another
            type.
        missing: Rows without a value.
        example: A value, as text; empty if there is none.
        role: Its role in the pipeline.
        why: Reason for this role; empty if it follows from the type.
        layout: Layout of times that are not as in ISO 8601, as strptime takes it.
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
        columns: In the file's order.
        problem: The kind of problem.
        classes: The label's values in the order of their numbers; None for 0 and 1, and in a regression.
        minimum: What a model must reach, by metric.
        request: The features of one row, in the form of a request.
        format: ``csv`` or ``parquet``.
        delimiter: Delimiter of CSV.
        null_values: Strings that mean a missing value in CSV.
        decimal: Decimal mark of numbers in CSV.
        thousands: Mark between thousands in CSV.
        units: Signs that stand beside numbers in CSV.
        notes: Notes for the reader, one sentence each.
        newest_s: Length of the split of the newest rows, in seconds; None without a time, or if it would not do.
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
    notes: Sequence[str] = field(default=())
    newest_s: int | None = None

    def named(self, role: Role) -> list[str]:
        """The columns of a role, in the file's order."""
        return [column.name for column in self.columns if column.role == role]

    def only(self, role: Role) -> ColumnDescription | None:
        """The column of a role that at most one column has."""
        return next((column for column in self.columns if column.role == role), None)

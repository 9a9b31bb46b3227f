"""What ``airflow hops init`` finds in a file: its columns, their roles in a pipeline, and what the label asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from airflow_hops.contract.json_fields import JsonFields

Role = Literal["label", "key", "time", "weight", "number", "category", "unused"]


@dataclass(frozen=True)
class ColumnDescription(JsonFields):
    """A column.

    Attributes:
        name: Its name.
        type: What its values are: ``text``, ``integer``, ``float``, ``boolean``, ``time``, or Arrow's name of another.
        missing: Rows without a value.
        example: A value, as text; empty where there is none.
        role: What the pipeline does with it.
        why: Why it has this role; empty where its type says it.
    """

    name: str
    type: str
    missing: int
    example: str
    role: Role
    why: str = ""


@dataclass(frozen=True)
class TableDescription(JsonFields):
    """A table that is one file, or several of the same columns.

    Attributes:
        rows: How many were looked at.
        whole: Whether these are all.
        columns: In the file's order.
        problem: What the label asks for.
        classes: The label's values in the order of their numbers; None of 0 and 1, and in a regression.
        largest_class: Share of the rows that the most frequent class has, 0 to 1; None in a regression.
        request: The features of one row, as a request holds them.
        format: ``csv`` or ``parquet``.
        delimiter: Of CSV.
        null_values: Texts that stand for a missing value in CSV.
        notes: What else a reader should know, a sentence each.
    """

    rows: int
    whole: bool
    columns: Sequence[ColumnDescription]
    problem: str
    classes: Sequence[str] | None
    largest_class: float | None
    request: Mapping[str, Any]
    format: str
    delimiter: str = ","
    null_values: Sequence[str] = ("", "NA")
    notes: Sequence[str] = field(default=())

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        """The inverse of :meth:`to_dict`."""
        return super().from_dict({**value, "columns": [ColumnDescription.from_dict(c) for c in value["columns"]]})

    def named(self, role: Role) -> list[str]:
        """The columns of a role, in the file's order."""
        return [column.name for column in self.columns if column.role == role]

    def only(self, role: Role) -> ColumnDescription | None:
        """The column of a role that one column has at most."""
        return next((column for column in self.columns if column.role == role), None)

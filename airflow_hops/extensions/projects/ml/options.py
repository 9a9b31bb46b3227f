"""Options of ``airflow hops init`` about a file's columns."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from airflow_hops.core.artifacts.target import Problem
from airflow_hops.core.errors import BadInput
from airflow_hops.core.names import suggestion
from airflow_hops.extensions.projects.core.table_columns import Role

FEW_ROWS = 100
MOST_WITHOUT_KEY = 0.1
NAME_OF_A_KEY = re.compile(
    r"(?i:(?:^|[\W_])(?:id|key|uuid|guid|nr|no)$|(?:nr|number|nummer|numero|uuid|guid)$)|[a-z](?:Id|ID|No|Key)$"
    r"|^(?i:account|case|client|customer|device|event|invoice|item|kunden|order|patient|person|product|record|row|store|"
    r"transaction|user)_?(?i:id|key|no)$"
)
"""Names of columns that identify a row, if no value occurs twice: also Kundennr and customerid, but not paid."""


@dataclass(frozen=True)
class Told:
    """Options for a file's columns; None if to be guessed.

    Attributes:
        key: Column that identifies a row.
        time: Column of the row's time.
        weight: Column of the row's weight in training.
        drop: Columns to leave out.
        keep: Columns to keep although they reveal the label.
        missing: Texts of a CSV file that stand for a missing value.
        type: Types of columns, as ``NAME=TYPE`` with a type as in a source's ``schema``.
    """

    label: str
    key: str | None = None
    time: str | None = None
    weight: str | None = None
    problem: Problem | None = None
    drop: Sequence[str] = ()
    keep: Sequence[str] = ()
    missing: Sequence[str] = ()
    type: Sequence[str] = ()

    @property
    def schema(self) -> dict[str, str]:
        """Types of columns by name.

        Raises:
            BadInput: an entry is not ``NAME=TYPE``.
        """
        parts = [text.rpartition("=") for text in self.type]
        if wrong := [text for text, (name, _, kind) in zip(self.type, parts, strict=True) if not (name and kind)]:
            raise BadInput(f"--type is {wrong[0]!r}; expected COLUMN=TYPE, such as zip=string or at=%d/%m/%Y")
        return {name: kind for name, _, kind in parts}

    def role(self, name: str) -> Role | None:
        """Returns the role that the options give a column."""
        for role in ("label", "key", "time", "weight"):
            if getattr(self, role) == name:
                return role
        return None

    def check(self, names: Sequence[str], where: str) -> None:
        """Checks the options against the names of the file's columns.

        Raises:
            BadInput: a column is not in the file, or has two roles.
        """
        values = [("label", self.label), ("key", self.key), ("time", self.time), ("weight", self.weight)]
        options = [(option, name) for option, name in values if name is not None]
        for option, name in [*options, *((o, name) for o in ("drop", "keep") for name in getattr(self, o))]:
            if name not in names:
                known = f"{named(names)}{suggestion(name, names)}"
                raise BadInput(f"{where}: --{option} is {name!r}, which is not a column; there are {known}")
        counts = Counter([*(name for _, name in options), *dict.fromkeys(self.drop), *dict.fromkeys(self.keep)])
        if twice := [name for name, number in counts.items() if number > 1]:
            raise BadInput(f"{where}: column {twice[0]!r} is named by two options; expected one role for a column")


def named(names: Sequence[str]) -> str:
    """Formats the first 20 names of a list."""
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return ", ".join(map(repr, names[:20])) + more


def is_time(kind: pa.DataType) -> bool:
    """Returns whether a type is a time or a date."""
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def is_plain(kind: pa.DataType) -> bool:
    """Returns whether a type is a number, a boolean, text or a time."""
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    return bool(is_number or pa.types.is_boolean(kind) or pa.types.is_string(kind) or is_time(kind))

"""Notes on a table for the person who begins a project: what may spoil a model, and what to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from airflow_hops.extensions.projects.core.table_columns import ColumnDescription
from airflow_hops.extensions.projects.ml.options import FEW_ROWS, MOST_WITHOUT_KEY, NAME_OF_A_KEY
from airflow_hops.extensions.projects.ml.proposals import RARE

_FEW_ROWS_OF_A_CLASS = 10
_MANY_CATEGORIES = 1000


def notes_on_values(table: pa.Table, columns: Sequence[ColumnDescription]) -> list[str]:
    """Returns notes on ids that occur more than once, and on categories with very many values."""
    notes = []
    for column in columns:
        if column.role not in ("key", "unused", "category") or column.type not in ("text", "integer"):
            continue
        values = table.column(column.name).drop_null()
        distinct = len(pc.unique(values))
        may_be_key = NAME_OF_A_KEY.search(column.name) or _looks_like_ids(values)
        is_key = column.role == "key" or (column.role == "unused" and may_be_key)
        repeated = len(values) - distinct
        if is_key and 0 < repeated <= MOST_WITHOUT_KEY * len(values):
            effect = f"if it identifies rows, --key {column.name} keeps one of each"
            effect = "one row of each value is kept" if column.role == "key" else effect
            notes.append(f"{repeated} rows repeat a value of {column.name!r}: {effect}")
        has_key = any(each.role == "key" for each in columns)
        if column.role == "unused" and not has_key and distinct == table.num_rows and _looks_like_ids(values):
            notes.append(f"no value of {column.name!r} occurs twice: if it identifies rows, say --key {column.name}")
        if column.role == "category" and distinct > _MANY_CATEGORIES:
            notes.append(
                f"{column.name!r} has {distinct} values, most of few rows: group rare ones in prepare(), or leave it "
                "out with --drop"
            )
    return notes


def _looks_like_ids(values: pa.ChunkedArray) -> bool:
    """Returns whether texts are of one word with a letter and a digit, unlike most postal codes."""
    pattern = r"^\S*([A-Za-z]\S*[0-9]|[0-9]\S*[A-Za-z])\S*$"
    return pa.types.is_string(values.type) and bool(pc.all(pc.match_substring_regex(values, pattern)).as_py())


def notes_on_classes(rows: int, classes: Counter[object] | None, label: str) -> list[str]:
    """Returns notes on few rows, and on classes of few rows."""
    notes = []
    if rows < FEW_ROWS:
        notes.append(f"{rows} rows are few: metrics on the fifth of them that is held out are not reliable")
    few = [f"{name!r} in {count}" for name, count in (classes or Counter()).items() if count < _FEW_ROWS_OF_A_CLASS]
    if few:
        notes.append(
            f"few rows have some of the values of {label!r} ({', '.join(few)}): a run fails where all of one are held "
            "out; reject them in prepare(), or name the others in classes"
        )
    shares = classes or Counter[object]()
    if shares.keys() == {0, 1} and shares[0] < RARE * rows:
        notes.append(
            f"the model gives the probability that {label!r} is 1, and 0 is rare ({shares[0]} of {rows} rows): to "
            "judge models by how well they find the rare ones, exchange 0 and 1 in prepare()"
        )
    return notes

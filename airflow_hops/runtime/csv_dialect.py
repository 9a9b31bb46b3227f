"""How a CSV file of unknown origin is written: its delimiter, its decimal marks, its texts for a missing value."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from airflow_hops.contract.artifacts import BadInput
from airflow_hops.contract.sources import Source
from airflow_hops.data.readers.raw_file import RawFile, explained

_HEAD_BYTES = 1 << 16
_DELIMITERS = ",;\t|"
_MISSING_TEXTS = frozenset({"?", "N/A", "n/a", "#N/A", "NaN", "nan", "NULL", "null"})
_MISSING_OR_CATEGORY = frozenset({"-", ".", "None", "none"})
_DECIMAL_COMMA = r"^\s*[-+]?(\d+|\d{1,3}(\.\d{3})+),\d+\s*$"
_THOUSANDS = r"^\s*[-+]?\d{1,3}(,\d{3})+\s*$"


def find_delimiter(file: RawFile) -> str:
    """The one of the usual delimiters that the header has most of, outside quotes."""
    with file.stream() as (stream, _), explained(file.name):
        head = bytes(stream.read(_HEAD_BYTES)).decode(file.source.encoding, "replace")
    header = (re.sub(r'"[^"]*"', "", head).lstrip("\ufeff\r\n").splitlines() or [""])[0]
    return max(_DELIMITERS, key=header.count)


def check_numbers(table: pa.Table, source: Source, drop: Sequence[str]) -> None:
    """Looks for numbers with commas, which would be taken for text.

    Raises:
        BadInput: a column, which is not to be dropped, has them in all rows.
    """
    for name, column in _texts(table, drop):
        values = column.drop_null()
        if source.delimiter == "," and _all_match(values, _THOUSANDS):
            found, option = "commas that separate thousands, or decimal commas (then say decimal=',')", "thousands=','"
        elif _all_match(values, _DECIMAL_COMMA):
            found, option = "decimal commas", "decimal=','"
        else:
            continue
        raise BadInput(
            f"{source.uri}: column {name!r} has {found}: {values[0].as_py()!r}; expected points. Write the file anew: "
            f"pandas.read_csv(FILE, sep={source.delimiter!r}, {option}).to_csv(NEW, index=False)"
        )


def missing_texts(table: pa.Table, label: str, drop: Sequence[str]) -> tuple[list[str], list[str]]:
    """Texts that stand for a missing value in columns whose other values are all numbers.

    A text holds for the whole table: one that may be a class of the label, or a category, is none.

    Returns:
        The texts, and a sentence on each, and on each that is none.
    """
    among_numbers: dict[str, str] = {}
    among_texts: dict[str, str] = {}
    for name, column in _texts(table, drop):
        values = pc.unique(column.drop_null())
        is_text = pc.is_in(values, value_set=pa.array(sorted(_MISSING_TEXTS | _MISSING_OR_CATEGORY)))
        found, others = values.filter(is_text).to_pylist(), values.filter(pc.invert(is_text))
        if len(others) and _are_numbers(others):
            among_numbers |= dict.fromkeys(found, name)
        elif name == label or len(values) > 1:
            among_texts |= dict.fromkeys(found if name == label else _MISSING_OR_CATEGORY & set(found), name)
    notes = [
        f"{text!r} does not count as missing, since it may be a value of {among_texts[text]!r}: {name!r}, which has it "
        "among its numbers, is text"
        if text in among_texts
        else f"{text!r} counts as missing, as among the numbers of {name!r}"
        for text, name in sorted(among_numbers.items())
    ]
    return sorted(among_numbers.keys() - among_texts.keys()), notes


def _texts(table: pa.Table, drop: Sequence[str]) -> list[tuple[str, pa.ChunkedArray]]:
    columns = zip(table.column_names, table.columns, strict=True)
    return [(name, column) for name, column in columns if pa.types.is_string(column.type) and name not in drop]


def _all_match(values: pa.ChunkedArray, pattern: str) -> bool:
    return len(values) > 0 and bool(pc.all(pc.match_substring_regex(values, pattern)).as_py())


def _are_numbers(texts: pa.Array) -> bool:
    try:
        texts.cast(pa.float64())
    except pa.ArrowInvalid:
        return False
    return True

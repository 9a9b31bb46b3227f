"""Detects how a CSV file is written: its delimiter, its numbers and times, its texts for missing values."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from airflow_hops.core.errors import BadInput
from airflow_hops.core.sources.sources import Source
from airflow_hops.ml.readers.csv import DELIMITERS
from airflow_hops.ml.readers.csv_quotes import quote_of
from airflow_hops.ml.readers.notation import plain_numbers, times_fit
from airflow_hops.ml.readers.raw_file import RawFile, explained
from airflow_hops.ml.readers.text_types import (
    FLOAT,
    INTEGER,
    LARGE_INTEGER,
    MARKS,
    NOT_THE_SAME,
    TEXT,
    TIMES,
    number_pattern,
    type_of,
    why_text,
)

_HEAD_BYTES = 1 << 16
_ERRORS_OF_SHEETS = {"#N/A", "#DIV/0!", "#NAME?", "#NULL!", "#NUM!", "#REF!", "#VALUE!"}
_MISSING_TEXTS = frozenset({"?", "N/A", "n/a", "NaN", "nan", "NULL", "null", "\\N", *_ERRORS_OF_SHEETS})
_MISSING_OR_CATEGORY = frozenset({"-", ".", "None", "none"})
_NUMBERS = (INTEGER, LARGE_INTEGER, FLOAT)
_UNITS = "$€£¥₹₽₩₺%‰"
_DAYS = (
    "%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y/%m/%d", "%d %b %Y", "%b %d, %Y", "%d-%b-%Y",
    "%d/%m/%y", "%m/%d/%y", "%d.%m.%y",
)  # fmt: skip
_LAYOUTS = [f"{day}{time}" for day in _DAYS for time in ("", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p")]
_SHORT_YEAR = r"[/.][0-9]{2}( |$)"
"""Pattern of dates with a two-digit year: strptime also takes 1.2.3, which is a version."""
_LIKE_A_NUMBER = r"^[^\pL\pN]*[0-9][0-9.,']*([ \x{a0}][0-9]{3})*([.,][0-9]*)?([eE][-+]?[0-9]+)?[^\pL\pN]*$"
_FEWEST_NUMBERS = 50
_MOST_MARKERS = 3


def find_delimiter(file: RawFile) -> str:
    """Returns the delimiter that occurs most often in the header, outside quotes."""
    with file.stream() as (stream, _), explained(file.name):
        head = bytes(stream.read(_HEAD_BYTES)).decode(file.source.encoding, "replace")
    mark = re.escape(quote_of(file.source) or '"')
    header = (re.sub(f"{mark}[^{mark}]*{mark}", "", head).lstrip("\ufeff\r\n").splitlines() or [""])[0]
    return max(DELIMITERS, key=header.count)


def missing_markers(texts: pa.Table, source: Source, label: str, drop: Sequence[str]) -> dict[str, str]:
    """Finds texts that stand for a missing value by their columns, whatever they are: "k.A." among laboratory values.

    All other values of such a column, at least 50 different ones, look like numbers; and there are at most three such
    texts without a digit, each in several rows. A text that is a value of the label is none.

    Returns:
        The texts, each with a column.
    """
    markers: dict[str, str] = {}
    for name, column in _texts(texts, [*drop, *source.schema, label]):
        values = _values(column)
        is_number = pc.match_substring_regex(values, _LIKE_A_NUMBER)
        others = values.filter(pc.invert(is_number))
        if not 0 < len(others) <= _MOST_MARKERS or len(values) - len(others) < _FEWEST_NUMBERS:
            continue
        counts = pc.value_counts(column.filter(pc.is_in(column, value_set=others))).field("counts")
        if pc.min(counts).as_py() > 1 and not pc.any(pc.match_substring_regex(others, "[0-9]")).as_py():
            markers |= dict.fromkeys(others.to_pylist(), name)
    classes = pc.is_in(pa.array(list(markers), TEXT), value_set=pc.unique(texts.column(label).cast(TEXT)))
    return {
        text: name for (text, name), is_class in zip(markers.items(), classes.to_pylist(), strict=True) if not is_class
    }


def with_notation(texts: pa.Table, source: Source, drop: Sequence[str]) -> tuple[Source, list[str]]:
    """Returns the source with the number marks and time layouts that its values determine.

    Args:
        texts: All columns as text.
        source: The source; its existing settings and types are left alone.
        drop: Columns to leave out.

    Returns:
        The source, and a sentence on each recognised or suspected property.

    Raises:
        BadInput: numbers can be read in two ways, or two columns write them in incompatible ways.
    """
    columns = _texts_of(texts, source, drop)
    source, notes = _with_marks(columns, source)
    plain = {name: plain_numbers(values, source) for name, values in columns.items()}
    layouts, more = _recognised(plain, "if it stands for a missing value, say --missing={!r}; otherwise correct it")
    return replace(source, schema={**source.schema, **layouts}), notes + more


def notes_on_text(table: pa.Table, source: Source, drop: Sequence[str]) -> list[str]:
    """Returns a sentence on each text column of a typed file whose values look like numbers or times."""
    notes = []
    for name, values in _texts_of(table, source, drop).items():
        layouts, more = _recognised({name: values}, "correct it in prepare()")
        kind = layouts.get(name, "times" if type_of(values) in TIMES else "numbers")
        if layouts or type_of(values) != TEXT:
            how = f"--type {name}=float64 reads them so" if kind == "numbers" else "convert them in prepare()"
            notes.append(
                f"{name!r} is text in the file, such as {values[0].as_py()!r}, though its values are {kind}; {how}"
            )
        else:
            notes += more
    return notes


def _texts_of(table: pa.Table, source: Source, drop: Sequence[str]) -> dict[str, pa.Array]:
    """Returns the distinct values of each text column that is neither dropped nor typed and has values."""
    columns = _texts(table, [*drop, *source.schema])
    return {name: values for name, column in columns if len(values := _values(column))}


def _recognised(columns: Mapping[str, pa.Array], advice: str) -> tuple[dict[str, str], list[str]]:
    """Finds text columns whose values may be times or numbers; the advice is on a value that is not a number."""
    result, notes = {}, []
    for name, values in columns.items():
        if type_of(values) != TEXT:
            continue
        known = _LAYOUTS if _share(values, _SHORT_YEAR) == 1 else [item for item in _LAYOUTS if "%y" not in item]
        layouts = [layout for layout in known if times_fit(values[:1], layout) and times_fit(values, layout)]
        shown, why = repr(values[0].as_py()), why_text(values)
        if len(layouts) == 1:
            result[name] = layouts[0]
            notes.append(f"{name!r} has times such as {shown}, read as {layouts[0]}")
        elif layouts:
            options = " or ".join(f"--type {name}={layout}" for layout in layouts)
            notes.append(f"{name!r} is text: its times, such as {shown}, can be read in two ways; say {options}")
        elif why is not None:
            bad = values[why[0]].as_py()
            what = f"--type {name}=float64 reads it as one" if why[1] == NOT_THE_SAME else advice.format(bad)
            notes.append(f"{name!r} is text: {bad!r} {why[1]}; {what}")
        elif _share(values, _LIKE_A_NUMBER) > 0.5:
            others = values.filter(pc.invert(pc.match_substring_regex(values, _LIKE_A_NUMBER)))
            if len(others):
                other = others[0].as_py()
                notes.append(f"{name!r} is text because of {other!r} among its numbers; {advice.format(other)}")
            else:
                notes.append(
                    f"{name!r} is text, as its values, such as {shown}, are not numbers that are all written alike; "
                    "correct them, or drop it with --drop"
                )
    return result, notes


def _with_marks(columns: dict[str, pa.Array], source: Source) -> tuple[Source, list[str]]:
    marks = [pair for pair in MARKS if source.decimal == "." or pair[0] == source.decimal]
    marks = [pair for pair in marks if not source.thousands or pair[1] == source.thousands]
    units = {name: _unit_of(values, (*source.units, *_UNITS)) for name, values in columns.items()}
    fitting = {
        name: pairs
        for name, values in columns.items()
        if (pairs := [pair for pair in marks if _share(values, number_pattern(*pair, units[name])) == 1])
    }
    used = tuple(sorted({*source.units, *(units[name] for name in fitting)} - {""}))
    notes = [
        f"{units[name]!r} is cut from {name!r}: {columns[name][0].as_py()!r} is a number without it"
        for name in fitting
        if units[name]
    ]
    common = [pair for pair in marks if all(pair in pairs for pairs in fitting.values())]
    if not common:
        one = next(name for name, pairs in fitting.items() if marks[0] not in pairs)
        other = next(name for name, pairs in fitting.items() if not set(pairs) & set(fitting[one]))
        raise BadInput(
            f"{source.uri}: the numbers of column {one!r}, such as {_telling(columns[one])!r}, and of {other!r}, such "
            f"as {_telling(columns[other])!r}, have conflicting decimal or thousands separators; leave one out with "
            "--drop, or keep it as text with --type COLUMN=string"
        )
    decimal, thousands = common[0]
    if common[0] != (".", "") and (".", ",") in common and any(pair[0] == "," for pair in common):
        name = next(name for name, pairs in fitting.items() if (".", "") not in pairs)
        raise BadInput(
            f"{source.uri}: column {name!r} has numbers such as {_telling(columns[name])!r}, whose commas may separate "
            "thousands or be decimal marks; say --thousands=, or --decimal=, or leave the column out with --drop"
        )
    if common[0] != (".", "") and (decimal, thousands) != (source.decimal, source.thousands):
        name = next(name for name, pairs in fitting.items() if (".", "") not in pairs)
        shown = f"{_telling(columns[name])!r} of {name!r}"
        notes.append(f"numbers are read with decimal={decimal!r} and thousands={thousands!r}, as {shown}")
    return replace(source, decimal=decimal, thousands=thousands, units=used), notes


def _unit_of(values: pa.Array, units: Sequence[str]) -> str:
    """Returns the unit that all values have, or ""."""
    return next((unit for unit in units if pc.all(pc.match_substring(values, unit)).as_py()), "")


def _values(column: pa.ChunkedArray) -> pa.Array:
    """Returns the distinct values that cannot stand for a missing value."""
    values = pc.unique(column).drop_null()
    missing = pa.array(sorted(_MISSING_TEXTS | _MISSING_OR_CATEGORY))
    return values.filter(pc.invert(pc.is_in(values, value_set=missing)))


def _share(values: pa.Array, pattern: str) -> float:
    return float(pc.mean(pc.match_substring_regex(values, pattern)).as_py())


def _telling(values: pa.Array) -> str:
    """Returns the first value that is not a plain number, or the first value."""
    plain = pc.match_substring_regex(values, number_pattern("."))
    return str(values[max(0, pc.index(plain, False).as_py())].as_py())


def missing_texts(table: pa.Table, source: Source, label: str, drop: Sequence[str]) -> tuple[list[str], list[str]]:
    """Finds texts that stand for a missing value: all other values of their column are numbers.

    A text applies to the whole table, so those that may be a label class or a category are left out.

    Returns:
        The texts, and a sentence on each, including those left out.
    """
    among_numbers: dict[str, str] = {}
    among_texts: dict[str, str] = {}
    for name, column in _texts(table, drop):
        values = pc.unique(column.drop_null())
        is_text = pc.is_in(values, value_set=pa.array(sorted(_MISSING_TEXTS | _MISSING_OR_CATEGORY)))
        result, others = values.filter(is_text).to_pylist(), values.filter(pc.invert(is_text))
        if len(others) and type_of(plain_numbers(others, source)) in _NUMBERS:
            among_numbers |= dict.fromkeys(result, name)
        elif name == label or len(values) > 1:
            among_texts |= dict.fromkeys(result if name == label else _MISSING_OR_CATEGORY & set(result), name)
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

"""Counts of values that the rules of types leave as text, or read in a way that a person may not expect.

Counts of parts add up, so what is reported depends neither on the number of files nor on blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from unicodedata import category

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_hops.core.sources.sources import RowSource, Source
from airflow_hops.ml.readers.text_types import (
    A_TIME,
    DATE,
    LIKENESSES,
    MARKS,
    NUMBER,
    UTC_TIME,
    ZONE,
    number_pattern,
)

_FEW = 0.1
_MOST_UNITS = 2
_SHOWN = 60
_DATE_LENGTH = len("2026-01-31")
_MARKED = (
    r"^\s*\(?[-+\x{2212}]?\s?(?P<prefix>[$\x{80}-\x{10ffff}]|[A-Z]{3} )?\s?[-+\x{2212}]?"
    r"(?P<number>(?:[0-9](?:[0-9.,' \x{a0}\x{202f}]*[0-9.,])?|[.,][0-9]+)(?:[eE][-+]?[0-9]+)?)"
    r"[\s\x{a0}\x{202f}]?(?P<suffix>[^0-9.,'\s()]{1,4})?\)?\s*$"
)
"""Pattern of a number with marks or units of any notation; RE2 compiles classes such as \\pL in milliseconds."""
_LAKHS = ("of lakhs", "")
_NOTATIONS = {marks: number_pattern(*marks) for marks in MARKS} | {
    _LAKHS: r"^[0-9]{1,2}(,[0-9]{2})*,[0-9]{3}(\.[0-9]*)?$"
}
"""Patterns of numbers by decimal mark and thousands separator; no source reads India's."""
_SIGNS = frozenset("%‰°")
_BLANKS = np.isin(np.arange(256), list(b"\t\n\r "))
# Of ASCII, and the first bytes of currency signs, blanks and the minus sign in UTF-8.
_BEGIN_NUMBERS = np.isin(np.arange(256), [*b"\t\n\r 0123456789+-.,$(", 0xC2, 0xE2, 0xEF])
_CAPITALS = np.isin(np.arange(256), range(ord("A"), ord("Z") + 1))
_DIGITS = np.isin(np.arange(256), list(b"0123456789"))
_AS_SHAPE = bytes.maketrans(b"0123456789", b"1" * 10)

VALUES, NUMBERS, MARKED, TIMES = "values", "numbers", "numbers in another notation", "times"
NO_NUMBERS, NO_TIMES, LEADING_ZEROS = "other than numbers", "other than times", "numbers with leading zeros"
PADDED, NO_ZONE, NO_CLOCK = "texts with blanks around them", "times without a zone", "dates among times"
_MARKS, _UNIT = "marks ", "unit "


@dataclass
class Count:
    """Number of values, and the first of them with its file and row."""

    rows: int
    where: str = ""
    value: str = ""


Counts: TypeAlias = Mapping[str, Count]
Notice: TypeAlias = tuple[Count, str]
"""Value, and what is to be said of it."""


@dataclass
class Notices:
    """Counts of a table's values by column and kind; the kinds are constants of this module."""

    columns: dict[str, dict[str, Count]] = field(default_factory=dict)

    def add(self, column: str, kind: str, count: Count) -> None:
        """Adds a count of later rows."""
        counts = self.columns.setdefault(column, {})
        if kind in counts:
            counts[kind].rows += count.rows
        # More units than these are none; codes could have thousands.
        elif count.rows and not (kind.startswith(_UNIT) and sum(map(_is_unit, counts)) > _MOST_UNITS):
            counts[kind] = count

    @classmethod
    def from_dict(cls, value: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Notices:
        """Reads the JSON object of ``dataclasses.asdict``."""
        columns = value["columns"]
        return cls({name: {kind: Count(**each) for kind, each in counts.items()} for name, counts in columns.items()})

    def merge(self, other: Notices) -> None:
        """Adds the counts of later rows."""
        for column, counts in other.columns.items():
            for kind, count in counts.items():
                self.add(column, kind, Count(count.rows, count.where, count.value))

    def add_values(self, column: str, kind: str, values: pa.Array, chosen: np.ndarray, file: str, first: int) -> None:
        """Counts chosen values.

        Args:
            column: Name of the column.
            kind: Kind of the values.
            values: Texts, or dates.
            chosen: Mask of the values.
            file: Name of the file.
            first: Number of rows before the first value in the file.
        """
        if rows := int(np.count_nonzero(chosen)):
            index = int(chosen.argmax())
            value = str(values[index])
            shown = repr(value if len(value) <= _SHOWN else f"{value[:_SHOWN]}…")
            self.add(column, kind, Count(rows, f"{file}, row {first + index + 1}", shown))

    def add_texts(self, table: pa.Table, file: str, first: int) -> None:
        """Counts the values of a table's columns of text; arguments as in :meth:`add_values`."""
        for item in table.schema:
            if pa.types.is_string(item.type) and table.num_rows:
                self._add_text(item.name, table.column(item.name).combine_chunks(), file, first)

    def add_times(self, column: str, texts: pa.Array, kind: pa.DataType, file: str, first: int) -> None:
        """Counts texts that were read as times of a type; arguments as in :meth:`add_values`."""
        if kind == DATE:
            return
        self.add(column, VALUES, Count(len(texts) - texts.null_count))
        lengths = np.asarray(pc.fill_null(pc.binary_length(texts), 0))
        self.add_values(column, NO_CLOCK, texts, lengths == _DATE_LENGTH, file, first)
        if kind == UTC_TIME and not pc.all(pc.ends_with(texts, "Z")).as_py():  # much faster than the pattern
            zoned = np.asarray(pc.fill_null(pc.match_substring_regex(texts, ZONE), True))
            self.add_values(column, NO_ZONE, texts, ~zoned, file, first)

    def add_dates(self, batch: pa.RecordBatch, types: Mapping[str, pa.DataType], file: str, first: int) -> None:
        """Counts the dates that are to become times, as in :meth:`add_times`."""
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if pa.types.is_timestamp(types.get(name, pa.null())):
                self.add(name, VALUES, Count(len(column) - column.null_count))
                if pa.types.is_date(column.type):
                    self.add_values(name, NO_CLOCK, column, np.asarray(column.is_valid()), file, first)

    def add_units(self, column: str, texts: pa.Array, units: Sequence[str], file: str, first: int) -> None:
        """Counts the units of numbers; arguments as in :meth:`add_values`."""
        without = np.asarray(texts.is_valid())
        for unit in units:
            has_unit = np.asarray(pc.fill_null(pc.match_substring(texts, unit), False))
            self.add_values(column, f"{_UNIT}{unit}", texts, has_unit, file, first)
            without &= ~has_unit
        self.add_values(column, _UNIT, texts, without, file, first)

    def _add_text(self, column: str, texts: pa.Array, file: str, first: int) -> None:
        offsets = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + len(texts) + 1]
        content = texts.buffers()[2]
        data = np.frombuffer(content, np.uint8) if content is not None and content.size else np.zeros(1, np.uint8)
        valid = np.asarray(texts.is_valid())
        lengths = np.diff(offsets) if valid.all() else np.where(valid, np.diff(offsets), 0)
        heads, tails = (data[np.where(lengths, ends, 0)] for ends in (offsets[:-1], offsets[1:] - 1))
        # Most texts begin like no number, and patterns cost much more than this.
        is_code = _CAPITALS[heads] & _DIGITS[tails] & (lengths > len("EUR "))
        positions = np.flatnonzero((lengths > 0) & (_BEGIN_NUMBERS[heads] | is_code))
        is_number, is_marked, is_time = (np.zeros(len(texts), bool) for _ in range(3))
        if len(positions):
            shapes = _shapes(texts.take(pa.array(positions)) if len(positions) < len(texts) else texts)
            codes, kinds = np.asarray(shapes.indices), shapes.dictionary
            for mask, of_shapes in zip(
                (is_number, is_marked, is_time), self._add_shapes(column, kinds, np.bincount(codes)), strict=True
            ):
                mask[positions] = of_shapes[codes]
        self.add(column, VALUES, Count(int(np.count_nonzero(valid))))
        has_zero = is_number & (heads == ord("0")) & (lengths > 1)
        for kind, chosen in {
            PADDED: (lengths > 0) & (_BLANKS[heads] | _BLANKS[tails]),
            NUMBERS: is_number,
            LEADING_ZEROS: has_zero & _DIGITS[data[np.where(has_zero, offsets[:-1] + 1, 0)]]
            if has_zero.any()
            else has_zero,
            MARKED: is_marked,
            TIMES: is_time,
            NO_NUMBERS: valid & ~is_number & ~is_marked,
            NO_TIMES: valid & ~is_time,
        }.items():
            self.add_values(column, kind, texts, chosen, file, first)

    def _add_shapes(self, column: str, shapes: pa.Array, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Counts the units and the fitting notations of numbers.

        Args:
            column: Name of the column.
            shapes: Distinct shapes of texts.
            rows: Number of rows of each.

        Returns:
            Which shapes are numbers, numbers in another notation, and times.
        """
        numbers, times = (
            np.asarray(pc.match_substring_regex(shapes, each)) for each in (LIKENESSES[NUMBER], LIKENESSES[A_TIME])
        )
        parts, marked = pc.extract_regex(shapes, _MARKED), np.zeros(len(shapes), bool)
        for index in np.flatnonzero(np.asarray(parts.is_valid()) & ~numbers):
            prefix, _, suffix = parts[int(index)].as_py().values()
            if (unit := _unit(prefix, suffix)) is not None:
                marked[index] = True
                self.add(column, f"{_UNIT}{unit}", Count(int(rows[index])))
        if numbers.any() or marked.any():
            written = pc.struct_field(parts, [1])
            for marks, pattern in _NOTATIONS.items():
                fits = np.asarray(pc.fill_null(pc.match_substring_regex(written, pattern), False))
                self.add(column, _MARKS + "".join(marks), Count(int(rows[fits & (numbers | marked)].sum())))
        return numbers, marked, times

    def with_several_units(self) -> list[str]:
        """Returns the columns whose values were read as numbers, but have several units in several blocks or files."""
        return [
            column
            for column, counts in self.columns.items()
            if VALUES not in counts and sum(kind.startswith(_UNIT) for kind in counts) > 1
        ]

    def sentences(self, source: RowSource) -> Iterator[str]:
        """Yields what a person should know of the columns of a source."""
        for column, counts in self.columns.items():
            for notices in (_on_texts, _on_times, *([] if column in source.schema else [_on_numbers])):
                for count, sentence in notices(counts, source):
                    yield f"{count.where}, column {column!r}: {count.value} {sentence}"


def _shapes(texts: pa.Array) -> pa.DictionaryArray:
    """Returns texts with each digit as 1, so that numbers have few distinct shapes."""
    validity, offsets, content = texts.buffers()
    if content is not None:
        content = pa.py_buffer(content.to_pybytes().translate(_AS_SHAPE))
    return pa.StringArray.from_buffers(len(texts), offsets, content, validity, -1, texts.offset).dictionary_encode()


def _is_unit(kind: str) -> bool:
    return kind.startswith(_UNIT) and kind != _UNIT


def _unit(prefix: str, suffix: str) -> str | None:
    """Returns the unit of a number from its prefix and suffix; None if it is none."""
    prefix = prefix.strip()
    if prefix.isalpha() or suffix.isalpha():
        return None if prefix and suffix else prefix + suffix
    marks = prefix + suffix
    return marks if all(mark in _SIGNS or category(mark) == "Sc" for mark in marks) else None


def _is_few(rows: int, total: int) -> bool:
    return 0 < rows <= max(_FEW * total, 1) and 2 * rows < total


def _on_texts(counts: Counts, source: RowSource) -> Iterator[Notice]:
    if padded := counts.get(PADDED):
        yield (
            padded,
            f"has blanks around it, as {padded.rows} of {counts[VALUES].rows} texts have; without them it is another "
            "value: if they mean the same, cut the blanks off in prepare(), and in requests",
        )


def _on_times(counts: Counts, source: RowSource) -> Iterator[Notice]:
    for kind, what in (
        (NO_ZONE, "has no zone, as other times have, and is read as UTC"),
        (NO_CLOCK, "is read as midnight"),
    ):
        if count := counts.get(kind):
            yield count, f"{what}; {count.rows} of {counts[VALUES].rows} values are {kind}"


def _on_numbers(counts: Counts, source: RowSource) -> Iterator[Notice]:
    """Yields what is to be said of a text column most of whose values are numbers or times."""
    values, numbers, marked, times = (counts.get(kind, Count(0)).rows for kind in (VALUES, NUMBERS, MARKED, TIMES))
    units = [kind.removeprefix(_UNIT) for kind in counts if _is_unit(kind)]
    notations = [
        marks for marks in _NOTATIONS if counts.get(_MARKS + "".join(marks), Count(0)).rows == numbers + marked
    ]
    others = values - numbers - marked
    is_code = len(units) > _MOST_UNITS or (len(units) > 1 and any(unit.isalpha() for unit in units))
    if marked and notations and not is_code and (not others or _is_few(others, values)):
        has_none = numbers > 0 or _UNIT in counts
        several = bool(units) and len(units) + has_none > 1
        listed = ", ".join([*map(repr, units), *["none"] * has_none])
        what = f"a number with one of several units ({listed})" if several else "a number in another notation"
        also = f" ({counts[NO_NUMBERS].value} in {counts[NO_NUMBERS].where} is not)" if others else ""
        yield (
            counts[MARKED],
            f"is {what}, as {numbers + marked} of {values} values are{also}; the column is text, "
            f"each value a category: {_advice(notations, units, several, source)}",
        )
        return
    for alike, kind, bad in ((numbers, NUMBERS, NO_NUMBERS), (times, TIMES, NO_TIMES)):
        if 0 < alike == values and LEADING_ZEROS not in counts:
            yield (
                counts[kind],
                f"is one of the {kind}, which all {values} values are; the column is text, each value a category: if "
                "they are no codes, give it a type in the source's 'schema'",
            )
        elif alike and _is_few(values - alike, values):
            count = counts.get(bad) or counts[MARKED]
            yield count, f"is not one of the {kind}, which {alike} of {values} values are; the column is text"


def _advice(notations: Sequence[tuple[str, str]], units: Sequence[str], several: bool, source: RowSource) -> str:
    """Returns what to do to have values read as numbers."""
    own = (getattr(source, "decimal", None), getattr(source, "thousands", None))
    if (
        not isinstance(source, Source)
        or several
        or notations == [_LAKHS]
        or (own in notations and {*units} <= {*source.units})
    ):
        return "rewrite them in prepare()"
    settings = [f"units={tuple(units)!r}"] if units else []
    options = []
    # Commas may be decimal marks or separate thousands, as in 1,234.
    known = [own] if own in notations else [notations[0], *({(".", ",")} & {*notations[1:]})]
    for decimal, thousands in known:
        written = [f"decimal={decimal!r}"] * (decimal != ".") + [f"thousands={thousands!r}"] * bool(thousands)
        options.append(" and ".join(written + settings))
    return f"in CSV files, the source's {', or '.join(options)} has them read as numbers"

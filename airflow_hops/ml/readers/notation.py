"""Reads text as the source describes it: types in its schema, marks within numbers, layouts of times."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from airflow_hops.core.errors import BadInput
from airflow_hops.core.sources.sources import Source
from airflow_hops.ml.readers.raw_file import RawFile
from airflow_hops.ml.readers.text_types import first_bad, number_pattern
from airflow_hops.ml.readers.types import converted


def as_given(texts: pa.Array, name: str, kind: pa.DataType, file: RawFile, rows_before: int) -> pa.Array:
    """Converts a column to its type in the source's ``schema``; raises ``BadInput`` if a value does not fit."""
    values = file.source.schema[name]
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return texts.cast(kind)
    is_layout = "%" in values
    parse = partial(_times, layout=values, kind=kind) if is_layout else partial(_plain, kind=kind, source=file.source)
    try:
        return parse(texts)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        index = first_bad(texts, lambda some: _succeeds(parse, some))
        raise BadInput(
            f"{file.name}, row {rows_before + index + 1}, column {name!r}: {texts[index].as_py()!r} is not of type "
            f"{values if is_layout else kind}, which the source's 'schema' gives"
        ) from error


def plain_numbers(texts: pa.Array, source: Source) -> pa.Array:
    """Rewrites numbers with a decimal point and without thousands separators or units.

    All are returned as they are if one is not such a number, or if they have several units.
    """
    if source.decimal == "." and not (source.thousands or source.units):
        return texts
    for unit in ("", *source.units):
        pattern = number_pattern(source.decimal, source.thousands, unit)
        if pc.all(pc.match_substring_regex(texts, pattern)).as_py():
            for mark in filter(None, (unit, source.thousands)):
                texts = pc.replace_substring(texts, mark, "")
            texts = pc.utf8_trim_whitespace(pc.replace_substring(texts, source.decimal, "."))
            return pc.replace_substring_regex(texts, "^- ", "-")
    return texts


def _plain(texts: pa.Array, kind: pa.DataType, source: Source) -> pa.Array:
    return converted(pc.ascii_trim_whitespace(plain_numbers(texts, source)), kind)


def times_fit(texts: pa.Array, layout: str) -> bool:
    """Returns whether all values are times of a layout."""
    return _succeeds(partial(_times, layout=layout, kind=pa.timestamp("us")), texts)


def _times(texts: pa.Array, layout: str, kind: pa.DataType) -> pa.Array:
    texts = pc.ascii_trim_whitespace(texts)
    times = pc.strptime(texts, format=layout, unit="s", error_is_null=False)
    # PyArrow 10.0 (apache/arrow#31374): reads February 31 as March 3.
    if not _without_zeros(pc.strftime(times, format=layout)).equals(_without_zeros(texts)):
        raise pa.ArrowInvalid("no such day")
    return times.cast(kind)


def _without_zeros(texts: pa.Array) -> pa.Array:
    return pc.utf8_lower(pc.replace_substring_regex(texts, r"\b0([0-9])", r"\1"))


def _succeeds(parse: Callable[[pa.Array], pa.Array], texts: pa.Array) -> bool:
    try:
        parse(texts)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return False
    return True

"""Files beside an artifact's own that hold what the web pages show; a step writes them once.

They are JSON of the classes below, which are the web API's answers at the same time: the API passes most of them on
unread. They are plain classes of the contract, like those of ``evaluation.json``, so that steps need no pydantic.

``<split>/page.jsonl`` (a side of a ``skew`` artifact, too) has a :class:`PageIndex` in its first line. Each view that
it lists is a line with a :class:`FeatureTable`, followed by a line with a :class:`FeatureDetail` for each feature.

``<split>/page_rows.bin`` holds sampled rows as columns that a browser uses directly: a uint32 (little-endian), the
length of a :class:`RowsHeader` in JSON, the header, and the columns' bytes.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from airflow_hops.core.json_fields import JsonFields, omit_if_none

PAGE_FILE = "page.jsonl"
ROWS_FILE = "page_rows.bin"

Kinds = Literal["num", "string", "bytes", "struct", "none"]
"""Kinds of statistics: of numbers, strings, non-text bytes, nested features, or none."""
Role = Literal["number", "category", "boolean", "time"]
_ALIGN = 8


@dataclass(frozen=True)
class PageView(JsonFields):
    """A data set, whole or a slice of it, counted or weighted.

    Attributes:
        line: Number of the line with its table, from 0.
    """

    line: int
    slice: str | None = None
    weighted: bool = False


@dataclass(frozen=True)
class PageIndex(JsonFields):
    """Contents of a ``page.jsonl``.

    Attributes:
        features: Names in the order of the lines.
        slices: Rows by the key of a slice, the largest first.
        slices_left_out: Number of smaller slices that have no view.
    """

    rows: int
    features: Sequence[str]
    weighted_rows: float | None = None
    slices: Mapping[str, int] = field(default_factory=dict)
    slices_left_out: int = 0
    views: tuple[PageView, ...] = ()


@dataclass(frozen=True)
class FeatureTable:
    """The features of a data set in columns, rounded for display; null is a number that JSON lacks, or none.

    Attributes:
        count: Rows that have the feature.
        quantiles: Minimum, the nine deciles, maximum.
        average_length: In characters for strings, otherwise in bytes.
        histogram: Ends of equally wide buckets, and the share of values in each, in ten thousandths.
        non_uniformity: 0 if all buckets or values are equally frequent, 1 if there is only one.
        values_per_row: Mean, unless always one.
    """

    rows: int
    weighted_rows: float | None
    names: list[str]
    types: list[str]
    kinds: list[Kinds]
    count: list[float | None]
    missing: list[float | None]
    zeros: list[int | None]
    nan: list[int | None]
    infinite: list[int | None]
    mean: list[float | None]
    std: list[float | None]
    quantiles: list[list[float | None] | None]
    unique: list[int | None]
    average_length: list[float | None]
    top_values: list[list[tuple[str, float]] | None]
    histogram: list[tuple[float | None, float | None, list[int]] | None]
    non_uniformity: list[float | None]
    values_per_row: list[float | None]


@dataclass(frozen=True)
class DistributionFunction:
    """A distribution function, linear between its knots, with jumps at repeated values.

    Attributes:
        shares: Shares of the finite values up to each knot, 0 to 1.
    """

    values: list[float]
    shares: list[float]


@dataclass(frozen=True)
class FeatureDetail:
    """A feature of a data set in full.

    Attributes:
        values_per_row: Minimum, mean and maximum number of values in a row.
        standard: Buckets of TFDV: from, to, number of values.
        values: The most frequent values and their numbers.
        other_values: Number of occurrences of other values.
        custom: Results of additional statistics generators.
    """

    rows: int
    types: str
    kinds: Kinds
    count: float | None
    missing: float | None
    zeros: int | None
    nan: int | None
    infinite: int | None
    mean: float | None
    std: float | None
    quantiles: list[float | None] | None
    unique: int | None
    not_utf8: int
    average_length: float | None
    non_uniformity: float | None
    values_per_row: tuple[float | None, float | None, float | None] | None
    standard: list[tuple[float | None, float | None, float]]
    curve: DistributionFunction | None
    values: list[tuple[str, float]]
    other_values: float | None
    custom: dict[str, float | str | None]


@dataclass(frozen=True)
class RowsColumn(JsonFields):
    """A column of sampled rows.

    Values are, by their role: ``number``, NaN if missing, so integers with missing values are floats; ``category``,
    indices into a list of strings, or -1; ``boolean``, 0, 1, or -1; ``time``, milliseconds since the epoch, or NaN.

    Attributes:
        kind: Arrow's name of the type.
        role: None if its values cannot be sent; then there are no bytes.
        type: ``int8``, ``int16``, ``int32``, ``float32`` or ``float64``.
        offset: Bytes from the end of the header, a multiple of eight.
        nulls: Number of missing values.
        words: Offset and length of the JSON list of a category's strings, the most frequent first.
    """

    name: str
    kind: str
    role: Role | None = None
    type: str | None = omit_if_none()
    offset: int = 0
    nulls: int = 0
    words: tuple[int, int] | None = omit_if_none()


@dataclass(frozen=True)
class RowsHeader(JsonFields):
    """The sampled rows of a split.

    Attributes:
        rows: Rows of the file.
        total_rows: Rows that they were drawn from.
    """

    rows: int
    total_rows: int
    columns: tuple[RowsColumn, ...] = ()


def pack_rows(header: RowsHeader, columns: Iterable[tuple[RowsColumn, bytes, bytes]]) -> bytes:
    """Returns the content of a ``page_rows.bin``.

    Args:
        header: The header without columns.
        columns: Columns, whose places are set here; the bytes of each, and those of its words, empty if it has none.
    """
    placed, buffers, offset = [], list[bytes](), 0
    for column, data, words in columns:
        data += bytes(-len(data) % _ALIGN)
        place = (offset + len(data), len(words)) if words else None
        placed.append(replace(column, offset=offset, words=place))
        buffers += [data, words, bytes(-len(words) % _ALIGN)]
        offset += sum(map(len, buffers[-3:]))
    described = replace(header, columns=tuple(placed)).to_dict()
    text = json.dumps(described, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-(4 + len(text)) % _ALIGN)
    return b"".join([struct.pack("<I", len(text)), text, *buffers])

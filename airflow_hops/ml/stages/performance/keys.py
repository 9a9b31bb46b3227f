"""Keys of labels and of captured rows: columns that together identify a prediction, numbered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.ml.metrics.metrics import Array

NO_KEY = -1


@dataclass(frozen=True)
class Keys:
    """The keys of labels, each once.

    Attributes:
        count: How many there are.
        columns: Of each column the distinct values, and from the second on the distinct pairs of the number of what
            comes before and of the value; Arrow arrays.
    """

    count: int
    columns: tuple[tuple[Any, Any], ...]

    @classmethod
    def of(cls, columns: Sequence[Any]) -> tuple[Keys, Array]:
        """Numbers the keys of rows.

        Args:
            columns: As :func:`comparable` returns them.

        Returns:
            The keys; and of each row the number of its key, :data:`NO_KEY` where a column is null, shape ``[rows]``.
        """
        levels, numbers, count = list[tuple[Any, Any]](), np.zeros(0), 0
        for column in columns:
            codes, values = _distinct(column)
            pairs = None
            if levels:
                codes, pairs = _distinct(_paired(numbers, codes, len(values)))
            levels.append((values, pairs))
            numbers, count = codes, len(values if pairs is None else pairs)
        return cls(count, tuple(levels)), numbers

    def numbers(self, columns: Sequence[Any]) -> Array:
        """Returns for each row the number of its key, :data:`NO_KEY` for one that is not among them; shape ``[rows]``.

        Args:
            columns: As :func:`comparable` returns them.
        """
        numbers = np.zeros(0)
        for column, (values, pairs) in zip(columns, self.columns, strict=True):
            if column.type != values.type:  # a number here, and its text there
                column, values = _text(column), _text(values)
            codes = _places(column, values)
            numbers = codes if pairs is None else _places(_paired(numbers, codes, len(values)), pairs)
        return numbers


def comparable(column: Any, where: str) -> Any:
    """A column of keys as integers of 64 bits or bytes, however it is stored; a time counts by its seconds.

    Args:
        column: An Arrow column of integers, strings or times.
        where: For messages.

    Raises:
        BadInput: it is of another type.
    """
    column = plain(column)
    if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
        return column.cast(pa.timestamp("us"), safe=False).cast(pa.timestamp("s"), safe=False).cast(pa.int64())
    if pa.types.is_integer(column.type):
        return column.cast(pa.int64())
    if pa.types.is_binary(column.type) or pa.types.is_string(column.type):
        return column.cast(pa.binary())
    raise BadInput(f"{where}: a key is of the type {column.type}; expected integers, strings or times")


def plain(column: Any) -> Any:
    """A column without the ways in which writers of files store texts: dictionaries, large ones."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_large_string(column.type):
        return column.cast(pa.string())
    return column.cast(pa.binary()) if pa.types.is_large_binary(column.type) else column


def _distinct(column: Any) -> tuple[Array, Any]:
    result = column.dictionary_encode()
    if isinstance(result, pa.ChunkedArray):
        result = result.combine_chunks()
    return result.indices.fill_null(NO_KEY).to_numpy(), result.dictionary


def _places(column: Any, values: Any) -> Array:
    places: Array = pc.index_in(column, value_set=values).fill_null(NO_KEY).to_numpy()
    return places


def _paired(numbers: Array, codes: Array, count: int) -> Any:
    """One number for two, null where one is none."""
    none = (numbers == NO_KEY) | (codes == NO_KEY)
    return pa.array(numbers.astype(np.int64) * count + codes, mask=none)


def _text(column: Any) -> Any:
    return column.cast(pa.string()).cast(pa.binary()) if pa.types.is_integer(column.type) else column

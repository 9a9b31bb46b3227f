"""Values of single rows, as TFDV's feature-skew detector sees them: compared, hashed and shown.

The detector works on ``tf.Example``: a feature has integers, floats of 32 bits, or bytes, or no value (a null, an empty
list). Two features are equal when their encodings are: floats bit by bit, so that NaN equals NaN, and 0.0 is not -0.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_hops.core.contract.artifacts import BadInput

_SHOWN_LENGTH = 200
_SHOWN_VALUES = 20
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class Outcome(IntEnum):
    """The outcome of comparing a feature of a training row with that of a serving row."""

    BOTH_MISSING = 0
    MATCH = 1
    MISMATCH = 2
    BASE_ONLY = 3
    TEST_ONLY = 4


@dataclass(frozen=True)
class Values:
    """The values of a feature.

    Attributes:
        kind: "INT", "FLOAT" or "BYTES"; None if the column has no type.
        present: Which rows have a value, bool of shape ``[rows]``.
        lengths: How many values each row has; None if no row has more than one.
        flat: One entry for each row where ``lengths`` is None, else the values of all rows, one after another.
    """

    kind: str | None
    present: Any
    lengths: Any
    flat: Any

    def as_lists(self) -> Values:
        """The same with ``lengths``."""
        if self.lengths is not None:
            return self
        return Values(self.kind, self.present, self.present.astype(np.int64), self.flat.filter(pa.array(self.present)))


def canonical(batch: Any, where: str) -> Any:
    """A record batch with the types that a ``tf.Example`` has: int64, float32, bytes, and lists of those.

    Raises:
        BadInput: a column is of a type that has no place in a ``tf.Example``.
    """
    columns = []
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        wanted = _canonical_type(column.type)
        if wanted is None:
            raise BadInput(
                f"{where}: column {field.name!r} is {field.type}, expected numbers, strings, bytes, or lists of them; "
                "name it in 'ignore'"
            )
        columns.append(column if column.type == wanted else column.cast(wanted, safe=False))
    return pa.RecordBatch.from_arrays(columns, batch.schema.names)


def values_of(column: Any) -> Values:
    """The values of a canonical column."""
    if not _is_list(column.type):
        return Values(_kind(column.type), np.asarray(column.is_valid()), None, column)
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    flat, kind = column.flatten(), _kind(column.type.value_type)
    if lengths.max(initial=0) > 1:
        return Values(kind, lengths > 0, lengths, flat)
    places = pa.array(np.cumsum(lengths) - lengths, mask=lengths == 0)
    return Values(kind, lengths > 0, None, flat.take(places))


def compare(base: Any, test: Any, rounding: int | None = None) -> Any:
    """Compares two canonical columns row by row.

    Args:
        base: The feature in training rows.
        test: The same feature in the serving rows that were matched with them.
        rounding: Digits after the point to which floats are rounded first; None for none.

    Returns:
        An :class:`Outcome` for each row, uint8.
    """
    before, after = values_of(base), values_of(test)
    outcome = np.full(len(base), Outcome.BOTH_MISSING, np.uint8)
    outcome[before.present & ~after.present] = Outcome.BASE_ONLY
    outcome[~before.present & after.present] = Outcome.TEST_ONLY
    both = before.present & after.present
    outcome[both] = Outcome.MISMATCH
    if before.kind == after.kind and both.any():
        outcome[both & _equal(before, after, both, rounding)] = Outcome.MATCH
    return outcome


def hash_rows(columns: Sequence[Any], rounding: int | None = None) -> tuple[Any, Any]:
    """Hashes of 64 bits of rows, over several canonical columns.

    Returns:
        The hashes, uint64 of shape ``[rows]``, and which rows have a value in every column.
    """
    hashes = np.zeros(len(columns[0]), np.uint64)
    whole = np.ones(len(hashes), bool)
    for column in columns:
        values = values_of(column)
        whole &= values.present
        hashes = _mixed(hashes * _GOLDEN + _hash(values, rounding))
    return hashes, whole


def shown(column: Any, row: int) -> Any:
    """A value as JSON has it: text cut after 200 characters, lists after 20 values, NaN and infinities as text."""
    value = column[row].as_py()
    if isinstance(value, list):
        return [_shown(single) for single in value[:_SHOWN_VALUES]]
    return _shown(value)


def _shown(value: Any) -> Any:
    if isinstance(value, bytes):
        text = value[: 4 * _SHOWN_LENGTH].decode(errors="backslashreplace")
        return text if len(text) <= _SHOWN_LENGTH else f"{text[:_SHOWN_LENGTH]}…"
    if isinstance(value, float):
        return float(f"{value:.9g}") if np.isfinite(value) else str(value)
    return value


def _canonical_type(kind: Any) -> Any:
    if pa.types.is_null(kind):
        return kind
    if _is_list(kind):
        inner = None if _is_list(kind.value_type) else _canonical_type(kind.value_type)
        return None if inner is None else pa.large_list(inner)
    if pa.types.is_dictionary(kind):
        return _canonical_type(kind.value_type)
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return pa.int64()
    if pa.types.is_floating(kind):
        return pa.float32()
    text = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return pa.large_binary() if any(is_of(kind) for is_of in text) else None


def _is_list(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _kind(kind: Any) -> str | None:
    kinds = {pa.int64(): "INT", pa.float32(): "FLOAT", pa.large_binary(): "BYTES"}
    return kinds.get(kind)


def _equal(before: Values, after: Values, both: Any, rounding: int | None) -> Any:
    if before.lengths is None and after.lengths is None:
        return _equal_values(before.flat, after.flat, before.kind, rounding)
    before, after = before.as_lists(), after.as_lists()
    assert before.lengths is not None and after.lengths is not None
    same_length = both & (before.lengths == after.lengths)
    flats = [v.flat.filter(pa.array(np.repeat(same_length, v.lengths))) for v in (before, after)]
    wrong = np.concatenate([[0], np.cumsum(~_equal_values(flats[0], flats[1], before.kind, rounding))])
    ends = np.cumsum(before.lengths[same_length])
    starts = ends - before.lengths[same_length]
    equal = np.zeros(len(both), bool)
    equal[same_length] = wrong[ends] == wrong[starts]
    return equal


def _equal_values(before: Any, after: Any, kind: str | None, rounding: int | None) -> Any:
    """Whether single values are equal; a null, which stands in a list alone, equals a null."""
    nulls = np.asarray(before.is_null()), np.asarray(after.is_null())
    if kind == "BYTES":
        equal = pc.fill_null(pc.equal(before, after), False).to_numpy(zero_copy_only=False)
    else:
        equal = _bits(before, kind, rounding) == _bits(after, kind, rounding)
    return np.asarray((equal & ~nulls[0] & ~nulls[1]) | (nulls[0] & nulls[1]))


def _bits(flat: Any, kind: str | None, rounding: int | None) -> Any:
    """Numbers as integers that are equal when the encodings of the numbers are; 0 for a null."""
    values: Any = pc.fill_null(flat, 0).to_numpy(zero_copy_only=False)
    if kind == "FLOAT":
        if rounding is not None:
            values = np.round(values.astype(np.float64), rounding).astype(np.float32)
        return np.ascontiguousarray(values).view(np.uint32).astype(np.uint64)
    return values.view(np.uint64)


def _hash(values: Values, rounding: int | None) -> Any:
    if values.kind is None:
        return np.zeros(len(values.present), np.uint64)
    if values.lengths is None:
        return _mixed(_GOLDEN + _hash_values(values.flat, values.kind, rounding))
    # Value by value into the hash of their row, as many times as the longest row has values.
    single, lengths = _hash_values(values.flat, values.kind, rounding), values.lengths
    starts, hashes = np.cumsum(lengths) - lengths, np.ones_like(lengths, np.uint64)
    for place in range(int(lengths.max(initial=0))):
        rows = np.flatnonzero(lengths > place)
        hashes[rows] = _mixed(hashes[rows] * _GOLDEN + single[starts[rows] + place])
    return hashes


def _hash_values(flat: Any, kind: str, rounding: int | None) -> Any:
    if kind != "BYTES":
        return _mixed(_bits(flat, kind, rounding))
    from pandas.util import hash_array

    encoded = flat.dictionary_encode()
    words = np.append(encoded.dictionary.to_numpy(zero_copy_only=False), b"").astype(object)
    known = hash_array(words, categorize=False)
    places = pc.fill_null(encoded.indices.cast(pa.int64()), len(known) - 1).to_numpy(zero_copy_only=False)
    return np.asarray(known[places])


def _mixed(values: Any) -> Any:
    """SplitMix64's finalizer (Steele, Lea and Flood, 2014), which spreads every bit over all 64."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))

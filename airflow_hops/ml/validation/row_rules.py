"""Finds the rows of a record batch that violate a schema, with TFDV's rules for single examples.

TFDV (``IdentifyAnomalousExamples``) computes and validates the statistics of each row; here the same rules are applied
to columns. Rules that do not apply to a single row are left out: shares of rows, numbers of distinct values,
comparators, columns that the schema lacks, and faults of the schema.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tensorflow_metadata.proto.v0 import schema_pb2

from airflow_hops.ml.readers.joined_types import is_text
from airflow_hops.ml.statistics.formats.feature_types import is_list

IGNORED_STAGES = frozenset({"PLANNED", "ALPHA", "DEBUG_ONLY", "DEPRECATED", "DISABLED"})
"""Lifecycle stages of features that TFDV does not validate."""

_LARGE, _LARGE_BYTES = 1024, "__LARGE_BYTES__"
"""Limit of a value's bytes: TFDV's statistics, and domains inferred from them, give all larger values one name."""

_SHOWN_CHARACTERS = 80
_INTEGER = re.compile(r"\s*[+-]?[0-9]+\s*")
_FLOAT = re.compile(r"\s*[+-]?(nan|inf(inity)?|([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?)\s*", re.IGNORECASE)

Outside = tuple[str, np.ndarray, str]
"""Kind of anomaly, mask of the values that have it (bool, ``[values]``), and the expectation."""


@dataclass(frozen=True)
class Broken:
    """Rows of a batch that violate one rule.

    Attributes:
        kind: TFDV's name of the anomaly.
        rows: Distinct indices of the rows, ascending.
        reasons: A sentence for each row (``string``).
    """

    feature: str
    kind: str
    rows: np.ndarray
    reasons: pa.Array


Lengths = list[tuple[np.ndarray, np.ndarray]]
"""Row and length of each list of a column, by level of nesting."""


class RowRules:
    """Rules of a schema that a single row can violate.

    Args:
        schema: ``Schema``.
        environment: One of the schema's environments; ignored if it has none.
        columns: Names of the data's columns in all batches.
    """

    def __init__(self, schema: schema_pb2.Schema, environment: str, columns: Collection[str]) -> None:
        self._domains = {domain.name: domain for domain in schema.string_domain}
        environments = list(schema.default_environment)
        self._rules = [
            (feature, not environments or _belongs(feature, environment, environments), feature.name in columns)
            for feature in schema.feature
            if not feature.deprecated
            and schema_pb2.LifecycleStage.Name(feature.lifecycle_stage) not in IGNORED_STAGES
            and feature.type != schema_pb2.STRUCT
        ]

    def check(self, batch: pa.RecordBatch) -> list[Broken]:
        """Returns the rows of a batch that violate rules, in the order of the schema's features."""
        return [broken for rule in self._rules for broken in self._check(batch, *rule) if len(broken.rows)]

    def _check(
        self, batch: pa.RecordBatch, feature: schema_pb2.Feature, belongs: bool, known: bool
    ) -> Iterator[Broken]:
        presence = feature.presence
        if not known:
            if belongs and (presence.min_fraction > 0 or presence.min_count > 0):
                everywhere = np.arange(batch.num_rows)
                yield _same_reason(feature, "SCHEMA_MISSING_COLUMN", everywhere, "there is no such column")
            return
        index = batch.schema.get_field_index(feature.name)
        column = batch.column(index) if index >= 0 else pa.nulls(batch.num_rows)
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        missing = np.flatnonzero(np.asarray(column.is_null()))
        if belongs and presence.min_fraction >= 1:
            yield _same_reason(feature, "FEATURE_TYPE_LOW_FRACTION_PRESENT", missing, "missing, and required")
        if feature.HasField("shape"):
            yield _same_reason(feature, "INVALID_FEATURE_SHAPE", missing, "missing, and of a fixed shape")
        if pa.types.is_null(column.type):
            return
        flat, rows, lengths = _values(column)
        result, expected = _type_name(flat.type), schema_pb2.FeatureType.Name(feature.type)
        if result != expected and expected != "TYPE_UNKNOWN":
            there = np.flatnonzero(np.asarray(column.is_valid()))
            yield _same_reason(feature, "UNEXPECTED_DATA_TYPE", there, f"{result}, expected {expected}")
            return
        yield from _check_counts(feature, lengths)
        for kind, outside, wanted in self._outside(feature, flat, rows, result):
            yield _by_value(feature, kind, flat, rows, outside, wanted)

    def _outside(self, feature: schema_pb2.Feature, flat: pa.Array, rows: np.ndarray, kind: str) -> Iterator[Outside]:
        field = feature.WhichOneof("domain_info")
        domain = getattr(feature, field) if field else None
        if field == "domain":
            field, domain = "string_domain", self._domains.get(domain)
        if domain is None:
            return
        if field == "string_domain" and kind == "BYTES":
            yield from _outside_strings(feature, domain, flat, rows)
        elif field == "int_domain" and kind in ("INT", "BYTES"):
            numbers, unreadable = _numbers(flat, pa.int64(), _integer)
            yield "INT_TYPE_NOT_INT_STRING", unreadable, "expected an integer"
            if pa.types.is_uint64(numbers.type):
                # An IntDomain's bounds are signed.
                numbers = pc.min_element_wise(numbers, pa.scalar(2**63 - 1, pa.uint64()), skip_nulls=False)
                numbers = numbers.cast(pa.int64())
            yield from _outside_bounds(numbers, domain, "INT_TYPE_SMALL_INT", "INT_TYPE_BIG_INT")
        elif field == "float_domain" and kind in ("FLOAT", "BYTES"):
            numbers, unreadable = _numbers(flat, pa.float64(), _float)
            yield "FLOAT_TYPE_STRING_NOT_FLOAT", unreadable, "expected a number"
            # TFDV 1.16: a FloatDomain's bounds have 32 bits, and are compared with 32-bit values.
            numbers = numbers.cast(pa.float32())
            if domain.disallow_nan:
                yield "FLOAT_TYPE_HAS_NAN", _is_true(pc.is_nan(numbers)), "not allowed"
            if domain.disallow_inf:
                yield "FLOAT_TYPE_HAS_INF", _is_true(pc.is_inf(numbers)), "not allowed"
            yield from _outside_bounds(numbers, domain, "FLOAT_TYPE_SMALL_FLOAT", "FLOAT_TYPE_BIG_FLOAT")
        elif field == "bool_domain":
            yield from _outside_booleans(domain, flat, kind)


def _belongs(feature: schema_pb2.Feature, environment: str, environments: Collection[str]) -> bool:
    if environment in feature.in_environment:
        return True
    return environment in environments and environment not in feature.not_in_environment


def _values(column: pa.Array) -> tuple[pa.Array, np.ndarray, Lengths]:
    """Returns the innermost values of all rows, concatenated, the row of each, and the lengths of the lists."""
    rows = np.arange(len(column))
    lengths = []
    flat = column
    while is_list(flat.type):
        there = np.asarray(flat.is_valid())
        counts = np.asarray(pc.fill_null(pc.list_value_length(flat), 0))
        lengths.append((rows[there], counts[there]))
        rows = np.repeat(rows, counts)
        flat = flat.flatten()
    if not lengths:
        there = np.flatnonzero(np.asarray(flat.is_valid()))
        lengths.append((there, np.ones(len(there), np.int64)))
    if pa.types.is_boolean(flat.type):
        flat = flat.cast(pa.int64())
    return flat, rows, lengths


def _type_name(kind: pa.DataType) -> str:
    if pa.types.is_integer(kind):
        return "INT"
    if pa.types.is_floating(kind):
        return "FLOAT"
    return "BYTES" if is_text(kind) else str(kind)


def _check_counts(feature: schema_pb2.Feature, levels: Lengths) -> Iterator[Broken]:
    field = feature.WhichOneof("shape_type")
    if field == "shape":
        rows, (inner, lengths) = levels[0][0], levels[-1]
        size = int(np.prod([dim.size for dim in feature.shape.dim], dtype=np.int64))
        counted = np.bincount(inner, lengths, minlength=rows.max(initial=-1) + 1)[rows]
        uneven: np.ndarray = inner[1:][(inner[1:] == inner[:-1]) & (lengths[1:] != lengths[:-1])]
        wrong = (counted != size) | np.isin(rows, uneven)
        wanted = f"expected {size}" + (" in lists of one length" if len(levels) > 1 else "")
        yield _by_count(feature, "INVALID_FEATURE_SHAPE", rows, counted, wrong, wanted)
        return
    counts = [feature.value_count] if field == "value_count" else list(feature.value_counts.value_count)
    if not counts:
        return
    if len(counts) != len(levels):
        rows = np.unique(levels[0][0])
        text = f"lists of {len(levels)} levels, expected {len(counts)}"
        yield _same_reason(feature, "VALUE_NESTEDNESS_MISMATCH", rows, text)
        return
    for count, (rows, lengths) in zip(counts, levels, strict=True):
        low = lengths < count.min
        yield _by_count(feature, "FEATURE_TYPE_LOW_NUMBER_VALUES", rows, lengths, low, f"expected at least {count.min}")
        if count.max > 0:
            high = lengths > count.max
            wanted = f"expected at most {count.max}"
            yield _by_count(feature, "FEATURE_TYPE_HIGH_NUMBER_VALUES", rows, lengths, high, wanted)


def _outside_strings(
    feature: schema_pb2.Feature, domain: schema_pb2.StringDomain, flat: pa.Array, rows: np.ndarray
) -> Iterator[Outside]:
    known = pa.array([value.encode() for value in domain.value], pa.large_binary())
    flat = flat.cast(pa.large_binary())
    outside = ~np.asarray(pc.is_in(flat, value_set=known)) & np.asarray(flat.is_valid())
    unreadable = _by_distinct(flat, outside, lambda value: _text(value) is None)
    yield "ENUM_TYPE_INVALID_UTF8", unreadable, "expected text in UTF-8"
    if _LARGE_BYTES in domain.value:
        outside &= ~_is_true(pc.greater(pc.binary_length(flat), _LARGE))
    if feature.distribution_constraints.min_domain_mass < 1 and len(outside):
        # As in TFDV, the share is that of the row's own values.
        allowed = 1 - feature.distribution_constraints.min_domain_mass
        of_row = np.bincount(rows, outside) / np.maximum(np.bincount(rows), 1)
        outside = outside & (of_row[rows] > allowed + 1e-12)
    yield "ENUM_TYPE_UNEXPECTED_STRING_VALUES", outside & ~unreadable, "not in the domain"


def _outside_bounds(
    numbers: pa.Array, domain: schema_pb2.IntDomain | schema_pb2.FloatDomain, small: str, big: str
) -> Iterator[Outside]:
    if domain.HasField("min"):
        yield small, _is_true(pc.less(numbers, domain.min)), f"expected at least {_bound(domain.min)}"
    if domain.HasField("max"):
        yield big, _is_true(pc.greater(numbers, domain.max)), f"expected at most {_bound(domain.max)}"


def _bound(value: float) -> str:
    # 32 bits hold seven digits.
    return str(value) if isinstance(value, int) else f"{value:.7g}"


def _outside_booleans(domain: schema_pb2.BoolDomain, flat: pa.Array, kind: str) -> Iterator[Outside]:
    if kind == "BYTES":
        allowed = [value for value in (domain.true_value, domain.false_value) if value]
        known = pa.array([value.encode() for value in allowed], pa.large_binary())
        inside, anomaly = pc.is_in(flat.cast(pa.large_binary()), value_set=known), "BOOL_TYPE_UNEXPECTED_STRING"
        wanted = f"expected {' or '.join(map(repr, allowed))}"
    elif kind == "FLOAT":
        inside = pc.or_(pc.equal(flat, 0.0), pc.equal(flat, 1.0))
        anomaly, wanted = "BOOL_TYPE_UNEXPECTED_FLOAT", "expected 0 or 1"
    else:
        return
    yield anomaly, ~_is_true(inside) & np.asarray(flat.is_valid()), wanted


def _numbers(flat: pa.Array, kind: pa.DataType, parse: Callable[[str], object]) -> tuple[pa.Array, np.ndarray]:
    """Returns the values as numbers, with text parsed, and a mask of those that cannot be parsed."""
    if _type_name(flat.type) != "BYTES":
        return flat, np.zeros(len(flat), bool)
    encoded = flat.cast(pa.large_binary()).dictionary_encode()
    texts = [_text(value) for value in encoded.dictionary.to_pylist()]
    parsed = pa.array([None if text is None else parse(text) for text in texts], kind)
    numbers = parsed.take(encoded.indices)
    return numbers, np.asarray(numbers.is_null()) & np.asarray(flat.is_valid())


def _integer(text: str) -> int | None:
    number = int(text) if _INTEGER.fullmatch(text) and len(text) < 40 else None
    return number if number is not None and -(2**63) <= number < 2**63 else None


def _float(text: str) -> float | None:
    return float(text) if _FLOAT.fullmatch(text) else None


def _text(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def _is_true(answers: pa.Array) -> np.ndarray:
    true: np.ndarray = np.asarray(pc.fill_null(answers, False))
    return true


def _by_distinct(flat: pa.Array, among: np.ndarray, test: Callable[[Any], bool]) -> np.ndarray:
    """Returns a mask of the values that pass a test, which is called once per distinct value."""
    indices = np.flatnonzero(among)
    encoded = flat.take(pa.array(indices)).dictionary_encode()
    passed = np.array([test(value) for value in encoded.dictionary.to_pylist()], bool)
    result: np.ndarray = np.zeros(len(flat), bool)
    if len(indices):
        result[indices] = passed[np.asarray(encoded.indices)]
    return result


def _same_reason(feature: schema_pb2.Feature, kind: str, rows: np.ndarray, text: str) -> Broken:
    reason = pa.array([f"{feature.name}: {kind}: {text}"], pa.string())
    return Broken(feature.name, kind, rows, reason.take(pa.array(np.zeros(len(rows), np.int64))))


def _by_count(
    feature: schema_pb2.Feature, kind: str, rows: np.ndarray, counts: np.ndarray, wrong: np.ndarray, wanted: str
) -> Broken:
    rows, first = np.unique(rows[wrong], return_index=True)
    return _by_text(feature, kind, rows, pa.array(counts[wrong][first]), lambda count: f"{count:g} values, {wanted}")


def _by_value(
    feature: object, kind: str, flat: pa.Array, of_rows: np.ndarray, outside: np.ndarray, wanted: str
) -> Broken:
    indices = np.flatnonzero(outside)
    rows, first = np.unique(of_rows[indices], return_index=True)
    offending = flat.take(pa.array(indices[first]))
    return _by_text(feature, kind, rows, offending, lambda value: f"{_shown(value)}, {wanted}")


def _by_text(
    feature: schema_pb2.Feature, kind: str, rows: np.ndarray, values: pa.Array, text: Callable[[Any], str]
) -> Broken:
    encoded = values.dictionary_encode()
    report = [f"{feature.name}: {kind}: {text(value)}" for value in encoded.dictionary.to_pylist()]
    return Broken(feature.name, kind, rows, pa.array(report, pa.string()).take(encoded.indices))


def _shown(value: object) -> str:
    if isinstance(value, bytes):
        value = value.decode(errors="backslashreplace")
    shown = repr(value)
    return shown if len(shown) <= _SHOWN_CHARACTERS else f"{shown[:_SHOWN_CHARACTERS]}…"

"""Classifies the rows returned by ``prepare``: a split, or a reason to reject it. The same code on every engine.

A row is classified alone, in any batch (:meth:`Classifier.classify`), except for duplicates: those are found where the
engine has brought the rows of a key together (:meth:`Classifier.finish`).

The user's own reasons come first, then missing or unusable columns; a row is counted under its first reason. A
duplicate is decided last, so that a rejected row never displaces a usable one with its key.
The split depends only on the hash of the key (without a key, of the features): the same row is on the same side in
each window and on each engine, and equal rows are never on both sides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_hops.core.errors import BadInput
from airflow_hops.core.prepare.options import EVAL, NEWEST, ROWS, TRAIN, PrepareOptions
from airflow_hops.ml.prepare.columns import (
    CLASS_COLUMN,
    IDENTITY_COLUMN,
    REASON_COLUMN,
    is_vector,
    kind_of,
    leading_names,
    to_double,
    to_feature,
    to_label,
    to_seconds,
    to_text,
)
from airflow_hops.ml.prepare.hashes import list_offsets, xxhash64

DUPLICATE_KEY = "duplicate key"
REJECTED = "rejected:"
NO_CLASS = "none of the classes"
_SPLITS = (TRAIN, EVAL, NEWEST, ROWS)

Reason = tuple[np.ndarray, str]
"""A mask of rows, and the reason to reject them."""


@dataclass(frozen=True)
class Classifier:
    """Gives rows their final types and their class, and finds duplicates.

    Attributes:
        options: The options.
        schema: Columns that ``prepare`` returned, with the reasons of ``reject`` in :data:`REASON_COLUMN`.
        newest_from_s: Examples at or after this time (seconds since the epoch) are in the split ``newest``; None
            without that split.
        widths: Numbers in each vector feature.
    """

    options: PrepareOptions
    schema: pa.Schema
    newest_from_s: int | None
    widths: Mapping[str, int]

    @cached_property
    def output(self) -> pa.Schema:
        """Returns the columns: key, time, label, weight, features, class, and without a key, the features' hash.

        A rejected row's class is ``rejected:`` and the reason. A label keeps its type: string, integer or double.
        """
        empty = pa.RecordBatch.from_arrays([pa.array([], field.type) for field in self.schema], schema=self.schema)
        return self.classify(empty).schema

    @property
    def identity(self) -> str:
        """The column by whose hash rows are split and partitioned."""
        return self.options.key or IDENTITY_COLUMN

    def classify(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the rows of a batch, with the columns of :attr:`output`.

        Raises:
            BadInput: a value is not representable in its column's type.
        """
        options, raw = self.options, dict(zip(self.schema.names, batch.columns, strict=True))
        raw = {name: c.dictionary_decode() if pa.types.is_dictionary(c.type) else c for name, c in raw.items()}
        own = raw.pop(REASON_COLUMN, None)
        leading, columns = leading_names(options), {}
        for name in (*leading, *(name for name in raw if name not in leading)):
            try:
                columns[name] = self._typed(name, raw[name], own)
            except pa.ArrowInvalid as error:
                raise BadInput(f"prepare's column {name!r}, {raw[name].type}: {error}; cast it in prepare") from error
        reasons = list(self._reasons(raw, columns))
        names = [*_SPLITS, *dict.fromkeys(reason for _, reason in reasons)]
        features = [column for name, column in columns.items() if name not in leading]
        identity = xxhash64([columns[options.key]] if options.key else features)
        codes = np.where(identity % 100 < options.eval_percent, names.index(EVAL), names.index(TRAIN))
        if not options.label:
            codes[:] = names.index(ROWS)
        if self.newest_from_s is not None and options.time:
            codes[_true(pc.greater_equal(columns[options.time], self.newest_from_s))] = names.index(NEWEST)
        for mask, reason in reversed(reasons):
            codes[mask] = names.index(reason)
        texts = pa.array([name if name in _SPLITS else REJECTED + name for name in names]).take(pa.array(codes))
        if own is not None:
            of_user = pc.binary_join_element_wise(REJECTED, own.cast(pa.string()), "")
            texts = pc.if_else(own.is_valid(), of_user, texts)
        columns[CLASS_COLUMN] = texts
        if not options.key:
            columns[IDENTITY_COLUMN] = pa.array(identity)
        return pa.RecordBatch.from_arrays([*columns.values()], [*columns])

    def finish(self, rows: pa.Table) -> tuple[dict[str, pa.Table], int]:
        """Sorts the rows of a partition that were not rejected, and finds duplicates.

        Of several rows with a key, all but the first in time are duplicates. Rows are sorted by time and key; without a
        key, by time and a hash of their contents: arbitrary, but always the same order.

        Args:
            rows: Table with the columns of :attr:`output`.

        Returns:
            The rows of each split, as tables without class and hash, and the number of duplicates.
        """
        options, duplicates, rows = self.options, 0, rows.combine_chunks()
        classes = _array(rows, CLASS_COLUMN).dictionary_encode()
        table = rows.select([name for name in rows.column_names if name not in (CLASS_COLUMN, IDENTITY_COLUMN)])
        if options.key is None:
            order = np.lexsort((_contents(table), *_values(table, options.time)))
        else:
            by = [(name, "ascending") for name in (options.time, options.key) if name]
            order = pc.sort_indices(table, by).to_numpy()
            keys = _array(table, options.key).dictionary_encode().indices.to_numpy()
            several = np.flatnonzero(np.bincount(keys)[keys] > 1)
            some = table.take(pa.array(several)).combine_chunks()
            by_key = np.lexsort((_contents(some), *_values(some, options.time), keys[several]))
            later = by_key[1:][np.diff(keys[several][by_key]) == 0]
            stays = np.ones(len(keys), bool)
            stays[several[later]] = False
            duplicates, order = len(later), order[stays[order]]
        codes = classes.indices.to_numpy()[order]
        names = classes.dictionary.to_pylist()
        return {names[code]: table.take(pa.array(order[codes == code])) for code in np.unique(codes)}, duplicates

    def _typed(self, name: str, column: object, reasons: object) -> Any:
        options = self.options
        if name == options.key:
            return to_text(column)
        if name == options.time:
            return to_seconds(column, name, reasons)
        if name == options.weight:
            return to_double(column)
        label = next((each for each in options.of_labels if each.label == name), None)
        return to_feature(column) if label is None else to_label(column, label)

    def _reasons(self, raw: Mapping[str, Any], columns: Mapping[str, Any]) -> Iterator[Reason]:
        """Yields the reasons to reject rows, the first one first."""
        options = self.options
        if options.key is not None:
            yield _missing(columns[options.key]), f"{options.key} is missing"
        if options.time is not None:
            yield _missing(columns[options.time]), f"{options.time} is missing"
        for each in options.of_labels:
            label = columns[each.label]
            yield _missing(label), f"{each.label} is missing"
            if kind_of(raw[each.label].type) == "a float":
                yield _true(pc.is_inf(label)), f"{each.label} is infinite"
            if each.classes is not None:
                yield _unknown(label, each), f"{each.label} is {NO_CLASS}"
        if options.weight is not None:
            weight = columns[options.weight]
            yield _missing(weight), f"{options.weight} is missing"
            unusable = pc.or_(pc.less_equal(weight, 0), pc.is_inf(weight))
            yield _true(unusable), f"{options.weight} is not a number above 0"
        for name, width in self.widths.items():
            offsets, flat = list_offsets(columns[name]), columns[name].flatten()
            wrong = columns[name].is_valid().to_numpy(zero_copy_only=False) & (np.diff(offsets) != width)
            yield wrong, f"{name} has not {width} numbers"
            bad = np.concatenate([[0], np.cumsum(~_true(pc.is_finite(flat)))])
            yield np.diff(bad[offsets]) > 0, f"{name} has an entry that is missing, NaN or infinite"


def vector_names(schema: pa.Schema, options: PrepareOptions) -> list[str]:
    """Returns the features that are vectors."""
    leading = (*leading_names(options), REASON_COLUMN)
    return [field.name for field in schema if field.name not in leading and is_vector(field.type)]


def _true(mask: pa.Array) -> np.ndarray:
    known: np.ndarray = mask.fill_null(False).to_numpy(zero_copy_only=False)
    return known


def _missing(column: pa.Array) -> np.ndarray:
    """Returns which values are null, NaN or empty strings."""
    missing = column.is_null(nan_is_null=True)
    return _true(pc.or_(missing, pc.equal(column, "").fill_null(False)) if pa.types.is_string(column.type) else missing)


def _unknown(label: pa.Array, options: PrepareOptions) -> np.ndarray:
    """Returns which values of a label are none of the classes."""
    assert options.classes is not None
    text = label
    if pa.types.is_floating(label.type):
        whole = pc.equal(pc.floor(label), label)
        integers = pc.if_else(whole, label, 0).cast(pa.int64(), safe=False).cast(pa.string())
        text = pc.if_else(whole, integers, label.cast(pa.string()))
    elif not pa.types.is_string(label.type):
        text = label.cast(pa.string())
    return _true(pc.invert(pc.is_in(text, value_set=pa.array(map(str, options.classes), pa.string()))))


def _contents(table: pa.Table) -> np.ndarray:
    return xxhash64([_array(table, name) for name in table.column_names])


def _values(table: pa.Table, name: str | None) -> list[np.ndarray]:
    """Returns a column of integers without missing values, in a list; an empty list without a name."""
    return [] if name is None else [_array(table, name).to_numpy(zero_copy_only=False)]


def _array(table: pa.Table, name: str) -> pa.Array:
    column = table[name].combine_chunks()
    return column if isinstance(column, pa.Array) else pa.concat_arrays(column.chunks or [pa.array([], column.type)])

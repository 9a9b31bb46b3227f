"""Joins serving rows with training rows by their identifiers."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_hops.contract.artifacts import BadInput
from airflow_hops.runtime.skew.rows.report import RowMatches
from airflow_hops.runtime.skew.rows.values import canonical, hash_rows, values_of

PAIRS_AT_ONCE = 262_144


class ReadAnew(Exception):
    """A column turned out to be of a wider type than it began with; a source has to be read again."""


class Rows:
    """One side of the comparison, readable as often as it takes.

    Args:
        source: A source of statistics, or a function of column names (None for all) that yields record batches.
        side: What it is, for messages.
    """

    def __init__(self, source: Any, side: str) -> None:
        self.side = side
        once = isinstance(source, Iterable) and not isinstance(source, str | pa.Table)
        self._source = pa.Table.from_batches(list(source)) if once else source
        self._plans: dict[Any, Any] = {}

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Canonical record batches of some columns, or of all.

        Raises:
            ReadAnew: what was read so far is to be forgotten.
        """
        for batch in self._source(columns) if callable(self._source) else self._read(columns):
            if batch.num_rows:
                yield canonical(batch, self.side)

    def _read(self, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        from airflow_hops.runtime.feature_statistics.sources import TypesDoNotFit, plan_source

        key = None if columns is None else tuple(columns)
        if key not in self._plans:
            self._plans[key] = plan_source(self._source, columns=columns)
        plan = self._plans[key]
        lacking = [name for name in columns or () if name not in plan.types]
        if lacking:
            raise no_column(lacking[0], f"{self.side} {plan.name}", plan_source(self._source).types)
        try:
            for part in plan.parts:
                yield from plan.read(part)
        except TypesDoNotFit as misfit:
            self._plans[key] = plan.widen(misfit)
            raise ReadAnew from misfit


class Identifiers:
    """The features that tell a row, and their hash.

    Args:
        names: The features.
        rounding: Digits to which floats are rounded; None for none.
    """

    def __init__(self, names: Sequence[str], rounding: int | None) -> None:
        self.names, self._rounding = tuple(names), rounding
        self._kinds: dict[str, tuple[str, str]] = {}

    def hash(self, batch: pa.RecordBatch, side: str) -> tuple[Any, Any]:
        """Hashes of the rows' identifiers, uint64, and which rows have all of them.

        Raises:
            BadInput: the batch lacks one, or has it of another type than the other side.
        """
        columns = []
        for name in self.names:
            index = batch.schema.get_field_index(name)
            if index < 0:
                raise no_column(name, side, batch.schema.names)
            column = batch.column(index)
            kind = values_of(column).kind
            known_side, known = self._kinds.setdefault(name, (side, kind)) if kind else (side, kind)
            if known != kind:
                raise BadInput(f"{side}: identifier {name!r} is {kind}, but {known} in {known_side}")
            columns.append(column)
        return hash_rows(columns, self._rounding)


def no_column(name: str, where: str, found: Iterable[str]) -> BadInput:
    """The error that a column is not there."""
    return BadInput(f"{where}: there is no column {name!r}; there are {', '.join(found)}")


@dataclass(frozen=True)
class Join:
    """The training rows that were served too.

    Attributes:
        matches: How many rows found each other.
        keys: The training rows' hashed identifiers, ascending, uint64.
        rows: The training rows in that order.
    """

    matches: RowMatches
    keys: Any
    rows: pa.Table

    def pairs(self, keys: Any) -> Iterator[tuple[Any, Any]]:
        """The pairs that serving rows are in, some :data:`PAIRS_AT_ONCE` at once.

        Args:
            keys: The hashed identifiers of serving rows.

        Yields:
            Places in ``rows`` and places in ``keys``, of the same length.
        """
        first = np.searchsorted(self.keys, keys, "left")
        counts = np.searchsorted(self.keys, keys, "right") - first
        ends = np.cumsum(counts)
        total = int(ends[-1]) if len(ends) else 0
        starts = np.searchsorted(ends, range(0, total, PAIRS_AT_ONCE))
        cuts = {*starts.tolist(), len(keys)}
        for start, stop in itertools.pairwise(sorted(cuts)):
            n = counts[start:stop]
            serving = np.repeat(np.arange(start, stop), n)
            within = np.arange(len(serving)) - np.repeat(np.cumsum(n) - n, n)
            if len(serving):
                yield np.repeat(first[start:stop], n) + within, serving


def join_rows(training: Rows, serving: Rows, identifiers: Identifiers, *, duplicates: bool, ignore: set[str]) -> Join:
    """Reads the identifiers of both sides, and keeps the training rows that were served too.

    Args:
        training: The training rows.
        serving: The serving rows.
        identifiers: What they are joined by.
        duplicates: Whether rows are kept whose identifiers occur more than once on a side.
        ignore: Columns that are not kept.
    """
    hashed = [identifiers.hash(batch, serving.side) for batch in serving.batches(identifiers.names)]
    test_keys = _joined([keys[whole] for keys, whole in hashed])
    test, test_counts = np.unique(test_keys, return_counts=True)
    all_keys, kept_keys, kept, lacking = [], [], [], 0
    for batch in training.batches():
        keys, whole = identifiers.hash(batch, training.side)
        served = whole & _among(keys, test)
        lacking += int((~whole).sum())
        all_keys.append(keys[whole])
        kept_keys.append(keys[served])
        kept.append(pa.Table.from_batches([batch]).filter(pa.array(served)))
    base, base_counts = np.unique(_joined(all_keys), return_counts=True)
    common, in_base, in_test = np.intersect1d(base, test, assume_unique=True, return_indices=True)
    repeated = np.union1d(base[base_counts > 1], test[test_counts > 1])
    matches = RowMatches(
        base_with_id_count=int(base_counts.sum()),
        test_with_id_count=len(test_keys),
        identifiers_count=len(base) + len(test) - len(common),
        ids_missing_in_base_count=len(test) - len(common),
        ids_missing_in_test_count=len(base) - len(common),
        matching_pairs_count=int(base_counts[in_base] @ test_counts[in_test]),
        duplicate_id_count=len(repeated),
        base_missing_id_count=lacking,
        test_missing_id_count=sum(int((~whole).sum()) for _, whole in hashed),
    )
    keys = _joined(kept_keys)
    places = np.arange(len(keys)) if duplicates else np.flatnonzero(~_among(keys, repeated))
    order = places[np.argsort(keys[places], kind="stable")]
    rows = pa.concat_tables(kept, promote=True) if kept else pa.table({})
    rows = rows.select([name for name in rows.column_names if name not in ignore])
    return Join(matches, keys[order], rows.take(pa.array(order)).combine_chunks() if kept else rows)


def _among(keys: Any, known: Any) -> Any:
    """Which keys are among ``known``, which ascends."""
    if not len(known):
        return np.zeros(len(keys), bool)
    places = np.minimum(np.searchsorted(known, keys), len(known) - 1)
    return np.asarray(known[places] == keys)


def _joined(parts: list[Any]) -> Any:
    return np.concatenate([np.zeros(0, np.uint64), *parts])

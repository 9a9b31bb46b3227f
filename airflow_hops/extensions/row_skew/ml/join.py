"""Joins serving rows with training rows by their identifiers."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_hops.core.errors import BadInput, MissingColumn, SchemaMismatch
from airflow_hops.extensions.row_skew.ml.report import RowMatches
from airflow_hops.extensions.row_skew.ml.values import hash_rows, kind_of
from airflow_hops.ml.statistics.formats.feature_types import as_example

# Three passes over the sources, each of which must give the same rows in the same order: the hashes of the serving
# rows; the training rows, of which those that were served go into a file per stretch of serving rows; the serving rows,
# compared with the stretch's file in memory. If a column turns out to have a wider type, ReadAnew discards the pass and
# it starts again. Hashes of 64 bits identify rows; pairs are compared in value, but not in identity.

PAIRS_AT_ONCE = 262_144
STRETCH_ROWS = 131_072
"""Number of serving rows whose matching training rows are in memory at once."""


class ReadAnew(Exception):
    """A column has a wider type than it began with; the source must be read again."""


class Rows:
    """One side of the comparison, which can be read repeatedly.

    ``source`` is a source of statistics, or a function of column names (None for all) that yields record batches.
    """

    def __init__(self, source: Any, side: str) -> None:
        self.side = side
        once = isinstance(source, Iterable) and not isinstance(source, str | pa.Table)
        self._source = pa.Table.from_batches(list(source)) if once else source
        self._plans: dict[Any, Any] = {}

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yields canonical record batches of some columns, or of all.

        Raises:
            ReadAnew: the batches so far must be discarded.
        """
        for batch in self._source(columns) if callable(self._source) else self._read(columns):
            if batch.num_rows:
                yield as_example(batch, self.side)

    def _read(self, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        from airflow_hops.ml.statistics.sources import TypesDoNotFit, plan_source

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
    """Features that identify a row, and their hash; floats are rounded to ``rounding`` digits unless None."""

    def __init__(self, names: Sequence[str], rounding: int | None) -> None:
        self.names, self._rounding = tuple(names), rounding
        self._kinds: dict[str, tuple[str, str]] = {}

    def hash(self, batch: pa.RecordBatch, side: str) -> tuple[Any, Any]:
        """Returns hashes of the rows' identifiers, uint64, and a mask of the rows that have all identifiers.

        Raises:
            BadInput: the batch lacks one, or has it with another type than the other side.
        """
        columns = []
        for name in self.names:
            index = batch.schema.get_field_index(name)
            if index < 0:
                raise no_column(name, side, batch.schema.names)
            column = batch.column(index)
            kind = kind_of(column.type)
            known_side, known = self._kinds.setdefault(name, (side, kind)) if kind else (side, kind)
            if known != kind:
                raise SchemaMismatch(side, name, kind, known).with_text(
                    f"{side}: identifier {name!r} is {kind}, but {known} in {known_side}"
                )
            columns.append(column)
        return hash_rows(columns, self._rounding)


def no_column(name: str, where: str, found: Iterable[str]) -> BadInput:
    """Returns the error for a missing column."""
    return MissingColumn(where, name, f"; there are {', '.join(found)}")


TrainingRows = tuple[Any, pa.Table]
"""Hashed identifiers, uint64, ascending, and the training rows of these that match a stretch of the serving rows."""


@dataclass
class Join:
    """Training rows that were also served, in files: one for each stretch of :data:`STRETCH_ROWS` serving rows.

    Attributes:
        schema: Compared columns of the training rows.
        pairs: Number of pairs to compare.
        left_out: Identifiers whose rows are not compared, ascending, uint64.
    """

    matches: RowMatches
    schema: pa.Schema
    pairs: int
    left_out: Any
    folder: Path
    _loaded: tuple[int, TrainingRows] | None = None

    def stretches(self, begin: int, end: int) -> Iterator[tuple[int, int, TrainingRows]]:
        """Yields the training rows that match a part of the serving rows: first and last serving row, and the rows."""
        for number in range(begin // STRETCH_ROWS, -(-end // STRETCH_ROWS)):
            if self._loaded is None or self._loaded[0] != number:
                self._loaded = None  # only one is in memory
                self._loaded = number, self._read(number)
            first = number * STRETCH_ROWS
            yield max(begin, first), min(end, first + STRETCH_ROWS), self._loaded[1]

    def _read(self, number: int) -> TrainingRows:
        file = self.folder / str(number)
        if not file.exists():
            return _joined([]), self.schema.empty_table()
        keys, parts = [], [self.schema.empty_table()]
        with file.open("rb") as stored:
            while stored.peek(1):
                keys.append(np.load(stored))
                parts.append(pa.ipc.open_stream(stored).read_all())
        hashed = _joined(keys)
        places = np.flatnonzero(~np.isin(hashed, self.left_out))
        order = places[np.argsort(hashed[places], kind="stable")]
        return hashed[order], pa.concat_tables(parts, promote=True).take(pa.array(order)).combine_chunks()


def pairs_of(known: Any, keys: Any) -> Iterator[tuple[Any, Any]]:
    """Yields places of equal keys in ``known``, which ascends, and in ``keys``; about :data:`PAIRS_AT_ONCE` at once."""
    first = np.searchsorted(known, keys, "left")
    counts = np.searchsorted(known, keys, "right") - first
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    starts = np.searchsorted(ends, range(0, total, PAIRS_AT_ONCE))
    cuts = {*starts.tolist(), len(keys)}
    for start, stop in itertools.pairwise(sorted(cuts)):
        n = counts[start:stop]
        others = np.repeat(np.arange(start, stop), n)
        within = np.arange(len(others)) - np.repeat(np.cumsum(n) - n, n)
        if len(others):
            yield np.repeat(first[start:stop], n) + within, others


def join_rows(
    training: Rows, serving: Rows, identifiers: Identifiers, folder: Path, *, duplicates: bool, ignore: set[str]
) -> Join:
    """Reads the identifiers of both sides, and writes the training rows that were also served to files.

    Args:
        training: The training rows.
        serving: The serving rows.
        identifiers: Features to join by.
        folder: An empty folder for the files.
        duplicates: Whether to compare rows whose identifiers occur more than once on a side.
        ignore: Columns that are not compared.
    """
    keys, stretches, test_lacking = _served(serving, identifiers)
    test, test_counts = np.unique(keys, return_counts=True)
    # Removes repeated identifiers within a stretch.
    again = (keys[1:] == keys[:-1]) & (stretches[1:] == stretches[:-1])
    keys, stretches = (np.delete(each, np.flatnonzero(again) + 1) for each in (keys, stretches))
    all_keys, base_lacking, schema = [], 0, pa.schema([])
    for batch in training.batches():
        hashed, whole = identifiers.hash(batch, training.side)
        base_lacking += int((~whole).sum())
        all_keys.append(hashed[whole])
        retained = pa.Table.from_batches([batch]).select([name for name in batch.schema.names if name not in ignore])
        schema = pa.unify_schemas([schema, retained.schema])
        places = np.flatnonzero(whole)
        for met, result in pairs_of(keys, all_keys[-1]):
            for number in np.unique(stretches[met]):
                rows = places[result[stretches[met] == number]]
                _append(folder / str(number), hashed[rows], retained.take(pa.array(rows)))
    base, base_counts = np.unique(_joined(all_keys), return_counts=True)
    common, in_base, in_test = np.intersect1d(base, test, assume_unique=True, return_indices=True)
    repeated = np.union1d(base[base_counts > 1], test[test_counts > 1])
    matches = RowMatches(
        base_with_id_count=int(base_counts.sum()),
        test_with_id_count=int(test_counts.sum()),
        identifiers_count=len(base) + len(test) - len(common),
        ids_missing_in_base_count=len(test) - len(common),
        ids_missing_in_test_count=len(base) - len(common),
        matching_pairs_count=int(base_counts[in_base] @ test_counts[in_test]),
        duplicate_id_count=len(repeated),
        base_missing_id_count=base_lacking,
        test_missing_id_count=test_lacking,
    )
    if duplicates:
        return Join(matches, schema, matches.matching_pairs_count, _joined([]), folder)
    return Join(matches, schema, len(np.setdiff1d(common, repeated, assume_unique=True)), repeated, folder)


def _served(serving: Rows, identifiers: Identifiers) -> tuple[Any, Any, int]:
    """Returns the hashed identifiers of the serving rows, ascending, their stretches, and how many rows lack one."""
    keys, stretches, seen, lacking = [], [], 0, 0
    for batch in serving.batches(identifiers.names):
        hashed, whole = identifiers.hash(batch, serving.side)
        places = np.flatnonzero(whole)
        keys.append(hashed[places])
        stretches.append(((seen + places) // STRETCH_ROWS).astype(np.int32))
        seen += len(hashed)
        lacking += len(hashed) - len(places)
    joined = _joined(keys)
    order = np.argsort(joined, kind="stable")
    return joined[order], np.concatenate([np.zeros(0, np.int32), *stretches])[order], lacking


def _append(file: Path, keys: Any, rows: pa.Table) -> None:
    with file.open("ab") as stored:
        np.save(stored, keys)
        with pa.ipc.new_stream(stored, rows.schema) as stream:
            stream.write_table(rows)


def _joined(parts: list[object]) -> Any:
    return np.concatenate([np.zeros(0, np.uint64), *parts])

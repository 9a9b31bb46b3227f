"""Keys of rows, which draw them into samples.

A row's key depends on the number of its file, the part of the file that it is in (such as a block of text), and its
place there. It is therefore the same for any number of processes, tasks or parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_hops.ml.readers.types import batch_of

Keys = np.ndarray[Any, np.dtype[np.uint64]]

_COLUMN = "\0key"
"""Column for the keys in batches of files' readers, so that they stay with their rows in other batches."""
_SEED = np.uint64(0x20131231)
_GAMMA, _FIRST, _SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def mixed(values: Keys) -> Keys:
    """Hashes numbers, uint64, one to one: SplitMix64 (Steele, Lea and Flood, 2014)."""
    values = values + _GAMMA
    values = (values ^ (values >> np.uint64(30))) * _FIRST
    values = (values ^ (values >> np.uint64(27))) * _SECOND
    return values ^ (values >> np.uint64(31))


def keys_of(unit: int, first: int, rows: int) -> Keys:
    """Returns the keys of consecutive rows.

    Args:
        unit: Number of the part of the source that they are in, uint64.
        first: Number of the first of them in that part.
        rows: Number of rows.
    """
    places: Keys = np.arange(first, first + rows).astype(np.uint64)
    return mixed(np.array([unit], np.uint64)) + places


def numbered(batch: pa.RecordBatch, unit: int, first: int = 0) -> pa.RecordBatch:
    """Appends the hidden column of keys to a batch of consecutive rows; arguments as in :func:`keys_of`."""
    keys = pa.array(keys_of(unit, first, batch.num_rows))
    return batch_of([*batch.columns, keys], [*batch.schema.names, _COLUMN], batch.num_rows)


def numbered_on(batches: Iterable[pa.RecordBatch], first: int = 0) -> Iterator[pa.RecordBatch]:
    """Appends the hidden column to consecutive batches of one unit; ``first`` as in :func:`keys_of`."""
    for batch in batches:
        yield numbered(batch, 0, first)
        first += batch.num_rows


def split_keys(batch: pa.RecordBatch, source: int = 0) -> tuple[pa.RecordBatch, Keys]:
    """Returns a batch without its hidden column, and the keys; ``source`` is the number of the file."""
    index = batch.schema.get_field_index(_COLUMN)
    columns, names = batch.columns, batch.schema.names
    keys = mixed(columns.pop(index).to_numpy()) + mixed(np.array([source], np.uint64))
    del names[index]
    return batch_of(columns, names, batch.num_rows), keys


def priorities_of(keys: Keys) -> Keys:
    """Returns pseudo-random numbers, uint64: of a sample of k rows, those with the lowest are drawn."""
    return mixed(keys ^ _SEED)


def drawn(keys: Keys, rate: float) -> np.ndarray:
    """Returns the places of the rows that are in a sample of a rate, 0 to 1."""
    return np.flatnonzero((priorities_of(keys) >> np.uint64(11)) * 2.0**-53 < rate)

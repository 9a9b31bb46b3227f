"""Finds values that may be frequent by their hashes, in columns where nearly all values differ.

A sketch of strings processes them one by one; NumPy sorts and counts hashes all at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_hops.ml.statistics.row_keys import mixed

Array = np.ndarray[Any, Any]

_MOST_BITS = 20
_FIRST_BYTES = np.array([(1 << 8 * count) - 1 for count in range(9)], np.uint64)


@dataclass
class FrequentHashes:
    """Misra-Gries summary that keeps every hash with more than 1 / ``most`` of the weight.

    Adds batches and merges summaries as in Agarwal et al., "Mergeable Summaries" (2012). Can be pickled.

    Attributes:
        most: Maximum number of hashes.
        hashes: uint64.
        counts: Lower bounds of the hashes' counts or weights.
    """

    most: int
    hashes: Array = field(default_factory=lambda: np.zeros(0, np.uint64))
    counts: Array = field(default_factory=lambda: np.zeros(0))

    def add(self, hashes: Array, counts: Array) -> None:
        """Adds hashes with their counts or weights; hashes may repeat."""
        if not len(hashes):
            return
        hashes, counts = np.append(self.hashes, hashes), np.append(self.counts, counts)
        order = np.argsort(hashes)
        hashes = hashes[order]
        first = np.flatnonzero(np.append(True, hashes[1:] != hashes[:-1]))
        hashes, counts = hashes[first], np.add.reduceat(counts[order], first)
        left_out = len(counts) - self.most
        if left_out > 0:
            # Keeps the highest counts, reduced by the highest count that is left out.
            order = np.argpartition(counts, (left_out - 1, left_out))
            retained, least = order[left_out:], counts[order[left_out - 1]]
            hashes, counts = hashes[retained], counts[retained] - least
        self.hashes, self.counts = hashes, counts


def most_frequent_hashes(hashes: Array, most: int) -> tuple[Array, Array, Array]:
    """Returns the most frequent hashes, at most ``most``, their counts, and the rows that have any of them.

    Hashes are first counted by their last bits, where different ones collide, in a tenth of the time of sorting; only
    those at the highest of these counts are then counted exactly. A hash that is left out occurs at most as often as
    the lowest of these counts, which is at most one in ``most`` rows.
    """
    places = (hashes & np.uint64((1 << min(len(hashes).bit_length(), _MOST_BITS)) - 1)).astype(np.int64)
    met = np.bincount(places)
    least = max(np.partition(met, -most)[-most], 1) if len(met) > most else 1
    rows = np.flatnonzero((met >= least)[places])
    result, inverse, counts = np.unique(hashes[rows], return_inverse=True, return_counts=True)
    chosen = np.ones(len(result), bool)
    if len(result) > most:
        chosen[np.argpartition(counts, -most)[:-most]] = False
    return result[chosen], counts[chosen], rows[chosen[inverse]]


def hashes_of(values: pa.Array, bytes_hashed: int) -> Array:
    """Hashes integers, strings or bytes without nulls to uint64, equal on all machines.

    Of longer values, only the length and the first ``bytes_hashed`` bytes count.
    """
    if pa.types.is_integer(values.type):
        return mixed(values.to_numpy().astype(np.uint64))
    ends, data = contents(values)
    starts, lengths = ends[:-1].astype(np.int64) - ends[0], np.diff(ends).astype(np.int64)
    text = np.zeros(len(data) + 8, np.uint8)
    text[: len(data)] = data
    # The eight bytes from each position on, as a number.
    words: Array = np.ndarray((len(data) + 1,), "<u8", text, strides=(1,))
    hashes = mixed(lengths.astype(np.uint64))
    last = np.maximum(starts + lengths - 8, starts)
    rows: Any = slice(None)
    for at in range(0, min(int(lengths.max(initial=0)), bytes_hashed), 8):
        if lengths[rows].min() <= at:
            rows = np.flatnonzero(lengths > at)
        word = words[np.minimum(starts[rows] + at, last[rows])]
        if at == 0:
            word &= _FIRST_BYTES[np.minimum(lengths[rows], 8)]
        hashes[rows] = mixed(hashes[rows] ^ word)
    return hashes


def contents(values: pa.Array) -> tuple[Array, Array]:
    """Returns the boundaries of strings or bytes in Arrow's buffer, and the bytes of all."""
    wide = pa.types.is_large_string(values.type) or pa.types.is_large_binary(values.type)
    _, ends, data = values.buffers()
    ends = np.frombuffer(ends, np.int64 if wide else np.int32)[values.offset : values.offset + len(values) + 1]
    return ends, np.frombuffer(data or b"", np.uint8)[ends[0] : ends[-1]]

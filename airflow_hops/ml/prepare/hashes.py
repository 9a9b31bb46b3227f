"""Spark's hashes of values, ``xxhash64`` and ``hash``, in NumPy: a key has the same split on every engine.

A library hashes one value a call and has no seed for each row, by which Spark chains the columns of a row.
See https://github.com/Cyan4973/xxHash (specification) and Spark's ``XXH64.java`` and ``Murmur3_x86_32.java``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

_SEED = 42
_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(prime)
    for prime in (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
)
_ZERO = np.uint64(0)

_Read = Callable[[int, str], np.ndarray]


def xxhash64(columns: Sequence[pa.Array]) -> np.ndarray:
    """Returns the hash of each row, as ``xxhash64(columns)`` in Spark: int64, of shape ``[rows]``.

    Columns are of strings, int64, floats or lists of floats. A missing value leaves the hash of the columns before it.
    """
    hashes = np.full(len(columns[0]), _SEED, np.uint64)
    for column in columns:
        if not pa.types.is_list(column.type):
            _chain(hashes, np.arange(len(column)), column)
            continue
        values, offsets = column.flatten(), list_offsets(column)
        lengths = np.diff(offsets)
        for index in range(lengths.max(initial=0)):
            rows = np.flatnonzero(lengths > index)
            _chain(hashes, rows, values.take(pa.array(offsets[rows] + index)))
    return hashes.view(np.int64)


def partitions(column: pa.Array, number: int) -> np.ndarray:
    """Returns each row's partition, as Spark's ``repartition(number, column)``, of a column of strings or int64."""
    hashes = np.full(len(column), _SEED, np.uint32)
    for rows, read, length in _bytes_of(column):
        hashes[rows] = _murmur3(read, length, len(rows))
    return hashes.view(np.int32).astype(np.int64) % number


def stable_order(numbers: np.ndarray) -> np.ndarray:
    """Returns the order of integers from 0, like a stable ``argsort``; NumPy sorts those of 16 bits by radix."""
    return np.argsort(numbers.astype(np.int16) if numbers.max(initial=0) < 1 << 15 else numbers, kind="stable")


def list_offsets(column: pa.Array) -> np.ndarray:
    """Returns the positions at which a column's lists begin and end in its flattened values; missing ones are empty."""
    lengths = column.value_lengths().fill_null(0)
    return np.concatenate([[0], np.cumsum(lengths.to_numpy(zero_copy_only=False), dtype=np.int64)])


def _chain(hashes: np.ndarray, rows: np.ndarray, column: pa.Array) -> None:
    for within, read, length in _bytes_of(column):
        hashes[rows[within]] = _xxhash(read, length, hashes[rows[within]])


def _bytes_of(column: pa.Array) -> Iterator[tuple[np.ndarray, _Read, int]]:
    """Yields rows whose values are of equal length in bytes, a function that reads the values, and the length."""
    rows = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
    if not len(rows):
        return
    if not pa.types.is_string(column.type):
        values = column.fill_null(0).to_numpy(zero_copy_only=False) + 0  # minus zero is hashed as zero
        yield rows, partial(_read, values, rows * values.itemsize), values.itemsize
        return
    _, ends, content = column.buffers()
    offsets = np.frombuffer(ends, np.int32)[column.offset :]
    lengths = np.diff(offsets)[rows]
    order = stable_order(lengths)
    for some in np.split(order, np.flatnonzero(np.diff(lengths[order])) + 1):
        yield rows[some], partial(_read, content, offsets[rows[some]]), int(lengths[some[0]])


def _read(content: pa.Buffer, starts: np.ndarray, offset: int, kind: str) -> np.ndarray:
    """Returns a word of each value, which begins ``offset`` bytes behind the value's start."""
    size = memoryview(content).nbytes - np.dtype(kind).itemsize + 1
    words: np.ndarray = np.ndarray((size,), kind, content, strides=(1,))[starts + offset]
    return words


def _rotated(x: np.ndarray, bits: int, width: int = 64) -> np.ndarray:
    kind = x.dtype.type
    rotated: np.ndarray = (x << kind(bits)) | (x >> kind(width - bits))
    return rotated


def _round(words: np.ndarray, lane: np.ndarray | np.uint64 = _ZERO) -> np.ndarray:
    mixed: np.ndarray = _rotated(lane + words * _P2, 31) * _P1
    return mixed


def _xxhash(read: _Read, length: int, seeds: np.ndarray) -> np.ndarray:
    """Returns the XXH64 of each value, with a seed of its own."""
    stripes = length // 32
    hashes: np.ndarray = seeds + _P5
    if stripes:
        lanes = [(seeds + _P1) + _P2, seeds + _P2, seeds, seeds - _P1]
        for offset in range(0, stripes * 32, 32):
            lanes = [_round(read(offset + 8 * i, "<u8"), lane) for i, lane in enumerate(lanes)]
        hashes = np.sum([_rotated(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True)], axis=0)
        for lane in lanes:
            hashes = (hashes ^ _round(lane)) * _P1 + _P4
    hashes = hashes + np.uint64(length)
    for offset in range(stripes * 32, length // 8 * 8, 8):
        hashes = _rotated(hashes ^ _round(read(offset, "<u8")), 27) * _P1 + _P4
    if length % 8 >= 4:
        hashes = _rotated(hashes ^ (read(length // 8 * 8, "<u4").astype(np.uint64) * _P1), 23) * _P2 + _P3
    for offset in range(length // 4 * 4, length):
        hashes = _rotated(hashes ^ (read(offset, "u1").astype(np.uint64) * _P5), 11) * _P1
    hashes = (hashes ^ (hashes >> np.uint64(33))) * _P2
    hashes = (hashes ^ (hashes >> np.uint64(29))) * _P3
    hashes ^= hashes >> np.uint64(32)
    return hashes


def _murmur3(read: _Read, length: int, rows: int) -> np.ndarray:
    """Returns the Murmur3 of each value; Spark takes each byte behind the last word of four for a word."""
    hashes = np.full(rows, _SEED, np.uint32)
    aligned = length // 4 * 4
    for offset in (*range(0, aligned, 4), *range(aligned, length)):
        word = read(offset, "<u4" if offset < aligned else "i1").astype(np.uint32)
        mixed = _rotated(word * np.uint32(0xCC9E2D51), 15, 32) * np.uint32(0x1B873593)
        hashes = _rotated(hashes ^ mixed, 13, 32) * np.uint32(5) + np.uint32(0xE6546B64)
    hashes ^= np.uint32(length)
    hashes = (hashes ^ (hashes >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    hashes = (hashes ^ (hashes >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    hashes ^= hashes >> np.uint32(16)
    return hashes

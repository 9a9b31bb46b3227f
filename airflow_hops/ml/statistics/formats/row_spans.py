"""Cuts a local text file into spans of whole rows, so that processes can parse them side by side."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from airflow_hops.ml.readers.limits import check_row_bytes
from airflow_hops.ml.statistics.formats.layout import BATCH_ROWS, Span

SPAN_BYTES = 8 << 20
"""Bytes of a span, at most: memory holds its text and its columns at once."""
_CHUNK_BYTES = 4 << 20
SAMPLE_BYTES = 1 << 16
"""Bytes of the first rows, which tell the types."""
_LATER_SAMPLES, _LATER_BYTES = 16, 1 << 14
_NEWLINE, _RETURN, _QUOTE = b'\n\r"'


def span_bytes(total_bytes: int, row_bytes: float) -> int:
    """How long spans are to be, so that they are alike and hold a whole number of full batches."""
    batch_bytes = max(row_bytes, 1.0) * BATCH_ROWS * 0.95
    goal = batch_bytes * max(1, int(SPAN_BYTES / batch_bytes))
    return max(1, math.ceil(total_bytes / max(1, math.ceil(total_bytes / min(goal, SPAN_BYTES)))))


def spans_of_rows(path: str, start: int, length: int, *, delimiter: str | None) -> tuple[Span, ...] | None:
    """Spans of about ``length`` bytes each that end where a row does, from the byte ``start`` to the file's end.

    Args:
        path: The file, in an encoding that leaves ASCII alone.
        start: Where the first row begins.
        length: Bytes of a span; one may be longer by a row.
        delimiter: Of CSV, where a newline within quotes ends no row; None if every newline does.

    Returns:
        The spans, or None if only parsing tells rows apart: there is a quote within a value that is not quoted.
    """
    with Path(path).open("rb", buffering=0) as stream:
        size = os.fstat(stream.fileno()).st_size
        targets = range(start + length, size, length)
        if delimiter is not None and any(b'"' in chunk for _, chunk in _chunks(stream, start)):
            ends = _ends_of_quoted_rows(stream, start, targets, delimiter)
            if ends is None:
                return None
        else:
            ends = _ends_of_lines(stream, targets)
    bounds = [start, *sorted({end for end in ends if start < end < size}), size]
    check_row_bytes(max(stop - begin for begin, stop in itertools.pairwise(bounds)) - length, path)
    return tuple(Span(stop - begin, begin, stop) for begin, stop in itertools.pairwise(bounds) if stop > begin)


def text_of(path: str, start: int, stop: int) -> bytes:
    """The bytes of a local file from one position to another."""
    with Path(path).open("rb", buffering=0) as stream:
        stream.seek(start)
        return stream.read(max(0, stop - start))


def first_rows(path: str, start: int, size: int, end_of_rows: Callable[[bytes], int]) -> bytes:
    """The whole rows in about so many bytes of a local file, one at least, where it has one.

    Args:
        path: The file.
        start: Where a row begins.
        size: Bytes to look at.
        end_of_rows: Tells where the last whole row ends in a text; 0 if none does.
    """
    while True:
        text = text_of(path, start, start + size)
        if len(text) < size:
            return text
        if end := end_of_rows(text):
            return text[:end]
        check_row_bytes(size, path)
        size *= 4


def later_rows(path: str, spans: Sequence[Span], end_of_rows: Callable[[bytes], int]) -> Iterator[tuple[Span, bytes]]:
    """The first rows of some spans but the first."""
    for span in spans[1 :: max(1, len(spans) // _LATER_SAMPLES)]:
        yield span, first_rows(path, span.start, _LATER_BYTES, end_of_rows)


def rows_between(path: str, start: int, stop: int) -> int:
    """About how many rows of a local file there are from one position to another: a quoted newline counts as one."""
    with Path(path).open("rb", buffering=0) as stream:
        return sum(chunk[: max(0, stop - position)].count(b"\n") for position, chunk in _chunks(stream, start))


def _ends_of_lines(stream: BinaryIO, targets: range) -> list[int]:
    """Where the lines end that the targets fall into."""
    ends = []
    for target in targets:
        # A target that is the first byte of a row is itself an end.
        for position, chunk in _chunks(stream, target - 1, 1 << 16):
            if (newline := chunk.find(b"\n")) >= 0:
                ends.append(position + newline + 1)
                break
    return ends


def _ends_of_quoted_rows(stream: BinaryIO, start: int, targets: range, delimiter: str) -> list[int] | None:
    """The same where newlines may stand within quotes: a row ends at a newline with an even number of quotes before.

    That holds where each quote opens or closes a whole value, or is doubled within one, which is checked.
    """
    is_edge: np.ndarray = np.zeros(256, bool)
    is_edge[[_NEWLINE, _RETURN, _QUOTE, ord(delimiter)]] = True
    waiting = list(reversed(targets))
    ends: list[int] = []
    before, is_inside, is_closed = _NEWLINE, False, False
    for position, chunk in _chunks(stream, start):
        text = np.frombuffer(chunk, np.uint8)
        quotes = np.flatnonzero(text == _QUOTE)
        opening, closing = quotes[int(is_inside) :: 2], quotes[1 - int(is_inside) :: 2]
        if is_closed and not is_edge[text[0]]:
            return None
        if len(opening) and not is_edge[before if opening[0] == 0 else text[opening[0] - 1]]:
            return None
        is_closed = bool(len(closing) and closing[-1] == len(text) - 1)
        behind = closing[:-1] if is_closed else closing
        if not (is_edge[text[opening[1:] - 1]].all() and is_edge[text[behind + 1]].all()):
            return None
        while waiting and waiting[-1] <= position + len(text):
            first = max(waiting[-1] - 1 - position, 0)
            newlines: np.ndarray = first + np.flatnonzero(text[first:] == _NEWLINE)
            outside = (np.searchsorted(quotes, newlines) + is_inside) % 2 == 0
            if not outside.any():
                break
            ends.append(position + int(newlines[outside.argmax()]) + 1)
            waiting.pop()
        is_inside ^= bool(len(quotes) % 2)
        before = text[-1]
    return None if is_inside else ends


def _chunks(stream: BinaryIO, start: int, size: int | None = None) -> Iterator[tuple[int, bytes]]:
    """The file from ``start`` on, in chunks with their positions."""
    stream.seek(start)
    while chunk := stream.read(size or _CHUNK_BYTES):
        yield start, chunk
        start += len(chunk)

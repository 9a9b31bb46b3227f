"""The spool of captured requests: append-only files that survive the process.

A spool is a folder of *segments*, ``<number>.segment``. Bytes written to a segment are in the kernel's hands, and
survive if the process is killed. A record consists of length and CRC-32C (4 bytes each) and content, so a torn record
is detected. At most the last record of those written together can be torn.
"""

from __future__ import annotations

import errno
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import google_crc32c

_HEAD = struct.Struct("<II")
_HEAD_BYTES = _HEAD.size
_LOOK_AGAIN_S = 0.05
OPTIONS_FILE = "options.json"
SERVER_LOCK = "server.lock"
WRITER_LOCK = "writer.lock"


class Position(NamedTuple):
    """A position in a spool: the number of a segment, and an offset in bytes within it."""

    segment: int = 0
    offset: int = 0


class Spool:
    """The server's end of a spool, which appends records; safe to call from every request thread.

    Args:
        folder: Folder of the spool, which exists and belongs to this process.
        limit_bytes: Maximum size of all segments together.
        segment_bytes: Size at which the next segment is started.
        written: Returns the position before which all records are in files.
    """

    def __init__(
        self, folder: Path, limit_bytes: int, segment_bytes: int, written: Callable[[], Position] = Position
    ) -> None:
        self.folder = folder
        self.error: OSError | None = None
        self._limit_bytes, self._segment_bytes, self._written = limit_bytes, segment_bytes, written
        self._lock = threading.Lock()
        self._descriptor = -1
        self._position = Position()
        self._used_bytes = 0
        self._full_until_s = 0.0
        self._closed = False

    def append(self, records: Sequence[bytes]) -> int:
        """Appends records in order, as far as there is room; returns how many, which then survive this process."""
        framed = [_HEAD.pack(len(record), google_crc32c.value(record)) + record for record in records]
        with self._lock:
            if not framed or self._write(framed):
                return len(framed)
            # They do not fit together; the first ones may.
            return next((n for n, each in enumerate(framed) if not self._write([each])), len(framed))

    @property
    def end(self) -> Position:
        """Position after the last record."""
        with self._lock:
            return self._position

    def close(self) -> None:
        """Stops accepting records."""
        with self._lock:
            self._closed = True
            self._leave_segment()

    def _write(self, framed: Sequence[bytes]) -> bool:
        content = b"".join(framed)
        if self._closed or not self._has_room(len(content)):
            return False
        try:
            if self._descriptor < 0 or self._position.offset >= self._segment_bytes:
                self._leave_segment()
                number = self._position.segment + 1
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
                self._descriptor = os.open(segment_path(self.folder, number), flags, 0o600)
                self._position = Position(number)
            written = os.write(self._descriptor, content)
            if written < len(content):
                # The disk is full: removes the partial write.
                os.ftruncate(self._descriptor, self._position.offset)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            self.error = error
            self._make_room()
            return False
        self._position = self._position._replace(offset=self._position.offset + written)
        self._used_bytes += written
        self.error = None
        return True

    def _has_room(self, size: int) -> bool:
        if self._used_bytes + size <= self._limit_bytes:
            return True
        if time.monotonic() < self._full_until_s:
            return False
        self._used_bytes = used_bytes(self.folder)
        if self._used_bytes + size <= self._limit_bytes:
            return True
        self._make_room()
        return self._used_bytes + size <= self._limit_bytes

    def _make_room(self) -> None:
        """Removes the current segment if all its records are in files; the writer removes earlier segments."""
        self._full_until_s = time.monotonic() + _LOOK_AGAIN_S
        if self._descriptor >= 0 and self._position.offset and self._position <= self._written():
            self._leave_segment()
            segment_path(self.folder, self._position.segment).unlink(missing_ok=True)
            self._used_bytes = used_bytes(self.folder)

    def _leave_segment(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def segment_path(folder: Path, number: int) -> Path:
    """Returns the path of a segment."""
    return folder / f"{number:012d}.segment"


def segments(folder: Path) -> list[int]:
    """Returns the numbers of the existing segments, in order."""
    return sorted(int(path.stem) for path in folder.glob("*.segment"))


def used_bytes(folder: Path) -> int:
    """Returns the total size of the segments."""
    total = 0
    for path in folder.glob("*.segment"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total


@dataclass
class Damage:
    """Counts records that could not be read, each together with the rest of its segment."""

    records: int = 0


def read_spool(
    folder: Path, start: Position, until: Position | None = None, *, ended: bool = False, damage: Damage | None = None
) -> Iterator[tuple[bytes, Position]]:
    """Yields each complete record in order, with the position after it.

    Args:
        folder: Folder of the spool.
        start: Position to start at.
        until: Position to stop at; None reads to the end.
        ended: Whether the server has ended, so that incomplete records stay incomplete.
        damage: Counts skipped records.
    """
    at = start
    while until is None or at < until:
        segment = _read_segment(folder, at, until)
        sound = True
        for record, after in segment:
            if record is None:
                sound = False
                break
            at = after
            yield record, at
        following = next((number for number in segments(folder) if number > at.segment), None)
        if until is not None and at >= until:
            return
        if following is None or not (ended or _has_records(folder, following)):
            if not sound and ended and damage is not None:
                damage.records += 1
            return
        # The later segment has records, so this one is complete now: checks it once more.
        missed = next(iter(_read_segment(folder, at, until)), None)
        if missed is not None and missed[0] is not None:
            continue
        if missed is not None and damage is not None:
            damage.records += 1
        at = Position(following)


def _read_segment(folder: Path, start: Position, until: Position | None) -> Iterator[tuple[bytes | None, Position]]:
    """Yields the complete records of one segment, and None for an incomplete one."""
    number, offset = start
    length_of_search = until.offset - offset if until is not None and until.segment == number else -1
    try:
        with segment_path(folder, number).open("rb") as file:
            file.seek(offset)
            content = file.read(length_of_search)
    except FileNotFoundError:
        return
    at = 0
    while at < len(content):
        begin = at + _HEAD_BYTES
        length, crc = _HEAD.unpack_from(content, at) if begin <= len(content) else (0, 0)
        record = content[begin : begin + length]
        if not length or len(record) != length or google_crc32c.value(record) != crc:
            yield None, Position(number, offset + at)
            return
        at = begin + length
        yield record, Position(number, offset + at)


def _has_records(folder: Path, number: int) -> bool:
    return next(iter(_read_segment(folder, Position(number), None)), None) is not None

"""Where captured requests wait to be written: files that outlive the process, filled without a system call.

A spool is a folder of *segments*, ``<number>.segment``. A segment is made at its full size, mapped into memory, and
filled record by record: what was copied into the map is the kernel's, and stays when the process is killed. A record is
its length and CRC-32C (4 bytes each) and its bytes, padded to 8; it counts once its length is not zero. The length is
written last, and a record begins only after the one before it is whole, so that at most the last one can be torn.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import NamedTuple

import google_crc32c

_MAGIC = b"HOPSPOOL"
_HEAD = struct.Struct("<II")
_HEAD_BYTES = _HEAD.size
SERVER_LOCK = "server.lock"
WRITER_LOCK = "writer.lock"


class Position(NamedTuple):
    """A place in a spool: a segment's number, and an offset in bytes within it."""

    segment: int = 0
    offset: int = len(_MAGIC)


NOTHING = Position()
"""The beginning of a spool."""


class Lock:
    """A file that one process holds until it ends, however it ends; not inherited by its forks.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = -1

    def acquire(self) -> bool:
        """Takes the lock where it is free.

        Raises:
            OSError: The file cannot be opened.
        """
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if error.errno in (errno.EACCES, errno.EAGAIN):
                return False
            raise
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Gives it back."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class Spool:
    """The end of a spool that the server fills; safe to call from every request thread.

    The next segment is made beside the request path, by :meth:`prepare`: only where a record does not fit into one is
    it made at once.

    Args:
        folder: The spool's folder; it exists, and is this process's.
        limit_bytes: Size of all segments together at most.
        segment_bytes: Size of one segment.
    """

    def __init__(self, folder: Path, limit_bytes: int, segment_bytes: int) -> None:
        self.folder = folder
        self.wanted = threading.Event()
        self.error: OSError | None = None
        self._limit_bytes, self._segment_bytes = limit_bytes, segment_bytes
        self._lock = threading.Lock()
        self._numbers = count(1)
        self._map: mmap.mmap | None = None
        self._position = Position()
        self._offset = self._size = 0
        self._spare: tuple[int, mmap.mmap] | None = None
        self._closed = False
        self.prepare()

    def append(self, record: bytes) -> bool:
        """Adds a record.

        Returns:
            Whether it is in the spool, and outlives this process; False where there is no room.
        """
        length = len(record)
        crc = google_crc32c.value(record)
        size = (_HEAD_BYTES + length + 7) & ~7
        with self._lock:
            if (self._map is None or self._offset + size > self._size) and not self._advance(size):
                return False
            at, map_ = self._offset, self._map
            assert map_ is not None
            begin = at + _HEAD_BYTES
            map_[begin : begin + length] = record
            _HEAD.pack_into(map_, at, length, crc)
            self._offset = at + size
        return True

    def prepare(self, written: Position = NOTHING) -> None:
        """Makes the next segment, where there is none and there is room.

        Args:
            written: Everything before it is needed no more.
        """
        self.wanted.clear()
        with self._lock:
            if self._spare is not None or self._closed:
                return
            number = next(self._numbers)
        made = self._make(number, self._segment_bytes)
        if made is None and self._give_up_current(written):
            made = self._make(number, self._segment_bytes)
        if made is None:
            return
        with self._lock:
            # A record that fits into no segment may have been given one of its own, with a later number.
            if not self._closed and number > self._position.segment:
                self._spare = (number, made)
                return
        self._discard(number, made)

    @property
    def end(self) -> Position:
        """Behind the last record."""
        with self._lock:
            return Position(self._position.segment, self._offset or Position().offset)

    def close(self) -> None:
        """Takes no more records."""
        with self._lock:
            self._closed = True
            for map_ in (self._map, self._spare[1] if self._spare else None):
                if map_ is not None:
                    map_.close()
            self._map = self._spare = None

    def _advance(self, size: int) -> bool:
        """Goes on to the next segment; False where there is none."""
        if self._closed:
            return False
        spare, self._spare = self._spare, None
        self.wanted.set()
        if size + len(_MAGIC) > self._segment_bytes:
            if spare is not None:
                self._discard(*spare)
            number = next(self._numbers)
            made = self._make(number, size + len(_MAGIC))
            spare = None if made is None else (number, made)
        if spare is None:
            return False
        if self._map is not None:
            self._map.close()
        number, self._map = spare
        self._position, self._offset, self._size = Position(number), len(_MAGIC), len(self._map)
        return True

    def _give_up_current(self, written: Position) -> bool:
        """Removes the segment that is being filled, where all of it is written, to make room for another."""
        with self._lock:
            if self._map is None or Position(self._position.segment, self._offset) > written:
                return False
            self._discard(self._position.segment, self._map)
            self._map = None
            return True

    def _discard(self, number: int, made: mmap.mmap) -> None:
        made.close()
        segment_path(self.folder, number).unlink(missing_ok=True)

    def _make(self, number: int, size: int) -> mmap.mmap | None:
        path = segment_path(self.folder, number)
        try:
            if used_bytes(self.folder) + size > self._limit_bytes:
                return None
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                # A page of the map that the disk has no room for would end the process.
                os.posix_fallocate(descriptor, 0, size)
                map_ = mmap.mmap(descriptor, size)
            finally:
                os.close(descriptor)
        except OSError as error:
            path.unlink(missing_ok=True)
            self.error = error
            return None
        map_[: len(_MAGIC)] = _MAGIC
        self.error = None
        return map_


def segment_path(folder: Path, number: int) -> Path:
    """Returns the file of a segment."""
    return folder / f"{number:012d}.segment"


def segments(folder: Path) -> list[int]:
    """Returns the numbers of the segments that there are, in order."""
    return sorted(int(path.stem) for path in folder.glob("*.segment"))


def used_bytes(folder: Path) -> int:
    """Returns the size of all segments."""
    total = 0
    for path in folder.glob("*.segment"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total


@dataclass
class Damage:
    """What could not be read of a spool.

    Attributes:
        records: Records whose bytes are not what was written, each with the rest of its segment.
    """

    records: int = 0


def read_spool(
    folder: Path, start: Position, until: Position | None = None, *, ended: bool = False, damage: Damage | None = None
) -> Iterator[tuple[bytes, Position]]:
    """Reads records in order, as far as they are whole.

    Args:
        folder: The spool's folder.
        start: Where to begin.
        until: Where to end; None reads all there is.
        ended: Nobody fills the spool any more: a record that is not whole never will be.
        damage: Counts what is skipped.

    Yields:
        Each record, with the position behind it.
    """
    at = start
    while until is None or at < until:
        found = _read_segment(folder, at, until)
        sound = True
        for record, after in found:
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
        # What came before a later segment's first record is there to be seen now.
        missed = next(iter(_read_segment(folder, at, until)), None)
        if missed is not None and missed[0] is not None:
            continue
        if missed is not None and damage is not None:
            damage.records += 1
        at = Position(following)


def _read_segment(folder: Path, start: Position, until: Position | None) -> Iterator[tuple[bytes | None, Position]]:
    """Yields the whole records of one segment, and None for one that is not whole."""
    try:
        with segment_path(folder, start.segment).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size <= len(_MAGIC):
                return
            with mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as map_:
                number, offset = start
                end_of_search = size if until is None or until.segment > number else min(size, until.offset)
                while offset + _HEAD_BYTES <= end_of_search:
                    length, crc = _HEAD.unpack_from(map_, offset)
                    if not length:
                        return
                    begin = offset + _HEAD_BYTES
                    record = map_[begin : begin + length]
                    if len(record) != length or google_crc32c.value(record) != crc:
                        yield None, Position(number, offset)
                        return
                    offset = (begin + length + 7) & ~7
                    yield record, Position(number, offset)
    except FileNotFoundError:
        return


def _has_records(folder: Path, number: int) -> bool:
    return next(iter(_read_segment(folder, Position(number), None)), None) is not None

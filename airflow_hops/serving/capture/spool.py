"""The spool of captured requests, append-only files that survive the process, and the writer's progress in it.

A spool is a folder of *segments*, ``<number>.segment``. Bytes written to a segment are in the kernel's hands, and
survive if the process is killed. A record consists of length and CRC-32C (4 bytes each) and content, so a torn record
is detected. At most the last record of those written together can be torn.
"""

from __future__ import annotations

import errno
import json
import os
import struct
import threading
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import google_crc32c

from airflow_hops.core.processes.files import open_own, read_own

# The folder around a spool may be of several users: a spool belongs to one, and its files are opened by open_own.
# Protocol of a spool. The server creates the folder, takes server.lock, writes options.json and the state file, and
# then starts the writer, which takes writer.lock. Both locks end with their processes. A server that starts takes over
# the folder of one that ended, by its server.lock: so restarts neither add folders nor pass the limit. The writer of
# the ended server leaves then; it takes server.lock itself before it removes the folder.
# - Only the server appends to segments: one os.write() for all records of a call, under a lock of the process. It
#   starts the next segment at the size limit; it never rewrites one.
# - Only the writer saves the state, into two slots in turn, and removes segments before its position. The server reads
#   the state to learn how much room there is, and removes the current segment once all of it is written.
# - A batch: save its end as `planned`, publish its files, then save `position` = `planned`, and remove older segments.
# - Killed between both saves, the next writer builds the same batch from the same records, and skips existing files.
# - A torn record (server killed, disk full) ends its segment for readers; it was never acknowledged.
# - An incomplete record at the end of the last segment may still be in the making: it is only damage once the server
#   has ended or a later segment has records.

_HEAD = struct.Struct("<II")
_HEAD_BYTES = _HEAD.size
_Kind = TypeVar("_Kind")
OPTIONS_FILE = "options.json"
STATE_FILE = "state"
SERVER_LOCK = "server.lock"
WRITER_LOCK = "writer.lock"


class SpoolPosition(NamedTuple):
    """A position in a spool: the number of a segment, and an offset in bytes within it."""

    segment: int = 0
    offset: int = 0


class Spool:
    """The server's end of a spool, which appends records; safe to call from every request thread.

    Args:
        folder: Folder of the spool, which exists and belongs to this process; another server may have used it before.
        limit_bytes: Maximum size of all segments together.
        segment_bytes: Size at which the next segment is started.
        written: Returns the position before which all records are in files.
    """

    def __init__(
        self, folder: Path, limit_bytes: int, segment_bytes: int, written: Callable[[], SpoolPosition] = SpoolPosition
    ) -> None:
        self.folder = folder
        self.error: OSError | None = None
        self._limit_bytes, self._segment_bytes, self._written = limit_bytes, segment_bytes, written
        self._lock = threading.Lock()
        self._descriptor = -1
        self._position = written()
        if numbers := segments(folder):
            self._position = max(
                self._position, SpoolPosition(numbers[-1], segment_path(folder, numbers[-1]).stat().st_size)
            )
        self._used_bytes = used_bytes(folder)
        self._closed = False

    def append(self, records: Sequence[bytes]) -> int:
        """Appends records in order, as far as there is room; returns how many, which then survive this process."""
        framed = [_HEAD.pack(len(record), google_crc32c.value(record)) + record for record in records]
        with self._lock:
            if not framed or self._write(framed):
                return len(framed)
            # All records do not fit; the first ones may.
            return next((n for n, each in enumerate(framed) if not self._write([each])), len(framed))

    @property
    def end(self) -> SpoolPosition:
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
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
                self._descriptor = open_own(segment_path(self.folder, number), flags)
                self._position = SpoolPosition(number)
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
        if self._used_bytes + size > self._limit_bytes:
            self._make_room()
        return self._used_bytes + size <= self._limit_bytes

    def _make_room(self) -> None:
        """Removes the current segment if all its records are in files; the writer removes earlier segments."""
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


def read_spool(
    folder: Path,
    start: SpoolPosition,
    until: SpoolPosition | None = None,
    *,
    ended: bool = False,
    on_damage: Callable[[], None] = lambda: None,
) -> Iterator[tuple[bytes, SpoolPosition]]:
    """Yields each complete record in order, with the position after it.

    Args:
        folder: Folder of the spool.
        start: Position to start at.
        until: Position to stop at; None reads to the end.
        ended: Whether the server has ended, so that incomplete records stay incomplete.
        on_damage: Called for each record that cannot be read, which is skipped with the rest of its segment.
    """
    position = start
    while until is None or position < until:
        segment = _read_segment(folder, position, until)
        sound = True
        for record, after in segment:
            if record is None:
                sound = False
                break
            position = after
            yield record, position
        following = next((number for number in segments(folder) if number > position.segment), None)
        if until is not None and position >= until:
            return
        if following is None or not (ended or any(_read_segment(folder, SpoolPosition(following), None))):
            if not sound and ended:
                on_damage()
            return
        # The later segment has records, so this one is complete now: checks it once more.
        missed = next(iter(_read_segment(folder, position, until)), None)
        if missed is not None and missed[0] is not None:
            continue
        if missed is not None:
            on_damage()
        position = SpoolPosition(following)


def _read_segment(
    folder: Path, start: SpoolPosition, until: SpoolPosition | None
) -> Iterator[tuple[bytes | None, SpoolPosition]]:
    """Yields the complete records of one segment, and None for an incomplete one."""
    number, offset = start
    length_of_search = until.offset - offset if until is not None and until.segment == number else -1
    try:
        with os.fdopen(open_own(segment_path(folder, number)), "rb") as file:
            file.seek(offset)
            content = file.read(length_of_search)
    except FileNotFoundError:
        return
    position = 0
    while position < len(content):
        begin = position + _HEAD_BYTES
        length, crc = _HEAD.unpack_from(content, position) if begin <= len(content) else (0, 0)
        record = content[begin : begin + length]
        if not length or len(record) != length or google_crc32c.value(record) != crc:
            yield None, SpoolPosition(number, offset + position)
            return
        position = begin + length
        yield record, SpoolPosition(number, offset + position)


_SLOT_BYTES = 64 * 2**10
# Number of the save, size of the state in bytes, CRC-32 of both.
_STATE_HEAD = struct.Struct("<QII")


_BY_SERVER = ("captured_rows", "dropped_rows", "captured_labels", "dropped_labels")
_BY_WRITER = ("written_rows", "failed_rows", "files", "written_labels")
NO_COUNTS: Mapping[str, int] = dict.fromkeys((*_BY_SERVER, *_BY_WRITER), 0)
"""Counts of one model's rows and labels, by outcome: those of the server, then those of the writer."""


@dataclass
class WriterState:
    """The writer's progress in a spool.

    Attributes:
        position: All records before this position are in files.
        batch: Number of the next batch; it is part of the file names.
        planned: End of the batch that is being written; None between batches. A writer that starts with one writes the
            same batch again, without the files that exist already.
        flushed: Number of the last completed flush.
        error: Why the last attempt to write a file failed; empty if it succeeded.
        failed_flush: Number of the last failed flush.
        models: The writer's counts by model.
        saves: Number of saves.
    """

    position: SpoolPosition = field(default_factory=SpoolPosition)
    batch: int = 0
    planned: SpoolPosition | None = None
    flushed: int = 0
    error: str = ""
    failed_flush: int = 0
    models: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    saves: int = 0

    def save(self, folder: Path) -> None:
        """Writes the state into one of two slots in turn, so that one is always complete; works on a full disk.

        Raises OSError if the folder does not exist or the state is too large.
        """
        self.saves += 1
        content = zlib.compress(json.dumps(self._to_json()).encode(), 1)
        if _STATE_HEAD.size + len(content) > _SLOT_BYTES:
            raise OSError(f"{folder / STATE_FILE}: a state of {len(content)} bytes; expected {_SLOT_BYTES} at most")
        head = _STATE_HEAD.pack(self.saves, len(content), zlib.crc32(content, self.saves & 0xFFFFFFFF))
        descriptor = open_own(folder / STATE_FILE, os.O_WRONLY)
        try:
            os.pwrite(descriptor, head + content, (self.saves % 2) * _SLOT_BYTES)
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)

    def _to_json(self) -> dict[str, object]:
        planned = None if self.planned is None else self.planned._asdict()
        return vars(self) | {"position": self.position._asdict(), "planned": planned}

    @classmethod
    def create(cls, folder: Path) -> None:
        """Reserves disk space for the state; raises OSError if the disk is full."""
        descriptor = open_own(folder / STATE_FILE, os.O_WRONLY | os.O_CREAT)
        try:
            os.posix_fallocate(descriptor, 0, 2 * _SLOT_BYTES)
        finally:
            os.close(descriptor)

    @classmethod
    def load(cls, folder: Path) -> WriterState:
        """Returns the last saved state, or a new one."""
        try:
            slots = read_own(folder / STATE_FILE)
        except FileNotFoundError:
            return cls()
        results = [_saved(slots[start : start + _SLOT_BYTES]) for start in (0, _SLOT_BYTES)]
        content = max(results)[1]
        if not content:
            return cls()
        value: dict[str, Any] = json.loads(zlib.decompress(content))
        value["position"] = SpoolPosition(**value["position"])
        value["planned"] = SpoolPosition(**value["planned"]) if value["planned"] else None
        models = {model: Counter(counts) for model, counts in value["models"].items()}
        value["models"] = defaultdict(Counter, models)
        return cls(**value)


def read_fields(kind: type[_Kind], values: Mapping[str, object]) -> _Kind:
    """Makes a dataclass of JSON: the spool of a killed server may be of an earlier version, and have further fields."""
    known = {each.name for each in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in values.items() if name in known})


def _saved(slot: bytes) -> tuple[int, bytes]:
    """Returns the number of the save and its content; 0 and empty if the slot is incomplete."""
    if len(slot) < _STATE_HEAD.size:
        return 0, b""
    saves, length, crc = _STATE_HEAD.unpack_from(slot)
    content = slot[_STATE_HEAD.size : _STATE_HEAD.size + length]
    if not saves or len(content) != length or zlib.crc32(content, saves & 0xFFFFFFFF) != crc:
        return 0, b""
    return saves, content

"""The writer's position in a spool, stored beside the spool so that it survives the writer."""

from __future__ import annotations

import json
import os
import struct
import zlib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from airflow_hops.serving.capture.spool import Position

_FILE = "state"
_SLOT_BYTES = 64 * 2**10
# Number of the save, size of the state in bytes, CRC-32 of both.
_HEAD = struct.Struct("<QII")


@dataclass
class WrittenCounts:
    """Counts of one model's rows by outcome."""

    written_rows: int = 0
    failed_rows: int = 0
    files: int = 0
    written_labels: int = 0
    removed_files: int = 0
    removed_bytes: int = 0


@dataclass
class WriterState:
    """The writer's progress in a spool.

    Attributes:
        position: Position before which everything is in files.
        batch: Number of the next batch; it is part of the file names.
        planned: End of the batch that is being written; None between batches. A writer that starts with one writes the
            same batch again, without the files that exist already.
        flushed: Number of the last completed flush.
        error: Why the last attempt to write a file failed; empty if it succeeded.
        failed_flush: Number of the last failed flush.
        models: Counts by model.
        saves: Number of saves.
    """

    position: Position = field(default_factory=Position)
    batch: int = 0
    planned: Position | None = None
    flushed: int = 0
    error: str = ""
    failed_flush: int = 0
    models: dict[str, WrittenCounts] = field(default_factory=dict)
    saves: int = 0

    def of(self, model: str) -> WrittenCounts:
        """Returns the counts of a model."""
        return self.models.setdefault(model, WrittenCounts())

    def save(self, folder: Path) -> None:
        """Writes the state into one of two slots in turn, so that one is always complete; works on a full disk.

        Raises OSError if the folder does not exist or the state is too large.
        """
        self.saves += 1
        content = zlib.compress(json.dumps(self._to_json()).encode(), 1)
        if _HEAD.size + len(content) > _SLOT_BYTES:
            raise OSError(f"{folder / _FILE}: a state of {len(content)} bytes; expected {_SLOT_BYTES} at most")
        head = _HEAD.pack(self.saves, len(content), zlib.crc32(content, self.saves & 0xFFFFFFFF))
        descriptor = os.open(folder / _FILE, os.O_WRONLY)
        try:
            os.pwrite(descriptor, head + content, (self.saves % 2) * _SLOT_BYTES)
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)

    def _to_json(self) -> dict[str, Any]:
        planned = None if self.planned is None else self.planned._asdict()
        return asdict(self) | {"position": self.position._asdict(), "planned": planned}

    @classmethod
    def create(cls, folder: Path) -> None:
        """Reserves disk space for the state; raises OSError if the disk is full."""
        descriptor = os.open(folder / _FILE, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.posix_fallocate(descriptor, 0, 2 * _SLOT_BYTES)
        finally:
            os.close(descriptor)

    @classmethod
    def load(cls, folder: Path) -> WriterState:
        """Returns the last saved state, or a new one."""
        try:
            slots = (folder / _FILE).read_bytes()
        except FileNotFoundError:
            return cls()
        results = [_content(slots[at : at + _SLOT_BYTES]) for at in (0, _SLOT_BYTES)]
        content = max(results)[1]
        if not content:
            return cls()
        value: dict[str, Any] = json.loads(zlib.decompress(content))
        value["position"] = Position(**value["position"])
        value["planned"] = Position(**value["planned"]) if value["planned"] else None
        value["models"] = {model: WrittenCounts(**counts) for model, counts in value["models"].items()}
        return cls(**value)


def _content(slot: bytes) -> tuple[int, bytes]:
    """Returns the number of the save and its content; 0 and empty if the slot is incomplete."""
    if len(slot) < _HEAD.size:
        return 0, b""
    saves, length, crc = _HEAD.unpack_from(slot)
    content = slot[_HEAD.size : _HEAD.size + length]
    if not saves or len(content) != length or zlib.crc32(content, saves & 0xFFFFFFFF) != crc:
        return 0, b""
    return saves, content

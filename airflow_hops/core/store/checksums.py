"""SHA-256 of local files; checksums are cached until the file changes.

A file is identified by device, inode, size and the times of its last changes: of its content, which anybody may set,
and of its inode, which only the kernel sets. The cache is a small database in this user's private folder, so that the
next step's process does not read gigabytes again.
"""

# When a checksum may be reused: the kernel sets an inode's change time by a clock that ticks every few milliseconds.
# Two writes within a tick leave the same times, so a checksum of a file that was changed less than a tick ago is not
# stored; on file systems with whole seconds the tick is two seconds. The state is compared before and after reading,
# since the file may change in between. The database is written once, at the end; if it is locked or damaged, files are
# read again.

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from airflow_hops.core.errors import BadInput
from airflow_hops.core.store.private_folders import cache_folder

CHUNK_BYTES = 1 << 20
"""Size of the pieces in which files are read."""

_MOST_FILES = 200_000
_TABLE = "CREATE TABLE IF NOT EXISTS checksums (file TEXT PRIMARY KEY, state TEXT, sha256 TEXT)"
# The kernel's clock for files ticks every few milliseconds; some file systems store whole seconds.
_TICK_NS, _SECOND_NS = 50_000_000, 1_000_000_000

log = logging.getLogger(__name__)


def sha256_of(stream: BinaryIO) -> str:
    """Returns the SHA-256 (hex) of the rest of a stream."""
    digest = hashlib.sha256()
    while chunk := stream.read(CHUNK_BYTES):
        digest.update(chunk)
    return digest.hexdigest()


class Checksums:
    """Checksums of local files, within :func:`remembered_checksums`.

    Args:
        database: The cache; None without one.
    """

    def __init__(self, database: sqlite3.Connection | None) -> None:
        self._database = database
        self._new: dict[str, tuple[str, str]] = {}

    def of(self, path: Path, *, reread: bool = False) -> str:
        """Returns the SHA-256 (hex) of a file; with ``reread`` the cache is ignored.

        Raises:
            FileNotFoundError: the file does not exist.
        """
        with path.open("rb") as stream:
            status = os.fstat(stream.fileno())
            file, state = f"{status.st_dev}:{status.st_ino}", _state(status)
            if not reread and (known := self._find(file, state)) is not None:
                return known
            result = sha256_of(stream)
            status = os.fstat(stream.fileno())
            changed_ns = max(status.st_mtime_ns, status.st_ctime_ns)
            tick_ns = _TICK_NS if changed_ns % _SECOND_NS else 2 * _SECOND_NS
            # A change within a tick might not change the times.
            if _state(status) == state and time.time_ns() - changed_ns >= tick_ns:
                self._new[file] = (state, result)
        return result

    def _find(self, file: str, state: str) -> str | None:
        if self._database is not None:
            with contextlib.suppress(sqlite3.Error):
                where = "SELECT sha256 FROM checksums WHERE file = ? AND state = ?"
                row = self._database.execute(where, (file, state)).fetchone()
                return None if row is None else str(row[0])
        return None

    def keep(self) -> None:
        """Writes new checksums to the cache."""
        if self._database is None or not self._new:
            return
        rows = [(file, *result) for file, result in self._new.items()]
        with contextlib.suppress(sqlite3.Error), self._database as database:
            database.executemany("INSERT OR REPLACE INTO checksums VALUES (?, ?, ?)", rows)
            database.execute(
                "DELETE FROM checksums WHERE rowid <= (SELECT max(rowid) FROM checksums) - ?", [_MOST_FILES]
            )


@contextlib.contextmanager
def remembered_checksums() -> Iterator[Checksums]:
    """Opens the cache; if it cannot be trusted or read, files are read each time."""
    try:
        path = cache_folder() / "checksums.db"
        try:
            database = _connect(path)
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):  # locked, or no room
                raise
            path.unlink(missing_ok=True)  # damaged by a crash; its content can be computed again
            database = _connect(path)
    except (BadInput, OSError, sqlite3.Error) as error:
        log.warning("checksums of files cannot be cached, so each file is read again: %s", error)
        yield Checksums(None)
        return
    with contextlib.closing(database):
        checksums = Checksums(database)
        try:
            yield checksums
        finally:
            checksums.keep()


def _connect(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=2)
    try:
        # Losing recent entries only costs reading the files again; waiting for the disk would cost more.
        database.execute("PRAGMA synchronous = OFF")
        database.execute(_TABLE)
    except BaseException:
        database.close()
        raise
    return database


def _state(status: os.stat_result) -> str:
    return f"{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}"

"""Optuna's journal of a study in the artifact store: the lines of its ``JournalFileBackend``, which anyone opens.

They are in ``journal.log`` in the study's folder. In a local store, others may append notes to it, as Optuna's
dashboard does. An object of a remote store cannot be appended to: it is written again until it has
:data:`SEGMENT_BYTES`, and ``journal.log.0001`` and so on go on from it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from optuna.storages.journal import BaseJournalBackend, JournalFileSymlinkLock

from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.store.artifact_store import ArtifactStore
from airflow_hops.core.store.files import LocalFiles
from airflow_hops.extensions.experiments.core.studies import JOURNAL_NAME, journal_files

SEGMENT_BYTES = 1 << 20
_LOCK_S = 5
_NOTES = (2, 3)  # op codes that set an attribute of a study, in Optuna 4 and 5

# One search at a time writes: it holds the study's lease. New lines therefore wait in memory, where JournalStorage
# reads each of them once, in order. flush() writes all of them or, if it raises, none. A kill may leave a part of them:
# the trials of the others run, for Optuna, and are run again. Optuna numbers trials by their lines, so a trial that
# somebody else adds meanwhile would get a number that this search has given to its own.


class StoreJournal(BaseJournalBackend):
    """Journal of a study; :meth:`flush` writes what was appended.

    Args:
        store: The artifact store.
        folder: Address of the study's folder.

    Raises:
        BadInput: a line is not JSON.
    """

    def __init__(self, store: ArtifactStore, folder: str) -> None:
        self._store = store
        self._segments = [f"{folder}/{name}" for name in journal_files(store, folder)]
        self._unread: list[dict[str, Any]] = []
        self._new: list[str] = []
        self._last, self._size = b"", 0
        for address in self._segments:
            self._last = store.files.read(address)
            self._read(address)
        self._segments = self._segments or [f"{folder}/{JOURNAL_NAME}"]

    def _read(self, address: str) -> None:
        self._size = end = self._last.rfind(b"\n") + 1
        if end < len(self._last) and isinstance(self._store.files, LocalFiles):  # killed while it wrote
            os.truncate(self._store.files.path(address), end)
        for number, line in enumerate(self._last[:end].splitlines(), 1):
            try:
                self._unread.append(json.loads(line))
            except ValueError as error:
                raise BadInput(
                    f"{address}: line {number} is not a line of Optuna's journal ({error}); restore the file, or "
                    "remove the study"
                ) from error

    def read_logs(self, log_number_from: int) -> list[dict[str, Any]]:
        """Returns the lines that were not read yet."""
        logs, self._unread = self._unread, []
        return logs

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Adds lines to those that :meth:`flush` writes."""
        self._new += [json.dumps(log, separators=(",", ":")) + "\n" for log in logs]
        self._unread += logs

    def flush(self) -> None:
        """Writes the new lines; if it fails, the next call does.

        Raises:
            OSError, HopsError: the store cannot be written.
        """
        files, address, new = self._store.files, self._segments[-1], "".join(self._new).encode()
        if not new:
            return
        if isinstance(files, LocalFiles) and files.exists(address):
            self._size = _append(files.path(address), self._size, new)
        else:
            files.write(address, self._last + new)
            self._last, self._size = self._last + new, len(new)
        if not self._store.is_local and len(self._last) > SEGMENT_BYTES:
            self._segments.append(f"{self._segments[0]}.{len(self._segments):04}")
            self._last = b""
        self._new = []


def _append(path: Path, expected: int, content: bytes) -> int:
    """Appends to a file, or leaves it as it is; returns its size. Others that append hold the same lock of Optuna's.

    Raises:
        HopsError: since the file had its expected size, others have appended more than notes.
    """
    lock = JournalFileSymlinkLock(str(path), grace_period=_LOCK_S)
    lock.acquire()
    try:
        with path.open("a+b") as file:
            size = file.tell()
            file.seek(expected)
            if any(json.loads(line)["op_code"] not in _NOTES for line in file):
                raise HopsError(
                    f"{path}: another program has changed trials of the study while the search runs; a retry goes on "
                    "with them; change trials only while no search runs"
                )
            try:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            except BaseException:  # also the exception of a step that is asked to end
                file.truncate(size)
                raise
            return size + len(content)
    finally:
        lock.release()

"""Files between hosts: sent in chunks as frames, and moved to their final paths when complete."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.extensions.ranks.ml.frames import Frames

# A file is sent as chunks into a hidden place at the receiver, and moved to its path by `place`, which also names all
# files that the folder must have; `discard` removes an incomplete one. A new folder appears by one rename, other files
# one by one, each complete. A kill on either side leaves only hidden files.

_CHUNK_BYTES = 1 << 20
_NO_CODE = frozenset({"__pycache__", ".git", ".venv", "node_modules"})

FILE = "file"
PLACE = "place"
DISCARD = "discard"
"""Types of messages: a chunk of a file; the received files are complete, or incomplete and are removed."""


class FileSender:
    """Sends the files of the folder ``root``."""

    def __init__(self, frames: Frames, root: Path) -> None:
        self._frames, self._root = frames, root
        self._sent: dict[str, tuple[int, int]] = {}

    def send(self, path: str = "") -> None:
        """Sends a file or a folder, except for files that have been sent and have not changed since.

        Nothing is sent of a path that disappears while it is read.

        Args:
            path: Path relative to the folder; by default all of it: the other end then removes files missing here.

        Raises:
            HopsError: the path, or a link below it, leads out of the folder.
            OSError: the connection is closed, or a file cannot be read.
        """
        top = self._root / checked_path(path) if path else self._root
        states: dict[str, tuple[int, int]] = {}
        try:
            inside = self._root.resolve()
            for file in [top] if top.is_file() else _files(top):
                if not file.resolve().is_relative_to(inside):
                    raise HopsError(f"{file} leads out of the output folder; expected files, or links within it")
                name = file.relative_to(self._root).as_posix()
                status = file.stat()
                states[name] = (status.st_size, status.st_mtime_ns)
                if self._sent.get(name) != states[name]:
                    send_file(self._frames, file, name)
        except FileNotFoundError:
            self._frames.send({"type": DISCARD})
            return
        self._sent.update(states)
        self._frames.send({"type": PLACE, "path": path, "files": list(states)})


class FileReceiver:
    """Receives files into ``root``, which is created; they are hidden until they are complete."""

    def __init__(self, root: Path) -> None:
        self._root = root
        root.mkdir(parents=True, exist_ok=True)
        self._staging = Path(tempfile.mkdtemp(prefix=".arriving-", dir=root))
        self._file: BinaryIO | None = None
        self._placed: set[str] = set()

    def take(self, message: Mapping[str, Any], body: bytes) -> None:
        """Handles a message of one of this module's types.

        Raises:
            HopsError: a path leads out of the folder, or a file cannot be written.
        """
        try:
            if message["type"] == FILE:
                if self._file is None:
                    path = self._staging / checked_path(message["path"])
                    path.parent.mkdir(parents=True, exist_ok=True)
                    self._file = path.open("wb")
                self._file.write(body)
                if message["last"]:
                    self._file.close()
                    self._file = None
            elif message["type"] == PLACE:
                self._place(message["path"], message["files"])
            else:
                self.close()
                self._staging.mkdir()
        except OSError as error:
            raise HopsError(f"{self._root}: files from another host cannot be written: {error}") from error

    def close(self) -> None:
        """Removes incomplete files."""
        if self._file is not None:
            with contextlib.suppress(OSError):  # a full disk
                self._file.close()
            self._file = None
        shutil.rmtree(self._staging, ignore_errors=True)

    def _place(self, path: str, names: list[str]) -> None:
        source, target = self._staging / path, self._root / path
        if path and source.is_dir() and not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            source.rename(target)  # places the complete folder at once
        for file in list(_files(self._staging)):
            place = self._root / file.relative_to(self._staging)
            if not place.parent.resolve().is_relative_to(self._root.resolve()):
                raise HopsError(f"{place} leads out of {self._root}")
            place.parent.mkdir(parents=True, exist_ok=True)
            file.replace(place)
        if not path:
            for gone in self._placed - set(names):
                (self._root / gone).unlink(missing_ok=True)
                with contextlib.suppress(OSError):  # not empty
                    (self._root / gone).parent.rmdir()
        self._placed.update(names)


def send_file(frames: Frames, file: Path, name: str) -> None:
    """Sends a file, with its path at the other end as ``name``.

    Raises:
        OSError: the connection is closed, or the file cannot be read.
    """
    with file.open("rb") as source:
        chunk = source.read(_CHUNK_BYTES)
        while True:
            following = source.read(_CHUNK_BYTES)
            frames.send({"type": FILE, "path": name, "last": not following}, chunk)
            if not following:
                return
            chunk = following


def send_folder(frames: Frames, folder: Path, name: str, *, code: bool = False) -> None:
    """Sends a single file, or the files in a folder, following links; ``name`` is its path at the other end.

    With ``code``, it skips compiled files, environments and version control.

    Raises:
        BadInput: the folder does not exist.
        OSError: the connection is closed, or a file cannot be read.
    """
    if folder.is_file():
        send_file(frames, folder, name)
        return
    if not folder.is_dir():
        raise BadInput(f"{folder}: there is no such folder; expected one for ranks on other hosts to read")
    for file in _files(folder, _NO_CODE if code else frozenset()):
        send_file(frames, file, f"{name}/{file.relative_to(folder).as_posix()}")


def checked_path(path: str) -> str:
    """Returns a relative path after checking that it stays below its folder.

    Raises:
        HopsError: it does not.
    """
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\0" in path:
        raise HopsError(f"path {path!r} from another host: expected one below the output folder")
    return path


def _files(folder: Path, without: frozenset[str] = frozenset()) -> Iterator[Path]:
    for place, folders, names in os.walk(folder, followlinks=True):
        here = Path(place).resolve()
        # A link to a parent folder would loop forever.
        folders[:] = [f for f in sorted(set(folders) - without) if not here.is_relative_to((here / f).resolve())]
        # Skips what cannot be read, such as sockets, pipes, and dangling links (an editor's lock).
        yield from (file for file in (Path(place) / name for name in sorted(names)) if file.is_file())

"""Whether an artifact's files are what its manifest says."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from airflow_hops.artifacts import BadInput, FileEntry, HopsError, Manifest

CHUNK_BYTES = 1 << 20
"""A file of any size is read by pieces of this size."""


def describe(folder: Path) -> Iterable[FileEntry]:
    """What a manifest says of the files in a folder."""
    for path in sorted(folder.rglob("*")):
        # Hadoop leaves checksum files and markers beside its output; they are no part of the data.
        if path.is_file() and not path.name.startswith("_SUCCESS") and not path.name.endswith(".crc"):
            with path.open("rb") as stream:
                yield FileEntry(path.relative_to(folder).as_posix(), path.stat().st_size, _sha256(stream))


def verify(manifest: Manifest, uri: str, open_file: Callable[[str], BinaryIO]) -> None:
    """Reads every file of an artifact, and compares its checksum with the manifest's.

    Args:
        manifest: What is said of them.
        uri: Where the artifact lies, for messages.
        open_file: Opens a file by the path that the manifest names.

    Raises:
        HopsError: a file is missing or differs.
    """
    check_paths(manifest, uri)
    for entry in manifest.files:
        try:
            with open_file(entry.path) as stream:
                found = _sha256(stream)
        except FileNotFoundError:
            raise HopsError(f"{uri}/{entry.path}: the manifest names it, but it is gone") from None
        if found != entry.sha256:
            raise HopsError(
                f"{uri}/{entry.path}: SHA-256 is {found[:12]}…, the manifest says {entry.sha256[:12]}…; "
                "the file was changed or damaged after it was written"
            )


def check_paths(manifest: Manifest, uri: str) -> None:
    """Refuses a manifest that names files outside its artifact.

    Raises:
        BadInput: it does.
    """
    for entry in manifest.files:
        if entry.path.startswith("/") or ".." in PurePosixPath(entry.path).parts:
            raise BadInput(f"{uri}: the manifest names the file {entry.path!r}, which is outside the artifact")


def _sha256(stream: BinaryIO) -> str:
    digest = hashlib.sha256()
    while chunk := stream.read(CHUNK_BYTES):
        digest.update(chunk)
    return digest.hexdigest()

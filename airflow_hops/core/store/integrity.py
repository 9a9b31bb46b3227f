"""Checks of an artifact's files against its manifest."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from airflow_hops.core.artifacts.artifact import MANIFEST_NAME, FileEntry, Manifest, Producer
from airflow_hops.core.errors import BadInput, DamagedArtifact
from airflow_hops.core.store.checksums import remembered_checksums

# Markers and checksums of Hadoop, NFS's files of open files, desktops' files in folders, backups and locks of editors
# (people edit schemas), and unfinished files of core.processes.files. No reader treats these names as data.
_LEFTOVER = re.compile(
    r"_SUCCESS|.*_\$folder\$|\..*\.crc|\.nfs[0-9a-f]+|\.DS_Store|Thumbs\.db|desktop\.ini|.+~|\.#.+\.(?:json|md|pbtxt|txt)"
    r"|#.+#|\..+\.sw[a-z]|\..+\.[0-9a-f]{8,12}",
    re.DOTALL,
)
_NO_FILE = (errno.ENOTDIR, errno.EISDIR, errno.ELOOP)


def inner_manifests(uri: str, manifest: Manifest) -> set[str]:
    """Returns the addresses of manifests that are data of an artifact."""
    return {f"{uri}/{entry.path}" for entry in manifest.files if entry.path.endswith(f"/{MANIFEST_NAME}")}


@dataclass(frozen=True)
class Damage:
    """A file that differs from its artifact's manifest.

    Attributes:
        path: Path of the file in the artifact.
        expected: SHA-256 or size in the manifest; None if it does not list the file.
        found: Actual SHA-256 or size; None if the file is missing.
    """

    uri: str
    path: str
    expected: str | None
    found: str | None

    def __str__(self) -> str:
        if self.expected is None:
            return (
                f"{self.uri}/{self.path}: it is not in the manifest, but was added after the artifact was written; "
                "remove it"
            )
        if self.found is None:
            return f"{self.uri}/{self.path}: it is in the manifest, but was deleted"
        return (
            f"{self.uri}/{self.path}: found {self.found}, the manifest says {self.expected}; the file was changed or "
            "damaged after it was written"
        )


def damaged(damage: Damage, producer: Producer, *, retryable: bool) -> DamagedArtifact:
    """Returns the error for a damaged file; ``producer`` is the task instance that can make the artifact again."""
    return DamagedArtifact(
        damage.uri,
        f"{damage}. To make the artifact again, clear task {producer.task_id!r} of run {producer.run_id!r} of "
        f"DAG {producer.dag_id!r}, with its downstream tasks; 'airflow hops store verify' finds other damage",
        retryable=retryable,
    )


def describe(folder: Path) -> Iterable[FileEntry]:
    """Yields entries of the files in a folder for a manifest.

    Raises:
        BadInput: the folder contains a link to a folder, whose files a store cannot contain.
    """
    with remembered_checksums() as checksums:
        for path in sorted(folder.rglob("*")):
            if path.is_symlink() and path.is_dir():
                raise BadInput(f"{path} is a link to the folder {path.readlink()}; write a copy of that folder instead")
            if path.is_file() and not _LEFTOVER.fullmatch(path.name):
                yield FileEntry(path.relative_to(folder).as_posix(), path.stat().st_size, checksums.of(path))


def damages(manifest: Manifest, uri: str, checksum: Callable[[str], str]) -> Iterator[Damage]:
    """Yields the files of an artifact that differ from its manifest.

    ``checksum`` returns the SHA-256 of a file by its path in the manifest, or raises FileNotFoundError.
    """
    check_paths(manifest, uri)
    for entry in manifest.files:
        try:
            result = checksum(entry.path)
        except OSError as error:
            if not isinstance(error, FileNotFoundError) and error.errno not in _NO_FILE:
                raise
            yield Damage(uri, entry.path, f"SHA-256 {entry.sha256}", None)
            continue
        if result != entry.sha256:
            yield Damage(uri, entry.path, f"SHA-256 {entry.sha256}", f"SHA-256 {result}")


def damages_in(folder: Path, manifest: Manifest, uri: str, *, reread: bool = False) -> Iterator[Damage]:
    """Like :func:`damages`, for an artifact in a local folder; checksums of unchanged files come from the cache."""
    with remembered_checksums() as checksums:
        yield from damages(manifest, uri, lambda path: checksums.of(folder / path, reread=reread))


def additions(manifest: Manifest, uri: str, paths: Iterable[str]) -> Iterator[Damage]:
    """Yields the files that the manifest does not list, which steps must not read; ``paths`` are all in the folder."""
    check_paths(manifest, uri)
    listed = {MANIFEST_NAME, *(entry.path for entry in manifest.files)}
    for path in sorted(paths):
        if path not in listed and not _LEFTOVER.fullmatch(path.rpartition("/")[2]):
            yield Damage(uri, path, None, "a file")


def paths_in(folder: Path, manifest: Manifest) -> Iterator[str]:
    """Yields the paths of all files and links in an artifact's local folder, relative to it.

    A link to a folder counts as a file, unless the manifest lists files in it.
    """
    parents = {parent for entry in manifest.files for parent in PurePosixPath(entry.path).parents}
    folders = [PurePosixPath()]
    while folders:
        inside = folders.pop()
        with os.scandir(folder / inside) as entries:
            for entry in entries:
                path = inside / entry.name
                if entry.is_dir(follow_symlinks=path in parents):
                    folders.append(path)
                else:
                    yield path.as_posix()


def check_paths(manifest: Manifest, uri: str) -> None:
    """Checks that a manifest names only files inside its artifact. Raises BadInput if a file is outside."""
    for entry in manifest.files:
        if entry.path.startswith("/") or ".." in PurePosixPath(entry.path).parts:
            raise BadInput(f"{uri}: the manifest names the file {entry.path!r}, which is outside the artifact")

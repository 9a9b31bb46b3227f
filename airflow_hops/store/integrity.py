"""Whether an artifact's files are what its manifest says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from airflow_hops.contract.artifacts import BadInput, FileEntry, HopsError, Manifest, Producer
from airflow_hops.store.checksums import remembered_checksums


@dataclass(frozen=True)
class Damage:
    """A file that is not what its artifact's manifest says.

    Attributes:
        uri: The artifact's address.
        path: The file's path in it.
        expected: What the manifest says: its SHA-256, or its size.
        found: The same of what is there; None if nothing is.
    """

    uri: str
    path: str
    expected: str
    found: str | None

    def __str__(self) -> str:
        if self.found is None:
            return f"{self.uri}/{self.path}: it is in the manifest, but was deleted"
        return (
            f"{self.uri}/{self.path}: found {self.found}, the manifest says {self.expected}; the file was changed or "
            "damaged after it was written"
        )


class DamagedArtifact(HopsError):
    """A file of an artifact is gone, or is not what its manifest says.

    Args:
        damage: Which file.
        producer: Whose task makes it again.
        retryable: Whether another try may find it whole.
    """

    def __init__(self, damage: Damage, producer: Producer, *, retryable: bool) -> None:
        super().__init__(
            f"{damage}. To make the artifact again, clear task {producer.task_id!r} of run {producer.run_id!r} of "
            f"DAG {producer.dag_id!r}, with its downstream tasks; 'airflow hops store verify' finds other damage"
        )
        self.retryable = retryable


def describe(folder: Path) -> Iterable[FileEntry]:
    """What a manifest says of the files in a folder."""
    with remembered_checksums() as checksums:
        for path in sorted(folder.rglob("*")):
            # Hadoop leaves checksum files and markers beside its output; they are no part of the data.
            if path.is_file() and not path.name.startswith("_SUCCESS") and not path.name.endswith(".crc"):
                yield FileEntry(path.relative_to(folder).as_posix(), path.stat().st_size, checksums.of(path))


def damages(manifest: Manifest, uri: str, checksum: Callable[[str], str]) -> Iterator[Damage]:
    """The files of an artifact that are not what its manifest says.

    Args:
        manifest: What is said of them.
        uri: Where the artifact lies.
        checksum: SHA-256 of a file by the path that the manifest names; FileNotFoundError if there is none.
    """
    check_paths(manifest, uri)
    for entry in manifest.files:
        try:
            found = checksum(entry.path)
        except (FileNotFoundError, NotADirectoryError):
            yield Damage(uri, entry.path, f"SHA-256 {entry.sha256}", None)
            continue
        if found != entry.sha256:
            yield Damage(uri, entry.path, f"SHA-256 {entry.sha256}", f"SHA-256 {found}")


def damages_in(folder: Path, manifest: Manifest, uri: str, *, reread: bool = False) -> Iterator[Damage]:
    """As :func:`damages`, of an artifact in a local folder; a file that is unchanged since it was read counts as read.

    Args:
        folder: Where its files are.
        manifest: What is said of them.
        uri: The artifact's address.
        reread: Whether to read all of them again.
    """
    with remembered_checksums() as checksums:
        yield from damages(manifest, uri, lambda path: checksums.of(folder / path, reread=reread))


def check_paths(manifest: Manifest, uri: str) -> None:
    """Refuses a manifest that names files outside its artifact.

    Raises:
        BadInput: it does.
    """
    for entry in manifest.files:
        if entry.path.startswith("/") or ".." in PurePosixPath(entry.path).parts:
            raise BadInput(f"{uri}: the manifest names the file {entry.path!r}, which is outside the artifact")

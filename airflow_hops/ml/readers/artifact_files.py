"""Files of artifacts that a pool reads and writes: in a folder that it sees, or in a store that it reaches itself."""

from __future__ import annotations

import contextlib
import hashlib
import io
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from airflow_hops.core.artifacts.artifact import Artifact, FileEntry
from airflow_hops.core.errors import ArtifactNotFound
from airflow_hops.core.parquet_writer import write_parquet
from airflow_hops.core.processes.files import staged
from airflow_hops.core.processes.temporary_folders import temporary_folder
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.store.files import StoreFiles
from airflow_hops.core.store.integrity import describe
from airflow_hops.ml.readers import scan


@dataclass(frozen=True)
class StoreFile:
    """File of an artifact in a remote store.

    Attributes:
        store: The store.
        uri: Address of the artifact's folder.
        entry: The file's path in it, size and checksum.
    """

    store: ArtifactStore
    uri: str
    entry: FileEntry

    def __str__(self) -> str:
        return f"{self.uri}/{self.entry.path}"

    @property
    def name(self) -> str:
        """Returns the file's name."""
        return self.entry.path.rpartition("/")[2]

    def open(self) -> BinaryIO:
        """Opens the file in the store, without a comparison with the checksum."""
        return self.store.files.open(self.uri, self.entry.path)

    @contextlib.contextmanager
    def fetched(self) -> Iterator[Path]:
        """Yields a local copy, compared with the checksum.

        Raises:
            DamagedArtifact: the file is missing or differs.
        """
        with temporary_folder("part") as folder:
            path = folder / self.name
            self.store.fetch(self.uri, self.entry, path)
            yield path


File = Path | StoreFile


def example_files(folder: Path, split: str) -> list[Path]:
    """Returns the Parquet files of a split of examples; raises ``BadInput`` if there are none."""
    files = sorted((folder / split).glob("*.parquet"))
    if not files:
        splits = sorted({path.parent.name for path in folder.glob("*/*.parquet")})
        raise ArtifactNotFound(f"{folder}/{split}").with_text(
            f"{folder}: no Parquet files of split {split!r}; there are the splits {', '.join(splits)}"
        )
    return files


def fetched(file: File) -> contextlib.AbstractContextManager[Path]:
    """Returns a context manager that yields a local path with a file's content."""
    return contextlib.nullcontext(file) if isinstance(file, Path) else file.fetched()


def files_below(store: ArtifactStore, artifact: Artifact, names: Sequence[str]) -> dict[str, list[File]]:
    """Returns the Parquet files in some folders of an artifact in a remote store, by folder.

    Raises:
        BadInput: the artifact is missing, or a folder has no Parquet files.
    """
    result, manifest = store.find(artifact)
    files: dict[str, list[File]] = {name: [] for name in names}
    for entry in sorted(manifest.files, key=lambda entry: entry.path):
        folder, _, name = entry.path.partition("/")
        if folder in files and name.endswith(".parquet"):
            files[folder].append(StoreFile(store, result.uri, entry))
    if missing := [name for name in names if not files[name]]:
        folders = sorted({entry.path.partition("/")[0] for entry in manifest.files if entry.path.endswith(".parquet")})
        raise ArtifactNotFound(f"{artifact.uri}/{missing[0]}").with_text(
            f"{artifact.uri}: no Parquet files of {missing[0]!r}; the artifact has "
            f"{', '.join(folders) or 'no Parquet files'}"
        )
    return files


@dataclass(frozen=True)
class OutputFolder:
    """Folder that a pool writes files to.

    Attributes:
        path: A local folder, or the address of one in a remote store.
        store: The remote store; None for a local folder.
    """

    path: str
    store: ArtifactStore | None = None

    @contextlib.contextmanager
    def writing(self, uploaded: list[Mapping[str, object]]) -> Iterator[Path]:
        """Yields the local folder, or a temporary one whose files are uploaded at the end of the ``with`` block.

        Their entries are added to ``uploaded``. Another try of a part writes the same files again.
        """
        if self.store is None:
            yield Path(self.path)
            return
        assert isinstance(self.store.files, StoreFiles)
        with temporary_folder("part") as folder:
            yield folder
            for entry in describe(folder):
                self.store.files.upload(folder / entry.path, f"{self.path}/{entry.path}")
                uploaded.append(asdict(entry))

    def has_files(self, subfolder: str, uploaded: Iterable[FileEntry]) -> bool:
        """Returns whether a subfolder has files; ``uploaded`` are those that were written to a remote store."""
        if self.store is None:
            return any(Path(self.path, subfolder).glob("*.parquet"))
        return any(entry.path.startswith(f"{subfolder}/") for entry in uploaded)

    def write_empty(self, subfolder: str, schema: pa.Schema) -> list[FileEntry]:
        """Writes a file without rows; returns it if it was written to a remote store."""
        uploaded: list[Mapping[str, Any]] = []
        with self.writing(uploaded) as folder:
            (folder / subfolder).mkdir(exist_ok=True)
            write_parquet(schema.empty_table(), folder / subfolder / "part-00000.parquet")
        return [FileEntry(**entry) for entry in uploaded]

    def columns(self, subfolder: str, uploaded: Iterable[FileEntry]) -> dict[str, str]:
        """Returns the types of the columns of a subfolder's files, in Arrow's words, by name.

        ``uploaded`` are the files that were written to a remote store.
        """
        if self.store is None:
            file: File = min(Path(self.path, subfolder).glob("*.parquet"))
        else:
            entries = (entry for entry in uploaded if entry.path.startswith(f"{subfolder}/"))
            file = StoreFile(self.store, self.path, min(entries, key=lambda entry: entry.path))
        return {field.name: str(field.type) for field in scan.schema(file)}


def packed(folder: Path) -> bytes:
    """Returns a small folder of the driver as a ZIP file, for executors on other hosts."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(folder.rglob("*")):
            archive.write(path, path.relative_to(folder))
    return content.getvalue()


def unpacked(folder: Path | bytes) -> Path:
    """Returns a folder, or one with the files of :func:`packed`, which lasts on an executor as its application does."""
    if isinstance(folder, Path):
        return folder
    from pyspark import SparkFiles

    target = Path(SparkFiles.getRootDirectory()) / hashlib.sha256(folder).hexdigest()
    if not target.exists():
        try:
            with staged(target) as staging, zipfile.ZipFile(io.BytesIO(folder)) as archive:
                archive.extractall(staging)
        except OSError:
            if not target.exists():  # otherwise another worker was faster
                raise
    return target

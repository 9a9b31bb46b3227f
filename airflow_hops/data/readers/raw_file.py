"""A file of a source: its format, its compression, and its bytes."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa
from fsspec.implementations.local import LocalFileSystem

from airflow_hops.contract.artifacts import BadInput, HopsError
from airflow_hops.contract.sources import Source, SourceFile
from airflow_hops.data.readers import tfrecord
from airflow_hops.processes.arrow_hotfix import why_refused

BLOCK_BYTES = 4 << 20
_NAMES = {
    "csv": "csv", "tsv": "csv", "json": "jsonl", "jsonl": "jsonl", "ndjson": "jsonl", "parquet": "parquet",
    "arrow": "arrow", "arrows": "arrow", "feather": "arrow", "ipc": "arrow", "tfrecord": "tfrecord",
    "tfrecords": "tfrecord",
}  # fmt: skip
_COMPRESSED = frozenset({"gz", "zip", "bz2", "zst"})
_NEVER_EMPTY = frozenset({"parquet", "arrow"})
_MAGIC = {b"\x1f\x8b": "gzip", b"PK\x03\x04": "zip", b"BZh": "bz2", b"\x28\xb5\x2f\xfd": "zstd"}


class EmptyFile(BadInput):
    """A file without a single byte, of a format whose files may be so."""


@dataclass(frozen=True)
class RawFile:
    """A file of a source, opened by format.

    Attributes:
        fs: Its fsspec file system.
        file: The file.
        source: The source that it belongs to.
        format: ``csv``, ``jsonl``, ``parquet``, ``arrow`` or ``tfrecord``.
        compression: ``gzip``, ``zip``, ``bz2``, ``zstd``, or None.
    """

    fs: Any
    file: SourceFile
    source: Source
    format: str
    compression: str | None

    @property
    def name(self) -> str:
        """The file's name, for messages."""
        return self.file.name

    @property
    def is_local(self) -> bool:
        """Whether the file lies on a disk of this machine, uncompressed, so that it can be read by its path."""
        return self.compression is None and isinstance(self.fs, LocalFileSystem)

    @contextmanager
    def stream(self) -> Iterator[tuple[Any, Any]]:
        """Opens the file: the stream of its decompressed bytes, and the raw one, whose position tells the progress."""
        # Made anew, which costs nothing in the same process: connections do not survive a fork.
        fs = type(self.fs)(*self.fs.storage_args, **self.fs.storage_options)
        with explained(self.name), fs.open(self.file.path, "rb") as raw:
            if self.compression is None:
                yield raw, raw
            elif self.compression == "zip":
                with zipfile.ZipFile(raw) as archive, archive.open(_only_member(archive, self.name)) as member:
                    yield member, raw
            else:
                yield pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), self.compression), raw


def identify(fs: Any, file: SourceFile, source: Source) -> RawFile:
    """Tells a file's compression from its first bytes, and its format from the source, its name or its content.

    Raises:
        EmptyFile: the file is empty.
        BadInput: its format cannot be told.
    """
    with fs.open(file.path, "rb") as stream:
        head = stream.read(8)
    parts = [suffix.lstrip(".").lower() for suffix in PurePosixPath(file.path).suffixes]
    while parts and parts[-1] in _COMPRESSED:
        parts.pop()
    format_ = source.format or (_NAMES.get(parts[-1]) if parts else None)
    if not head:
        error = BadInput if format_ in _NEVER_EMPTY else EmptyFile
        raise error(f"{file.name}: the file is empty; expected {format_ or 'CSV, JSON lines or Parquet'}")
    compression = next((name for magic, name in _MAGIC.items() if head.startswith(magic)), None)
    raw = RawFile(fs, file, source, format_ or "", compression)
    return raw if format_ else RawFile(fs, file, source, _format_from_content(raw), compression)


@contextmanager
def explained(name: str) -> Iterator[None]:
    """Turns the errors of damaged files, and of those that would run code, into errors that name the file."""
    try:
        yield
    except HopsError:
        raise
    except (EOFError, zlib.error, zipfile.BadZipFile, UnicodeDecodeError, pa.ArrowInvalid) as error:
        raise BadInput(
            f"{name}: cannot be read: {error}; the file is damaged, truncated or of another format"
        ) from error
    except RuntimeError as error:
        why = why_refused(error)
        if why is None:
            raise
        raise BadInput(f"{name}: refused: {why}") from None
    except OSError as error:
        # Arrow raises OSError without a number for damaged contents; one with a number comes from the file system.
        if error.errno is not None:
            raise
        raise BadInput(
            f"{name}: cannot be read: {error}; the file is damaged, truncated or of another format"
        ) from error


def _only_member(archive: zipfile.ZipFile, name: str) -> zipfile.ZipInfo:
    members = [m for m in archive.infolist() if not m.is_dir() and not m.filename.startswith("__MACOSX/")]
    if len(members) != 1:
        raise BadInput(f"{name}: the archive holds {len(members)} files, expected one")
    return members[0]


def _format_from_content(file: RawFile) -> str:
    with file.stream() as (stream, _):
        head = bytes(stream.read(4096))
    if head.startswith(b"PAR1"):
        return "parquet"
    if head.startswith((b"ARROW1", b"\xff\xff\xff\xff")):
        return "arrow"
    if tfrecord.begins_with_record(head):
        return "tfrecord"
    if head.lstrip().startswith(b"{"):
        return "jsonl"
    if b"\0" not in head and b"\n" in head:
        return "csv"
    raise BadInput(
        f"{file.name}: neither CSV, JSON lines nor Parquet, nor Arrow IPC or TFRecord; name its format in the "
        "source's 'format'"
    )

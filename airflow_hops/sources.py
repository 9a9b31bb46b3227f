"""Sources of raw tables: what a user says about one, and which files it comes to.

Standard library only, and fsspec where files are listed: the Airflow side lists them for the cache key, the ML side to
read them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path, PurePosixPath
from typing import Any

from airflow_hops.artifacts import BadInput

FORMATS = ("csv", "jsonl", "parquet", "arrow", "tfrecord")
_GLOB_CHARACTERS = frozenset("*?[")
# What tells one state of an object from the next, by file system: S3, GCS, Azure, HTTP, then plain modification times.
_VERSION_FIELDS = ("ETag", "etag", "checksum", "md5Hash", "content_md5", "mtime", "LastModified", "updated", "modified")


@dataclass(frozen=True)
class Source:
    """Where the rows of one raw table come from.

    Attributes:
        uri: Absolute local path or fsspec URI (``s3://bucket/flights``): one file, a glob, or a folder, whose files
            are then taken with those of its subfolders, in the order of their names.
        format: ``csv``, ``jsonl`` (one JSON object a line) or ``parquet``; of statistics also ``arrow`` (IPC) or
            ``tfrecord``. None takes it from each file's name, or else from its content. Compression (gzip, zip, bzip2,
            Zstandard) is always told by the content.
        time_column: Column by which the window of time selects rows; None takes the table whole. A timestamp without
            a zone counts as UTC, an integer as seconds since the epoch.
        columns: Columns to keep; None keeps all.
        schema: Types of columns that are not to be inferred, by name: ``int64``, ``float64``, ``string``, ``bool``,
            ``date32``, ``timestamp`` (UTC), or any other alias of Arrow's.
        delimiter: Of CSV.
        null_values: Texts that stand for a missing value in CSV.
        encoding: Of CSV.
        storage_options: fsspec options. They are kept with the task's rendered fields: leave credentials to the
            environment.
    """

    uri: str
    format: str | None = None
    time_column: str | None = None
    columns: tuple[str, ...] | None = None
    schema: Mapping[str, str] = field(default_factory=dict)
    delimiter: str = ","
    null_values: tuple[str, ...] = ("", "NA")
    encoding: str = "utf8"
    storage_options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.uri:
            raise BadInput("a source's uri is empty; expected a path or a URI")
        if self.format is not None and self.format not in FORMATS:
            raise BadInput(f"source {self.uri!r}: format is {self.format!r}, expected one of {', '.join(FORMATS)}")

    @classmethod
    def from_value(cls, table: str, value: Source | str | Mapping[str, Any]) -> Source:
        """A source from what a DAG may hold: itself, its URI alone, or its fields.

        Args:
            table: The table's name, for the message.
            value: The source.

        Raises:
            BadInput: the value is none of these, or names a field that there is not.
        """
        if isinstance(value, Source):
            return value
        if isinstance(value, str):
            return cls(value)
        if not isinstance(value, Mapping):
            raise BadInput(f"sources[{table!r}] is a {type(value).__name__}, expected a Source, a URI or a mapping")
        known = {item.name for item in fields(cls)}
        if unknown := sorted(set(value) - known):
            raise BadInput(f"sources[{table!r}] has no field {unknown[0]!r}; it has {', '.join(sorted(known))}")
        if "uri" not in value:
            raise BadInput(f"sources[{table!r}] lacks 'uri': {dict(value)!r}")
        # JSON knows no tuples.
        lists = {name: tuple(value[name]) for name in ("columns", "null_values") if value.get(name) is not None}
        return cls(**{**value, **lists})

    def to_dict(self) -> dict[str, Any]:
        """The JSON value from which :meth:`from_value` makes an equal source."""
        value = asdict(self)
        return {name: list(item) if isinstance(item, tuple) else item for name, item in value.items()}


@dataclass(frozen=True)
class ImageSource:
    """Where labelled images come from.

    Attributes:
        uri: Absolute local path or fsspec URI: a folder with a folder of image files for each class; Parquet files
            (one, a glob, or a folder of them) with a column of encoded images; or an IDX file of images, as MNIST's.
        labels: Of IDX: the IDX file of the labels.
        image_column: Of Parquet: the encoded images, binary, or a struct with a field ``bytes``.
        label_column: Of Parquet: names or numbers of the classes.
        key_column: Of Parquet: identities of the images; None makes them of the file's name and the row's number.
        storage_options: fsspec options. They are kept with the task's rendered fields: leave credentials to the
            environment.
    """

    uri: str
    labels: str | None = None
    image_column: str = "image"
    label_column: str = "label"
    key_column: str | None = None
    storage_options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_value(cls, split: str, value: ImageSource | str | Mapping[str, Any]) -> ImageSource:
        """A source from what a DAG may hold: itself, its URI alone, or its fields.

        Raises:
            BadInput: the value is none of these, or names a field that there is not.
        """
        if isinstance(value, ImageSource):
            return value
        if isinstance(value, str):
            return cls(value)
        if not isinstance(value, Mapping) or "uri" not in value:
            raise BadInput(f"sources[{split!r}] is {value!r}, expected an ImageSource, a URI, or a mapping with 'uri'")
        known = {item.name for item in fields(cls)}
        if unknown := sorted(set(value) - known):
            raise BadInput(f"sources[{split!r}] has no field {unknown[0]!r}; it has {', '.join(sorted(known))}")
        return cls(**value)

    def to_dict(self) -> dict[str, Any]:
        """The JSON value from which :meth:`from_value` makes an equal source."""
        return asdict(self)

    def list_files(self) -> tuple[Any, tuple[SourceFile, ...]]:
        """The fsspec file system, and the files in the order of their names, those of the labels last.

        Raises:
            BadInput: as :func:`list_files`.
        """
        fs, found = list_files(Source(self.uri, storage_options=self.storage_options))
        if self.labels is not None:
            found += list_files(Source(self.labels, storage_options=self.storage_options))[1]
        return fs, found


@dataclass(frozen=True)
class SourceFile:
    """One file of a source.

    Attributes:
        path: Path within its file system.
        name: The path as people write it, with the protocol.
        size_bytes: Its size; 0 where the file system does not tell.
        version: What changes when the file does: an etag, a checksum, or the time of its modification.
    """

    path: str
    name: str
    size_bytes: int
    version: str


def list_files(source: Source) -> tuple[Any, tuple[SourceFile, ...]]:
    """The files of a source, in the order of their names.

    Returns:
        The fsspec file system, and the files.

    Raises:
        BadInput: the URI is relative, nothing matches it, or its protocol is not installed.
    """
    if "://" not in source.uri and not Path(source.uri).expanduser().is_absolute():
        raise BadInput(f"source {source.uri!r} is a relative path; expected an absolute one, or a URI")
    import fsspec

    uri = source.uri if "://" in source.uri else str(Path(source.uri).expanduser())
    try:
        fs, path = fsspec.url_to_fs(uri, **source.storage_options)
    except (ImportError, ValueError) as error:
        raise BadInput(f"source {source.uri!r}: {error}") from error
    # A listing that the file system remembers may be older than the files.
    fs.invalidate_cache()
    found = _match(fs, path)
    if not found:
        raise BadInput(f"source {source.uri!r}: no file matches")
    return fs, tuple(_describe(fs, name, info) for name, info in found.items())


def fingerprint_of_sources(sources: Mapping[str, Source | ImageSource]) -> str:
    """SHA-256 (hex) over the names, sizes and versions of all files, without reading them."""
    files = {
        table: source.list_files()[1] if isinstance(source, ImageSource) else list_files(source)[1]
        for table, source in sources.items()
    }
    state = {table: [[file.name, file.size_bytes, file.version] for file in found] for table, found in files.items()}
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def _match(fs: Any, path: str) -> dict[str, Mapping[str, Any]]:
    """What is known of each file, by path, in the order of the paths."""
    # A name that holds a glob's characters and exists is meant as it stands.
    if fs.isfile(path):
        return {path: fs.info(path)}
    if fs.isdir(path):
        listed = fs.find(path, detail=True)
        return {found: listed[found] for found in sorted(listed) if not _is_hidden(found, path)}
    if _GLOB_CHARACTERS & set(path):
        listed = fs.glob(path, detail=True)
        return {found: listed[found] for found in sorted(listed) if listed[found].get("type") == "file"}
    return {}


def _is_hidden(path: str, folder: str) -> bool:
    """Whether a path below a folder is a marker or a checksum, as Hadoop leaves them, and no data."""
    parts = PurePosixPath(path.removeprefix(folder)).parts
    return any(part.startswith((".", "_")) for part in parts) or path.endswith(".crc")


def _describe(fs: Any, path: str, info: Mapping[str, Any]) -> SourceFile:
    version = next((str(info[name]) for name in _VERSION_FIELDS if info.get(name)), None) or fs.ukey(path)
    is_local = "file" in ([fs.protocol] if isinstance(fs.protocol, str) else fs.protocol)
    return SourceFile(
        path=path,
        name=path if is_local else fs.unstrip_protocol(path),
        size_bytes=int(info.get("size") or 0),
        version=str(version),
    )
